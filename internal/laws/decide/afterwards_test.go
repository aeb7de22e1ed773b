package decide_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// afterwards has the rows of the table in docs/holds.md, with 10 events a second, or 20 at
// once or in a window of a second.
var afterwards = []struct {
	alg   ratelimit.Algorithm
	alone bool          // whether a settlement is exact if nothing was granted since the hold
	back  int           // what comes back of 10 events after 0.3 s, in which others were granted 2
	debt  int           // what remains after that, if there was a debt of 5 before
	paid  time.Duration // how long a debt of 30 lasts, until one event is granted
	until bool          // whether a debt must be paid before 2116
	most  int           // otherwise, how much a debt may be at least
}{
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}, true, 9, 4, 3100 * time.Millisecond, true, 0},
	{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20, Refill: ratelimit.RefillInterval}, true, 10, 5, 4 * time.Second, true, 0},
	{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 20}, true, 9, 4, 3100 * time.Millisecond, true, 0},
	{ratelimit.FixedWindow{Limit: 20, Window: time.Second}, true, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.FixedWindow{Limit: 20, Window: time.Second, Start: ratelimit.StartOnFirstEvent}, true, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.SlidingWindow{Limit: 20, Window: time.Second}, true, 10, 5, 1620 * time.Millisecond, false, 20},
	{ratelimit.SlidingWindow{Limit: 20, Window: time.Second, Segments: 5}, true, 10, 5, 1124 * time.Millisecond, false, math.MaxInt32},
	{ratelimit.SlidingLog{Limit: 20, Window: time.Second}, true, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.SlidingLog{Limit: 20, Window: time.Second, CountDenied: true}, true, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.RollingWindow{Quota: 20, Window: time.Second, Period: 250 * time.Millisecond}, true, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: 2 * time.Second, ColdFactor: 1}, true, 0, 0, 5 * time.Second, true, 0},
	{ratelimit.InFlight{Limit: 20, Timeout: time.Second}, false, 10, 5, time.Second, false, math.MaxInt32},
	{ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20},
		ratelimit.FixedWindow{Limit: 30, Window: time.Second},
	}, true, 9, 4, 3100 * time.Millisecond, true, 0},
	{ratelimit.Unlimited{}, true, 0, math.MaxInt, 0, false, math.MaxInt},
	{ratelimit.Blocked{}, true, 0, 0, ratelimit.Never, false, math.MaxInt},
}

// TestAfterwards checks the table in docs/holds.md.
func TestAfterwards(t *testing.T) {
	for name, opts := range fakes.Keepings {
		for _, tt := range afterwards {
			_, blocked := tt.alg.(ratelimit.Blocked)
			// begin holds 10 events of a new key.
			begin := func(t *testing.T) (l ratelimit.Limiter, r *ratelimit.Reservation, advance func(time.Duration)) {
				l, clk := fakes.At(t, tt.alg, opts()...)
				r, d, err := l.Hold(ctx, "key", 10)
				require.NoError(t, err)
				require.Equal(t, !blocked, d.Allowed)
				return l, r, clk.Advance
			}
			peek := func(t *testing.T, l ratelimit.Limiter) ratelimit.Decision {
				d, err := l.Peek(ctx, "key")
				require.NoError(t, err)
				return d
			}
			// allow spends 2 events for others within 0.3 s.
			allow := func(t *testing.T, l ratelimit.Limiter, advance func(time.Duration)) {
				advance(100 * time.Millisecond)
				advance(peek(t, l).RetryAfter) // only a WarmingUp has to wait
				require.True(t, l.AllowN("key", 2))
				advance(200 * time.Millisecond)
			}
			run := func(rule string, f func(t *testing.T)) {
				t.Run(fmt.Sprintf("%s/%T %v/%s", name, tt.alg, tt.alg, rule), f)
			}
			if !blocked {
				run("nothing granted since", func(t *testing.T) {
					_, r, advance := begin(t)
					advance(300 * time.Millisecond)
					settled, err := r.Settle(ctx, 4)
					require.NoError(t, err)
					l, clk := fakes.At(t, tt.alg, opts()...)
					require.True(t, l.AllowN("key", 4))
					clk.Advance(300 * time.Millisecond)
					assert.Equal(t, tt.alone, peek(t, l) == settled)
				})
				run("others granted since", func(t *testing.T) {
					l, r, advance := begin(t)
					allow(t, l, advance)
					before := peek(t, l)
					settled, err := r.Settle(ctx, 0)
					require.NoError(t, err)
					assert.Equal(t, tt.back, settled.Remaining-before.Remaining)
					if tt.back == 0 {
						assert.Equal(t, before, settled)
					}
				})
				run("in debt", func(t *testing.T) {
					l, r, advance := begin(t)
					allow(t, l, advance)
					before, err := l.Charge(ctx, "key", max(0, min(20, peek(t, l).Remaining)+5))
					require.NoError(t, err)
					settled, err := r.Settle(ctx, 0)
					require.NoError(t, err)
					assert.Equal(t, tt.debt, settled.Remaining)
					if tt.debt == 0 {
						assert.Equal(t, before, settled)
					}
				})
				run("late", func(t *testing.T) {
					l, r, advance := begin(t)
					advance(3 * time.Second)
					require.True(t, l.AllowN("key", 2))
					before := peek(t, l)
					settled, err := r.Settle(ctx, 0)
					require.NoError(t, err)
					assert.Equal(t, before, settled)
				})
			}
			run("debt", func(t *testing.T) {
				l, clk := fakes.At(t, tt.alg, opts()...)
				d, err := l.Charge(ctx, "key", 50)
				require.NoError(t, err)
				assert.Equal(t, tt.paid, d.RetryAfter)
				if _, ok := tt.alg.(ratelimit.FixedWindow); ok { // the rest is forgotten
					clk.Advance(tt.paid)
					assert.Equal(t, 20, peek(t, l).Remaining)
				}
			})
			run("more than held", func(t *testing.T) {
				if blocked {
					return
				}
				_, r, _ := begin(t)
				d, err := r.Settle(ctx, 50)
				require.NoError(t, err)
				if _, ok := tt.alg.(ratelimit.InFlight); ok {
					assert.Equal(t, 20, d.Remaining, "they are over")
				} else {
					assert.Equal(t, tt.paid, d.RetryAfter)
				}
			})
			run("bound", func(t *testing.T) {
				l, _ := fakes.At(t, hourly(tt.alg), opts()...)
				if !tt.until {
					_, err := l.Charge(ctx, "key", tt.most)
					require.NoError(t, err)
					return
				}
				const year = 365 * 24
				_, err := l.Charge(ctx, "key", (2115-2026)*year)
				require.NoError(t, err)
				_, err = l.Charge(ctx, "key", 2*year)
				require.ErrorIs(t, err, ratelimit.ErrDebt)
			})
			run("Take of what remains", func(t *testing.T) {
				l, _ := fakes.At(t, tt.alg, opts()...)
				remaining := peek(t, l).Remaining
				for _, n := range []int{7, 100} {
					require.Equal(t, min(remaining, n), fakes.TakeUpTo(t, l, "key", n))
					remaining = peek(t, l).Remaining
				}
			})
		}
	}
}

// hourly returns alg with an event an hour, if it has a rate.
func hourly(alg ratelimit.Algorithm) ratelimit.Algorithm {
	switch alg := alg.(type) {
	case ratelimit.TokenBucket:
		alg.Rate = ratelimit.PerHour(1)
		return alg
	case ratelimit.LeakyBucket:
		alg.Rate = ratelimit.PerHour(1)
		return alg
	case ratelimit.WarmingUp:
		alg.Rate = ratelimit.PerHour(1)
		return alg
	case ratelimit.All:
		parts := make(ratelimit.All, len(alg))
		for i, part := range alg {
			parts[i] = hourly(part)
		}
		return parts
	}
	return alg
}

// Reservations of an InFlight can be released like holds, also by Settle.
func TestReservedEventsInFlightAreReleased(t *testing.T) {
	for name, store := range fakes.Stores {
		l, _ := fakes.At(t, ratelimit.InFlight{Limit: 5, Timeout: time.Second}, ratelimit.WithStore(store()), ratelimit.WithName("test"))
		first, _, err := l.Reserve(ctx, "key", 2)
		require.NoError(t, err)
		second, _, err := l.Reserve(ctx, "key", 2, ratelimit.Within(0))
		require.NoError(t, err)
		assert.Equal(t, 1, fakes.Take(t, l, 0).Remaining, name)
		require.NoError(t, first.Release(ctx))
		assert.Equal(t, 3, fakes.Take(t, l, 0).Remaining, name)
		_, err = second.Settle(ctx, 0)
		require.NoError(t, err)
		assert.Equal(t, 5, fakes.Take(t, l, 0).Remaining, name)
	}
}
