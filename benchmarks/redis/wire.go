package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/server"
)

// The wire to a server at a distance is a process of its own, so that its work does not count as work of
// the limiters. It is the same program with other arguments, and ends when its input ends: then the
// process that started it has ended too.

const wireCommand = "wire"

// at returns an address of the server from which each way takes a delay, and a function that ends the
// wire.
func at(ctx context.Context, s *server.Server, away time.Duration) (addr string, end func(), err error) {
	if away == 0 {
		return s.Addr, func() {}, nil
	}
	program, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	wire := exec.CommandContext(ctx, program, wireCommand, s.Addr, away.String())
	wire.Stderr = os.Stderr
	in, err := wire.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := wire.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := wire.Start(); err != nil {
		return "", nil, err
	}
	end = func() {
		_ = in.Close()
		_ = wire.Wait()
	}
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
		return "", nil, fmt.Errorf("the wire of %s did not start: %w", away, err)
	}
	return strings.TrimSpace(addr), end, nil
}

// isWire reports whether at started this process.
func isWire(args []string) bool { return len(args) == 4 && args[1] == wireCommand }

// runWire prints the wire's address, and serves it until the input ends.
func runWire(args []string) error {
	delay, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	w, err := server.NewWire(args[2], delay)
	if err != nil {
		return err
	}
	fmt.Println(w.Addr)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		w.Stop()
	}()
	return w.Run()
}
