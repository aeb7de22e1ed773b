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

// A simClock is a clock that returns the time it was set to. The clock package's mock would
// sleep for a millisecond whenever it is set, to let timers run; but Take uses no timers.
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
	verdicts []uint64 // a bit for each request of the trace: whether it was allowed

	allowed, denied int64         // events
	deniedOf        []int64       // events, by key
	limited         int           // the number of keys with a denial
	worst           int           // the key with the most denials, or -1 if there are none
	longestWait     time.Duration // the greatest RetryAfter of a denial, which may be Never
}

// isAllowed reports whether the request with index i was allowed.
func (o *outcome) isAllowed(i int) bool { return o.verdicts[i/64]>>(i%64)&1 == 1 }

// replay runs a trace through each of the algorithms, as many at once as there are CPUs.
// Each has its own limiter and clock. From time to time, replay calls done with the number
// of requests decided since the last call, possibly from several goroutines at once.
func replay(t *trace, cs []candidate, done func(n int)) ([]*outcome, error) {
	outcomes := make([]*outcome, len(cs))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, c := range cs {
		g.Go(func() (err error) {
			outcomes[i], err = replayOne(t, c, done)
			return err
		})
	}
	return outcomes, g.Wait()
}

func replayOne(t *trace, c candidate, done func(n int)) (*outcome, error) {
	clk := newSimClock(t.first())
	limiter, err := ratelimit.New(c.algorithm, ratelimit.WithClock(clk))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	o := &outcome{
		candidate: c,
		verdicts:  make([]uint64, (len(t.requests)+63)/64),
		deniedOf:  make([]int64, len(t.keys)),
		worst:     -1,
	}

	const step = 1 << 14 // requests between two calls of done
	ctx := context.Background()
	for i, r := range t.requests {
		clk.now = time.Unix(0, r.at)
		d, err := limiter.Take(ctx, t.keys[r.key], int(r.n))
		if err != nil {
			return nil, fmt.Errorf("%s: request %d of %s, key %s: %w", c.name, i+1, t.source, safeKey(t.keys[r.key], 60), err)
		}
		if d.Allowed {
			o.verdicts[i/64] |= 1 << (i % 64)
			o.allowed += int64(r.n)
		} else {
			o.denied += int64(r.n)
			o.deniedOf[r.key] += int64(r.n)
			o.longestWait = max(o.longestWait, d.RetryAfter)
		}
		if (i+1)%step == 0 {
			done(step)
		}
	}
	done(len(t.requests) % step)

	for key, n := range o.deniedOf {
		if n == 0 {
			continue
		}
		o.limited++
		if o.worst < 0 || n > o.deniedOf[o.worst] {
			o.worst = key
		}
	}
	return o, nil
}
