// Package storetest checks that a [ratelimit.Database] lets package ratelimit keep its promises.
// The test of a database calls Run:
//
//	func TestTable(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			Database: func(testing.TB, clock.Clock) ratelimit.Database { return newTable() },
//		})
//	}
//
// Each subtest checks one promise that a database can break, with databases of its own. A failure
// names the broken promise and the calls that broke it. An error of the database also fails the
// subtest, because no call of the tests may fail. A database that hangs or panics fails its
// subtest, and the other subtests continue. Run returns when all of them have ended.
// "go test -v -run TestTable" prints the names of the subtests, and "go test -run TestTable/Atomic"
// runs the one that makes calls from many goroutines at once.
//
// Run does not test databases that fail, because the limiter's [ratelimit.FailurePolicy] decides
// then.
package storetest

import (
	"errors"
	"hash/fnv"
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// Config describes the database to test. The stores of this module set New instead.
type Config struct {
	// Database returns an empty database that shares nothing with other databases. The tests
	// advance clk, by which states expire. So a database that deletes expired states by its own
	// clock must use clk. Many databases are used at once. The tests make several stores of each
	// database, as several processes do.
	Database func(t testing.TB, clk clock.Clock) ratelimit.Database

	// New returns an empty store that shares nothing with other stores. A store that decides by its
	// own time, and not by the time of the limiter, must use clk.
	New func(t testing.TB, clk clock.Clock) ratelimit.Store

	// Reopen returns another handle on the states of s, as a process gets after a restart, or
	// another process gets. s was returned by New or Reopen. If Reopen is nil, as for a store in
	// memory, restarts and handles are not tested.
	Reopen func(t testing.TB, clk clock.Clock, s ratelimit.Store) ratelimit.Store

	// OwnClock means that the store decides by its own time, and that in these tests it reads clk
	// before it reads the state. Then the tests do not check that the store reads the time after
	// the state.
	OwnClock bool

	// Tick is the resolution of the time that a store of New decides by: 1ns, which 0 means too, or
	// 1µs. The tests advance clk by multiples of Tick, and expect durations to be rounded up to the
	// next multiple. With a coarser Tick, some of [Algorithms] would have no meaning, and Run fails.
	//
	// Leave it 0 with a Database, even if that keeps the times at which states expire in
	// milliseconds: the limiter's clock decides. Such a Database rounds these times up.
	Tick time.Duration

	// Steps is the number of calls in each comparison with the reference model; 0 means 500. Lower
	// it for a slow store. With go test -short, the tests make a tenth of these calls.
	Steps int

	// Keys is the number of keys that the test of many keys uses at once. 0 means 12,000, or fewer
	// if the test cannot add them in ten seconds. Lower it for a store that holds fewer keys.
	Keys int

	// Timeout is how long a call of the store may take; 0 means 10s. A call that takes longer fails
	// its subtest, and the other subtests continue.
	Timeout time.Duration
}

// Run tests the databases that c.Database returns, or the stores that c.New returns. When Run
// returns, all tests have ended. So its caller may close a database then.
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
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	all := maps.Clone(rules)
	if c.Database != nil {
		maps.Copy(all, databaseRules)
		c.New, c.Reopen = newOn(c.Database), reopenOn
	}
	switch {
	case c.New == nil:
		t.Fatal("storetest: Config has no Database")
	case c.Database != nil && c.Tick != 1:
		t.Fatalf("storetest: Config.Tick is %v: it must be 0 with a Database, "+
			"because the limiter's clock decides", c.Tick)
	case c.Tick != 1 && c.Tick != time.Microsecond:
		t.Fatalf("storetest: Config.Tick is %v: it must be 1ns or 1µs", c.Tick)
	}
	s := &suite{T: t, Config: c, turns: make(chan struct{}, atOnce)}
	s.turns <- struct{}{}
	test := func(s *suite, r rule) {
		s.rule, s.watch = r.text, &watch{timeout: c.Timeout}
		r.test(s)
		s.intact()
	}
	subtests(s, all, test)
	subtests(s, timedRules, test)
}

// atOnce is the number of subtests that run at once. It is large, because the calls to a slow store
// spend their time waiting. If it were larger, the calls to a fast store would wait for a
// processor.
const atOnce = 16

// A suite is the context of one subtest.
type suite struct {
	*testing.T
	Config
	turns chan struct{} // has an element for each subtest that runs
	rule  string
	watch *watch
}

// subtests runs test for each value, in parallel. It returns when all subtests are over. It does
// not use t.Parallel, because subtests that call it run only after their parent has returned.
func subtests[T any](s *suite, of map[string]T, test func(s *suite, of T)) {
	var wg sync.WaitGroup
	for name, v := range of {
		wg.Go(func() {
			s.Run(name, func(t *testing.T) {
				defer func() {
					if v := recover(); v != nil {
						t.Errorf("panic: %v\n%s", v, debug.Stack())
					}
				}()
				s.turns <- struct{}{}
				defer func() { <-s.turns }()
				sub := *s
				sub.T = t
				test(&sub, v)
			})
		})
	}
	<-s.turns
	wg.Wait()
	s.turns <- struct{}{}
}

// seed returns a seed for random tests. It depends only on the name of the subtest.
func (s *suite) seed() uint64 {
	h := fnv.New64a()
	h.Write([]byte(s.Name()))
	return h.Sum64()
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

// start is the time at which most tests begin. It is not the start of a second or an hour, so that
// the tests notice windows that are not aligned.
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
func (s *suite) limiter(
	b *bench,
	alg ratelimit.Algorithm,
	opts ...ratelimit.Option,
) ratelimit.Limiter {
	s.Helper()
	l, err := s.tryLimiter(b, alg, opts...)
	if errors.Is(err, ratelimit.ErrInvalid) { // the store refuses the algorithm
		s.broken("New(%v): %v", alg, err)
	}
	if err != nil {
		s.Fatalf("New(%v): %v", alg, err)
	}
	return l
}

// tryLimiter is like limiter, but returns an error if the store refuses it. The limiter
// denies everything if the store fails.
func (s *suite) tryLimiter(
	b *bench,
	alg ratelimit.Algorithm,
	opts ...ratelimit.Option,
) (ratelimit.Limiter, error) {
	opts = append([]ratelimit.Option{ratelimit.WithName("test")}, opts...)
	opts = append(opts, ratelimit.WithStore(b.store), ratelimit.WithClock(b.clk),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	return ratelimit.New(alg, opts...)
}

// reopened returns a bench with another handle on the store of b.
func (s *suite) reopened(b *bench, alg ratelimit.Algorithm, opts ...ratelimit.Option) *bench {
	s.Helper()
	again := &bench{clk: b.clk, store: s.watch.store(s.Reopen(s.T, b.clk, unwatched(b.store)))}
	again.Limiter = s.limiter(again, alg, opts...)
	return again
}

// handles returns a function that returns, by turns, b and limiters on other handles on its store,
// as other processes have. If Reopen is nil, it always returns b. With one handle alone, the store
// might make the calls for a key one at a time. Such calls do not show whether the database is
// atomic.
func (s *suite) handles(b *bench, alg ratelimit.Algorithm) func() ratelimit.Limiter {
	of := []ratelimit.Limiter{b.Limiter}
	if s.Reopen != nil {
		of = append(of, s.reopened(b, alg).Limiter, s.reopened(b, alg).Limiter)
	}
	var turn atomic.Int64
	return func() ratelimit.Limiter { return of[turn.Add(1)%int64(len(of))] }
}

// roundUp returns d rounded up to the store's tick.
func (s *suite) roundUp(d time.Duration) time.Duration {
	if d == ratelimit.Never || d%s.Tick == 0 {
		return d
	}
	return d - d%s.Tick + s.Tick
}

// succeeded fails the test if err says that the store failed.
func (s *suite) succeeded(err error) {
	s.Helper()
	if err != nil {
		s.intact()
		s.Fatalf("the store failed: %v", err)
	}
}

// decided returns the decision of a call, which must not have failed.
func (s *suite) decided(d ratelimit.Decision, err error) ratelimit.Decision {
	s.Helper()
	s.succeeded(err)
	return d
}

// peek returns the decision of Peek, which must not fail.
func (s *suite) peek(l ratelimit.Limiter, key string) ratelimit.Decision {
	s.Helper()
	return s.decided(l.Peek(ctx, key))
}

// take returns the decision of Take, which must not fail.
func (s *suite) take(l ratelimit.Limiter, key string, n int) ratelimit.Decision {
	s.Helper()
	return s.decided(l.Take(ctx, key, n))
}
