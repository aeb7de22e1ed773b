// Fleet runs several processes that share one limit for each API key through Redis, and shows
// what happens when Redis fails and recovers.
//
//	go run ./examples/fleet
//
// It starts its own redis-server or valkey-server, and four processes that decide on requests
// with three API keys. The requests of alice and bob come at half of the limit, spread over the
// fleet. Those of abuser come to process 1 as fast as possible, and to each other process at
// twice its share of the limit. After four seconds the server is killed, and four seconds later
// it is started again. A line each second has the decisions of all processes.
//
//	go run ./examples/fleet -redis localhost:6379
//
// uses a running server, which it does not stop. Then there is no outage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

func main() {
	var err error
	if text := os.Getenv(jobEnv); text != "" {
		err = doJob(text)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		_, err = run(ctx, os.Args[1:], os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// run runs the whole demonstration and writes it to out. The error says so if the bound did not
// hold.
func run(ctx context.Context, args []string, out io.Writer) (*show, error) {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	limit := flags.String("rate", "100/s", "the limit of each API key, as `requests/span`")
	processes := flags.Int("processes", 4, "how many processes serve them, 1 to 64")
	seconds := flags.Float64("seconds", 4, "the length of each part of the demonstration, in `seconds`")
	redis := flags.String("redis", "", "the `host:port` of a running Redis to use")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	rate, err := ratelimit.ParseRate(*limit)
	switch {
	case err != nil:
		return nil, fmt.Errorf("-rate: %w", err)
	case *processes < 1 || *processes > 64:
		return nil, fmt.Errorf("-processes %d: must be from 1 to 64", *processes)
	case !(*seconds >= 0.1 && *seconds <= 3600):
		return nil, fmt.Errorf("-seconds %v: must be from 0.1 to 3600", *seconds)
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}

	var own *server
	if *redis == "" {
		if own, err = newServer(ctx); err != nil {
			return nil, err
		}
		defer own.kill()
		*redis = own.addr()
	}
	s := &show{out: out, rate: rate, processes: *processes, span: time.Duration(*seconds * float64(time.Second)), asked: time.Now()}
	s.shared = s.begin("Redis", rate.Events, s.asked)
	defer s.stop()
	for i := range *processes {
		c, err := spawn(ctx, job{
			Redis: *redis, Rate: rate, Process: i + 1, Processes: *processes,
			// Unique to this run, so that keys of earlier runs in that Redis do not count.
			Prefix: fmt.Sprintf("ratelimit-fleet:%d:%d:", os.Getpid(), s.asked.UnixMicro()),
		})
		if err != nil {
			return nil, err
		}
		s.fleet = append(s.fleet, c)
	}
	if err := s.play(ctx, own); err != nil {
		return nil, err
	}
	return s, s.end()
}

// A show is a demonstration, and its results so far.
type show struct {
	out       io.Writer
	rate      ratelimit.Rate
	processes int
	span      time.Duration // of a part
	fleet     []*child
	epochs    []*epoch
	shared    *epoch // of the states in the current Redis
	local     *epoch // of the states in the processes, or nil if none was used
	asked     time.Time
	last      report // of all processes, when they were asked last
}

// An epoch is a time in which decisions were based on the same states. In it, a token bucket
// allows at most its burst plus the tokens refilled since its start. A Redis that has lost its
// data begins a new epoch.
type epoch struct {
	name     string
	burst    int
	from, to time.Time
	keys     [len(keys)]count
}

func (s *show) begin(name string, burst int, from time.Time) *epoch {
	e := &epoch{name: name, burst: burst, from: from}
	s.epochs = append(s.epochs, e)
	return e
}

// bound returns the most requests of a key that may be allowed in e.
func (s *show) bound(e *epoch) int {
	return e.burst + int(float64(s.rate.Events)*e.to.Sub(e.from).Seconds()/s.rate.Per.Seconds())
}

// play plays the parts of the demonstration. There is only one part if own is nil.
func (s *show) play(ctx context.Context, own *server) error {
	if err := s.watch(ctx, s.span, "Redis is up: one limit for the fleet, %v for each key.", s.rate); err != nil || own == nil {
		return err
	}
	own.kill()
	s.shared.to = time.Now()
	if err := s.watch(ctx, s.span, "Redis was killed: each of %d processes decides alone, with its share of the limit.", s.processes); err != nil {
		return err
	}
	s.shared = s.begin("Redis again", s.rate.Events, time.Now()) // before it can grant anything
	if err := own.start(ctx); err != nil {
		return err
	}
	err := s.watch(ctx, s.span, "Redis is back, and empty: processes find out when their breakers let a call through.")
	// The breakers take half a second to close, and a part may be shorter.
	for more := 0; err == nil && more < 10 && s.last.degraded() > 0; more++ {
		err = s.watch(ctx, min(s.span, time.Second), "")
	}
	return err
}

// watch lets the fleet run for a span, and prints a line each second.
func (s *show) watch(ctx context.Context, span time.Duration, what string, args ...any) error {
	if what != "" {
		fmt.Fprintf(s.out, "\n"+what+"\n\n", args...)
		fmt.Fprintln(s.out, "         ---- abuser ----  --- alice ---  ---- bob ----   Redis    denied     de-    slowest")
		fmt.Fprintln(s.out, "   time     ok    denied     ok  denied     ok  denied   calls   locally  graded   decision")
	}
	for begin, passed := time.Now(), time.Duration(0); passed < span; {
		passed = min(passed+time.Second, span)
		select {
		case <-time.After(time.Until(begin.Add(passed))):
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		if err := s.ask(); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%6.1fs", time.Since(s.epochs[0].from).Seconds())
		for k, width := range []int{10, 8, 8} {
			t := s.last.Keys[k]
			fmt.Fprintf(s.out, "%7d%*d", t.Shared.Allowed+t.Local.Allowed, width, t.Shared.Denied+t.Local.Denied)
		}
		fmt.Fprintf(s.out, "%8d%10d%8d%11s\n", s.last.Calls, s.last.Cached, s.last.degraded(), s.last.Slowest.Round(10*time.Microsecond))
	}
	return nil
}

// ask asks each process for its decisions since the last time, and adds them up.
func (s *show) ask() error {
	for i, c := range s.fleet {
		if _, err := io.WriteString(c.in, "\n"); err != nil {
			return fmt.Errorf("process %d does not read its stdin: %w", i+1, err)
		}
	}
	s.last = report{}
	for i, c := range s.fleet {
		if err := c.read(&s.last); err != nil {
			return fmt.Errorf("process %d: %w", i+1, err)
		}
	}
	if s.last.degraded() > 0 && s.local == nil { // it began since they were asked
		s.local = s.begin("fallbacks", s.processes*max(1, s.rate.Events/s.processes), s.asked)
	}
	s.asked = time.Now()
	for k, t := range s.last.Keys {
		s.shared.keys[k].add(t.Shared)
		if s.local != nil {
			s.local.keys[k].add(t.Local)
		}
	}
	return nil
}

// end prints what each key got in each epoch. The error says so if it is too much.
func (s *show) end() error {
	fmt.Fprintf(s.out, "\nWhat each key got, and the most that it may get, which is a burst plus a refill of %v:\n\n", s.rate)
	fmt.Fprintln(s.out, "decided by        for   at most   abuser    alice      bob")
	total, most, held := 0, 0, true
	for _, e := range s.epochs {
		if e.to.IsZero() {
			e.to = time.Now()
		}
		fmt.Fprintf(s.out, "%-12s%8.1fs%10d", e.name, e.to.Sub(e.from).Seconds(), s.bound(e))
		for _, c := range e.keys {
			fmt.Fprintf(s.out, "%9d", c.Allowed)
			held = held && c.Allowed <= s.bound(e)
		}
		fmt.Fprintln(s.out)
		total, most = total+e.keys[0].Allowed, most+s.bound(e)
	}
	if !held {
		return errors.New("the bound did not hold")
	}
	fmt.Fprintf(s.out, "\nThe bound held: %d processes allowed %d requests of abuser; the bound is %d.\n", s.processes, total, most)
	return nil
}

// stop stops all processes and waits until they have exited.
func (s *show) stop() {
	for _, c := range s.fleet {
		_ = c.in.Close() // stops them concurrently
	}
	for _, c := range s.fleet {
		c.end()
	}
}
