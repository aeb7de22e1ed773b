package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// servers are the server programs that can be used.
var servers = []string{"redis-server", "valkey-server"}

// errNoServer means that none of them is installed.
var errNoServer = fmt.Errorf("neither %s is in PATH", strings.Join(servers, " nor "))

// A server is a Redis or Valkey process on its own port, without persistence.
type server struct {
	addr  string
	dir   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has exited
	admin *redis.Client
}

// startServer starts the first of servers that is installed.
func startServer() (*server, error) {
	var path string
	for _, name := range servers {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		return nil, errNoServer
	}
	for range 10 {
		s, err := launch(path)
		if err == nil || !errors.Is(err, errPortTaken) {
			return s, err
		}
		// Another process took the port since it was found free.
	}
	return nil, errPortTaken
}

var errPortTaken = errors.New("every free port was taken by another process before the server could use it")

func launch(path string) (_ *server, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "benchmarks-")
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(context.Background(), path, "--save", "", "--appendonly", "no", "--port", strconv.Itoa(port), "--bind", "127.0.0.1")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &said, &said
	s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir, cmd: cmd, ended: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() {
		_ = cmd.Wait() // its exit status does not matter
		close(s.ended)
	}()
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr})
	for deadline := time.Now().Add(10 * time.Second); ; {
		if s.answers() {
			return s, nil
		}
		select {
		case <-s.ended:
			s.end()
			if bytes.Contains(said.Bytes(), []byte("Address already in use")) {
				return nil, errPortTaken
			}
			return nil, fmt.Errorf("%s did not start:\n%s", filepath.Base(path), said.Bytes())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.end()
			return nil, fmt.Errorf("%s does not answer", filepath.Base(path))
		}
	}
}

func freePort() (int, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answers reports whether this process answers on the port, as opposed to another one.
func (s *server) answers() bool {
	pid, err := s.info("server", "process_id")
	return err == nil && pid == strconv.Itoa(s.cmd.Process.Pid)
}

// end ends the process if necessary, and removes its files.
func (s *server) end() {
	_ = s.admin.Close()
	_ = s.cmd.Process.Kill() // fails if it has exited
	<-s.ended
	_ = os.RemoveAll(s.dir)
}

// version returns the name and the version of the program.
func (s *server) version() string {
	if v, err := s.info("server", "valkey_version"); err == nil {
		return "Valkey " + v
	}
	v, err := s.info("server", "redis_version")
	if err != nil {
		return "Redis, version unknown"
	}
	return "Redis " + v
}

// flush deletes all keys.
func (s *server) flush() error { return s.admin.FlushAll(context.Background()).Err() }

// memory returns the bytes that the server uses after all other clients have disconnected,
// because clients use memory as well.
func (s *server) memory() (int, error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		clients, err := s.info("clients", "connected_clients")
		if err != nil {
			return 0, err
		}
		if clients == "1" {
			break
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("the server still has %s clients", clients)
		}
	}
	used, err := s.info("memory", "used_memory")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(used)
}

// info returns a field of a section of INFO.
func (s *server) info(section, name string) (string, error) {
	text, err := s.admin.Info(context.Background(), section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("INFO %s has no field %s", section, name)
}
