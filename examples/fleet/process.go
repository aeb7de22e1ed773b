package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// jobEnv is the environment variable with the job of a child process.
const jobEnv = "RATELIMIT_FLEET_JOB"

// A job is the task of a process of the fleet.
type job struct {
	Process   int // its number, from 1
	Processes int
	Redis     string // the address of Redis
	Prefix    string // of the store's keys in Redis
}

func doJob(text string) error {
	// Ctrl-C reaches all processes at once. The parent stops the children.
	signal.Ignore(os.Interrupt)
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	if err := work(j, os.Stdin, os.Stdout); err != nil {
		return fmt.Errorf("process %d: %w", j.Process, err)
	}
	return nil
}

// A child is a process that this one has started. A child exits when its stdin is closed: when end
// closes it, or when this process exits for any reason.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// spawn starts a process of the fleet, which is this program.
func spawn(ctx context.Context, j job) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(text))
	return begin(cmd)
}

func begin(cmd *exec.Cmd) (*child, error) {
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = in.Close
	cmd.WaitDelay = 5 * time.Second // a child that takes longer is killed
	return &child{cmd, in, bufio.NewScanner(out)}, cmd.Start()
}

// end stops c and waits until it has exited.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // its exit status does not matter
}

// servers are the programs that serve as Redis.
var servers = []string{"redis-server", "valkey-server"}

// A server is a Redis that this program has started, on a port of its own and without persistence.
// The parent of the server is the keeper, a shell. The keeper kills the server when the keeper's
// stdin is closed. So the server ends when this process ends for any reason.
type server struct {
	path, port, addr string
	keeper           *child // nil if the server is not running
}

// newServer starts a server.
func newServer(ctx context.Context) (*server, error) {
	path, err := findServer()
	if err != nil {
		return nil, err
	}
	// The port is below the range of ports for outgoing connections. Otherwise, a client that dials
	// while the server is down could get the server's port as its own.
	port := strconv.Itoa(12_000 + rand.IntN(20_000))
	s := &server{path: path, port: port, addr: net.JoinHostPort("127.0.0.1", port)}
	return s, s.start(ctx)
}

func findServer() (string, error) {
	for _, name := range servers {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("neither redis-server nor valkey-server is in PATH: install one " +
		"(apt-get install redis-server, brew install redis), or name a server that runs with -redis host:port")
}

// start starts the program, and returns when it is ready.
func (s *server) start(ctx context.Context) error {
	keeper, err := begin(exec.CommandContext(ctx, "sh", "-c", `trap "" INT; "$@" & cat; kill -9 $!`, "keeper",
		s.path, "--port", s.port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"))
	if err != nil {
		return err
	}
	var last string
	for keeper.out.Scan() {
		last = keeper.out.Text()
		// Wait for the log line, because another process may answer on the port.
		if strings.Contains(last, "Ready to accept connections") {
			s.keeper = keeper
			go func() { // read on: otherwise the log would fill the pipe and block the server
				for keeper.out.Scan() {
				}
			}()
			return nil
		}
	}
	keeper.end()
	return fmt.Errorf("%s did not start on port %s: %s", s.path, s.port, last)
}

// kill stops the server at once, like a crash.
func (s *server) kill() {
	if s.keeper != nil {
		s.keeper.end()
		s.keeper = nil
	}
}
