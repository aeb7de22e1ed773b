// Package fakes has helpers that the tests of the root package and of internal/laws share: limiters
// on clocks that a test moves; stores that fail, hang or count calls; observers and loggers that
// record what they get. Only tests import it.
package fakes

import (
	"context"
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

// Midnight is when most tests begin: the start of a minute, an hour and a day.
var Midnight = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// Patient keeps a busy machine from failing the calls of a store that never hangs.
var Patient = ratelimit.WithStoreTimeout(time.Hour)

// At returns a limiter on a clock that shows Midnight. It is Patient.
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

// Stepped returns a limiter called test, its store and its clock. The store is a new one unless one
// is given.
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

// TakeUpTo takes as many of n events of a key as there are, and returns how many.
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

// Peek returns how the key "key" is.
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

// Held returns a hold that is granted.
func Held(t testing.TB, l ratelimit.Limiter, key string, n int) *ratelimit.Reservation {
	t.Helper()
	r, d, err := l.Hold(context.Background(), key, n)
	require.NoError(t, err)
	require.True(t, d.Allowed, "%+v", d)
	require.NotNil(t, r)
	return r
}

// Five is the limit of most tests of who waits.
var Five = ratelimit.InFlight{Limit: 5, Timeout: time.Minute}

// A Waiter is a goroutine that waits in a bubble. R, Err and Ended are set when it is done.
type Waiter struct {
	N      int
	Cancel context.CancelFunc
	Done   atomic.Bool
	R      *ratelimit.Reservation
	Err    error
	Ended  time.Time
}

// WaitFor waits for a hold of n events of key.
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

// OwnLimit gives each key alg as a limit of its own. If alg is nil, that is the limit of all.
func OwnLimit(alg ratelimit.Algorithm) ratelimit.Option {
	return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		return alg, nil
	})
}

// A Plan is the limit of all keys, which may change.
type Plan struct {
	alg atomic.Pointer[ratelimit.Algorithm]
}

// NewPlan returns a plan that is alg.
func NewPlan(alg ratelimit.Algorithm) *Plan {
	p := &Plan{}
	p.Set(alg)
	return p
}

// Set changes the plan.
func (p *Plan) Set(alg ratelimit.Algorithm) { p.alg.Store(&alg) }

// Lookup is for WithLimits.
func (p *Plan) Lookup(context.Context, string) (ratelimit.Algorithm, error) {
	return *p.alg.Load(), nil
}

// OwnLimits are limits of keys that a test changes.
type OwnLimits struct {
	mu  sync.Mutex // protects of
	of  map[string]ratelimit.Algorithm
	Err error // of each lookup; set before it
}

// Lookup is for WithLimits.
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

// Varying is Stepped with limits that a test changes.
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

// Wrapped is a limiter inside another.
type Wrapped struct{ ratelimit.Limiter }

// Unwrap returns the limiter inside.
func (w Wrapped) Unwrap() ratelimit.Limiter { return w.Limiter }

// Rand is budget.Rand, whose numbers are the same in each run, and others each night.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return budget.Rand(t)
}
