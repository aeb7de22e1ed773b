package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A wire is a process that passes on the bytes between clients and a server, and delays them.
// It is a process of its own because the goroutines of this one are kept waiting.
type wire struct {
	addr string
	cmd  *exec.Cmd
	in   io.Closer // ends the process
}

// oneWay is the delay of a wire in each direction.
const oneWay = 500 * time.Microsecond

// wireVariable is the environment variable that makes this program a wire to the address that
// is its value.
const wireVariable = "RATELIMIT_BENCHMARKS_WIRE"

// serveIfWire serves as a wire, if this process was started as one, and then ends it.
func serveIfWire() {
	to := os.Getenv(wireVariable)
	if to == "" {
		return
	}
	if err := serveWire(to, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// startWire starts a wire to the server at addr.
func startWire(addr string) (*wire, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:noctx // end ends it
	cmd.Env = append(os.Environ(), wireVariable+"="+addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &wire{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		w.end()
		return nil, fmt.Errorf("the wire did not start: %w", err)
	}
	w.addr = strings.TrimSpace(line)
	return w, nil
}

// end ends the process.
func (w *wire) end() {
	_ = w.in.Close()
	_ = w.cmd.Wait() // its exit status does not matter
}

// serveWire writes its address to out, and passes on what arrives there until in ends.
func serveWire(to string, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // in ends it
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		_ = l.Close()
	}()
	fmt.Fprintln(out, l.Addr())
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		} else if err != nil {
			return err
		}
		server, err := net.Dial("tcp", to) //nolint:noctx // the server is on this machine
		if err != nil {
			_ = client.Close()
			continue
		}
		var both sync.Once
		end := func() { both.Do(func() { _, _ = client.Close(), server.Close() }) }
		go pass(client, server, end)
		go pass(server, client, end)
	}
}

// pass passes on bytes after the delay, until an end of the connection is closed.
func pass(from io.Reader, to io.Writer, end func()) {
	type parcel struct {
		bytes []byte
		due   time.Time
	}
	defer end()
	way := make(chan parcel, 1024)
	defer close(way)
	go func() {
		for p := range way {
			nap(time.Until(p.due))
			if _, err := to.Write(p.bytes); err != nil {
				end()
			}
		}
	}()
	for {
		bytes := make([]byte, 16<<10)
		n, err := from.Read(bytes)
		if err != nil {
			return
		}
		way <- parcel{bytes[:n], time.Now().Add(oneWay)}
	}
}
