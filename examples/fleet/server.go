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

// servers are the programs that will do.
var servers = []string{"redis-server", "valkey-server"}

// errNoServer says that there is none of them.
var errNoServer = errors.New("there is no redis-server and no valkey-server in PATH: install one " +
	"(apt-get install redis-server, brew install redis), or name a server that runs with -redis host:port")

// A server is a Redis of this program's own, on a port of its own, that keeps
// nothing on disk. It runs under a keeper: this program again, which kills it when
// its stdin ends. So it ends with this process, however that ends.
type server struct {
	path   string
	port   int
	keeper *child // nil if it does not run
}

// newServer starts one.
func newServer(ctx context.Context) (*server, error) {
	path, err := findServer()
	if err != nil {
		return nil, err
	}
	s := &server{path: path}
	for range 10 { // somebody may be faster to take the port
		// Below those that systems give to outgoing connections: a client that dials
		// while the server is down may be given the server's, and then keeps it.
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

// start starts the program, and returns when it serves.
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
		// Its own word, and not an answer from whoever has the port.
		if strings.Contains(last, "Ready to accept connections") {
			s.keeper = keeper
			go func() { // or its log would fill the pipe
				for keeper.out.Scan() {
				}
			}()
			return nil
		}
	}
	keeper.end()
	return fmt.Errorf("%s does not start on port %d: %s", s.path, s.port, last)
}

// kill ends the server at once, as a crash does.
func (s *server) kill() {
	if s.keeper != nil {
		s.keeper.end()
		s.keeper = nil
	}
}

// keep runs a server until in ends. It is what a keeper does.
func keep(in io.Reader, args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel() // which kills it
	}()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Wait() // its log says why it ended
	return nil
}

// reachable says whether somebody listens at addr, in words that are about -redis.
func reachable(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("-redis %s: %w", addr, err)
	}
	return conn.Close()
}
