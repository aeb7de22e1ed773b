package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// testParent is the environment variable that makes the test binary act as the command.
const testParent = "RATELIMIT_FLEET_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(jobEnv) != "" || os.Getenv(testParent) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// needServer skips a test if no server is installed, or fails it if RATELIMIT_SERVERS is
// set, as in CI.
func needServer(t *testing.T) {
	t.Helper()
	if _, err := findServer(); err == nil {
		return
	}
	if os.Getenv("RATELIMIT_SERVERS") != "" {
		t.Fatalf("none of %v is installed: scripts/servers installs it", servers)
	}
	t.Skipf("SKIPPED: none of %v is installed; scripts/servers installs it", servers)
}

// TestFleet runs a short version of the demonstration.
func TestFleet(t *testing.T) {
	needServer(t)
	var out strings.Builder
	s, err := run(t.Context(), []string{"-seconds", "0.5", "-processes", "3"}, &out)
	t.Log(out.String())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "The bound held: 3 processes") {
		t.Error("the bound did not hold")
	}
	if s.last.degraded() > 0 {
		t.Error("decisions are degraded when Redis is back")
	}
	abuser := s.all[0]
	if abuser.Shared.Allowed < 2*limit.Rate.Events || abuser.Local.Allowed < limit.Rate.Events-2 || abuser.Shared.Denied == 0 || abuser.Local.Denied == 0 {
		t.Errorf("abuser got %+v: want its burst before, in and after the outage, and denials", abuser)
	}
	for k, got := range s.all[1:] {
		if got.Shared.Allowed == 0 || got.Local.Allowed == 0 {
			t.Errorf("%s got %+v: want some before or after the outage, and in it", keys[1+k], got)
		}
	}
}

// TestRunning uses a running server twice, and checks that it keeps running.
func TestRunning(t *testing.T) {
	needServer(t)
	own, err := newServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer own.kill()
	for range 2 {
		var out strings.Builder
		s, err := run(t.Context(), []string{"-seconds", "0.3", "-processes", "2", "-redis", own.addr}, &out)
		if err != nil {
			t.Fatal(err)
		}
		if s.all[0].Shared.Allowed < limit.Rate.Events {
			t.Errorf("want a burst of %d for abuser:\n%s", limit.Rate.Events, out.String())
		}
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", own.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestLeftBehind kills the command while it runs. The server and the processes have
// inherited its stderr, which is closed when all of them have exited.
func TestLeftBehind(t *testing.T) {
	needServer(t)
	for name, end := range map[string]os.Signal{"killed": os.Kill, "interrupted": os.Interrupt} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-seconds", "600")
			cmd.Env, cmd.Stderr = append(os.Environ(), testParent+"=1"), w
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			working := false
			for story := bufio.NewScanner(out); !working && story.Scan(); {
				working = regexp.MustCompile(`^ *\d`).MatchString(story.Text())
			}
			if err := cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			if err := r.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if said, err := io.ReadAll(r); err != nil || !working {
				t.Errorf("want a table (%v), then no process left (%v); stderr: %s", working, err, said)
			}
			_ = cmd.Wait() // it was killed
		})
	}
}

func TestUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"-processes 0":        {"-processes", "0"},
		"-seconds 0":          {"-seconds", "0"},
		"unexpected argument": {"now"},
		"process 1":           {"-redis", "127.0.0.1:1"},
	} {
		if _, err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v: want %q", args, err, want)
		}
	}
	t.Setenv("PATH", "")
	if _, err := run(t.Context(), nil, io.Discard); err == nil || !strings.Contains(err.Error(), "install") {
		t.Errorf("without a server: error %v", err)
	}
}
