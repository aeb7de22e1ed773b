// Fleet is several processes that serve one limit for each API key through Redis,
// and what becomes of it when Redis goes away and comes back.
//
//	go run ./examples/fleet
//
// It starts a redis-server of its own, or a valkey-server, and four processes that
// are asked for three API keys: alice and bob come at half of the limit, spread over
// the fleet; abuser hammers process 1, and comes to the others at twice what would be
// their share. After four seconds the server is killed, and four seconds later it is
// started again. A table each second tells what each process decided, and how long
// the slowest decision took, which on a busy machine is the time it had to wait for a
// core.
//
//	go run ./examples/fleet -redis localhost:6379
//
// uses a server that runs already, and leaves it alone. Then there is no outage.
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

// run tells the whole story on out.
func run(ctx context.Context, args []string, out io.Writer) (*summary, error) {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	limit := flags.String("rate", "100/s", "how many `requests/span` each API key may make")
	processes := flags.Int("processes", 4, "how many processes serve them, 1 to 64")
	seconds := flags.Float64("seconds", 4, "how long each part of the story is, in `seconds`")
	redis := flags.String("redis", "", "the `host:port` of a Redis that runs already")
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
		// A run of its own: what another one left in that Redis does not count.
		Prefix: fmt.Sprintf("ratelimit-fleet:%d:%d:", os.Getpid(), time.Now().UnixMicro()),
	})
	if err != nil {
		return nil, err
	}
	defer fleet.stop()
	return s, tell(ctx, s, fleet, own, span)
}

// tell goes through the parts of the story; there is but one if the server is not
// its own.
func tell(ctx context.Context, s *summary, fleet *fleet, own *server, span time.Duration) error {
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
		// From before it could grant anything: the bound is to be no less than it is.
		s.serverBegins("Redis again")
		if err := own.start(ctx); err != nil {
			return err
		}
		s.part("Redis is back, and empty: processes find out when their breakers let a call through.")
		if err := watch(ctx, s, fleet, span); err != nil {
			return err
		}
		// The breakers take a second, and a part of the story may be shorter.
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

// watch lets the fleet work for a span, and has a table of each second of it.
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
