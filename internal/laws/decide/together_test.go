package decide_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// joined keys are decided on together. Each has a limiter and an algorithm of its own.
type joined struct {
	clk    *stepclock.Clock
	bounds []ratelimit.Bound
}

func join(algs []ratelimit.Algorithm, way func(i int, store *ratelimit.MemoryStore, alg ratelimit.Algorithm) []ratelimit.Option) *joined {
	j := &joined{clk: stepclock.New()}
	store := new(ratelimit.MemoryStore)
	for i, alg := range algs {
		opts := append(way(i, store, alg), ratelimit.WithClock(j.clk), ratelimit.WithName(fmt.Sprint(i)))
		j.bounds = append(j.bounds, ratelimit.For(ratelimit.Must(ratelimit.New(alg, opts...)), fmt.Sprint("key ", i)))
	}
	return j
}

// TestTakeAllAnswersAsAnAll: TakeAll of several keys answers as a Take of one key whose limit is an
// All of their algorithms.
func TestTakeAllAnswersAsAnAll(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	parts := accounted[:len(accounted)-1] // without the All
	for way, make := range fakes.Ways {
		t.Run(way, func(t *testing.T) {
			rnd := fakes.Rand(t)
			for range 300 {
				var algs ratelimit.All
				for range 1 + rnd.IntN(4) {
					algs = append(algs, parts[rnd.IntN(len(parts))].alg)
				}
				j := join(algs, make)
				alone := ratelimit.Must(ratelimit.New(algs, ratelimit.WithClock(j.clk)))
				for step := range 40 {
					n := rnd.IntN(8)
					if rnd.IntN(8) == 0 {
						n = 10 + rnd.IntN(15)
					}
					want, err := alone.Take(ctx, "k", n)
					require.NoError(t, err)
					var got ratelimit.Decision
					if rnd.IntN(2) == 0 {
						_, got, err = ratelimit.HoldAll(ctx, n, j.bounds...)
					} else {
						got, err = ratelimit.TakeAll(ctx, n, j.bounds...)
					}
					require.NoError(t, err)
					require.Equal(t, want, got, "step %d: %d of %v", step, n, algs)
					j.clk.Set(j.clk.Now().Add(time.Duration(rnd.IntN(300)) * time.Millisecond))
				}
			}
		})
	}
}

// TestTakeAllOfOwnNumbers: each Bound spends the number that Bound.N has given to it. The decision
// is that of the key that refuses for longest or, if all grant, has room for the fewest such calls.
func TestTakeAllOfOwnNumbers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	parts := slices.DeleteFunc(slices.Clone(accounted[:len(accounted)-1]), func(a struct {
		alg   ratelimit.Algorithm
		bound func(span time.Duration) int
	}) bool {
		log, ok := a.alg.(ratelimit.SlidingLog)
		return ok && log.CountDenied // it counts requests that other keys deny
	})
	for way, make := range fakes.Ways {
		t.Run(way, func(t *testing.T) {
			rnd := fakes.Rand(t)
			for range 300 {
				var algs []ratelimit.Algorithm
				for range 1 + rnd.IntN(5) {
					algs = append(algs, parts[rnd.IntN(len(parts))].alg)
				}
				j := join(algs, make)
				var alone []ratelimit.Bound
				for _, alg := range algs {
					alone = append(alone, ratelimit.For(ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(j.clk))), "k"))
				}
				for step := range 40 {
					n, own := 1+rnd.IntN(3), rnd.IntN(len(algs))
					takes := slices.Repeat([]int{n}, len(algs))
					bounds := slices.Clone(j.bounds)
					for i := range bounds {
						if i == own || rnd.IntN(2) == 0 {
							takes[i] = rnd.IntN(6)
							bounds[i] = bounds[i].N(takes[i])
						}
					}
					want := ownNumbers(t, alone, takes)
					var got ratelimit.Decision
					var err error
					if rnd.IntN(2) == 0 {
						_, got, err = ratelimit.HoldAll(ctx, n, bounds...)
					} else {
						got, err = ratelimit.TakeAll(ctx, n, bounds...)
					}
					require.NoError(t, err)
					require.Equal(t, want, got, "step %d: %v of %v", step, takes, algs)
					j.clk.Set(j.clk.Now().Add(time.Duration(rnd.IntN(300)) * time.Millisecond))
				}
			}
		})
	}
}

// ownNumbers takes the given numbers of events, one key after the other, if all keys grant them. It
// returns the decision that TakeAll makes.
func ownNumbers(t *testing.T, keys []ratelimit.Bound, takes []int) (d ratelimit.Decision) {
	t.Helper()
	d.Allowed = true
	all := make([]ratelimit.Decision, len(keys))
	fewest := math.MaxInt
	for i, b := range keys {
		var err error
		all[i], err = b.Limiter().Peek(t.Context(), b.Key())
		require.NoError(t, err)
		if all[i].Remaining < takes[i] {
			refusal, err := b.Limiter().Take(t.Context(), b.Key(), takes[i])
			require.NoError(t, err)
			d.Allowed = false
			if refusal.RetryAfter > d.RetryAfter {
				d.Part, d.RetryAfter = i, refusal.RetryAfter
			}
		}
	}
	for i, b := range keys {
		if d.Allowed {
			var err error
			all[i], err = b.Limiter().Take(t.Context(), b.Key(), takes[i])
			require.NoError(t, err)
			d.Delay = max(d.Delay, all[i].Delay)
			if takes[i] > 0 && all[i].Remaining/takes[i] < fewest {
				d.Part, fewest = i, all[i].Remaining/takes[i]
			}
		}
		d.ResetAfter = max(d.ResetAfter, all[i].ResetAfter)
	}
	d.Limit, d.Remaining = all[d.Part].Limit, all[d.Part].Remaining
	return d
}

// TestTakeAllOfTheSameKey: a key that is given several times spends the sum.
func TestTakeAllOfTheSameKey(t *testing.T) {
	ctx := context.Background()
	for store, newStore := range fakes.Stores {
		for _, a := range accounted {
			alg := a.alg
			t.Run(fmt.Sprintf("%s/%T %v", store, alg, alg), func(t *testing.T) {
				rnd := fakes.Rand(t)
				clk := stepclock.New()
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk), ratelimit.WithStore(newStore()), ratelimit.WithName("test")))
				twin := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
				for range 100 {
					n, times := rnd.IntN(6), 1+rnd.IntN(3)
					var bounds []ratelimit.Bound
					for range times {
						bounds = append(bounds, ratelimit.For(l, "k"))
					}
					want, err := twin.Take(ctx, "k", n*times)
					require.NoError(t, err)
					got, err := ratelimit.TakeAll(ctx, n, bounds...)
					require.NoError(t, err)
					want.Part = 0
					require.Equal(t, want, got)
					clk.Set(clk.Now().Add(time.Duration(rnd.IntN(300)) * time.Millisecond))
				}
				d, err := ratelimit.TakeAll(ctx, math.MaxInt, ratelimit.For(l, "k"), ratelimit.For(l, "k"))
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Equal(t, ratelimit.Never, d.RetryAfter)
			})
		}
	}
}

// TestTakeAllWhileOthersTake: events that another call spends between two reads of a state are not
// granted again.
func TestTakeAllWhileOthersTake(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	other, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 1 << 30, Window: time.Hour})
	rounds := 100_000
	if testing.Short() {
		rounds = 10_000
	}
	alone := make([]bool, rounds)
	var begun, done atomic.Int64
	defer begun.Store(int64(rounds)) // ends the goroutine if the test fails
	go func() {
		for i := range int64(rounds) {
			for begun.Load() <= i { // so that both goroutines begin at once
				runtime.Gosched()
			}
			alone[i] = l.AllowN(strconv.FormatInt(i, 10), 2)
			done.Add(1)
		}
	}()
	for i := range rounds {
		key := strconv.Itoa(i)
		require.True(t, l.Allow(key))
		begun.Add(1)
		d, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, key), ratelimit.For(other, "k"))
		for done.Load() <= int64(i) {
			runtime.Gosched()
		}
		require.NoError(t, err)
		require.NotEqual(t, alone[i], d.Allowed, "round %d", i)
	}
}

// incomparable is a limiter of a type whose values cannot be compared.
type incomparable struct {
	ratelimit.Limiter
	_ []int
}

// TestTakeAllOfIncomparableLimiters: limiters that cannot be compared may be different ones, so
// their keys are asked one after the other.
func TestTakeAllOfIncomparableLimiters(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	b := ratelimit.For(incomparable{Limiter: l}, "k")
	for _, want := range []bool{true, false} {
		d, err := ratelimit.TakeAll(t.Context(), 2, b, b)
		require.NoError(t, err)
		assert.Equal(t, want, d.Allowed)
		d, err = l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
	}
}

// TestHoldAllSettlesAgain: if a key has no room for a debt, the other keys are settled, and this
// key can still be settled for fewer events.
func TestHoldAllSettlesAgain(t *testing.T) {
	ctx := t.Context()
	large, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 1 << 20, Window: 24 * time.Hour})
	small := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerDay(10)}, ratelimit.WithClock(clk)))
	for i := range 2 {
		key := strconv.Itoa(i)
		of := []ratelimit.Bound{ratelimit.For(large, key), ratelimit.For(small, key)}
		if i == 1 {
			slices.Reverse(of)
		}
		r, _, err := ratelimit.HoldAll(ctx, 10, of...)
		require.NoError(t, err)
		_, err = r.Settle(ctx, 1<<20) // the bucket would need centuries to pay this debt
		require.ErrorIs(t, err, ratelimit.ErrDebt)
		d, err := r.Settle(ctx, 3)
		require.NoError(t, err)
		assert.Equal(t, 7, d.Remaining)
		_, err = r.Settle(ctx, 3)
		require.ErrorIs(t, err, ratelimit.ErrEnded)
		d, err = large.Peek(ctx, key)
		require.NoError(t, err)
		assert.Zero(t, d.Remaining)
	}
}

// TestHoldAllTellsWhichKeyDecided: as in TakeAll, Part is the index of the Bound that decided, in
// whichever stores the states of the keys are.
func TestHoldAllTellsWhichKeyDecided(t *testing.T) {
	ctx := t.Context()
	window := func(limit int, opts ...ratelimit.Option) ratelimit.Limiter {
		l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, opts...)
		return l
	}
	many, few, remote := window(30), window(10), window(20, ratelimit.WithStore(fakes.NewMapDB().Store()), ratelimit.WithName("test"))
	for part, of := range [][]ratelimit.Bound{
		{ratelimit.For(few, "a"), ratelimit.For(remote, "a"), ratelimit.For(many, "a")},
		{ratelimit.For(many, "b"), ratelimit.For(few, "b"), ratelimit.For(remote, "b")},
		{ratelimit.For(many, "c"), ratelimit.For(many, "c"), ratelimit.For(few, "c"), ratelimit.For(remote, "c")},
	} {
		r, d, err := ratelimit.HoldAll(ctx, 2, of...)
		require.NoError(t, err)
		assert.Equal(t, part, d.Part)
		d, err = r.Settle(ctx, 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Hour, Part: part}, d)
	}
}

func TestTakeAllErrors(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)}))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	ctx := context.Background()
	for name, c := range map[string]struct {
		ctx    context.Context
		n      int
		bounds []ratelimit.Bound
		err    error
		says   string
	}{
		"no bounds": {ctx, 1, nil, ratelimit.ErrInvalid, "ratelimit: bounds is empty: it must have at least one Bound"},
		"zero bound": {ctx, 1, []ratelimit.Bound{ratelimit.For(l, "k"), {}}, ratelimit.ErrInvalid,
			"ratelimit: bounds[1].Bound's limiter is nil: it must not be nil; make a Bound with For(limiter, key)"},
		"negative":   {ctx, -1, []ratelimit.Bound{ratelimit.For(l, "k")}, ratelimit.ErrInvalid, ""},
		"ended":      {ended, 1, []ratelimit.Bound{ratelimit.For(l, "k")}, context.Canceled, ""},
		"no context": {nil, 1, []ratelimit.Bound{ratelimit.For(l, "k")}, ratelimit.ErrInvalid, ""},
		"negative own": {ctx, 1, []ratelimit.Bound{ratelimit.For(l, "k"), ratelimit.For(l, "k").N(-2)},
			ratelimit.ErrInvalid, "ratelimit: bounds[1].N is -2: it must be at least 0"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := ratelimit.TakeAll(c.ctx, c.n, c.bounds...)
			require.ErrorIs(t, err, c.err)
			if c.says != "" {
				require.EqualError(t, err, c.says)
			}
			assert.Zero(t, d)
			r, d, err := ratelimit.HoldAll(c.ctx, c.n, c.bounds...)
			require.ErrorIs(t, err, c.err)
			assert.Nil(t, r)
			assert.Zero(t, d)
		})
	}
	d, err := l.Peek(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
}

// Settling a Reservation of HoldAll settles all of its keys.
func TestHoldAllSettles(t *testing.T) {
	ctx := context.Background()
	for way, make := range fakes.Ways {
		t.Run(way, func(t *testing.T) {
			algs := []ratelimit.Algorithm{
				ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20},
				ratelimit.FixedWindow{Limit: 30, Window: time.Second},
				ratelimit.SlidingLog{Limit: 40, Window: time.Second},
			}
			j := join(algs, make)
			remaining := func(want ...int) {
				t.Helper()
				for i, b := range j.bounds {
					d, err := b.Limiter().Peek(ctx, b.Key())
					require.NoError(t, err)
					assert.Equal(t, want[i], d.Remaining, "key %d", i)
				}
			}
			twice := append(slices.Clone(j.bounds), j.bounds[2])
			r, d, err := ratelimit.HoldAll(ctx, 5, twice...)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			remaining(15, 25, 30)
			d, err = r.Settle(ctx, 2)
			require.NoError(t, err)
			remaining(18, 28, 36)
			assert.Equal(t, 18, d.Remaining)
			assert.Equal(t, 0, d.Part)
			_, err = r.Settle(ctx, 2)
			require.ErrorIs(t, err, ratelimit.ErrEnded)

			r, _, err = ratelimit.HoldAll(ctx, 1, twice...)
			require.NoError(t, err)
			_, err = r.Settle(ctx, 20) // a debt in the last one
			require.NoError(t, err)
			remaining(0, 8, 0)

			r, d, err = ratelimit.HoldAll(ctx, 1, j.bounds...)
			require.NoError(t, err)
			assert.Nil(t, r)
			assert.False(t, d.Allowed)
			assert.Equal(t, 2, d.Part)
			remaining(0, 8, 0)
		})
	}
}

// Settle takes a number for each Bound, in whichever stores the states of the keys are.
func TestHoldAllSettlesEach(t *testing.T) {
	ctx := t.Context()
	window := func(limit int, opts ...ratelimit.Option) ratelimit.Bound {
		l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, append(opts, ratelimit.WithName(fmt.Sprint(limit)))...)
		return ratelimit.For(l, "k")
	}
	bytes := ratelimit.WithStore(fakes.NewMapDB().Store())
	few, many, remote, far := window(100), window(200), window(1000, bytes), window(2000, bytes)
	wrapped := ratelimit.For(struct{ ratelimit.Limiter }{window(500).Limiter()}, "k")
	for name, of := range map[string][]ratelimit.Bound{
		"in memory":         {few.N(1), many.N(12), many.N(3)},
		"in a store":        {remote.N(1), far.N(12), far.N(3)},
		"in several stores": {few.N(1), remote.N(12), remote.N(3)},
		"with a wrapper":    {wrapped.N(1), few.N(12), few.N(3)},
		"of a wrapper":      {few.N(1), wrapped.N(12), wrapped.N(3)},
	} {
		t.Run(name, func(t *testing.T) {
			var before []int
			left := func() (left []int) {
				for _, b := range of[:2] {
					d, err := b.Limiter().Peek(ctx, b.Key())
					require.NoError(t, err)
					left = append(left, d.Remaining)
				}
				return left
			}
			spent := func(first, second int) {
				t.Helper()
				assert.Equal(t, []int{before[0] - first, before[1] - second}, left())
			}
			hold := func() *ratelimit.Reservation {
				before = left()
				r, _, err := ratelimit.HoldAll(ctx, 7, of...)
				require.NoError(t, err)
				require.NotNil(t, r)
				return r
			}
			r := hold()
			for _, ns := range [][]int{nil, {1, 2}, {1, 2, 3, 4}} {
				_, err := r.Settle(ctx, ns...)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
				require.EqualError(t, err, fmt.Sprintf("ratelimit: the count of Settle's numbers is %d: "+
					"it must be 3, one for each Bound of HoldAll, or 1 for all", len(ns)))
			}
			_, err := r.Settle(ctx, 0, 1, -1)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			d, err := r.Settle(ctx, 0, 1, 2)
			require.NoError(t, err)
			spent(0, 3)
			assert.Equal(t, left()[d.Part], d.Remaining)
			_, err = r.Settle(ctx, 0, 1, 2)
			require.ErrorIs(t, err, ratelimit.ErrEnded)

			r = hold()
			_, err = r.Settle(ctx, 1)
			require.NoError(t, err)
			spent(1, 2)

			r = hold()
			require.NoError(t, r.Release(ctx))
			spent(1, 12+3)

			r = hold()
			r.Cancel()
			spent(0, 0)
		})
	}
	r, _, err := few.Limiter().Hold(ctx, few.Key(), 1)
	require.NoError(t, err)
	_, err = r.Settle(ctx, 1, 2)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = r.Settle(ctx, 0)
	require.NoError(t, err)
	_, err = (*ratelimit.Reservation)(nil).Settle(ctx, 1, 2, 3)
	require.NoError(t, err)
}

// Settle checks its context before the first key. If the context ends afterwards, all keys are
// settled all the same.
func TestHoldAllSettlesAllIfTheContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ending := &fakes.Hooked{Store: fakes.NewMapDB().Store()}
	var bounds []ratelimit.Bound
	for _, store := range []ratelimit.Store{ending, fakes.NewMapDB().Store(), new(ratelimit.MemoryStore)} {
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithStore(store), ratelimit.WithName("test")))
		bounds = append(bounds, ratelimit.For(l, "k"))
	}
	r, _, err := ratelimit.HoldAll(ctx, 3, bounds...)
	require.NoError(t, err)
	ending.After = func(step.Request, step.Answer) { cancel() }
	d, err := r.Settle(ctx, 1)
	require.NoError(t, err)
	require.Error(t, ctx.Err())
	assert.Equal(t, 4, d.Remaining)
	for _, b := range bounds {
		d, err := b.Limiter().Peek(context.Background(), b.Key())
		require.NoError(t, err)
		assert.Equal(t, 4, d.Remaining)
	}
}

// The Delay of a LeakyBucket delays all keys. If a Wait for the Reservation ends early, the events
// can still be settled.
func TestHoldAllOfAQueue(t *testing.T) {
	ctx := context.Background()
	j := join([]ratelimit.Algorithm{
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 20},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 20},
	}, fakes.Ways["one store"])
	_, _, err := ratelimit.HoldAll(ctx, 2, j.bounds...)
	require.NoError(t, err)
	r, d, err := ratelimit.HoldAll(ctx, 1, j.bounds...)
	require.NoError(t, err)
	assert.Equal(t, 2*time.Second, d.Delay)
	assert.Equal(t, 2*time.Second, r.Delay())
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, r.Wait(ended), context.Canceled)
	d, err = r.Settle(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, 18, d.Remaining)
	_, err = r.Settle(ctx, 0)
	require.ErrorIs(t, err, ratelimit.ErrEnded)
	j.clk.Set(j.clk.Now().Add(2 * time.Second))
	require.NoError(t, r.Wait(ctx))
	assert.Zero(t, r.Delay())
}

// With several stores, events that a key has granted are given back if a later key refuses or
// fails. Meanwhile, other callers may be denied, but never is an event granted beyond a limit.
func TestTakeAllOfOtherStores(t *testing.T) {
	ctx := context.Background()
	clk := stepclock.New()
	window := func(limit int, opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, append(opts, ratelimit.WithClock(clk))...))
	}
	var between func()
	remote := &fakes.Hooked{Store: fakes.NewMapDB().Store()}
	first := ratelimit.For(window(10, ratelimit.WithStore(fakes.NewMapDB().Store()), ratelimit.WithName("test")), "a")
	second := ratelimit.For(window(5, ratelimit.WithStore(remote), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed())), "b")
	local := ratelimit.For(window(3), "c")
	remote.After = func(step.Request, step.Answer) { between() }
	bounds := []ratelimit.Bound{local, first, second}
	remaining := func(want ...int) {
		t.Helper()
		between = func() {}
		for i, b := range bounds {
			d, err := b.Limiter().Peek(ctx, b.Key())
			if remote.Err == nil {
				require.NoError(t, err)
			}
			assert.Equal(t, want[i], d.Remaining, "key %d", i)
		}
	}
	between = func() {}

	d, err := ratelimit.TakeAll(ctx, 2, bounds...)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: d.ResetAfter}, d)
	remaining(1, 8, 3)

	// The key in memory, which is asked last, refuses.
	between = func() {
		between = func() {} // only once, and not when the hold is settled
		d, err := first.Limiter().Peek(ctx, first.Key())
		require.NoError(t, err)
		assert.Equal(t, 6, d.Remaining, "others may be denied in the meantime")
		assert.False(t, first.Limiter().AllowN(first.Key(), 7))
	}
	d, err = ratelimit.TakeAll(ctx, 2, bounds...)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: 3, Remaining: 1, RetryAfter: d.ResetAfter, ResetAfter: d.ResetAfter}, d)
	remaining(1, 8, 3)

	// A key of another store refuses. Then the key in memory is not asked.
	r, d, err := ratelimit.HoldAll(ctx, 4, bounds...)
	require.NoError(t, err)
	assert.Nil(t, r)
	assert.Equal(t, ratelimit.Decision{Limit: 5, Remaining: 3, Part: 2, RetryAfter: d.ResetAfter, ResetAfter: d.ResetAfter}, d)
	remaining(1, 8, 3)

	// A key of another store fails.
	remote.Err = errors.New("away")
	d, err = ratelimit.TakeAll(ctx, 1, bounds...)
	require.ErrorIs(t, err, remote.Err)
	require.ErrorContains(t, err, "bounds[2]: ")
	assert.True(t, d.Degraded)
	assert.False(t, d.Allowed)
	remote.Err = nil
	remaining(1, 8, 3)

	// All keys are settled.
	r, d, err = ratelimit.HoldAll(ctx, 1, bounds...)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	remaining(0, 7, 2)
	d, err = r.Settle(ctx, 0)
	require.NoError(t, err)
	assert.Equal(t, 1, d.Remaining)
	remaining(1, 8, 3)
}

// A noted limiter, which New has not made, notes the calls that it gets.
type noted struct {
	ratelimit.Limiter
	calls []string
}

func (l *noted) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	l.calls = append(l.calls, "take")
	return l.Limiter.Take(ctx, key, n)
}

func (l *noted) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	l.calls = append(l.calls, "hold")
	return l.Limiter.Hold(ctx, key, n, opts...)
}

// Limiters that New has not made are asked last, by their own Hold, and the last one by its Take. If
// one of them refuses, nothing is spent in the other keys.
func TestTakeAllOfWrappers(t *testing.T) {
	ctx := t.Context()
	clk := stepclock.New()
	limiter := func(store ratelimit.Store) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
			ratelimit.WithClock(clk), ratelimit.WithStore(store), ratelimit.WithName("test")))
	}
	first, last := &noted{Limiter: limiter(new(ratelimit.MemoryStore))}, &noted{Limiter: limiter(fakes.NewMapDB().Store())}
	local, memory, bytes := limiter(new(ratelimit.MemoryStore)), limiter(new(ratelimit.MemoryStore)), limiter(fakes.NewMapDB().Store())
	bounds := []ratelimit.Bound{
		ratelimit.For(first, "k"), ratelimit.For(local, "k"), ratelimit.For(last, "k"),
		ratelimit.For(memory, "k"), ratelimit.For(bytes, "k"), ratelimit.For(local, "k"),
	}
	remaining := func(want ...int) {
		t.Helper()
		for i, b := range bounds[:5] {
			d, err := b.Limiter().Peek(ctx, b.Key())
			require.NoError(t, err)
			assert.Equal(t, want[i], d.Remaining, "key %d", i)
		}
	}
	takeAll := func() (ratelimit.Decision, error) { return ratelimit.TakeAll(ctx, 1, bounds...) }
	holdAll := func() (ratelimit.Decision, error) {
		_, d, err := ratelimit.HoldAll(ctx, 1, bounds...)
		return d, err
	}
	ask := func(do func() (ratelimit.Decision, error), allowed bool, firstAsked, lastAsked []string) {
		t.Helper()
		first.calls, last.calls = nil, nil
		d, err := do()
		require.NoError(t, err)
		assert.Equal(t, allowed, d.Allowed)
		assert.Equal(t, firstAsked, first.calls)
		assert.Equal(t, lastAsked, last.calls)
	}
	take, hold := []string{"take"}, []string{"hold"}
	ask(takeAll, true, hold, take)
	remaining(4, 3, 4, 4, 4)
	ask(holdAll, true, hold, hold)
	remaining(3, 1, 3, 3, 3)

	ask(takeAll, false, nil, nil) // local has one event left, and is given twice
	ask(holdAll, false, nil, nil)
	remaining(3, 1, 3, 3, 3)

	require.NoError(t, local.Reset(ctx, "k"))
	require.True(t, last.AllowN("k", 3))
	ask(holdAll, false, hold, hold)
	remaining(3, 5, 0, 3, 3)
	ask(takeAll, false, hold, take)
	remaining(3, 5, 0, 3, 3)
}

// TestTakeAllOfWrappedInFlights: what a TakeAll spends in an InFlight counts for its Timeout, and
// nothing if another key refuses.
func TestTakeAllOfWrappedInFlights(t *testing.T) {
	ctx := t.Context()
	flights, clk := fakes.At(t, ratelimit.InFlight{Limit: 5, Timeout: time.Hour})
	window := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}, ratelimit.WithClock(clk)))
	takeAll := func(want bool, left int) {
		t.Helper()
		d, err := ratelimit.TakeAll(ctx, 1,
			ratelimit.For(fakes.Wrapped{Limiter: flights}, "key"), ratelimit.For(fakes.Wrapped{Limiter: window}, "key"))
		require.NoError(t, err)
		assert.Equal(t, want, d.Allowed)
		assert.Equal(t, left, fakes.Remaining(t, flights))
	}
	takeAll(true, 4)
	takeAll(false, 4)
	clk.Advance(time.Hour - 1)
	takeAll(false, 4)
	clk.Advance(1)
	takeAll(false, 5)
}

// If the limit of a key cannot be looked up, the limit of New decides on it. If that denies, the
// other keys spend nothing.
func TestTakeAllWithoutALimit(t *testing.T) {
	ctx := context.Background()
	odd := errors.New("odd")
	lookup := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, odd })
	alg := ratelimit.FixedWindow{Limit: 5, Window: time.Hour}
	known := ratelimit.For(ratelimit.Must(ratelimit.New(alg)), "a")
	unknown := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, lookup, ratelimit.WithFailureLog(nil))), "b")
	for _, c := range []struct {
		n         int
		allowed   bool
		remaining int
	}{{1, true, 4}, {2, false, 4}, {1, true, 3}, {1, false, 3}, {3, false, 3}} {
		d, err := ratelimit.TakeAll(ctx, c.n, known, unknown)
		require.ErrorIs(t, err, odd)
		assert.Equal(t, c.allowed, d.Allowed)
		assert.True(t, d.Degraded)
		d, err = known.Limiter().Peek(ctx, known.Key())
		require.NoError(t, err)
		assert.Equal(t, c.remaining, d.Remaining)
	}
}

// Many new keys, of many shards and stores, are inserted together, and are found again.
func TestTakeAllOfManyNewKeys(t *testing.T) {
	ctx := context.Background()
	for way, make := range fakes.Ways {
		t.Run(way, func(t *testing.T) {
			j := join([]ratelimit.Algorithm{
				ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)},
				ratelimit.SlidingLog{Limit: 9, Window: time.Hour},
				ratelimit.SlidingWindow{Limit: 9, Window: time.Hour, Segments: 4},
			}, make)
			rnd := fakes.Rand(t)
			used := map[[2]int]int{}
			for range 1500 {
				var keys [][2]int
				var bounds []ratelimit.Bound
				for range 1 + rnd.IntN(6) {
					key := [2]int{rnd.IntN(3), rnd.IntN(400)}
					keys = append(keys, key)
					bounds = append(bounds, ratelimit.For(j.bounds[key[0]].Limiter(), fmt.Sprint(key[1])))
				}
				d, err := ratelimit.TakeAll(ctx, 1, bounds...)
				require.NoError(t, err)
				after := map[[2]int]int{}
				granted := true
				for _, key := range keys {
					after[key]++
				}
				for key, n := range after {
					granted = granted && used[key]+n <= 9
				}
				require.Equal(t, granted, d.Allowed)
				if granted {
					for key, n := range after {
						used[key] += n
					}
				}
			}
			for key, n := range used {
				d, err := j.bounds[key[0]].Limiter().Peek(ctx, fmt.Sprint(key[1]))
				require.NoError(t, err)
				require.Equal(t, 9-n, d.Remaining, key)
			}
		})
	}
}

// Keys whose holds are in one table make room for each other's holds, however many holds there are.
func TestHoldAll_KeysOfOneTable(t *testing.T) {
	rnd := fakes.Rand(t)
	for range 100 {
		l, clk := fakes.At(t, ratelimit.SlidingLog{Limit: 40, Window: time.Minute},
			ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 8}), ratelimit.WithName("test"))
		for range 60 {
			n := 1 + rnd.IntN(3)
			var of []ratelimit.Bound
			for _, key := range []string{"a", "b", "c"} {
				if rnd.IntN(2) == 0 {
					l.AllowN(key, n)
				} else {
					of = append(of, ratelimit.For(l, key))
				}
			}
			if len(of) > 0 {
				_, _, err := ratelimit.HoldAll(ctx, n, of...)
				require.NoError(t, err)
			}
			clk.Advance(time.Duration(rnd.IntN(2)) * time.Second)
		}
	}
}

// TestTakeAllLooksUpOnce: the limit of a key is looked up once, in whichever store its state is,
// and even if the limit needs no state or the lookup fails.
func TestTakeAllLooksUpOnce(t *testing.T) {
	unknown := errors.New("unknown")
	for name, store := range map[string]func() ratelimit.Store{
		"memory": func() ratelimit.Store { return new(ratelimit.MemoryStore) },
		"bytes":  func() ratelimit.Store { return fakes.NewMapDB().Store() },
	} {
		for limit, alg := range map[string]ratelimit.Algorithm{
			"window": ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, "unlimited": ratelimit.Unlimited{}, "blocked": ratelimit.Blocked{}, "unknown": nil,
		} {
			t.Run(name+"/"+limit, func(t *testing.T) {
				lookups := 0
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
					ratelimit.WithStore(store()), ratelimit.WithName("test"), ratelimit.WithFailureLog(nil),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
						if lookups++; alg == nil {
							return nil, unknown
						}
						return alg, nil
					})))
				d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"))
				if alg == nil {
					require.ErrorIs(t, err, unknown)
				} else {
					require.NoError(t, err)
				}
				assert.Equal(t, limit != "blocked", d.Allowed)
				assert.Equal(t, 1, lookups)
				r, d, _ := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(l, "k"))
				assert.Equal(t, d.Allowed, r != nil)
				assert.Equal(t, 2, lookups)
				if alg != nil {
					_, _ = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "k"), ratelimit.For(l, "other"))
					assert.Equal(t, 4, lookups)
				}
			})
		}
	}
}

// Two limiters with one name look up different limits of a key. Each limiter decides on the events
// of its own Bounds.
func TestTakeAllOfTwoLookups(t *testing.T) {
	window := func(n int) ratelimit.Algorithm { return ratelimit.FixedWindow{Limit: n, Window: time.Hour} }
	for name, tt := range map[string]struct {
		other ratelimit.Algorithm
		err   error
		own   ratelimit.Algorithm
	}{
		"unlimited": {ratelimit.Unlimited{}, nil, window(2)},
		"fails":     {nil, errors.New("unknown"), window(2)},
		"blocked":   {window(10), nil, ratelimit.Blocked{}},
		"higher":    {window(10), nil, window(2)},
		"equal":     {window(4), nil, window(4)},
	} {
		for _, reverse := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/", reverse), func(t *testing.T) {
				store := new(ratelimit.MemoryStore)
				of := func(alg ratelimit.Algorithm, err error) ratelimit.Bound {
					return ratelimit.For(ratelimit.Must(ratelimit.New(window(100), ratelimit.WithStore(store),
						ratelimit.WithName("api"), ratelimit.WithFailureLog(nil),
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, err }))), "k")
				}
				other, own := of(tt.other, tt.err), of(tt.own, nil)
				bounds := []ratelimit.Bound{other, own, own}
				if reverse {
					slices.Reverse(bounds)
				}
				d, err := ratelimit.TakeAll(t.Context(), 2, bounds...)
				if !reverse {
					require.NoError(t, err, "own refuses, and the other one is not asked")
				} else {
					require.ErrorIs(t, err, tt.err)
				}
				assert.False(t, d.Allowed, "own grants 2 at most, or 4 of 6")
				d, err = own.Limiter().Peek(t.Context(), "k")
				require.NoError(t, err)
				before := d.Remaining
				assert.Equal(t, d.Limit, before, "nothing was spent")
				d, err = ratelimit.TakeAll(t.Context(), 1, own, own)
				require.NoError(t, err)
				assert.Equal(t, before >= 2, d.Allowed, "of one limiter, they are one key")
				if d.Allowed {
					d, err = ratelimit.TakeAll(t.Context(), 1, other, own)
					assert.Equal(t, before >= 4, d.Allowed, "%v", err)
				}
			})
		}
	}
}

// TestTakeAllOfTwoLookupsAmongMany: two limiters with one name look up different limits of a key,
// among many other keys. Each decides on the events of its own Bounds.
func TestTakeAllOfTwoLookupsAmongMany(t *testing.T) {
	store := new(ratelimit.MemoryStore)
	of := func(most int) ratelimit.Limiter {
		plan := fakes.OwnLimit(ratelimit.FixedWindow{Limit: most, Window: time.Hour})
		return ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(store), ratelimit.WithName("api"), plan))
	}
	own, other := of(3), of(100)
	var bounds []ratelimit.Bound
	for i := range 50 {
		bounds = append(bounds, ratelimit.For(other, fmt.Sprint(i)))
	}
	bounds = append(bounds, ratelimit.For(own, "k"), ratelimit.For(other, "k"), ratelimit.For(own, "k"))
	d, err := ratelimit.TakeAll(t.Context(), 2, bounds...)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "own is asked for 4 together")
	d, err = ratelimit.TakeAll(t.Context(), 1, bounds...)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Zero(t, remaining(t, ratelimit.For(own, "k"))[0], "3 of one state")
}

// TestHoldAllOfWrappersIsSeen: HoldAll calls Hold of a limiter that New has not made. If another
// limiter of this kind refuses, an observer sees the hold, and its settlement with 0.
func TestHoldAllOfWrappersIsSeen(t *testing.T) {
	l, w, _ := fakes.Observed(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	blocked := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}))
	require.True(t, blocked.Allow("k"))
	_, d, err := ratelimit.HoldAll(t.Context(), 2, ratelimit.For(fakes.Wrapped{Limiter: l}, "k"), ratelimit.For(fakes.Wrapped{Limiter: blocked}, "k"))
	require.NoError(t, err)
	require.False(t, d.Allowed)
	seen := w.Answered()
	require.Len(t, seen, 2)
	assert.Equal(t, ratelimit.CallHold, seen[0].Call)
	assert.Equal(t, 2, seen[0].Granted)
	assert.Equal(t, ratelimit.CallSettle, seen[1].Call)
	assert.Equal(t, 2, seen[1].Granted)
	assert.Equal(t, 0, seen[1].N)
	d, err = l.Peek(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
}

// If another limiter refuses after a key was held, the key is as if it had not been asked, now and
// later. The exception is a SlidingLog with CountDenied, which has counted the denial.
func TestTakeAllLeavesNoTrace(t *testing.T) {
	// the limiter is asked last, because New has not made it
	refuser := ratelimit.For(struct{ ratelimit.Limiter }{ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))}, "k")
	eachAccounted(t, func(t *testing.T, i int, store ratelimit.Store) {
		alg := accounted[i].alg
		if log, ok := alg.(ratelimit.SlidingLog); ok && log.CountDenied {
			return // the denial that it has counted stays
		}
		l, clk := fakes.At(t, alg, ratelimit.WithStore(store), ratelimit.WithName("test"))
		twin := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
		rnd := fakes.Rand(t)
		for step := range 200 {
			n := 1 + rnd.IntN(5)
			want, err := twin.Peek(ctx, "k")
			require.NoError(t, err)
			var d ratelimit.Decision
			if rnd.IntN(2) == 0 {
				d, err = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "k").N(n), refuser)
			} else {
				_, d, err = ratelimit.HoldAll(ctx, n, ratelimit.For(l, "k"), refuser)
			}
			require.NoError(t, err)
			require.False(t, d.Allowed)
			got, err := l.Peek(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, want, got, "step %d: %d of %v", step, n, alg)
			if rnd.IntN(3) == 0 {
				want, err = twin.Take(ctx, "k", n)
				require.NoError(t, err)
				got, err = l.Take(ctx, "k", n)
				require.NoError(t, err)
				require.Equal(t, want, got, "step %d: Take of %d of %v", step, n, alg)
			}
			clk.Advance(time.Duration(rnd.IntN(200)) * time.Millisecond)
		}
	})
}
