package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// jobEnv is the environment variable with the job of a child process.
const jobEnv = "RATELIMIT_FLEET_JOB"

// A job is the task of a child process: it runs a server, or it is a process of the fleet.
type job struct {
	Server []string // the server and its arguments

	Process   int // its number, from 1
	Processes int
	Redis     string // its address
	Prefix    string // of the names of the store's keys
	Rate      ratelimit.Rate
}

func doJob(text string) error {
	// Ctrl-C reaches all processes at once. The parent stops the children.
	signal.Ignore(os.Interrupt)
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	if j.Server != nil {
		return keep(os.Stdin, j.Server)
	}
	if err := work(j, os.Stdin, os.Stdout); err != nil {
		return fmt.Errorf("process %d: %w", j.Process, err)
	}
	return nil
}

// A child is another process of this program. It exits when its stdin is closed: by end,
// or because this process has exited in any way.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

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
	cmd.WaitDelay = 5 * time.Second // after that, it is killed
	return &child{cmd, in, bufio.NewScanner(out)}, cmd.Start()
}

// end stops c and waits until it has exited.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // its exit status does not matter
}

// A fleet has the processes in order of their numbers.
type fleet struct{ children []*child }

// startFleet starts j.Processes processes, and returns when all of them are ready.
func startFleet(ctx context.Context, j job) (*fleet, error) {
	f := &fleet{}
	for i := range j.Processes {
		j.Process = i + 1
		c, err := spawn(ctx, j)
		if err != nil {
			f.stop()
			return nil, err
		}
		f.children = append(f.children, c)
	}
	return f, nil
}

// ask returns a report from each process on its decisions since the previous call.
func (f *fleet) ask() ([]report, error) {
	for i, c := range f.children {
		if _, err := io.WriteString(c.in, "\n"); err != nil {
			return nil, fmt.Errorf("process %d does not read its stdin: %w", i+1, err)
		}
	}
	reports := make([]report, len(f.children))
	for i, c := range f.children {
		if !c.out.Scan() {
			return nil, fmt.Errorf("process %d has exited", i+1)
		}
		if err := json.Unmarshal(c.out.Bytes(), &reports[i]); err != nil {
			return nil, fmt.Errorf("process %d: %w", i+1, err)
		}
	}
	return reports, nil
}

// stop stops all processes and waits until they have exited.
func (f *fleet) stop() {
	for _, c := range f.children {
		_ = c.in.Close() // stops them concurrently
	}
	for _, c := range f.children {
		c.end()
	}
}
