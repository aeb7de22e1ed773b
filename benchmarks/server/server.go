// Package server starts the Redis that benchmarks use, and puts it at a distance.
package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server is a process of Redis or Valkey on the loopback interface, which keeps nothing on disk.
type Server struct {
	Addr  string
	Admin *redis.Client // a client at no distance, for what is not measured

	process *exec.Cmd
	dir     string
}

// ErrMissing says that no server is installed.
var ErrMissing = errors.New("neither redis-server nor valkey-server is in PATH; scripts/servers installs one")

// Start starts the server that is in PATH. It ends with Stop, or with the context.
func Start(ctx context.Context) (*Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		path, err = exec.LookPath("valkey-server")
	}
	if err != nil {
		return nil, ErrMissing
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ratelimit-benchmark")
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), dir: dir}
	s.process = exec.CommandContext(ctx, path, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", port)
	s.process.Dir = dir
	if err := s.process.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.Admin = redis.NewClient(&redis.Options{Addr: s.Addr})
	if err := s.awaitAnswer(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func freePort(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (s *Server) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := s.Admin.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the server.
func (s *Server) Stop() {
	_ = s.Admin.Close()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = os.RemoveAll(s.dir)
}

// CPUTime returns how long the server's main thread, which runs all scripts, has used a processor.
func (s *Server) CPUTime(ctx context.Context) (time.Duration, error) {
	info, err := s.Admin.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	var sum float64 // of seconds
	found := 0
	for lines := bufio.NewScanner(strings.NewReader(info)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "used_cpu_user_main_thread" && name != "used_cpu_sys_main_thread" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += seconds
		found++
	}
	if found != 2 {
		return 0, errors.New("the server does not tell the time of its main thread, as Redis 6.2 does on Linux")
	}
	return time.Duration(sum * float64(time.Second)), nil
}
