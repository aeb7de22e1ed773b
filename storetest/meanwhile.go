package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// locked is how long a request waits for the interfering call, if the store lets no other
// call proceed until the request is done.
const locked = 50 * time.Millisecond

// meanwhile runs something between the moment at which call has read the state and the
// end of call. If the store does not allow that, something runs after call.
func (s *suite) meanwhile(b *bench, call, something func()) {
	done := make(chan struct{})
	run := func() {
		defer close(done)
		something()
	}
	b.clk.interlude(func() {
		go run()
		select {
		case <-done:
		case <-time.After(locked):
		}
	})
	call()
	if b.clk.interlude(nil) != nil {
		run() // call did not read the clock
	}
	<-done
}

func testMeanwhile(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	take := func(b *bench, n int) func() {
		return func() {
			if d := must[ratelimit.Decision](s)(b.Take(ctx, "k", n)); !d.Allowed {
				s.broken("%d events within the limit were denied: %+v", n, d)
			}
		}
	}
	for name, tt := range map[string]struct {
		something func(b *bench)
		remaining []int // allowed results, if 2 were taken before and 1 at the same time
	}{
		"Take":                 {func(b *bench) { take(b, 7)() }, []int{10}},
		"Reset":                {func(b *bench) { s.reset(b, "k") }, []int{20, 19}},
		"Reset and Take":       {func(b *bench) { s.reset(b, "k"); take(b, 7)() }, []int{13, 12}},
		"Reset, Take, as much": {func(b *bench) { s.reset(b, "k"); take(b, 2)() }, []int{18, 17}},
	} {
		b := s.bench(alg)
		take(b, 2)()
		s.meanwhile(b, take(b, 1), func() { tt.something(b) })
		if d := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); !slices.Contains(tt.remaining, d.Remaining) {
			s.broken("2 of 20 were taken; while 1 more was taken, another caller did: %s; then %d remain, want one of %d", name, d.Remaining, tt.remaining)
		}
	}
	// The same with a new key.
	b := s.bench(alg)
	s.meanwhile(b, take(b, 1), take(b, 7))
	if d := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); d.Remaining != 12 {
		s.broken("1 and 7 of 20 were taken concurrently from a new key, and %d remain", d.Remaining)
	}

	// A decision is never made at an earlier time than the state it is based on: if
	// another call has moved the state to the next window, the decision is made in that
	// window as well, or it comes before that call.
	if s.OwnClock {
		return
	}
	b = s.bench(alg)
	take(b, 2)()
	other := &bench{Limiter: s.limiter(b, alg), clk: b.clk} // because the time of one limiter never goes back
	s.meanwhile(b, func() {
		d := must[ratelimit.Decision](s)(b.Take(ctx, "k", 1))
		if !d.Allowed || d.ResetAfter > time.Hour {
			s.broken("while 1 event was taken, another caller took 1 in the next window of an hour; then the answer to the first is %+v", d)
		}
	}, func() {
		b.clk.Advance(time.Hour)
		take(other, 1)()
	})
}

func testContexts(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	b := s.bench(alg)
	for i := range 5 {
		own, cancel := context.WithCancel(ctx)
		if d := must[ratelimit.Decision](s)(b.Take(own, "k", 1)); d.Remaining != 19-i {
			s.broken("%d of 20 were taken, and %d remain", i+1, d.Remaining)
		}
		cancel()
	}

	// A caller may give up at any time. Its events are then either spent or not, and the
	// state is consistent.
	for _, n := range []int{1, 3} {
		b := s.bench(alg)
		own, cancel := context.WithCancel(ctx)
		b.clk.interlude(cancel)
		d, err := b.Take(own, "k", n)
		if err != nil && !errors.Is(err, context.Canceled) {
			s.broken("the context was cancelled, and the error is %v", err)
		}
		cancel()
		left := must[ratelimit.Decision](s)(b.Peek(ctx, "k")).Remaining
		if left != 20-n && (left != 20 || err == nil && d.Allowed) {
			s.broken("%d of 20 were taken by a caller whose context was cancelled (%+v, %v), and %d remain", n, d, err, left)
		}
		s.reset(b, "k")
	}
}
