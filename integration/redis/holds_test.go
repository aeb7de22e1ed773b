package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A store counts the holds that its commands have ended, because nobody has settled them in time or because
// their key had too many.
func TestEndedHolds(t *testing.T) {
	addr := startServer(t).addr()
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
	store := makers["rueidis"](t, addr, redisstore.WithTimeout(patient), redisstore.WithLimiterClock())
	a := limiter(t, store, hourly(1_000_000), ratelimit.WithClock(clk))
	b := limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 100}, ratelimit.WithClock(clk))
	hold := func(l ratelimit.Limiter, times int, opts ...ratelimit.HoldOption) {
		for range times {
			_, _, err := l.Hold(t.Context(), "k", 1, opts...)
			require.NoError(t, err)
		}
	}
	ended := func(want int) {
		t.Helper()
		assert.Equal(t, want, int(store.Stats().Ended))
	}
	hold(a, 4096+3, ratelimit.HoldFor(time.Minute))
	ended(3)
	hold(b, 5, ratelimit.HoldFor(time.Minute), ratelimit.GiveBack())
	hold(b, 1, ratelimit.HoldFor(time.Hour))
	clk.Advance(time.Minute)
	remains(t, 99, b, "a bucket")
	ended(3) // a question changes nothing
	d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(a, "k"), ratelimit.For(b, "k"))
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	ended(3 + 4096 + 5)
	hold(a, 2, ratelimit.HoldFor(time.Second))
	clk.Advance(time.Second)
	require.True(t, a.Allow("k"))
	require.True(t, a.Allow("k"))
	ended(3 + 4096 + 5 + 2)
	c := limiter(t, store, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 2}, ratelimit.WithName("turns"), ratelimit.WithClock(clk))
	hold(c, 1, ratelimit.HoldFor(time.Second))
	require.True(t, c.Allow("k"))
	r, _, err := c.Reserve(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, time.Minute, r.Delay())
	clk.Advance(time.Second)
	require.False(t, c.Allow("k"))
	ended(3 + 4096 + 5 + 2 + 1)
}

// Of a long list of holds, most commands write only the end. At most 4,096 holds are open: then the
// oldest ends early.
func TestManyHolds(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(7000), Burst: 20_000},
		ratelimit.SlidingLog{Limit: 20_000, Window: time.Hour},
		ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerHour(7000), Capacity: 20_000}, ratelimit.FixedWindow{Limit: 20_000, Window: time.Hour}},
	} {
		tr := newTraceOf(t, conn, prefixes(), alg, uncached)
		_, err := tr.here.Peek(t.Context(), "k") // sets the request
		require.NoError(t, err)
		odd := func(id int) uint64 { return 2*uint64(id) - 1 }
		hold := func(id int) step.Request {
			return step.Request{Op: step.OpHold, N: 2, Hold: step.Handle{ID: odd(id), For: time.Hour, Back: id%3 == 0}}
		}
		for id := 1; id <= 40; id++ {
			tr.clk.Advance(time.Millisecond)
			tr.ask("k", hold(id))
			tr.ask("k", step.Request{Op: step.OpTake, N: 1})
			if id%4 == 0 {
				assert.True(t, tr.ask("k", step.Request{Op: step.OpExtend, Hold: step.Handle{ID: odd(id / 2), For: 2 * time.Hour}}).Held)
				assert.True(t, tr.ask("k", step.Request{Op: step.OpSettle, N: id % 3, Of: 2, Hold: step.Handle{ID: odd(id - 1)}}).Held)
			}
		}
		for id := 41; id <= 4096+14; id++ { // 30 of the first 40 are open
			req := hold(id).At(tr.clk.Now())
			for _, s := range []limit.States{&tr.opened, tr.store} {
				res, err := s.Apply(t.Context(), "k", tr.store.t, req)
				require.NoError(t, err)
				require.True(t, res.Held)
			}
		}
		tr.compareStates("k")
		assert.False(t, tr.ask("k", step.Request{Op: step.OpSettle, N: 0, Of: 2, Hold: step.Handle{ID: odd(1)}}).Held)
		assert.True(t, tr.ask("k", step.Request{Op: step.OpSettle, N: 0, Of: 2, Hold: step.Handle{ID: odd(4000)}}).Held)
		tr.clk.Advance(90 * time.Minute)
		tr.ask("k", step.Request{Op: step.OpTake, N: 1})
	}
}

// A denial says when a hold gives its events back, also if it is known without a call and if events
// were granted meanwhile: the reply to a grant does not have the hold.
func TestKnownDenialWaitsForHolds(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for _, grant := range []step.Request{
		{Op: step.OpTake, N: 6},
		{Op: step.OpHold, N: 6, Hold: step.Handle{ID: 5, For: time.Hour}},
		{Op: step.OpReserve, N: 6, Hold: step.Handle{ID: 6}},
	} {
		of := ratelimit.TokenBucket{Rate: ratelimit.PerHour(10), Burst: 10}
		tr := newTraceOf(t, conn, prefixes(), of, cached)
		_, err := tr.here.Peek(t.Context(), "k") // sets the request
		require.NoError(t, err)
		hold := func(id uint64, n int, lasts time.Duration, back bool) {
			end := step.Handle{ID: id, For: lasts, Back: back}
			require.True(t, tr.ask("k", step.Request{Op: step.OpHold, N: n, Hold: end}).Held)
		}
		hold(1, 3, time.Minute, true)
		hold(3, 1, time.Hour, false)
		require.False(t, tr.ask("k", step.Request{Op: step.OpTake, N: 8}).Allowed)
		require.True(t, tr.ask("k", grant).Allowed)
		denied := tr.ask("k", step.Request{Op: step.OpTake, N: 1})
		assert.Equal(t, time.Minute, denied.RetryAfter)
	}
}

// The answer to a settlement or an extension of a hold that is over says when the next event is
// granted, also if the log is so long that a reply omits what no decision waits for.
func TestEndedHoldOfLongLog(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	log := ratelimit.SlidingLog{Limit: 30, Window: time.Minute}
	flight := ratelimit.InFlight{Limit: 30, Timeout: time.Minute}
	for _, of := range []ratelimit.Algorithm{log, flight, ratelimit.All{hourly(100), log, flight}} {
		tr := newTraceOf(t, conn, prefixes(), of, uncached)
		for range 30 {
			tr.take(1)
			tr.clk.Advance(time.Second)
		}
		over := step.Handle{ID: 1, For: time.Minute}
		for _, req := range []step.Request{
			{Op: step.OpSettle, Of: 1, Hold: over},
			{Op: step.OpSettle, N: 1, Of: 1, Hold: over},
			{Op: step.OpExtend, Hold: over},
		} {
			require.False(t, tr.ask("k", req).Held)
			assert.Equal(t, 30*time.Second, tr.last.RetryAfter)
		}
	}
}
