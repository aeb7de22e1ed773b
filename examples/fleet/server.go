package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// servers are the programs that can be used.
var servers = []string{"redis-server", "valkey-server"}

// errNoServer means that none of them is installed.
var errNoServer = errors.New("neither redis-server nor valkey-server is in PATH: install one " +
	"(apt-get install redis-server, brew install redis), or name a server that runs with -redis host:port")

// A server is a Redis started by this program, on its own port, without persistence. Its
// parent is a keeper, another process of this program, which kills it when its own stdin
// is closed. So the server ends when this process ends, in whatever way.
type server struct {
	path   string
	port   int
	keeper *child // nil if the server is not running
}

// newServer starts a server.
func newServer(ctx context.Context) (*server, error) {
	path, err := findServer()
	if err != nil {
		return nil, err
	}
	s := &server{path: path}
	for range 10 { // another process may take the port first
		// A port below the range for outgoing connections: otherwise, a client that
		// dials while the server is down could get the server's port as its own.
		s.port = 12_000 + rand.IntN(20_000)
		if err = s.start(ctx); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func findServer() (string, error) {
	for _, name := range servers {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoServer
}

func (s *server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// start starts the program, and returns when it is ready.
func (s *server) start(ctx context.Context) error {
	keeper, err := spawn(ctx, job{Server: []string{
		s.path, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
	}})
	if err != nil {
		return err
	}
	var last string
	for keeper.out.Scan() {
		last = keeper.out.Text()
		// Wait for the log line, because another process may answer on the port.
		if strings.Contains(last, "Ready to accept connections") {
			s.keeper = keeper
			go func() { // otherwise its log would fill the pipe and block it
				for keeper.out.Scan() {
				}
			}()
			return nil
		}
	}
	keeper.end()
	return fmt.Errorf("%s did not start on port %d: %s", s.path, s.port, last)
}

// kill stops the server at once, like a crash.
func (s *server) kill() {
	if s.keeper != nil {
		s.keeper.end()
		s.keeper = nil
	}
}

// keep runs a server until in is closed. It is the job of a keeper.
func keep(in io.Reader, args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel() // kills the server
	}()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Wait() // its log says why it ended
	return nil
}

// reachable returns an error about -redis if there is no server at addr.
func reachable(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("-redis %s: %w", addr, err)
	}
	return conn.Close()
}
