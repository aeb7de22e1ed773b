// Fleet runs several processes that share one limit for each API key through Redis, and
// shows what happens when Redis fails and recovers.
//
//	go run ./examples/fleet
//
// It starts its own redis-server or valkey-server, and four processes that decide on
// requests with three API keys. The requests of alice and bob come at half of the limit,
// spread over the fleet. Those of abuser come to process 1 as fast as possible, and to
// each other process at twice its share of the limit. After four seconds the server is
// killed, and four seconds later it is started again. A table each second shows the
// decisions of each process and the duration of the slowest one, which on a busy machine
// is mostly the time spent waiting for a CPU.
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
	ok, err := true, error(nil)
	if text := os.Getenv(jobEnv); text != "" {
		err = doJob(text)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		var s *summary
		s, err = run(ctx, os.Args[1:], os.Stdout)
		ok = err != nil || s.held()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// run runs the whole demonstration and writes it to out.
func run(ctx context.Context, args []string, out io.Writer) (*summary, error) {
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
	case rate.Events > 1e9 || rate.Per > 365*24*time.Hour:
		return nil, fmt.Errorf("-rate %v: must be at most 1,000,000,000 requests, in at most a year", rate)
	case *processes < 1 || *processes > 64:
		return nil, fmt.Errorf("-processes %d: must be from 1 to 64", *processes)
	case !(*seconds >= 0.1 && *seconds <= 3600):
		return nil, fmt.Errorf("-seconds %v: must be from 0.1 to 3600", *seconds)
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}
	span := time.Duration(*seconds * float64(time.Second))

	var own *server
	if *redis != "" {
		if err := reachable(ctx, *redis); err != nil {
			return nil, err
		}
	} else {
		if own, err = newServer(ctx); err != nil {
			return nil, err
		}
		defer own.kill()
		*redis = own.addr()
	}
	s := newSummary(out, rate, *processes)
	fleet, err := startFleet(ctx, job{
		Redis: *redis, Rate: rate, Processes: *processes,
		// Unique to this run, so that keys of earlier runs in that Redis do not count.
		Prefix: fmt.Sprintf("ratelimit-fleet:%d:%d:", os.Getpid(), time.Now().UnixMicro()),
	})
	if err != nil {
		return nil, err
	}
	defer fleet.stop()
	return s, demonstrate(ctx, s, fleet, own, span)
}

// demonstrate runs the parts of the demonstration. There is only one part if own is nil.
func demonstrate(ctx context.Context, s *summary, fleet *fleet, own *server, span time.Duration) error {
	s.part("Redis is up: one limit for the fleet, %v for each key.", s.rate)
	if err := watch(ctx, s, fleet, span); err != nil {
		return err
	}
	if own != nil {
		own.kill()
		s.serverEnds()
		s.part("Redis was killed: each process decides alone, with a %s share of the limit.", fraction(s.processes))
		if err := watch(ctx, s, fleet, span); err != nil {
			return err
		}
		// Before the server can grant anything, so that the bound is not too low.
		s.serverBegins("Redis again")
		if err := own.start(ctx); err != nil {
			return err
		}
		s.part("Redis is back, and empty: processes find out when their breakers let a call through.")
		if err := watch(ctx, s, fleet, span); err != nil {
			return err
		}
		// The circuit breakers take half a second to close, and a part may be shorter.
		for more := 0; more < 10 && !s.recovered(); more++ {
			if err := watch(ctx, s, fleet, min(span, time.Second)); err != nil {
				return err
			}
		}
	}
	s.serverEnds()
	s.print()
	return nil
}

// watch lets the fleet run for a span, and prints a table each second.
func watch(ctx context.Context, s *summary, fleet *fleet, span time.Duration) error {
	begin := time.Now()
	for passed := time.Duration(0); passed < span; {
		passed = min(passed+time.Second, span)
		select {
		case <-time.After(time.Until(begin.Add(passed))):
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		reports, err := fleet.ask()
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		if err != nil {
			return err
		}
		s.table(reports)
	}
	return nil
}

func fraction(n int) string {
	switch n {
	case 1:
		return "whole"
	case 2:
		return "half"
	}
	return fmt.Sprintf("1/%d", n)
}
