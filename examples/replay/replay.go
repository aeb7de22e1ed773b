package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/benbjohnson/clock"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimit-go/ratelimit"
)

// A simClock is a clock that returns the time it was set to. The mock of package clock sleeps for a
// millisecond whenever it is set, to let timers run. Take uses no timers, so a simClock does not
// sleep.
type simClock struct {
	clock.Clock // for the methods that Take does not use
	now         time.Time
}

func newSimClock(now time.Time) *simClock { return &simClock{Clock: clock.NewMock(), now: now} }

func (c *simClock) Now() time.Time                  { return c.now }
func (c *simClock) Since(t time.Time) time.Duration { return c.now.Sub(t) }

// An outcome has the decisions of one algorithm on a trace.
type outcome struct {
	candidate
	denials []bool // for each request of the trace, whether it was denied

	allowed, denied int64         // events
	deniedOf        []int64       // events, by key
	limited         int           // the number of keys with a denial
	longestWait     time.Duration // the greatest RetryAfter of a denial, which may be Never
}

// replay runs a trace through each of the algorithms. It runs as many algorithms at once as there
// are CPUs. Each algorithm has a limiter and a clock of its own.
func replay(t *trace, cs []candidate) ([]*outcome, error) {
	outcomes := make([]*outcome, len(cs))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, c := range cs {
		g.Go(func() (err error) {
			outcomes[i], err = replayOne(t, c)
			return err
		})
	}
	return outcomes, g.Wait()
}

func replayOne(t *trace, c candidate) (*outcome, error) {
	clk := newSimClock(t.first())
	limiter, err := ratelimit.New(c.algorithm, ratelimit.WithClock(clk))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	o := &outcome{candidate: c, denials: make([]bool, len(t.requests)), deniedOf: make([]int64, len(t.keys))}
	for i, r := range t.requests {
		clk.now = time.Unix(0, r.at)
		d, err := limiter.Take(context.Background(), t.keys[r.key], int(r.n))
		if err != nil {
			return nil, fmt.Errorf("%s: request %d of %s, key %s: %w", c.name, i+1, t.source, safeText(t.keys[r.key], 60), err)
		}
		if d.Allowed {
			o.allowed += int64(r.n)
			continue
		}
		o.denials[i] = true
		o.denied += int64(r.n)
		if o.deniedOf[r.key] == 0 {
			o.limited++
		}
		o.deniedOf[r.key] += int64(r.n)
		o.longestWait = max(o.longestWait, d.RetryAfter)
	}
	return o, nil
}
