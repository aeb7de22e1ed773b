package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// accounted are algorithms in which what is settled can be seen.
var accounted = []ratelimit.Algorithm{
	ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20},
	ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: time.Second}, Burst: 15},
	ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20, Refill: ratelimit.RefillInterval},
	ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 20},
	ratelimit.FixedWindow{Limit: 20, Window: time.Second},
	ratelimit.FixedWindow{Limit: 20, Window: time.Second, Start: ratelimit.StartOnFirstEvent},
	ratelimit.SlidingWindow{Limit: 20, Window: time.Second},
	ratelimit.SlidingWindow{Limit: 20, Window: time.Second, Segments: 5},
	ratelimit.SlidingLog{Limit: 20, Window: time.Second},
	ratelimit.SlidingLog{Limit: 20, Window: time.Second, CountDenied: true},
	ratelimit.RollingWindow{Quota: 20, Window: time.Second, Period: 250 * time.Millisecond, PeriodLimit: 12},
	ratelimit.WarmingUp{Rate: ratelimit.PerSecond(20), Warmup: time.Second},
	ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}, ratelimit.SlidingLog{Limit: 30, Window: 2 * time.Second}, ratelimit.FixedWindow{Limit: 25, Window: time.Second}},
}

// An event of a history: events taken at a time.
type taken struct {
	at time.Time
	n  int
}

// replayed returns a limiter on which the events of a history have been counted.
func replayed(t *testing.T, alg ratelimit.Algorithm, history []taken) ratelimit.Limiter {
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
	for _, e := range history {
		clk.Set(e.at)
		_, err := l.Charge(context.Background(), "k", e.n)
		require.NoError(t, err)
	}
	return l
}

func stores() map[string]func() ratelimit.Store {
	return map[string]func() ratelimit.Store{
		"memory": func() ratelimit.Store { return ratelimit.NewMemoryStore() },
		"bytes":  func() ratelimit.Store { return newMapDB().store() },
	}
}

// A settled key is as if only the events that happened had been taken, if nothing was granted
// on it since, and otherwise no more generous than that.
func TestSettleIsAsIfOnlyThatHadBeenTaken(t *testing.T) {
	ctx := context.Background()
	for name, store := range stores() {
		for _, alg := range accounted {
			t.Run(fmt.Sprintf("%s/%T%+v", name, alg, alg), func(t *testing.T) {
				rnd := newRand(t)
				for range 400 {
					settleOnce(ctx, t, rnd, alg, store())
				}
			})
		}
	}
}

func settleOnce(ctx context.Context, t *testing.T, rnd *rand.Rand, alg ratelimit.Algorithm, store ratelimit.Store) {
	clk := stepclock.New()
	l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk), ratelimit.WithStore(store)))
	var history []taken
	pass := func() { clk.Set(clk.Now().Add(time.Duration(rnd.IntN(400)) * time.Millisecond)) }
	take := func() {
		n := 1 + rnd.IntN(8)
		if l.AllowN("k", n) {
			history = append(history, taken{clk.Now(), n})
		}
	}
	for range rnd.IntN(4) {
		take()
		pass()
	}
	held := rnd.IntN(12)
	r, d, err := l.Hold(ctx, "k", held)
	require.NoError(t, err)
	if !d.Allowed {
		require.Nil(t, r)
		return
	}
	hold := len(history)
	history = append(history, taken{clk.Now(), held})
	for range rnd.IntN(3) {
		pass()
		if rnd.IntN(2) == 0 {
			take()
		}
	}
	alone := len(history) == hold+1
	actual := rnd.IntN(16)
	counted := history
	if actual < held {
		history[hold].n = actual
	} else {
		counted = append(counted, taken{clk.Now(), actual - held})
	}
	d, err = r.Settle(ctx, actual)
	require.NoError(t, err)
	_, err = r.Settle(ctx, actual)
	require.ErrorIs(t, err, ratelimit.ErrSettled)

	now, err := l.Peek(ctx, "k")
	require.NoError(t, err)
	assert.Equal(t, now, d, "Settle answers as Peek does afterwards")
	asIf := replayed(t, alg, counted)
	for probe := range 6 {
		ratelimit.ClockOf(asIf).(*stepclock.Clock).Set(clk.Now())
		got, err := l.Peek(ctx, "k")
		require.NoError(t, err)
		want, err := asIf.Peek(ctx, "k")
		require.NoError(t, err)
		message := fmt.Sprintf("probe %d: held %d, actually %d, history %v", probe, held, actual, counted)
		if log, ok := alg.(ratelimit.SlidingLog); (alone || actual >= held) && !(ok && log.CountDenied) {
			got.ResetAfter, want.ResetAfter = 0, 0 // of a fresh key that shows when it was last used
			require.Equal(t, want, got, message)
		} else if _, warms := alg.(ratelimit.WarmingUp); !warms { // the hold has warmed it
			require.LessOrEqual(t, got.Remaining, want.Remaining, message)
			require.GreaterOrEqual(t, got.RetryAfter, want.RetryAfter, message)
		}
		pass()
	}
}
