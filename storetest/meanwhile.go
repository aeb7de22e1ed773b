package storetest

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// mostInterference is how long a request waits for the interfering call. A store may let no other
// call proceed until the request is done. Then the request goes on after this time. The time is
// long, because an interfering call that may proceed can be slow, or wait for a processor.
const mostInterference = time.Second

// meanwhile calls interfere after call has read the state and before call returns. If the store
// lets no other call proceed in between, interfere goes on after call.
func (s *suite) meanwhile(b *bench, call, interfere func()) {
	done := make(chan struct{})
	run := func() {
		defer close(done)
		interfere()
	}
	began := false
	defer func() {
		if began {
			<-done // even if call has failed the test
		}
	}()
	b.clk.interlude(func() {
		began = true
		go run()
		select {
		case <-done:
		case <-time.After(mostInterference):
		}
	})
	call()
	if b.clk.interlude(nil) != nil {
		run() // call did not read the clock
	}
}

func testMeanwhile(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	take := func(s *suite, b *bench, n int) func() {
		return func() {
			if d := s.take(b, "k", n); !d.Allowed || d.ResetAfter > time.Hour {
				s.broken("%d events within the limit of an hour's window were answered: %+v", n, d)
			}
		}
	}
	type interference struct {
		interfere func(s *suite, b *bench)
		remaining []int // allowed results, if 2 were taken before and 1 at the same time
	}
	cases := map[string]interference{
		"Take":  {func(s *suite, b *bench) { take(s, b, 7)() }, []int{10}},
		"Reset": {func(s *suite, b *bench) { s.reset(b, "k") }, []int{20, 19}},
		"Reset and Take": {
			func(s *suite, b *bench) { s.reset(b, "k"); take(s, b, 7)() },
			[]int{13, 12},
		},
		"Reset, Take, as much": {
			func(s *suite, b *bench) { s.reset(b, "k"); take(s, b, 2)() },
			[]int{18, 17},
		},
	}
	// A decision is never made at an earlier time than the state that it is based on. If another
	// call has moved the state to the next window meanwhile, the decision is made in the next
	// window as well, or counts as made before the other call.
	if !s.OwnClock {
		cases["the next hour and Take"] = interference{
			func(s *suite, b *bench) { b.clk.Advance(time.Hour); take(s, b, 7)() },
			[]int{13, 12},
		}
	}
	subtests(s, cases, func(s *suite, tt interference) {
		b := s.bench(alg)
		take(s, b, 2)()
		other := s.other(b, alg) // because the time of one limiter never goes back
		s.meanwhile(b, take(s, b, 1), func() { tt.interfere(s, other) })
		if d := s.peek(b, "k"); !slices.Contains(tt.remaining, d.Remaining) {
			s.broken("2 of 20 were taken; while 1 more was taken, another caller did: %s; "+
				"then %d remain, want one of %d",
				path.Base(s.Name()), d.Remaining, tt.remaining)
		}
	})
	// The same holds for a new key.
	b := s.bench(alg)
	s.meanwhile(b, take(s, b, 1), take(s, s.other(b, alg), 7))
	if d := s.peek(b, "k"); d.Remaining != 12 {
		s.broken("1 and 7 of 20 were taken concurrently from a new key, and %d remain", d.Remaining)
	}
}

// other returns another limiter on the store of b. If the store can have several handles, the
// limiter is on another handle.
func (s *suite) other(b *bench, alg ratelimit.Algorithm) *bench {
	if s.Reopen != nil {
		return s.reopened(b, alg)
	}
	return &bench{Limiter: s.limiter(b, alg), clk: b.clk, store: b.store}
}

func testContexts(s *suite) {
	alg := ratelimit.FixedWindow{Limit: 20, Window: time.Hour}
	b := s.bench(alg)
	for i := range 5 {
		own, cancel := context.WithCancel(ctx)
		if d := s.decided(b.Take(own, "k", 1)); d.Remaining != 19-i {
			s.broken("%d of 20 were taken, and %d remain", i+1, d.Remaining)
		}
		cancel()
	}

	// A caller may give up at any time. Then its events are either spent or not, and the state is
	// consistent.
	for _, n := range []int{1, 3} {
		b := s.bench(alg)
		own, cancel := context.WithCancel(ctx)
		b.clk.interlude(cancel)
		d, err := b.Take(own, "k", n)
		if err != nil && !errors.Is(err, context.Canceled) {
			s.broken("the context was cancelled, and the error is %v", err)
		}
		cancel()
		left := s.peek(b, "k").Remaining
		if left != 20-n && (left != 20 || err == nil && d.Allowed) {
			s.broken("%d of 20 were taken by a caller whose context was cancelled (%+v, %v), "+
				"and %d remain",
				n, d, err, left)
		}
		s.reset(b, "k")
	}
}
