// Package storetest checks that a [ratelimit.Store] keeps the promises of
// package ratelimit. A store's own test calls Run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			New: func(t testing.TB, clk clock.Clock) ratelimit.Store { return mystore.New() },
//		})
//	}
//
// Each subtest is one promise and gets a store of its own. A failure says which
// promise is broken, and by which calls.
package storetest

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// Config says what to test.
type Config struct {
	// New returns an empty store that shares nothing with others. The tests
	// tell the time by clk, which they move by hand; a store that does not
	// decide by the time of the requests must be made to use it.
	New func(t testing.TB, clk clock.Clock) ratelimit.Store

	// Tick is the unit in which the store tells the time; 0 means 1ns. The
	// tests then move clk by multiples of it, and allow durations to be rounded
	// up to the next one.
	Tick time.Duration

	// Steps is the number of calls in each comparison with the reference
	// model; 0 means 500. Lower it for a store that takes long to answer.
	Steps int
}

// Run tests the store that c.New makes.
func Run(t *testing.T, c Config) {
	if c.Tick == 0 {
		c.Tick = 1
	}
	if c.Steps == 0 {
		c.Steps = 500
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			rule.test(&suite{T: t, Config: c, rule: rule.text})
		})
	}
}

// A suite is what one subtest works with.
type suite struct {
	*testing.T
	Config
	rule string
}

// broken fails the test in the words of the promise.
func (s *suite) broken(format string, args ...any) {
	s.Helper()
	s.Errorf("broken promise: "+s.rule+"\n"+format, args...)
	s.FailNow()
}

// bench is a limiter on a store and a clock of its own.
type bench struct {
	ratelimit.Limiter
	clk   *Clock
	store ratelimit.Store
}

// start is when most tests begin: neither at the start of a second nor of an
// hour, so that windows which should be aligned are seen to be.
var start = time.Date(2026, 3, 1, 12, 34, 56, 789_000_000, time.UTC)

// bench returns a limiter with a store and a clock of its own.
func (s *suite) bench(alg ratelimit.Algorithm, opts ...ratelimit.Option) *bench {
	s.Helper()
	clk := NewClock(start)
	b := &bench{clk: clk, store: s.New(s.T, clk)}
	b.Limiter = s.limiter(b, alg, opts...)
	return b
}

// limiter returns a further limiter on the store of b.
func (s *suite) limiter(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	s.Helper()
	l, err := ratelimit.New(alg, append(opts, ratelimit.WithStore(b.store), ratelimit.WithClock(b.clk))...)
	if err != nil {
		s.Fatalf("New(%T%+v): %v", alg, alg, err)
	}
	return l
}

// roundUp returns d rounded up to the store's tick.
func (s *suite) roundUp(d time.Duration) time.Duration {
	if d == ratelimit.Never || d%s.Tick == 0 {
		return d
	}
	return d - d%s.Tick + s.Tick
}

// must fails the test if the store failed.
func must[T any](s *suite) func(v T, err error) T {
	return func(v T, err error) T {
		s.Helper()
		if err != nil {
			s.Fatalf("the store failed: %v", err)
		}
		return v
	}
}
