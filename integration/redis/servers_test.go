package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
)

// A server is a process of Redis or Valkey, on its own port, that keeps nothing on disk. Its
// methods may fail the test that started it, so only that test's goroutine may call them.
type server struct {
	t     testing.TB
	path  string
	dir   string // working directory, removed with the test
	args  []string
	port  int
	cmd   *exec.Cmd
	ended chan struct{} // closed once cmd has
	admin *redis.Client
}

// programVariable is the environment variable that chooses the server's program, by its path.
const programVariable = "RATELIMIT_REDIS"

// find returns the path of the server's program: that of RATELIMIT_REDIS, or else Redis or Valkey.
// If there is none, it skips the test, or fails it if RATELIMIT_SERVERS is set, as in CI.
func find(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(programVariable); path != "" {
		return path
	}
	names := []string{"redis-server", "valkey-server"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("RATELIMIT_SERVERS") != "" {
		t.Fatalf("none of %v is installed: scripts/servers installs it", names)
	}
	t.Skipf("SKIPPED: none of %v is installed; scripts/servers installs it", names)
	return ""
}

// major returns the program's major version.
func major(t testing.TB, path string) int {
	t.Helper()
	out, err := exec.Command(path, "--version").Output()
	require.NoError(t, err)
	match := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out)
	require.NotNil(t, match, "%s", out)
	n, err := strconv.Atoi(string(match[1]))
	require.NoError(t, err)
	return n
}

// startServer starts a server with more arguments, such as --maxmemory 1mb. It ends
// with the test.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	all := []string{"--save", "", "--appendonly", "no"}
	if major(t, find(t)) >= 7 {
		all = append(all, "--enable-debug-command", "yes")
	}
	return launch(t, t.TempDir(), append(all, args...)...)
}

// launch starts the program in dir with args and its port.
func launch(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	s := &server{t: t, path: find(t), dir: dir, args: args}
	t.Cleanup(func() {
		s.end()
		if _, fuzzing := t.(*testing.F); t.Failed() && !fuzzing { // a fuzz target may not log any more
			t.Logf("the log of %s:\n%s", s.addr(), s.log())
		}
	})
	for range 10 {
		s.port = freePort(t)
		if s.start() {
			return s
		}
		// Another process took the port since freePort.
	}
	t.Fatal("each port was taken before the server had it")
	return nil
}

// start starts the process and reports whether it runs; if not, its port is taken.
func (s *server) start() bool {
	s.t.Helper()
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(s.t, err)
	defer log.Close()
	before := len(s.log())
	cmd := exec.Command(s.path, slices.Concat(s.args, []string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1"})...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	require.NoError(s.t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the error says how it ended
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	eventually(s.t, "the server answers", func() bool { return !s.running() || s.answers() })
	if s.running() {
		s.admin = s.client()
		return true
	}
	said := s.log()[before:]
	require.Contains(s.t, string(said), "Address already in use", "the server does not start")
	return false
}

// answers reports whether this process answers a PING, and not another one that has the port
// already. It uses a new client each time, because one that was refused often waits for a
// second.
func (s *server) answers() bool {
	c := redis.NewClient(s.options())
	defer c.Close()
	if c.Ping(context.Background()).Err() != nil {
		return false
	}
	info, err := c.Info(context.Background(), "server").Result()
	return err == nil && field(info, "process_id") == strconv.Itoa(s.cmd.Process.Pid)
}

func (s *server) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// end ends the process if there is one, even if it is stopped.
func (s *server) end() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // fails if it has ended
	<-s.ended
}

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }

func (s *server) log() []byte {
	b, _ := os.ReadFile(s.logFile())
	return bytes.TrimSpace(b)
}

func (s *server) addr() string { return local(s.port) }

// options are those of a client that sends nothing twice, nothing that old servers refuse,
// and does not wait for longer than its caller.
func (s *server) options() *redis.Options {
	o := &redis.Options{
		Addr: s.addr(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if i := slices.Index(s.args, "--requirepass"); i >= 0 {
		o.Password = s.args[i+1]
	}
	return o
}

// client returns a client that is closed with the test.
func (s *server) client() *redis.Client {
	c := redis.NewClient(s.options())
	s.t.Cleanup(func() { c.Close() })
	return c
}

// do sends a command and returns the reply, which must not be an error.
func (s *server) do(args ...any) any {
	s.t.Helper()
	reply, err := s.admin.Do(context.Background(), args...).Result()
	require.NoError(s.t, err, "%v", args)
	return reply
}

// info returns a field of INFO, or "" if there is no such field or no answer.
func (s *server) info(section, name string) string {
	text, _ := s.admin.Info(context.Background(), section).Result()
	return field(text, name)
}

// field returns the value of a field in "name:value" lines.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kill ends the server at once, as a crash does.
func (s *server) kill() {
	s.t.Helper()
	s.end()
}

// restart starts the server again on the same port, without data.
func (s *server) restart() {
	s.t.Helper()
	s.end()
	require.True(s.t, s.start(), "another process took port %d", s.port)
}

// stop makes the server hang. The system still accepts connections for it.
func (s *server) stop() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(s.t, "the server is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
		return err != nil || bytes.Contains(stat, []byte(") T ")) // other systems have no /proc
	})
}

// cont continues a stopped server.
func (s *server) cont() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGCONT))
}
