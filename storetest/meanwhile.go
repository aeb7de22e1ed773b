package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// locked is how long a request waits for what happens meanwhile, if the store lets
// nobody else in until the request is done.
const locked = 50 * time.Millisecond

// meanwhile does something while call is between its reading of the state and its
// end, if the store lets it; else after call.
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
		run() // nobody has read the clock
	}
	<-done
}

func testMeanwhile(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	take := func(b *bench, n int) func() {
		return func() {
			if d := must[ratelimit.Decision](s)(b.Take(ctx, "k", n)); !d.Allowed {
				s.broken("%d of a limit that nobody has hit were denied: %+v", n, d)
			}
		}
	}
	for name, tt := range map[string]struct {
		something func(b *bench)
		remaining []int // if 2 were taken before, and 1 meanwhile
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
			s.broken("2 of 20 were taken; while 1 was, somebody else did: %s; and %d remain, want one of %d", name, d.Remaining, tt.remaining)
		}
	}
	// The same of a key that was not there.
	b := s.bench(alg)
	s.meanwhile(b, take(b, 1), take(b, 7))
	if d := must[ratelimit.Decision](s)(b.Peek(ctx, "k")); d.Remaining != 12 {
		s.broken("1 and 7 of 20 were taken at once of a new key, and %d remain", d.Remaining)
	}

	// A decision is not made at an earlier time than the state that it is made on: if
	// the next window begins meanwhile, whoever is still to be decided is in it.
	if s.OwnClock {
		return
	}
	b = s.bench(alg)
	other := &bench{Limiter: s.limiter(b, alg), clk: b.clk} // for the time of one limiter never goes back
	s.meanwhile(b, take(b, 1), func() {
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

	// A caller may leave at any time: its events are spent or not, and others are told
	// the truth.
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
			s.broken("%d of 20 were taken by a caller that left (%+v, %v), and %d remain", n, d, err, left)
		}
		s.reset(b, "k")
	}
}
