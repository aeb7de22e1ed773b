// Package fakes has helpers that the tests of the root package and of internal/laws share: limiters
// on clocks that a test moves; stores that fail, hang or count calls; observers and loggers that
// record what they get. Only tests import it.
package fakes

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Midnight is the time at which most tests begin: the start of a minute, an hour and a day.
var Midnight = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// Patient is an option for tests whose store never hangs: on a busy machine, calls of the store do
// not time out.
var Patient = ratelimit.WithStoreTimeout(time.Hour)

// At returns a limiter with the option Patient, and its clock, which shows Midnight.
func At(
	t testing.TB,
	alg ratelimit.Algorithm,
	opts ...ratelimit.Option,
) (ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	clk := storetest.NewClock(Midnight)
	l, err := ratelimit.New(alg,
		append([]ratelimit.Option{ratelimit.WithClock(clk), Patient}, opts...)...)
	require.NoError(t, err)
	return l, clk
}

// Stepped returns a limiter of the name "test", its store and its clock. Unless a store is given,
// the store is a new one.
func Stepped(
	t testing.TB,
	alg ratelimit.Algorithm,
	stores ...*ratelimit.MemoryStore,
) (ratelimit.Limiter, *ratelimit.MemoryStore, *stepclock.Clock) {
	t.Helper()
	s, clk := append(stores, new(ratelimit.MemoryStore))[0], stepclock.New()
	l, err := ratelimit.New(alg, ratelimit.WithStore(s), ratelimit.WithName("test"),
		ratelimit.WithClock(clk))
	require.NoError(t, err)
	return l, s, clk
}

// MostEvents is the greatest limit.
const MostEvents = min(math.MaxInt, 1<<62)

// EveryWidth has an algorithm for each size that a state in memory may have.
var EveryWidth = []ratelimit.Algorithm{
	ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
	ratelimit.SlidingWindow{Limit: 10, Window: time.Second, Segments: 5},
	ratelimit.SlidingLog{Limit: 10, Window: time.Second},
	ratelimit.All{
		ratelimit.SlidingLog{Limit: 10, Window: time.Second},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
	},
}

// TakeUpTo takes n events of a key, or as many as the key grants, and returns their number.
func TakeUpTo(t testing.TB, l ratelimit.Limiter, key string, n int) (granted int) {
	t.Helper()
	d, err := l.Peek(context.Background(), key)
	require.NoError(t, err)
	n = min(n, d.Remaining)
	d, err = l.Take(context.Background(), key, n)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return n
}

// Take takes n events of the key "key".
func Take(t testing.TB, l ratelimit.Limiter, n int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(context.Background(), "key", n)
	require.NoError(t, err)
	return d
}

// Peek returns the decision of Peek on the key "key".
func Peek(t testing.TB, l ratelimit.Limiter) ratelimit.Decision {
	t.Helper()
	d, err := l.Peek(context.Background(), "key")
	require.NoError(t, err)
	return d
}

// Remaining returns how many events of "key" would be granted now.
func Remaining(t testing.TB, l ratelimit.Limiter) int {
	t.Helper()
	return Peek(t, l).Remaining
}

// Held holds n events of a key, which must grant them.
func Held(t testing.TB, l ratelimit.Limiter, key string, n int) *ratelimit.Reservation {
	t.Helper()
	r, d, err := l.Hold(context.Background(), key, n)
	require.NoError(t, err)
	require.True(t, d.Allowed, "%+v", d)
	require.NotNil(t, r)
	return r
}

// Five is the limit of most tests of callers that wait for events in flight.
var Five = ratelimit.InFlight{Limit: 5, Timeout: time.Minute}

// A Waiter is a goroutine that waits in a bubble of testing/synctest. R, Err and Ended may be read
// once Done is true.
type Waiter struct {
	N      int
	Cancel context.CancelFunc
	Done   atomic.Bool
	R      *ratelimit.Reservation
	Err    error
	Ended  time.Time
}

// WaitFor starts a goroutine that waits for a hold of n events of key.
func WaitFor(t testing.TB, l ratelimit.Limiter, key string, n int) *Waiter {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &Waiter{N: n, Cancel: cancel}
	go func() {
		w.R, _, w.Err = l.Hold(ctx, key, n, ratelimit.Waiting())
		w.Ended = time.Now()
		w.Done.Store(true)
	}()
	return w
}

// OwnLimit gives each key alg as a limit of its own. If alg is nil, the lookup finds no limit, and
// keys have the limit of New.
func OwnLimit(alg ratelimit.Algorithm) ratelimit.Option {
	return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		return alg, nil
	})
}

// A Plan is a limit of all keys that a test can change.
type Plan struct {
	alg atomic.Pointer[ratelimit.Algorithm]
}

// NewPlan returns a plan whose limit is alg.
func NewPlan(alg ratelimit.Algorithm) *Plan {
	p := &Plan{}
	p.Set(alg)
	return p
}

// Set changes the plan.
func (p *Plan) Set(alg ratelimit.Algorithm) { p.alg.Store(&alg) }

// Lookup returns the limit of each key. It is an argument of WithLimits.
func (p *Plan) Lookup(context.Context, string) (ratelimit.Algorithm, error) {
	return *p.alg.Load(), nil
}

// OwnLimits are limits of single keys that a test can change.
type OwnLimits struct {
	mu  sync.Mutex // protects of
	of  map[string]ratelimit.Algorithm
	Err error // the error of each lookup; set before the first lookup
}

// Lookup returns the limit of key. It is an argument of WithLimits.
func (o *OwnLimits) Lookup(_ context.Context, key string) (ratelimit.Algorithm, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[key], o.Err
}

// Set changes the limit of key.
func (o *OwnLimits) Set(key string, alg ratelimit.Algorithm) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = make(map[string]ratelimit.Algorithm)
	}
	o.of[key] = alg
}

// Varying is like Stepped, with limits of keys that a test can change.
func Varying(
	t testing.TB,
	base ratelimit.Algorithm,
	opts ...ratelimit.Option,
) (ratelimit.Limiter, *OwnLimits, *ratelimit.MemoryStore, *stepclock.Clock) {
	t.Helper()
	own, s, clk := &OwnLimits{}, new(ratelimit.MemoryStore), stepclock.New()
	all := []ratelimit.Option{
		ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk),
		ratelimit.WithLimits(own.Lookup),
	}
	l, err := ratelimit.New(base, append(all, opts...)...)
	require.NoError(t, err)
	return l, own, s, clk
}

// A Wrapped is a limiter that wraps another one.
type Wrapped struct{ ratelimit.Limiter }

// A Hidden is a limiter that wraps another one, and does not tell what it is.
type Hidden struct{ ratelimit.Limiter }

// Describe returns an empty Info.
func (Hidden) Describe() ratelimit.Info { return ratelimit.Info{} }

// Rand returns random numbers: the same in each run in CI, and others each night (see budget.Rand).
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return budget.Rand(t)
}
