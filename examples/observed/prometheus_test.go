package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server is a Prometheus server that scrapes a program.
type server struct{ url string }

// findPrometheus returns the path of the program. If it is not installed, the test is skipped, or
// fails if RATELIMIT_SERVERS is set, as in CI.
func findPrometheus(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("RATELIMIT_SERVERS") != "" {
			t.Fatal("prometheus is not installed: scripts/servers installs it")
		}
		t.Skip("SKIPPED: prometheus is not installed; scripts/servers installs it")
	}
	return path
}

// startPrometheus starts a server that scrapes the program at addr as prometheus.yml says, but
// more often. It is stopped at the end of the test.
func startPrometheus(t *testing.T, path, addr string) *server {
	t.Helper()
	text, err := os.ReadFile("prometheus.yml")
	require.NoError(t, err)
	config := string(text)
	for from, to := range map[string]string{"localhost:8080": addr, "scrape_interval: 1s": "scrape_interval: 200ms"} {
		require.Contains(t, config, from)
		config = strings.Replace(config, from, to, 1)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	said, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer said.Close()

	listen := freeAddr(t)
	cmd := exec.CommandContext(t.Context(), path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen)
	cmd.Stdout, cmd.Stderr = said, said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Wait() // returns an error, because the end of the test's context has killed it
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("prometheus: %s", text)
		}
	})
	p := &server{"http://" + listen}
	eventually(t, func() error {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("prometheus is not ready: %s", resp.Status)
		}
		return nil
	})
	return p
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// eventually waits until check returns no error.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	ok := func() bool { err = check(); return err == nil }
	if ok() {
		return
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(30 * time.Second); ; {
		select {
		case <-ticker.C:
			if ok() {
				return
			}
		case <-deadline:
			t.Fatalf("after 30 seconds: %v", err)
		}
	}
}

// ask returns the answer to a query now: the numbers, by the value of a label.
func (p *server) ask(query, label string) (map[string]float64, error) {
	resp, err := http.PostForm(p.url+"/api/v1/query", url.Values{"query": {query}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any // the time, and the number as a string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", query, answer.Error)
	}
	found := map[string]float64{}
	for _, r := range answer.Data.Result {
		number, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		found[r.Metric[label]] = number
	}
	return found, nil
}
