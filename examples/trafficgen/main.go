// Trafficgen makes the access log that examples/replay includes. It starts a real HTTP
// server on the loopback interface and a few dozen real HTTP clients (visitors, programs
// that send bursts, a crawler, a persistent scraper), and writes the server's log in
// Combined Log Format.
//
// To make the bundled log again, run in the root of the repository:
//
//	go run ./examples/trafficgen -o examples/replay/testdata/access.log.gz
//
// What is real: every line is a request that went through a TCP connection and net/http,
// and the scheduler and the network determined its order and timing. What is not: the
// time stamps come from a clock that runs -speedup times faster than real time, so that a
// minute of serving looks like an hour of traffic; the clients' pauses are shorter by the
// same factor. Each client dials from its own loopback address (127.0.a.b), which the log
// shows as an address from the ranges reserved for documentation. The clients' choices
// depend on -seed only, so another run makes similar traffic, but not the same bytes.
//
// It needs a system on which a program can dial from any 127.0.0.0/8 address, such as
// Linux.
package main

import (
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "trafficgen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	fs := flag.NewFlagSet("trafficgen", flag.ContinueOnError)
	fs.SetOutput(stderr)
	out := fs.String("o", "access.log.gz", "the log to write; compressed if the name ends in .gz")
	start := fs.String("start", "2026-03-02T09:00:00Z", "the time of the first line, RFC 3339")
	span := fs.Duration("span", time.Hour, "how much traffic to make, in the log's time")
	speedup := fs.Float64("speedup", 60, "how many times faster than real time the log's clock runs")
	seed := fs.Uint64("seed", 1, "the seed of the clients' choices")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: all settings are flags", fs.Arg(0))
	}
	if !(*speedup > 0) {
		return fmt.Errorf("-speedup %v: must be greater than 0", *speedup)
	}
	from, err := time.Parse(time.RFC3339, *start)
	if err != nil {
		return fmt.Errorf("-start %q: must be a time such as 2026-03-02T09:00:00Z", *start)
	}

	clk := newFastClock(from, *speedup)
	accesses := &accessLog{clock: clk}
	server := httptest.NewServer(accesses.wrap(site(clk)))
	defer server.Close()
	fmt.Fprintf(stderr, "serving %v of traffic in %v\n", *span, time.Duration(float64(*span) / *speedup))

	err = crowd{
		clock: clk,
		base:  server.URL,
		seed:  *seed,
		from:  from,
		span:  *span,
		dial:  dialFrom,
	}.run(ctx)
	if err != nil {
		return fmt.Errorf("nothing written: %w", err)
	}
	server.Close()
	if err := writeLog(*out, accesses.bytes()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s: %d requests\n", *out, accesses.len())
	return nil
}

// dialFrom returns a transport whose connections come from addr.
func dialFrom(addr string) http.RoundTripper {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return &http.Transport{DialContext: d.DialContext}
}

func writeLog(name string, text []byte) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if !strings.HasSuffix(name, ".gz") {
		_, err = f.Write(text)
		return err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	return z.Close()
}
