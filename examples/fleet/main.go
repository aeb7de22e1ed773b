// Fleet runs four processes that share one limit for each API key through Redis, and shows what
// happens when Redis fails and recovers.
//
//	go run ./examples/fleet
//
// Fleet starts its own redis-server or valkey-server. It kills the server after four seconds, and
// starts it again four seconds later. The requests of alice and bob come at half of the limit,
// spread over the processes. The requests of abuser come at a rate far above the limit. Each
// second, fleet prints a line with the decisions of all processes.
//
//	go run ./examples/fleet -redis localhost:6379
//
// This command uses a running server, and does not stop it. So there is no outage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
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

// run runs the demonstration and writes it to out. If a bound did not hold, run returns an error.
func run(ctx context.Context, args []string, out io.Writer) (*fleet, error) {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	processes := flags.Int("processes", 4, "how many processes serve the keys, 1 to 64")
	seconds := flags.Float64("seconds", 4, "the length of each part of the demonstration, in `seconds`")
	redis := flags.String("redis", "", "the `host:port` of a running Redis to use")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case *processes < 1 || *processes > 64:
		return nil, fmt.Errorf("-processes %d: must be from 1 to 64", *processes)
	case !(*seconds >= 0.1 && *seconds <= 3600):
		return nil, fmt.Errorf("-seconds %v: must be from 0.1 to 3600", *seconds)
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: all settings are flags", flags.Arg(0))
	}
	var own *server
	if *redis == "" {
		var err error
		own, err = newServer(ctx)
		if err != nil {
			return nil, err
		}
		defer own.kill()
		*redis = own.addr
	}
	f := &fleet{out: out, began: time.Now()}
	defer f.stop()
	for i := range *processes {
		c, err := spawn(ctx, job{
			Redis: *redis, Process: i + 1, Processes: *processes,
			// The prefix is unique to this run, so that keys of earlier runs do not count.
			Prefix: fmt.Sprintf("ratelimit-fleet:%d:%d:", os.Getpid(), f.began.UnixMicro()),
		})
		if err != nil {
			return nil, err
		}
		f.processes = append(f.processes, c)
	}
	if err := f.play(ctx, own, time.Duration(*seconds*float64(time.Second))); err != nil {
		return nil, err
	}
	return f, f.check(own != nil)
}

// A fleet has the processes, and their decisions.
type fleet struct {
	out       io.Writer
	processes []*child
	began     time.Time
	last, all report // the decisions of all processes: since the last report, and since the start
}

// play plays the parts of the demonstration. If own is nil, there is only one part.
func (f *fleet) play(ctx context.Context, own *server, span time.Duration) error {
	err := f.watch(ctx, span, fmt.Sprintf("Redis is up: one limit for the fleet, %v for each key.", limit.Rate))
	if err != nil || own == nil {
		return err
	}
	own.kill()
	err = f.watch(ctx, span, fmt.Sprintf("Redis was killed: each of %d processes decides alone, "+
		"with its share of the limit.", len(f.processes)))
	if err != nil {
		return err
	}
	if err := own.start(ctx); err != nil {
		return err
	}
	err = f.watch(ctx, span, "Redis is back, and empty: processes find out when their breakers let a call through.")
	// The breakers take half a second to close. A part may be shorter, so it is prolonged.
	for more := 0; err == nil && more < 10 && f.last.degraded() > 0; more++ {
		err = f.watch(ctx, min(span, time.Second), "")
	}
	return err
}

// watch lets the fleet run for a span, and prints a line each second.
func (f *fleet) watch(ctx context.Context, span time.Duration, what string) error {
	if what != "" {
		fmt.Fprintf(f.out, "\n%s\n\n   time%14s%14s%14s  degraded\n", what, "abuser", "alice", "bob")
	}
	for begin, passed := time.Now(), time.Duration(0); passed < span; {
		passed = min(passed+time.Second, span)
		select {
		case <-time.After(time.Until(begin.Add(passed))):
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		if err := f.ask(); err != nil {
			return err
		}
		fmt.Fprintf(f.out, "%6.1fs", time.Since(f.began).Seconds())
		for _, t := range f.last {
			fmt.Fprintf(f.out, "%5d of %5d", t.Shared.Allowed+t.Local.Allowed, t.Shared.asked()+t.Local.asked())
		}
		fmt.Fprintf(f.out, "%10d\n", f.last.degraded())
	}
	return nil
}

// ask asks each process for its decisions since the last time, and adds them up.
func (f *fleet) ask() error {
	for i, c := range f.processes {
		if _, err := io.WriteString(c.in, "\n"); err != nil {
			return fmt.Errorf("process %d does not read its stdin: %w", i+1, err)
		}
	}
	f.last = report{}
	for i, c := range f.processes {
		var one report
		if !c.out.Scan() {
			return fmt.Errorf("process %d has exited", i+1)
		}
		if err := json.Unmarshal(c.out.Bytes(), &one); err != nil {
			return fmt.Errorf("process %d: %w", i+1, err)
		}
		f.last.add(&one)
	}
	f.all.add(&f.last)
	return nil
}

// check prints how many requests of abuser were allowed, and how many may be allowed. Redis may
// allow the burst and a refill, and the burst again if Redis has lost its data. The fallbacks
// together may also allow the burst and a refill, because their shares add up to the limit. Without
// an outage, the fallbacks decide only if Redis answers too late.
func (f *fleet) check(outage bool) error {
	passed := time.Since(f.began)
	local := limit.Rate.Events + int(passed*time.Duration(limit.Rate.Events)/limit.Rate.Per)
	shared := local
	if outage {
		shared += limit.Rate.Events
	}
	for k, t := range f.all {
		if t.Shared.Allowed > shared || t.Local.Allowed > local {
			return fmt.Errorf("the bound did not hold: %s was allowed %d by Redis and %d by the "+
				"fallbacks, and may have %d and %d",
				keys[k], t.Shared.Allowed, t.Local.Allowed, shared, local)
		}
	}
	t := f.all[0]
	fmt.Fprintf(f.out, "\nThe bound held: %d processes allowed abuser %d requests by Redis, "+
		"at most %d, and %d by the fallbacks, at most %d.\n",
		len(f.processes), t.Shared.Allowed, shared, t.Local.Allowed, local)
	return nil
}

// stop stops all processes and waits until they have exited.
func (f *fleet) stop() {
	for _, c := range f.processes {
		_ = c.in.Close() // stops them concurrently
	}
	for _, c := range f.processes {
		c.end()
	}
}
