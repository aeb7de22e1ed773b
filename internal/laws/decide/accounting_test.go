package decide_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// accounted are algorithms in which what is settled can be seen, and the most events in a span
// if none are charged: the worst cases of README's table.
var accounted = []struct {
	alg   ratelimit.Algorithm
	bound func(span time.Duration) int
}{
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}, perTenth(20)},
	{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: 700 * time.Millisecond}, Burst: 15}, perTenth(15)},
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20, Refill: ratelimit.RefillInterval},
		func(span time.Duration) int { return 20 + 10*(1+int(span/time.Second)) }},
	{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 20}, perTenth(20)},
	{ratelimit.FixedWindow{Limit: 20, Window: time.Second}, perWindow(20, 1)},
	{ratelimit.FixedWindow{Limit: 20, Window: time.Second, Start: ratelimit.StartOnFirstEvent}, perWindow(20, 1)},
	{ratelimit.SlidingWindow{Limit: 20, Window: time.Second}, func(span time.Duration) int {
		if span < time.Second {
			return 2*20 - 1
		}
		return perWindow(20, 1)(span)
	}},
	{ratelimit.SlidingWindow{Limit: 20, Window: time.Second, Segments: 5}, func(span time.Duration) int {
		switch {
		case span < 800*time.Millisecond:
			return 20
		case span < time.Second:
			return 2*20 - 1
		}
		return perWindow(20, 1)(span)
	}},
	{ratelimit.SlidingLog{Limit: 20, Window: time.Second}, perWindow(20, 0)},
	{ratelimit.SlidingLog{Limit: 20, Window: time.Second, CountDenied: true}, perWindow(20, 0)},
	{ratelimit.RollingWindow{Quota: 20, Window: time.Second, Period: 250 * time.Millisecond, PeriodLimit: 12}, func(span time.Duration) int {
		periods := 2 + int(span/(250*time.Millisecond)) // the most that it touches
		return periods/4*20 + min(periods%4*12, 20)
	}},
	{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(20), Warmup: time.Second}, func(span time.Duration) int {
		return 7 + int(span/(50*time.Millisecond)) // 7 is the most that a test asks for at once
	}},
	{ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20},
		ratelimit.SlidingLog{Limit: 30, Window: 2 * time.Second},
		ratelimit.FixedWindow{Limit: 25, Window: time.Second},
	}, func(span time.Duration) int {
		return min(perTenth(20)(span), 30*(1+int(span/(2*time.Second))), perWindow(25, 1)(span))
	}},
}

func perTenth(burst int) func(time.Duration) int {
	return func(span time.Duration) int { return burst + int(span/(100*time.Millisecond)) }
}

// perWindow allows limit events in each window of a second that a span touches. more is how many
// it may touch in addition to those that it contains.
func perWindow(limit, more int) func(time.Duration) int {
	return func(span time.Duration) int { return limit * (1 + int(span/time.Second) + more) }
}

// eachAccounted runs f for each algorithm and store.
func eachAccounted(t *testing.T, f func(t *testing.T, i int, store ratelimit.Store)) {
	for name, store := range fakes.Stores {
		for i, a := range accounted {
			t.Run(fmt.Sprintf("%s/%T %v", name, a.alg, a.alg), func(t *testing.T) { f(t, i, store()) })
		}
	}
}

// TestBounds: whatever is taken, held, settled, reserved and cancelled, by one limiter or another, no
// more events happen in a span of time than README's table says.
func TestBounds(t *testing.T) {
	t.Parallel()
	for i, a := range accounted {
		for kept := range keepings {
			if kept == "evictions" {
				continue // a store that forgets keys may grant more
			}
			t.Run(fmt.Sprintf("%s/%T %v", kept, a.alg, a.alg), func(t *testing.T) {
				t.Parallel()
				s := setupOf(a.alg, fakes.Midnight, kept)
				s.Bound = a.bound
				for seed := range budget.Seeds(t, budget.Histories(25, 400)) {
					playBounded(t, s, history.NewRandom(seed, uint64(i)))
				}
			})
		}
	}
}

// playBounded plays a history in which nothing is charged, and no hold gives back by itself.
func playBounded(t *testing.T, s *history.Setup, c history.Choices) {
	t.Helper()
	g := &history.Generator{Choices: c, Keys: []string{""}, Spans: []time.Duration{400 * time.Millisecond, time.Second}, By: 2}
	history.Run(t, s, history.AtMost(80, func(p history.Player) (o history.Op, ok bool) {
		o, ok = g.Next(p)
		switch o.Verb {
		case history.Charge:
			o.Verb = history.Take
		case history.Reset: // of which nothing would count any more
			o.Verb = history.Peek
		case history.Settle:
			o.N = min(o.N, p.Size(o.Name))
		}
		o.N = min(o.N, 7)
		o.Back = false
		return o, ok
	}))
}

// begins reports whether an event of alg begins something that lasts even if the event did not
// happen: a window, the interval of refills, warmth, or a denial that is noted.
func begins(alg ratelimit.Algorithm) bool {
	switch alg := alg.(type) {
	case ratelimit.FixedWindow:
		return alg.Start == ratelimit.StartOnFirstEvent
	case ratelimit.TokenBucket:
		return alg.Refill == ratelimit.RefillInterval
	case ratelimit.SlidingLog:
		return alg.CountDenied
	case ratelimit.WarmingUp:
		return true
	}
	return false
}

// TestSettleAnotherHoldFirst has examples of holds that are settled after others that they
// were made after: what has come back meanwhile does not come back again.
func TestSettleAnotherHoldFirst(t *testing.T) {
	for _, refill := range []ratelimit.Refill{ratelimit.RefillContinuous, ratelimit.RefillInterval} {
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10, Refill: refill})
		hold := func(n int) *ratelimit.Reservation {
			r, _, err := l.Hold(ctx, "key", n)
			require.NoError(t, err)
			require.NotNil(t, r)
			return r
		}
		settle := func(r *ratelimit.Reservation, n int) ratelimit.Decision {
			d, err := r.Settle(ctx, n)
			require.NoError(t, err)
			return d
		}
		first, second := hold(5), hold(5)
		assert.Equal(t, 5, settle(first, 0).Remaining)
		clk.Advance(4 * time.Second)
		require.True(t, l.AllowN("key", 3))
		// One of the five is missing still; the other four have come back.
		assert.Equal(t, 7, settle(second, 0).Remaining)
	}
}

// A hold that is settled for what was held leaves the state of a Take.
func TestSettleExactly(t *testing.T) {
	rnd := fakes.Rand(t)
	for _, a := range accounted {
		for range 50 {
			clk := storetest.NewClock(fakes.Midnight)
			var dbs [2]*fakes.MapDB
			var ls [2]ratelimit.Limiter
			for i := range ls {
				dbs[i] = fakes.NewMapDB()
				ls[i] = ratelimit.Must(ratelimit.New(a.alg, ratelimit.WithClock(clk), ratelimit.WithStore(dbs[i].Store()), ratelimit.WithName("test")))
			}
			for range 8 {
				clk.Advance(time.Duration(rnd.IntN(300)) * time.Millisecond)
				n := rnd.IntN(8)
				r, d, err := ls[0].Hold(ctx, "k", n)
				require.NoError(t, err)
				want, err := ls[1].Take(ctx, "k", n)
				require.NoError(t, err)
				require.Equal(t, want, d, "Hold answers as Take does")
				if r != nil {
					_, err = r.Settle(ctx, n)
					require.NoError(t, err)
				}
				require.Equal(t, dbs[1].States, dbs[0].States, "%+v", a.alg)
			}
		}
	}
}

// A reservation that is held, and settled after its turn for fewer events, leaves the key as if
// only these had been reserved. The turns of a queue, which its state keeps apart from the level,
// also end earlier.
func TestSettleReservedExactly(t *testing.T) {
	t.Parallel()
	eachAccounted(t, func(t *testing.T, i int, store ratelimit.Store) {
		alg := accounted[i].alg
		rnd := fakes.Rand(t)
		l, clk := fakes.At(t, alg, ratelimit.WithStore(store), ratelimit.WithName("test"))
		for round := range 40 {
			key, like := fmt.Sprint("k", round), fmt.Sprint("like k", round)
			for range 8 {
				clk.Advance(time.Duration(rnd.IntN(1000)) * time.Millisecond)
				n := rnd.IntN(8)
				if d, err := l.Peek(ctx, key); err != nil || d.Remaining < n {
					require.NoError(t, err)
					continue
				}
				happened := rnd.IntN(n + 1)
				r, _, err := l.Reserve(ctx, key, n, ratelimit.Within(ratelimit.Never), ratelimit.HoldFor(time.Hour))
				require.NoError(t, err)
				_, _, err = l.Reserve(ctx, like, happened)
				require.NoError(t, err)
				clk.Advance(r.Delay() + time.Duration(rnd.IntN(2)))
				d, err := r.Settle(ctx, happened)
				require.NoError(t, err)
				want, err := l.Peek(ctx, like)
				require.NoError(t, err)
				require.Equal(t, want, d, "%d of %d", happened, n)
			}
		}
	})
}

// Cancel of a hold is Settle with 0, however the events are held.
func TestCancelOfAHold(t *testing.T) {
	for name, hold := range map[string]func(l ratelimit.Limiter, key string) (*ratelimit.Reservation, error){
		"Hold": func(l ratelimit.Limiter, key string) (*ratelimit.Reservation, error) {
			r, _, err := l.Hold(ctx, key, 5)
			return r, err
		},
		"waiting": func(l ratelimit.Limiter, key string) (*ratelimit.Reservation, error) {
			r, _, err := l.Hold(ctx, key, 5, ratelimit.Waiting())
			return r, err
		},
		"HoldAll": func(l ratelimit.Limiter, key string) (*ratelimit.Reservation, error) {
			r, _, err := ratelimit.HoldAll(ctx, 2, ratelimit.For(l, key), ratelimit.For(l, key))
			return r, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachAccounted(t, func(t *testing.T, i int, store ratelimit.Store) {
				l, clk := fakes.At(t, accounted[i].alg, ratelimit.WithStore(store), ratelimit.WithName("test"))
				after := make(map[string]ratelimit.Decision)
				var held []*ratelimit.Reservation
				for _, key := range []string{"cancelled", "settled"} {
					r, err := hold(l, key)
					require.NoError(t, err)
					held = append(held, r)
				}
				clk.Advance(time.Millisecond)
				held[0].Cancel()
				held[0].Cancel()
				_, err := held[1].Settle(ctx, 0)
				require.NoError(t, err)
				for _, key := range []string{"cancelled", "settled"} {
					after[key], err = l.Peek(ctx, key)
					require.NoError(t, err)
				}
				require.Equal(t, after["settled"], after["cancelled"])
				_, err = held[0].Settle(ctx, 0)
				require.ErrorIs(t, err, ratelimit.ErrEnded)
			})
		})
	}
}

// Of Settle and Cancel at once, exactly one takes effect.
func TestSettleOnce(t *testing.T) {
	for name, store := range fakes.Stores {
		t.Run(name, func(t *testing.T) {
			l, _ := fakes.At(t, ratelimit.SlidingLog{Limit: 5, Window: time.Second}, ratelimit.WithStore(store()), ratelimit.WithName("test"))
			require.True(t, l.AllowN("key", 5))
			for range 50 {
				r, _, err := l.Reserve(ctx, "key", 2)
				require.NoError(t, err)
				var wg sync.WaitGroup
				var settled atomic.Int64
				for range 2 {
					wg.Go(func() {
						if _, err := r.Settle(ctx, 0); err == nil {
							settled.Add(1)
						} else {
							assert.ErrorIs(t, err, ratelimit.ErrEnded)
						}
					})
					wg.Go(r.Cancel)
				}
				wg.Wait()
				require.LessOrEqual(t, settled.Load(), int64(1))
				_, err = r.Settle(ctx, 9)
				require.ErrorIs(t, err, ratelimit.ErrEnded)
			}
			d, err := l.Peek(ctx, "key")
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{Limit: 5, RetryAfter: time.Second, ResetAfter: time.Second}, d)
		})
	}
}

// A reservation that is settled before its turn leaves the line: if another one behind it is
// cancelled, what another limiter has reserved in place of its events keeps its turn.
func TestSettleInLine(t *testing.T) {
	store := new(ratelimit.MemoryStore)
	window := ratelimit.SlidingWindow{Limit: 10, Window: time.Second}
	l, clk := fakes.At(t, window, ratelimit.WithStore(store), ratelimit.WithName("test"))
	other := ratelimit.Must(ratelimit.New(window, ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)))
	reserve := func(l ratelimit.Limiter, n int) *ratelimit.Reservation {
		r, _, err := l.Reserve(ctx, "key", n, ratelimit.Within(ratelimit.Never), ratelimit.HoldFor(time.Minute))
		require.NoError(t, err)
		return r
	}
	require.True(t, l.AllowN("key", 10))
	first, second := reserve(l, 5), reserve(l, 2)
	require.Equal(t, 1700*time.Millisecond, second.Delay())
	_, err := first.Settle(ctx, 2)
	require.NoError(t, err)
	assert.Equal(t, 1700*time.Millisecond, reserve(other, 3).Delay())
	second.Cancel()
	d, err := l.Peek(ctx, "key")
	require.NoError(t, err)
	assert.Equal(t, 1700*time.Millisecond, d.RetryAfter, "nobody overtakes the other limiter's")
	clk.Advance(1700 * time.Millisecond)
	d, err = l.Peek(ctx, "key")
	require.NoError(t, err)
	assert.Equal(t, 2, d.Remaining, "of 10 are 3 those of the window before, 2 and 3 those that happen")
}

func TestSettleErrors(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5})
	r, _, err := l.Hold(ctx, "key", 3)
	require.NoError(t, err)
	_, err = r.Settle(ctx, -1)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = r.Settle(nil, 1) //nolint:staticcheck // a mistake that is reported
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = r.Settle(over, 1)
	require.ErrorIs(t, err, context.Canceled)
	d, err := r.Settle(ctx, 1)
	require.NoError(t, err, "none of these calls has settled it")
	assert.Equal(t, 4, d.Remaining)

	var zero ratelimit.Reservation
	_, err = zero.Settle(ctx, -1)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = zero.Settle(over, 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = zero.Settle(ctx, 5)
	require.NoError(t, err)
	_, err = zero.Settle(ctx, 5)
	require.ErrorIs(t, err, ratelimit.ErrEnded)

	for _, call := range []func(ctx context.Context, n int) error{
		func(ctx context.Context, n int) error { _, _, err := l.Hold(ctx, "key", n); return err },
		func(ctx context.Context, n int) error { _, err := l.Charge(ctx, "key", n); return err },
	} {
		assert.ErrorIs(t, call(ctx, -1), ratelimit.ErrInvalid)
		assert.ErrorIs(t, call(nil, 1), ratelimit.ErrInvalid)
		assert.ErrorIs(t, call(over, 1), context.Canceled)
	}
	assert.Equal(t, 4, fakes.Take(t, l, 0).Remaining)
}
