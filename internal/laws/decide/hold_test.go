package decide_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// leftOf returns how many events a key would grant now.
func leftOf(t *testing.T, l ratelimit.Limiter, key string) int {
	t.Helper()
	d, err := l.Peek(ctx, key)
	require.NoError(t, err)
	return d.Remaining
}

// heldFor holds n events of a key that grants them.
func heldFor(t *testing.T, l ratelimit.Limiter, n int, opts ...ratelimit.HoldOption) *ratelimit.Reservation {
	t.Helper()
	r, d, err := l.Hold(ctx, "key", n, opts...)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return r
}

func TestHold_EndsByItself(t *testing.T) {
	for name, opts := range fakes.Keepings {
		t.Run(name, func(t *testing.T) {
			l, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour}, opts()...)
			counted, back := heldFor(t, l, 2), heldFor(t, l, 3, ratelimit.GiveBack())
			longer := heldFor(t, l, 4, ratelimit.HoldFor(time.Hour), ratelimit.GiveBack())
			clk.Advance(10*time.Minute - 1)
			assert.Equal(t, 1, leftOf(t, l, "key"))
			clk.Advance(1)
			assert.Equal(t, 4, leftOf(t, l, "key"))
			assert.Equal(t, 4, mustSettle(t, counted, 0), "it counts as it was held")
			assert.Equal(t, 4, mustSettle(t, back, 0), "it does not come back twice")
			require.NoError(t, longer.Extend(ctx, 2*time.Hour))
			clk.Advance(2*time.Hour - 1)
			assert.Equal(t, 4, leftOf(t, l, "key"))
			clk.Advance(1)
			assert.Equal(t, 8, leftOf(t, l, "key"))
			require.ErrorIs(t, longer.Extend(ctx, time.Hour), ratelimit.ErrEnded)
			assert.Equal(t, 7, mustSettle(t, longer, 5), "only what exceeds it counts")
			require.ErrorIs(t, longer.Extend(ctx, time.Hour), ratelimit.ErrEnded)
		})
	}
}

// A flood of keys, each with an open hold, evicts keys of the flood, whatever the algorithm and
// however many keys the store may have.
func TestHold_FloodOfAFullStore(t *testing.T) {
	t.Parallel()
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			for _, most := range []int{1, 2, 511, 512, 513, 600, 5000} {
				store := &ratelimit.MemoryStore{MaxKeys: most}
				l, clk := fakes.At(t, alg, ratelimit.WithStore(store), ratelimit.WithName("flood"))
				all, err := l.Peek(ctx, "none")
				require.NoError(t, err)
				for i := range most + 88 {
					n := 1 + i%2*(min(all.Limit, 1000)-1) // every second key is used up
					_, d, err := l.Hold(ctx, fmt.Sprint(i), n, ratelimit.HoldFor(time.Duration(1+i%3)*time.Hour))
					require.NoError(t, err)
					require.True(t, d.Allowed, i)
					clk.Advance(time.Millisecond)
				}
				assert.Equal(t, most, store.Stats().Keys)
			}
		})
	}
}

// The time of a reservation runs from its turn.
func TestReserveWithin_HoldsFromItsTurn(t *testing.T) {
	for name, opts := range fakes.Keepings {
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 5}, opts()...)
		require.True(t, l.AllowN("key", 5))
		r, d, err := l.Reserve(ctx, "key", 2, ratelimit.Within(3*time.Hour), ratelimit.HoldFor(time.Minute))
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, d.Delay)
		clk.Advance(2*time.Hour + time.Minute - 1)
		require.NoError(t, r.Extend(ctx, time.Minute), name)
		assert.Equal(t, 2, mustSettle(t, r, 0), name)

		plain, _, err := l.Reserve(ctx, "key", 2, ratelimit.Within(0))
		require.NoError(t, err)
		require.NoError(t, plain.Extend(ctx, time.Minute), "it is no hold")
		assert.Equal(t, 0, mustSettle(t, plain, 0), name)
	}
}

// The time of a hold in a queue runs from the instant at which its events leave the queue, so that
// the caller that waited for them can settle them.
func TestHold_FromTheEndOfTheQueue(t *testing.T) {
	queue := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 100}
	for name, opts := range fakes.Keepings {
		t.Run(name, func(t *testing.T) {
			l, clk := fakes.At(t, queue, opts()...)
			_, err := l.Take(ctx, "key", 30)
			require.NoError(t, err)
			reserved, _, err := l.Reserve(ctx, "key", 5, ratelimit.Within(time.Hour), ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
			require.NoError(t, err)
			require.Equal(t, 30*time.Minute, reserved.Delay())
			heldFor(t, l, 5, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack()) // for after 35 minutes
			clk.Advance(31*time.Minute - 1)
			assert.Equal(t, 90, leftOf(t, l, "key"))
			clk.Advance(1)
			assert.Equal(t, 96, leftOf(t, l, "key"), "one minute, and the reservation")
			clk.Advance(5*time.Minute - 1)
			assert.Equal(t, 100, leftOf(t, l, "key"))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(queue))
		require.NoError(t, l.WaitN(ctx, "key", 1))
		_, err := l.Take(ctx, "key", 30)
		require.NoError(t, err)
		r, _, err := l.Hold(ctx, "key", 5, ratelimit.Waiting())
		require.NoError(t, err)
		require.NoError(t, r.Extend(ctx, time.Minute), "it has not ended")
	})
}

// Cancel of a hold gives it back before its turn and after, even if others stand behind it.
func TestReservation_CancelOfAHeldTurn(t *testing.T) {
	for name, opts := range fakes.Keepings {
		for _, alg := range []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 4},
			ratelimit.FixedWindow{Limit: 4, Window: 4 * time.Second},
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 4}, ratelimit.FixedWindow{Limit: 4, Window: 4 * time.Second}},
		} {
			for _, passed := range []time.Duration{0, 4 * time.Second} {
				l, clk := fakes.At(t, alg, opts()...)
				require.True(t, l.AllowN("key", 4))
				r, _, err := l.Reserve(ctx, "key", 3, ratelimit.Within(time.Minute), ratelimit.HoldFor(time.Minute))
				require.NoError(t, err)
				_, _, err = l.Reserve(ctx, "key", 1)
				require.NoError(t, err)
				clk.Advance(passed)
				r.Cancel()
				clk.Advance(4*time.Second - passed)
				assert.Equal(t, 3, leftOf(t, l, "key"), "%s: %+v after %v", name, alg, passed)
			}
		}
	}
}

// A hold of queued events ends by itself some time after they leave the queue. After that, Cancel
// takes back nothing: the events count, or have come back already.
func TestReservation_CancelOfAnEndedTurn(t *testing.T) {
	alg := ratelimit.All{
		ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 20},
		ratelimit.FixedWindow{Limit: 20, Window: 24 * time.Hour},
	}
	for name, opts := range fakes.Keepings {
		t.Run(name, func(t *testing.T) {
			for left, back := range map[int][]ratelimit.EndOption{
				12: {ratelimit.HoldFor(time.Second)},
				15: {ratelimit.HoldFor(time.Second), ratelimit.GiveBack()},
			} {
				l, clk := fakes.At(t, alg, opts()...)
				require.True(t, l.AllowN("key", 5))
				r, d, err := l.Reserve(ctx, "key", 3, ends.OfReserve(back, ratelimit.Within(time.Hour))...)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				clk.Advance(5 * time.Minute)
				require.Equal(t, 12, leftOf(t, l, "key"))
				clk.Advance(time.Second)
				require.Equal(t, left, leftOf(t, l, "key"))
				r.Cancel()
				assert.Equal(t, left, leftOf(t, l, "key"))
			}
		})
	}
}

func TestHold_Options(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10})
	for _, opt := range []ratelimit.EndOption{nil, ratelimit.HoldFor(0), ratelimit.HoldFor(-1)} {
		for _, b := range []ratelimit.Bound{ratelimit.For(l, "key"), ratelimit.For(observed(t), "key")} {
			_, _, err := b.Limiter().Hold(ctx, b.Key(), 1, opt)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			_, _, err = b.Limiter().Hold(ctx, b.Key(), 1, ratelimit.Waiting(), opt)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			_, _, err = b.Limiter().Reserve(ctx, b.Key(), 1, ratelimit.Within(0), opt)
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
		}
	}
	r := heldFor(t, l, 1)
	require.ErrorIs(t, r.Extend(ctx, 0), ratelimit.ErrInvalid)
	require.ErrorIs(t, r.Extend(nil, 1), ratelimit.ErrInvalid) //nolint:staticcheck // a mistake that is reported
	assert.Equal(t, 9, leftOf(t, l, "key"))
}

// observed returns a limiter with an observer.
func observed(t *testing.T) ratelimit.Limiter {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, ratelimit.WithObserver((&fakes.Witness{}).Observe))
	return l
}

// The methods of a nil Reservation do nothing, and neither does Extend of one that holds nothing.
func TestReservation_Nil(t *testing.T) {
	var r *ratelimit.Reservation
	require.NoError(t, r.Extend(ctx, time.Minute))
	require.NoError(t, r.Release(ctx))
	require.NoError(t, r.Wait(ctx))
	r.Cancel()
	assert.Zero(t, r.Delay())
	assert.Empty(t, r.Token())
	_, err := r.Settle(ctx, 1)
	require.NoError(t, err)
	_, err = r.Settle(ctx, 1, 2)
	require.NoError(t, err)
	require.NoError(t, new(ratelimit.Reservation).Extend(ctx, time.Minute))
	assert.Empty(t, new(ratelimit.Reservation).Token())
}

func TestExtend_HoldAll(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour})
	r, _, err := ratelimit.HoldAll(ctx, 2, ratelimit.For(l, "a"), ratelimit.For(l, "b"), ratelimit.For(l, "a"))
	require.NoError(t, err)
	require.NoError(t, r.Extend(ctx, time.Hour))
	clk.Advance(time.Hour - 1)
	_, err = r.Settle(ctx, 1, 2, 0)
	require.NoError(t, err)
	assert.Equal(t, 9, leftOf(t, l, "a"))
	assert.Equal(t, 8, leftOf(t, l, "b"))
}

// Another process settles exactly what one has held that has crashed.
func TestResume(t *testing.T) {
	for _, a := range accounted {
		db := fakes.NewMapDB()
		clk := storetest.NewClock(fakes.Midnight)
		process := func() ratelimit.Limiter {
			return ratelimit.Must(ratelimit.New(a.alg, ratelimit.WithClock(clk), ratelimit.WithStore(db.Store()), ratelimit.WithName("test")))
		}
		token := heldFor(t, process(), 5).Token()
		like, then := fakes.At(t, a.alg)
		require.True(t, like.AllowN("key", 2))
		for _, clk := range []*storetest.Clock{clk, then} {
			clk.Advance(10 * time.Millisecond)
		}
		l := process()
		r, err := l.Resume(ctx, "key", token)
		require.NoError(t, err)
		assert.Zero(t, r.Delay())
		require.NoError(t, r.Extend(ctx, time.Hour))
		d, err := r.Settle(ctx, 2)
		require.NoError(t, err)
		if !begins(a.alg) {
			want, err := like.Peek(ctx, "key")
			require.NoError(t, err)
			assert.Equal(t, want, d, "%+v", a.alg)
		}
		again, err := process().Resume(ctx, "key", token)
		require.NoError(t, err)
		before := maps.Clone(db.States)
		_, err = again.Settle(ctx, 0)
		require.NoError(t, err)
		assert.Equal(t, before, db.States, "a hold is settled once")
	}
}

// A token that is damaged, or of another key or limiter, is an error, and changes nothing.
func TestResume_ForeignTokens(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}
	store, clk := new(ratelimit.MemoryStore), storetest.NewClock(fakes.Midnight)
	of := func(store ratelimit.Store, name string, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithStore(store), ratelimit.WithName(name), ratelimit.WithClock(clk))...))
	}
	l := of(store, "a", bucket)
	token := heldFor(t, l, 5).Token()
	require.NotEmpty(t, token)
	for i := range token {
		for _, c := range []byte{'A', 'x', '!'} {
			mangled := []byte(token)
			if mangled[i] == c {
				continue
			}
			mangled[i] = c
			_, err := l.Resume(ctx, "key", string(mangled))
			require.ErrorIs(t, err, ratelimit.ErrInvalid, "byte %d", i)
		}
	}
	for _, text := range []string{"", "AQ", token[:len(token)-4], token + "AAAA", token + "\n", "AQAAAAAAAAAA"} {
		_, err := l.Resume(ctx, "key", text)
		require.ErrorIs(t, err, ratelimit.ErrInvalid, text)
	}
	for what, other := range map[string]ratelimit.Limiter{
		"name":  of(store, "b", bucket),
		"kind":  of(store, "c", ratelimit.FixedWindow{Limit: 10, Window: time.Hour}),
		"store": of(new(ratelimit.MemoryStore), "a", bucket),
		"limits": of(fakes.NewMapDB().Store(), "a", bucket, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
			return nil, nil
		})),
	} {
		_, err := other.Resume(ctx, "key", token)
		require.ErrorIs(t, err, ratelimit.ErrInvalid, what)
	}
	_, err := l.Resume(ctx, "another key", token)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = l.Resume(over, "key", token)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 5, leftOf(t, l, "key"))
	r, err := of(store, "a", bucket).Resume(ctx, "key", token)
	require.NoError(t, err)
	assert.Equal(t, 9, mustSettle(t, r, 1))
}

// A Reservation that is not held has no token.
func TestToken_None(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10})
	none, _, err := l.Hold(ctx, "key", 0)
	require.NoError(t, err)
	plain, _, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)
	for _, r := range []*ratelimit.Reservation{none, plain} {
		assert.Empty(t, r.Token())
	}
}

// A key has at most 4,096 open holds: the oldest ends early. Forgotten ones take a bounded memory,
// and are counted.
func TestHold_MostOfAKey(t *testing.T) {
	const most = 4096
	store := new(ratelimit.MemoryStore)
	l, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 1 << 20, Window: 24 * time.Hour}, ratelimit.WithStore(store), ratelimit.WithName("test"))
	empty := store.Stats().Bytes
	first := heldFor(t, l, 1)
	for range most - 1 {
		heldFor(t, l, 1)
	}
	assert.Zero(t, store.Stats().Ended)
	require.NoError(t, first.Extend(ctx, time.Hour))
	heldFor(t, l, 1)
	assert.EqualValues(t, 1, store.Stats().Ended)
	require.ErrorIs(t, first.Extend(ctx, time.Hour), ratelimit.ErrEnded)
	assert.Equal(t, 1<<20-most-1, leftOf(t, l, "key"), "it counts as it was held")
	for range most {
		heldFor(t, l, 1)
	}
	assert.Less(t, store.Stats().Bytes-empty, uint64(48*most))
	clk.Advance(10 * time.Minute)
	require.True(t, l.Allow("key"))
	assert.EqualValues(t, 2*most+1, store.Stats().Ended)
}

// Holds that end when their key is forgotten because it is idle are counted as well.
func TestMemoryStats_EndedOfIdleKeys(t *testing.T) {
	store := new(ratelimit.MemoryStore)
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, ratelimit.WithStore(store), ratelimit.WithName("test"))
	heldFor(t, l, 5)
	clk.Advance(10*time.Minute - 1)
	store.Shrink()
	assert.Equal(t, 1, store.Len(), "the hold is open")
	clk.Advance(1)
	store.Shrink()
	assert.Zero(t, store.Len())
	assert.EqualValues(t, 1, store.Stats().Ended)
}

// A key that was reset, or that got a limit of another kind, does not know earlier holds. Settle
// then counts only the events beyond those that were held.
func TestSettle_OfAForgottenHold(t *testing.T) {
	for name, opts := range fakes.Keepings {
		l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, opts()...)
		less, more := heldFor(t, l, 3), heldFor(t, l, 3)
		require.NoError(t, l.Reset(ctx, "key"))
		heldFor(t, l, 5)
		assert.Equal(t, 5, mustSettle(t, less, 0), name)
		assert.Equal(t, 3, mustSettle(t, more, 5), name)
	}
}

// A limit that changes there and back never lets a hold return others' events.
func TestSettle_AfterLimitsThereAndBack(t *testing.T) {
	kinds := [][2]ratelimit.Algorithm{
		{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.FixedWindow{Limit: 20, Window: time.Hour}},
		{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.FixedWindow{Limit: 10, Window: time.Minute}},
		{ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.SlidingLog{Limit: 10, Window: time.Hour}},
		{ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.TokenBucket{Rate: ratelimit.PerHour(20)}},
		{ratelimit.SlidingWindow{Limit: 10, Window: time.Hour}, ratelimit.SlidingWindow{Limit: 10, Window: 2 * time.Hour}},
		{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, ratelimit.SlidingLog{Limit: 5, Window: time.Hour}},
		{
			ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute},
			ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: 30 * time.Minute},
		},
		{ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, ratelimit.InFlight{Limit: 20, Timeout: time.Hour}},
	}
	for name, store := range fakes.Stores {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s/%+v", name, kind), func(t *testing.T) {
				plan := kind[0]
				l, _ := fakes.At(t, kind[0], ratelimit.WithStore(store()), ratelimit.WithName("test"),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return plan, nil }))
				holds := []*ratelimit.Reservation{heldFor(t, l, 5), heldFor(t, l, 5)}
				plan = kind[1]
				l.AllowN("key", 5)
				plan = kind[0]
				for _, r := range holds {
					_, err := r.Settle(ctx, 0)
					require.NoError(t, err)
				}
				assert.LessOrEqual(t, fakes.TakeUpTo(t, l, "key", 20), 10)
				for _, r := range holds {
					_, err := r.Settle(ctx, 0)
					require.ErrorIs(t, err, ratelimit.ErrEnded)
				}
				assert.False(t, l.Allow("key"))
			})
		}
	}
}

// The Decision of a Settle is that of the limit under which the key was last granted something.
func TestHold_SettleTellsTheLimitThatGrantedLast(t *testing.T) {
	window := func(limit, hours int) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: limit, Window: time.Duration(hours) * time.Hour}
	}
	bucket := func(limit, hours int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: limit, Per: time.Duration(hours) * time.Hour}}
	}
	for name, alg := range map[string]func(limit, hours int) ratelimit.Algorithm{
		"FixedWindow": window,
		"TokenBucket": bucket,
		"SlidingLog": func(limit, hours int) ratelimit.Algorithm {
			return ratelimit.SlidingLog{Limit: limit, Window: time.Duration(hours) * time.Hour}
		},
		"SlidingWindow": func(limit, hours int) ratelimit.Algorithm {
			return ratelimit.SlidingWindow{Limit: limit, Window: time.Duration(hours) * time.Hour}
		},
		"All": func(limit, hours int) ratelimit.Algorithm {
			return ratelimit.All{bucket(limit, hours), window(limit, hours)}
		},
	} {
		for kept, opts := range map[string]func() []ratelimit.Option{"memory": fakes.InMemory, "bytes": fakes.InBytes} {
			t.Run(name+"/"+kept, func(t *testing.T) {
				plan := alg(10, 1)
				l, _ := fakes.At(t, plan, append(opts(),
					ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return plan, nil }))...)
				settled := func(n, limit, remaining int, r *ratelimit.Reservation) {
					t.Helper()
					d, err := r.Settle(ctx, n)
					require.NoError(t, err)
					assert.Equal(t, []int{limit, remaining}, []int{d.Limit, d.Remaining})
				}
				first := heldFor(t, l, 9)
				plan = alg(8, 2)
				require.False(t, l.Allow("key")) // it has granted nothing
				settled(0, 10, 10, first)
				plan = alg(10, 1)
				first = heldFor(t, l, 5)
				plan = alg(8, 2)
				second := heldFor(t, l, 1)
				settled(0, 8, 7, first)
				settled(0, 8, 8, second)
				third := heldFor(t, l, 2)
				plan = alg(10, 1) // is asked again, and grants
				require.True(t, l.Allow("key"))
				plan = alg(8, 2)
				_, err := l.Peek(ctx, "key")
				require.NoError(t, err)
				settled(3, 10, 6, third)
				plan = alg(10, 1)
				fourth := heldFor(t, l, 5)
				plan = alg(3, 4)
				require.False(t, l.Allow("key"))
				settled(0, 10, 6, fourth)
			})
		}
	}
}

// waited are algorithms that grant 10 events at once, and no more within an hour. (A LeakyBucket
// would have its waiters wait for their turns in its queue.)
var waited = []ratelimit.Algorithm{
	ratelimit.TokenBucket{Rate: ratelimit.PerDay(10)},
	ratelimit.TokenBucket{Rate: ratelimit.PerDay(10), Refill: ratelimit.RefillInterval},
	ratelimit.FixedWindow{Limit: 10, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent},
	ratelimit.SlidingWindow{Limit: 10, Window: 24 * time.Hour, Segments: 6},
	ratelimit.SlidingLog{Limit: 10, Window: 24 * time.Hour},
	ratelimit.RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour},
	ratelimit.InFlight{Limit: 10, Timeout: 24 * time.Hour},
}

// While holds are open, waiters stand in line, and nobody overtakes them. A settlement for less
// serves the first ones, and so does the end of a hold by itself.
func TestWaitHold_InLineOfHolds(t *testing.T) {
	for name, store := range fakes.Stores {
		for _, alg := range waited {
			t.Run(fmt.Sprintf("%s/%T %v", name, alg, alg), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithStore(store()), ratelimit.WithName("test")))
					hold := func(n int, opts ...ratelimit.HoldOption) *ratelimit.Reservation {
						r, d, err := l.Hold(t.Context(), "k", n, opts...)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						return r
					}
					begin := time.Now()
					first := hold(6)
					hold(4, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
					var waiters []*fakes.Waiter
					for range 3 {
						waiters = append(waiters, fakes.WaitFor(t, l, "k", 3))
						synctest.Wait()
					}
					assert.False(t, l.Allow("k"))
					r, d, err := l.Reserve(t.Context(), "k", 1)
					require.NoError(t, err)
					require.Nil(t, r)
					require.False(t, d.Allowed)
					time.Sleep(time.Second)
					_, err = first.Settle(t.Context(), 3)
					require.NoError(t, err)
					synctest.Wait()
					require.True(t, waiters[0].Done.Load())
					require.NoError(t, waiters[0].Err)
					done := 1
					if _, ok := alg.(ratelimit.InFlight); ok { // all six are over
						done = 2
					}
					require.Equal(t, done == 2, waiters[1].Done.Load())
					require.False(t, waiters[2].Done.Load())
					assert.False(t, l.Allow("k"), "nobody overtakes")
					time.Sleep(time.Minute)
					synctest.Wait()
					require.True(t, waiters[done].Done.Load(), "a hold has ended by itself")
					require.NoError(t, waiters[done].Err)
					assert.Equal(t, begin.Add(time.Minute), waiters[done].Ended)
				})
			})
		}
	}
}

// A waiter is served when a hold in front of it is cancelled, out of order or after its turn.
func TestWait_AfterCancelledHolds(t *testing.T) {
	for name, store := range fakes.Stores {
		for _, passed := range []time.Duration{0, 2 * time.Second} {
			t.Run(fmt.Sprint(name, passed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 4},
						ratelimit.WithStore(store()), ratelimit.WithName("test")))
					require.True(t, l.AllowN("k", 4))
					r, _, err := l.Reserve(t.Context(), "k", 2, ratelimit.Within(time.Minute), ratelimit.HoldFor(time.Hour))
					require.NoError(t, err)
					behind, _, err := l.Reserve(t.Context(), "k", 1, ratelimit.Within(time.Minute), ratelimit.HoldFor(time.Hour))
					require.NoError(t, err)
					begin := time.Now()
					w := fakes.WaitFor(t, l, "k", 2)
					time.Sleep(passed)
					r.Cancel()
					behind.Cancel()
					time.Sleep(time.Minute)
					require.True(t, w.Done.Load())
					require.NoError(t, w.Err)
					assert.LessOrEqual(t, w.Ended.Sub(begin), 3*time.Second)
				})
			})
		}
	}
}

// How much of a limit callers use that always wait, hold 1,000 and settle 250: docs/holds.md has
// the table.
func TestHold_Utilisation(t *testing.T) {
	perMinute := ratelimit.PerMinute(10_000)
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		want []int // in streams of 0.5 s, 5 s and 20 s
		most int   // in any minute
	}{
		"TokenBucket": {ratelimit.TokenBucket{Rate: perMinute}, []int{10_000, 10_000, 9750}, 20_000},
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: perMinute, Capacity: 10_000}, []int{7750, 7250, 5750}, 10_000},
		"RefillInterval": {ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 6 * time.Second},
			Burst: 10_000, Refill: ratelimit.RefillInterval}, []int{10_000, 10_000, 9250}, 20_000},
		"FixedWindow":   {ratelimit.FixedWindow{Limit: 10_000, Window: time.Minute}, []int{9250, 9250, 5500}, 20_000},
		"SlidingWindow": {ratelimit.SlidingWindow{Limit: 10_000, Window: time.Minute}, []int{9000, 7500, 4500}, 20_000},
		"SlidingLog":    {ratelimit.SlidingLog{Limit: 10_000, Window: time.Minute}, []int{9250, 7750, 4750}, 10_000},
		"RollingWindow": {ratelimit.RollingWindow{Quota: 10_000, Window: time.Minute, Period: time.Second},
			[]int{9250, 7750, 4750}, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			for i, lasts := range []time.Duration{time.Second / 2, 5 * time.Second, 20 * time.Second} {
				// Whichever of two goroutines runs first that wake at one instant, a stream more or
				// less begins before the last minute ends.
				assert.InDelta(t, tt.want[i], utilised(t, tt.alg, lasts, tt.most), 250, lasts)
			}
		})
	}
}

// utilised returns how many events streams cost in the fifth minute, when the first burst no longer
// matters. Callers that always wait hold 1,000 events for each stream, and a stream costs 250.
func utilised(t *testing.T, alg ratelimit.Algorithm, lasts time.Duration, most int) (cost int) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(alg))
		begin := time.Now()
		ctx, cancel := context.WithDeadline(t.Context(), begin.Add(5*time.Minute))
		defer cancel()
		var mu sync.Mutex        // protects happened
		var happened []time.Time // the streams, of 250 events
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				for {
					r, _, err := l.Hold(ctx, "k", 1000, ratelimit.Waiting())
					if err != nil {
						return
					}
					mu.Lock()
					happened = append(happened, time.Now())
					mu.Unlock()
					time.Sleep(lasts)
					_, err = r.Settle(t.Context(), 250)
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		for i, first := range happened {
			sum := 0
			for _, h := range happened[i:] {
				if h.Sub(first) < time.Minute {
					sum += 250
				}
			}
			require.LessOrEqual(t, sum, most, "in the minute after %v", first.Sub(begin))
			if since := first.Sub(begin); since >= 4*time.Minute && since < 5*time.Minute {
				cost += 250
			}
		}
	})
	return cost
}

// While a clock that has stepped back catches up, time stands still: Extend of a queued hold counts
// from there, as everything does.
func TestExtend_ClockBack(t *testing.T) {
	ctx := t.Context()
	clk := clock.NewMock()
	clk.Set(time.Unix(1_700_000_000, 0))
	began := clk.Now()
	l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10}, ratelimit.WithClock(clk)))
	require.True(t, l.AllowN("k", 2))
	hold, d, err := l.Hold(ctx, "k", 3)
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, d.Delay)
	clk.Set(began.Add(-time.Hour))
	require.NoError(t, hold.Extend(ctx, 3*time.Second))
	clk.Set(began.Add(5 * time.Second))
	require.ErrorIs(t, hold.Extend(ctx, 1), ratelimit.ErrEnded, "three seconds after its events may happen")
}

// TestHold_InFlightNear1970: where a mock clock begins, the holds of an InFlight end when HoldFor
// says, although a Timeout has not
// passed since 1970, and RetryAfter says when that is.
func TestHold_InFlightNear1970(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.InFlight{Limit: 2, Timeout: time.Hour},
		ratelimit.All{ratelimit.InFlight{Limit: 2, Timeout: time.Hour}, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}},
	} {
		for name, store := range fakes.Stores {
			clk := clock.NewMock()
			l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk), ratelimit.WithStore(store()), ratelimit.WithName("test")))
			for _, last := range []time.Duration{time.Minute, 2 * time.Minute} {
				_, d, err := l.Hold(t.Context(), "key", 1, ratelimit.HoldFor(last))
				require.NoError(t, err)
				require.True(t, d.Allowed, name)
			}
			for _, n := range []int{1, 2} {
				assert.Equal(t, time.Duration(n)*time.Minute, fakes.Take(t, l, n).RetryAfter, name)
			}
			clk.Add(time.Minute - 1)
			assert.False(t, l.Allow("key"), name)
			clk.Add(1)
			assert.True(t, l.Allow("key"), name)
		}
	}
}
