// Trafficgen makes the access log that examples/replay has built in. It starts
// a real HTTP server on the loopback interface, lets a few dozen real HTTP
// clients use it (visitors, programs that come in bursts, a crawler, a scraper
// that will not stop), and writes what the server saw in Combined Log Format.
//
// To make the bundled log again, from the repository root:
//
//	go run ./examples/trafficgen -o examples/replay/testdata/access.log.gz
//
// What is real and what is not: every line is a request that went through a TCP
// connection and net/http, and its order and spacing are what the scheduler and
// the network made of it. The time stamps are written from a clock that runs
// -speedup times too fast, so that a minute of serving reads like an hour of
// traffic; all pauses of the clients are shortened by the same factor. Each
// client dials from a loopback address of its own (127.0.a.b), which the log
// shows as an address from the ranges reserved for documentation. The clients'
// choices come from -seed, so another run tells the same story; it is not the
// same to the byte, because the serving is real.
//
// It needs a system that lets a program dial from any 127.0.0.0/8 address, as
// Linux does.
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
		return fmt.Errorf("-start %q: want a time such as 2026-03-02T09:00:00Z", *start)
	}

	clk := newFastClock(from, *speedup)
	log := &accessLog{clock: clk}
	server := httptest.NewServer(log.wrap(site(clk)))
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
	if err := writeLog(*out, log.bytes()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s: %d requests\n", *out, log.len())
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
