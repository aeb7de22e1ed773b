package decide_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// The tests in this file call from many goroutines at once, on a clock that stands still. Together,
// the callers get what one caller would have got. Rule "Atomic" of package storetest checks the
// same of Allow.

// processes has, by name, ways to make the stores of some processes that share their states.
var processes = map[string]func() []ratelimit.Store{
	"memory": func() []ratelimit.Store { return []ratelimit.Store{fakes.Stores["memory"]()} },
	"bytes":  func() []ratelimit.Store { return []ratelimit.Store{fakes.Stores["bytes"]()} },
	"bytes of three processes": func() []ratelimit.Store {
		db := yielding{fakes.NewMapDB()}
		return []ratelimit.Store{ratelimit.NewStore(db), ratelimit.NewStore(db), ratelimit.NewStore(db)}
	},
}

// A yielding database lets other goroutines go on after it has read a state, so that they swap it.
type yielding struct{ *fakes.MapDB }

func (db yielding) Get(ctx context.Context, key string) ([]byte, error) {
	defer runtime.Gosched()
	return db.MapDB.Get(ctx, key)
}

// crowd calls f from many goroutines, several times from each, and waits for all of them.
func crowd(f func(call int)) {
	const goroutines, tries = 16, 25
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for j := range tries {
				f(i*tries + j)
			}
		})
	}
	wg.Wait()
}

// eachProcesses tests limiters of each process, with one algorithm.
func eachProcesses(t *testing.T, alg ratelimit.Algorithm, test func(t *testing.T, of func(call int) ratelimit.Limiter)) {
	for name, open := range processes {
		t.Run(name, func(t *testing.T) {
			clk := stepclock.New()
			var limiters []ratelimit.Limiter
			for _, store := range open() {
				limiters = append(limiters, ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store),
					ratelimit.WithName("test"), ratelimit.WithClock(clk), fakes.Patient)))
			}
			test(t, func(call int) ratelimit.Limiter { return limiters[call%len(limiters)] })
		})
	}
}

// TestUpToOfManyCallers: callers of TakeUpTo get all of their events or none, except for the one
// that gets the rest.
func TestUpToOfManyCallers(t *testing.T) {
	t.Parallel()
	const limit, n = 100, 7
	for name, alg := range map[string]ratelimit.Algorithm{
		"TokenBucket":   ratelimit.TokenBucket{Rate: ratelimit.PerHour(limit)},
		"SlidingWindow": ratelimit.SlidingWindow{Limit: limit, Window: time.Hour, Segments: 4},
		"All": ratelimit.All{
			ratelimit.FixedWindow{Limit: limit, Window: time.Hour},
			ratelimit.SlidingLog{Limit: 130, Window: time.Hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachProcesses(t, alg, func(t *testing.T, of func(int) ratelimit.Limiter) {
				var sum, rests atomic.Int64
				crowd(func(call int) {
					granted, _, err := of(call).TakeUpTo(ctx, "key", n)
					assert.NoError(t, err)
					sum.Add(int64(granted))
					if 0 < granted && granted < n {
						rests.Add(1)
					}
				})
				assert.EqualValues(t, limit, sum.Load())
				assert.EqualValues(t, 1, rests.Load())
			})
		})
	}
}

// TestSettleOfManyCallers: what many callers hold and settle at once counts as what has happened.
func TestSettleOfManyCallers(t *testing.T) {
	t.Parallel()
	const limit = 100
	eachProcesses(t, ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, func(t *testing.T, of func(int) ratelimit.Limiter) {
		var happened atomic.Int64
		crowd(func(call int) {
			r, _, err := of(call).Hold(ctx, "key", 2)
			assert.NoError(t, err)
			if r == nil {
				return
			}
			n := call % 2
			if _, err := r.Settle(ctx, n); assert.NoError(t, err) {
				happened.Add(int64(n))
			}
		})
		assert.Equal(t, limit-int(happened.Load()), fakes.Peek(t, of(0)).Remaining)
	})
}

// TestChargeOfManyCallers: what many callers charge at once counts until it leaves the window.
func TestChargeOfManyCallers(t *testing.T) {
	t.Parallel()
	eachProcesses(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, func(t *testing.T, of func(int) ratelimit.Limiter) {
		crowd(func(call int) {
			_, err := of(call).Charge(ctx, "key", 2)
			assert.NoError(t, err)
		})
		assert.Equal(t, 200, fakes.Peek(t, of(0)).Remaining)
	})
}

// TestTakeAllOfManyCallers: callers take sets of keys that overlap, in any order. Each key spends
// what was granted, and no more than its limit.
func TestTakeAllOfManyCallers(t *testing.T) {
	t.Parallel()
	for name, open := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			store, clk := open(), stepclock.New()
			key := func(name string, alg ratelimit.Algorithm) ratelimit.Bound {
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store), ratelimit.WithName(name),
					ratelimit.WithClock(clk), fakes.Patient))
				return ratelimit.For(l, "key")
			}
			a := key("a", ratelimit.FixedWindow{Limit: 150, Window: 24 * time.Hour})
			b := key("b", ratelimit.SlidingLog{Limit: 100, Window: time.Hour})
			c := key("c", ratelimit.FixedWindow{Limit: 200, Window: 24 * time.Hour})
			var total atomic.Int64
			sets := [][]ratelimit.Bound{{a, b}, {c, b, a}, {b, c}}
			crowd(func(call int) {
				d, err := ratelimit.TakeAll(ctx, 1, sets[call%len(sets)]...)
				assert.NoError(t, err)
				if d.Allowed {
					total.Add(1)
				}
			})
			require.EqualValues(t, 100, total.Load(), "b is a part of each set")
			assert.Zero(t, fakes.Peek(t, b.Limiter()).Remaining)
		})
	}
}
