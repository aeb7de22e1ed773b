// Package storetest checks that a [ratelimit.Store] keeps the promises of
// package ratelimit. A store's own test calls Run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			New: func(t testing.TB, clk clock.Clock) ratelimit.Store { return mystore.New() },
//		})
//	}
//
// Each subtest is one promise and gets stores of its own. A failure says which
// promise is broken, and by which calls; or what the store's error was, for a store
// that keeps every promise does not fail. A store that hangs or panics fails its
// subtest, and the others go on.
//
// What is not tested is what a store does when its database fails: the limiter's
// [ratelimit.FailurePolicy] decides then, whatever the store.
package storetest

import (
	"runtime/debug"
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

	// Reopen returns another handle on what s keeps, which New or Reopen has
	// returned: as the process would have it after a restart, or another process.
	// If it is nil, nothing of that is tested; that is right for a store in memory.
	Reopen func(t testing.TB, clk clock.Clock, s ratelimit.Store) ratelimit.Store

	// Exclusive says that s cannot be used any more after Reopen, as if one
	// process at a time locks a file. Then restarts are tested, and no handles that
	// are in use at once.
	Exclusive bool

	// OwnClock says that the store does not decide by the time of the requests, and
	// was made to read clk before it has the state, for these tests only. Then it is
	// not tested when it reads it.
	OwnClock bool

	// Tick is the unit in which the store tells the time; 0 means 1ns. The
	// tests then move clk by multiples of it, and allow durations to be rounded
	// up to the next one.
	Tick time.Duration

	// Steps is the number of calls in each comparison with the reference
	// model; 0 means 500. Lower it for a store that takes long to answer.
	Steps int

	// Keys is how many keys are used at once in the test that many can be; 0 means
	// 12,000. Lower it for a store that takes long to answer, or holds fewer.
	Keys int

	// Timeout is how long a call of the store may take; 0 means 10s. A call that
	// takes longer fails its subtest, and the others go on.
	Timeout time.Duration
}

// Run tests the store that c.New makes.
func Run(t *testing.T, c Config) {
	if c.Tick == 0 {
		c.Tick = 1
	}
	if c.Steps == 0 {
		c.Steps = 500
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

// A suite is what one subtest works with.
type suite struct {
	*testing.T
	Config
	rule  string
	watch *watch
}

// broken fails the test in the words of the promise; or by what the store said, if
// that is why.
func (s *suite) broken(format string, args ...any) {
	s.Helper()
	s.intact()
	s.Fatalf("broken promise: "+s.rule+"\n"+format, args...)
}

// intact fails the test if the store has failed.
func (s *suite) intact() {
	s.Helper()
	if err := s.watch.failure(); err != nil {
		s.Fatalf("the store failed: %v\nit was asked because of the promise: %s", err, s.rule)
	}
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
	b := &bench{clk: clk, store: s.watch.store(s.New(s.T, clk))}
	b.Limiter = s.limiter(b, alg, opts...)
	return b
}

// limiter returns a further limiter on the store of b.
func (s *suite) limiter(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	s.Helper()
	l, err := s.tryLimiter(b, alg, opts...)
	if err != nil {
		s.Fatalf("New(%T%+v): %v", alg, alg, err)
	}
	return l
}

// tryLimiter is limiter, which may be refused. A failure of the store never grants
// anything.
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
