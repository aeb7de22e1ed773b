// Package storetest checks that a [ratelimit.Store] keeps the promises of
// package ratelimit. A store's own test calls Run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			New: func(t testing.TB, clk clock.Clock) ratelimit.Store { return newStore() },
//		})
//	}
//
// Each subtest checks one promise, with stores of its own. A failure names the broken
// promise and the calls that broke it. An error of the store also fails the subtest,
// because no call of the tests may fail. A store that hangs or panics fails its subtest,
// and the others continue.
//
// Run does not test how a store behaves when its database fails, because then the
// limiter's [ratelimit.FailurePolicy] decides.
package storetest

import (
	"errors"
	"runtime/debug"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// Config describes the store to test.
type Config struct {
	// New returns an empty store that shares nothing with other stores. The tests
	// advance clk themselves. A store that uses its own time instead of the requests'
	// must use clk.
	New func(t testing.TB, clk clock.Clock) ratelimit.Store

	// Reopen returns another handle on the states of s, a store returned by New or
	// Reopen, as after a restart of the process or from another process. If it is nil,
	// as is right for a store in memory, restarts and handles are not tested.
	Reopen func(t testing.TB, clk clock.Clock, s ratelimit.Store) ratelimit.Store

	// Exclusive means that s cannot be used any more after Reopen, for example because
	// the store locks a file. Then restarts are tested, but not concurrent handles.
	Exclusive bool

	// OwnClock means that the store uses its own time instead of the requests', and for
	// these tests reads clk before it reads the state. Then the order of these two is
	// not tested.
	OwnClock bool

	// Tick is the resolution of the store's time; 0 means 1ns. The tests advance clk by
	// multiples of it, and expect durations to be rounded up to the next multiple.
	Tick time.Duration

	// Steps is the number of calls in each comparison with the reference model; 0 means
	// 500. Lower it for a slow store. With go test -short it is a tenth.
	Steps int

	// Keys is the number of keys that the test of many keys uses at once; 0 means
	// 12,000. Lower it for a store that is slow or holds fewer keys.
	Keys int

	// Timeout is how long a call of the store may take; 0 means 10s. A call that takes
	// longer fails its subtest, and the others continue.
	Timeout time.Duration
}

// Run tests the stores that c.New returns.
func Run(t *testing.T, c Config) {
	if c.Tick == 0 {
		c.Tick = 1
	}
	if c.Steps == 0 {
		c.Steps = 500
	}
	if testing.Short() {
		c.Steps = (c.Steps + 9) / 10
	}
	if c.Keys == 0 {
		c.Keys = 12_000
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			s := &suite{T: t, Config: c, rule: rule.text, watch: &watch{timeout: c.Timeout}}
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("panic: %v\n%s", v, debug.Stack())
				}
			}()
			rule.test(s)
			s.intact()
		})
	}
}

// A suite is the context of one subtest.
type suite struct {
	*testing.T
	Config
	rule  string
	watch *watch
}

// broken fails the test with the text of the promise, or with the store's error if the
// store has failed.
func (s *suite) broken(format string, args ...any) {
	s.Helper()
	s.intact()
	s.Fatalf("broken promise: "+s.rule+"\n"+format, args...)
}

// intact fails the test if the store has failed.
func (s *suite) intact() {
	s.Helper()
	if err := s.watch.failure(); err != nil {
		s.Fatalf("the store failed: %v\nwhile testing the promise: %s", err, s.rule)
	}
}

// A bench is a limiter with its store and its clock.
type bench struct {
	ratelimit.Limiter
	clk   *Clock
	store ratelimit.Store
}

// start is the time at which most tests begin. It is not at the start of a second or an
// hour, so that the tests notice windows that are not aligned.
var start = time.Date(2026, 3, 1, 12, 34, 56, 789_000_000, time.UTC)

// bench returns a limiter with a store and a clock of its own.
func (s *suite) bench(alg ratelimit.Algorithm, opts ...ratelimit.Option) *bench {
	s.Helper()
	clk := NewClock(start)
	b := &bench{clk: clk, store: s.watch.store(s.New(s.T, clk))}
	b.Limiter = s.limiter(b, alg, opts...)
	return b
}

// limiter returns another limiter on the store of b.
func (s *suite) limiter(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	s.Helper()
	l, err := s.tryLimiter(b, alg, opts...)
	if errors.Is(err, ratelimit.ErrInvalid) { // the store refuses the algorithm
		s.broken("New(%T%+v): %v", alg, alg, err)
	}
	if err != nil {
		s.Fatalf("New(%T%+v): %v", alg, alg, err)
	}
	return l
}

// tryLimiter is like limiter, but returns an error if the store refuses it. The limiter
// denies everything if the store fails.
func (s *suite) tryLimiter(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
	return ratelimit.New(alg, append(opts, ratelimit.WithStore(b.store), ratelimit.WithClock(b.clk), ratelimit.WithFailurePolicy(ratelimit.FailClosed))...)
}

// reopened returns a bench with another handle on the store of b.
func (s *suite) reopened(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) *bench {
	s.Helper()
	again := &bench{clk: b.clk, store: s.watch.store(s.Reopen(s.T, b.clk, unwatched(b.store)))}
	again.Limiter = s.limiter(again, alg, opts...)
	return again
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
			s.intact()
			s.Fatalf("the store failed: %v", err)
		}
		return v
	}
}
