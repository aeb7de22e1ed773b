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

// jobEnv is the variable that tells a process that it is a child, and what to do.
const jobEnv = "RATELIMIT_FLEET_JOB"

// A job is what a child does: it keeps a server, or it is a process of the fleet.
type job struct {
	Server []string // the server and its arguments

	Process   int // its number, from 1
	Processes int
	Redis     string // where it is
	Prefix    string // of the names of the store's keys
	Rate      ratelimit.Rate
}

func doJob(text string) error {
	// Ctrl-C reaches all processes at once. The parent ends the others.
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

// A child is this program once more. It ends when its stdin does: when it is told
// to, and when this process ends in whatever way.
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
	cmd.WaitDelay = 5 * time.Second // then it is killed
	return &child{cmd, in, bufio.NewScanner(out)}, cmd.Start()
}

// end ends c, and returns when it has.
func (c *child) end() {
	_ = c.in.Close()
	_ = c.cmd.Wait() // it was not to end well
}

// A fleet is the processes, in their order.
type fleet struct{ children []*child }

// startFleet starts as many processes as j says, and returns when all of them serve.
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

// ask has each process report what it decided since it was asked last.
func (f *fleet) ask() ([]report, error) {
	for i, c := range f.children {
		if _, err := io.WriteString(c.in, "\n"); err != nil {
			return nil, fmt.Errorf("process %d does not listen: %w", i+1, err)
		}
	}
	reports := make([]report, len(f.children))
	for i, c := range f.children {
		if !c.out.Scan() {
			return nil, fmt.Errorf("process %d has ended", i+1)
		}
		if err := json.Unmarshal(c.out.Bytes(), &reports[i]); err != nil {
			return nil, fmt.Errorf("process %d: %w", i+1, err)
		}
	}
	return reports, nil
}

// stop ends all processes, and returns when they have.
func (f *fleet) stop() {
	for _, c := range f.children {
		_ = c.in.Close() // all at once
	}
	for _, c := range f.children {
		c.end()
	}
}
