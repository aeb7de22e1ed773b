package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/redisstore/goredis"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Several processes hold and settle on one key, take what there is, and charge: the sum is
// exact, each request is one command at most, and a debt is told to all.
func TestAccountingOfProcesses(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		const processes, callers, rounds = 3, 5, 20
		s := startServer(t)
		var happened atomic.Int64
		var wg sync.WaitGroup
		var fleet []ratelimit.Limiter
		var stores []*redisstore.Store
		for range processes {
			store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
			stores = append(stores, store)
			l := limiter(t, store, hourly(1e6), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			fleet = append(fleet, l)
			for i := range callers {
				wg.Go(func() {
					for j := range rounds {
						r, d, err := l.Hold(t.Context(), "k", 10)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						actual := (i*7 + j) % 20
						_, err = r.Settle(t.Context(), actual)
						require.NoError(t, err)
						_, err = l.Charge(t.Context(), "k", 3)
						require.NoError(t, err)
						happened.Add(int64(actual + 3))
					}
				})
			}
		}
		wg.Wait()
		for _, store := range stores {
			stats := store.Stats()
			assert.Positive(t, stats.Calls)
			requests, scripts := callers*rounds*3, 2 // each of these is sent in full once
			assert.LessOrEqual(t, stats.Calls+stats.Coalesced, uint64(requests+scripts))
		}
		d, err := fleet[0].Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, int(happened.Load()), d.Limit-d.Remaining)

		_, err = fleet[0].Charge(t.Context(), "k", d.Remaining+1)
		require.NoError(t, err)
		for _, l := range fleet {
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			assert.Zero(t, d.Remaining)
		}
	})
}

// Counts up to 2⁵¹ are exact, and what does not fit is refused, in every algorithm.
func TestDebt(t *testing.T) {
	two := func(n int) int { return 1 << n } // compiles where an int has 32 bits
	if strconv.IntSize == 32 {
		t.Skip("no debt is too great")
	}
	most := two(51)
	s := startServer(t)
	for name, create := range clients(t) {
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithPrefix(name))
		for _, tt := range []struct {
			alg  ratelimit.Algorithm
			most int // 0 if it depends on the time
		}{
			{hourly(10), most},
			{ratelimit.SlidingLog{Limit: 10, Window: time.Hour}, most},
			{ratelimit.SlidingLog{Limit: 10, Window: time.Hour, CountDenied: true}, most},
			{ratelimit.Lockout{Limit: 10, Window: time.Hour, First: time.Hour}, most},
			{ratelimit.SlidingWindow{Limit: 10, Window: time.Hour}, two(32) - 1},
			{ratelimit.SlidingWindow{Limit: most, Window: time.Hour}, most},
			{ratelimit.RollingWindow{Quota: 10, Window: time.Hour, Period: time.Minute}, two(32) - 1},
			{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(two(40)), Refill: ratelimit.RefillInterval}, most},
			{ratelimit.TokenBucket{Rate: ratelimit.Every(24 * time.Hour), Burst: 10}, 0},
			{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, 0},
			{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 10}, 0},
			{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: time.Minute}, 0},
			{ratelimit.All{hourly(10), ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, ratelimit.SlidingLog{Limit: 10, Window: time.Hour}}, 0},
		} {
			l := limiter(t, store, tt.alg)
			if tt.most == 0 {
				_, err := l.Charge(t.Context(), "k", most+1)
				require.ErrorIs(t, err, ratelimit.ErrDebt)
				var has int // and fewer as time passes
				_, text, _ := strings.Cut(err.Error(), "can hold ")
				_, scanErr := fmt.Sscan(text, &has)
				require.NoError(t, scanErr)
				_, err = l.Charge(t.Context(), "k", has+1)
				require.ErrorIs(t, err, ratelimit.ErrDebt, "%+v", tt.alg)
				d, err := l.Charge(t.Context(), "k", 20_000)
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Zero(t, d.Remaining)
				assert.Greater(t, d.RetryAfter, time.Minute)
				continue
			}
			_, err := l.Charge(t.Context(), "k", tt.most-2)
			require.NoError(t, err)
			r, _, err := l.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, tt.alg == ratelimit.SlidingWindow{Limit: most, Window: time.Hour}, r != nil)
			more := 2
			if r != nil {
				more = 1
			}
			if log, ok := tt.alg.(ratelimit.SlidingLog); ok && log.CountDenied {
				continue // that was counted
			}
			before, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			_, err = l.Charge(t.Context(), "k", more+1)
			require.ErrorIs(t, err, ratelimit.ErrDebt)
			require.ErrorContains(t, err, fmt.Sprintf("%d more, and the state of the key can hold %d more", more+1, more), "%+v", tt.alg)
			after, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, before.Remaining, after.Remaining)
			_, err = l.Charge(t.Context(), "k", more)
			require.NoError(t, err)
		}
	}
}

// A hold is settled under the limit that has adopted its state since.
func TestSettleAfterTheLimitChanged(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		var limit atomic.Pointer[ratelimit.Algorithm]
		set := func(alg ratelimit.Algorithm) { limit.Store(&alg) }
		set(hourly(100))
		var fleet []ratelimit.Limiter
		for range 2 {
			store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
			fleet = append(fleet, limiter(t, store, hourly(100), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *limit.Load(), nil })))
		}
		here, other := fleet[0], fleet[1]
		hold := func() *ratelimit.Reservation {
			r, d, err := here.Hold(t.Context(), "k", 10)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			return r
		}
		settle := func(r *ratelimit.Reservation, n int) ratelimit.Decision {
			d, err := r.Settle(t.Context(), n)
			require.NoError(t, err)
			return d
		}
		less, more, unchanged := hold(), hold(), hold()
		set(hourly(50))
		assert.Equal(t, 77, settle(unchanged, 3).Remaining, "nobody has used the key since")
		require.True(t, other.Allow("k"))
		assert.Equal(t, 36, settle(less, 0).Remaining)
		assert.Equal(t, 31, settle(more, 15).Remaining)
		d, err := here.Charge(t.Context(), "k", 31)
		require.NoError(t, err)
		assert.Equal(t, 50, d.Limit)
		assert.Zero(t, d.Remaining)

		// A state that cannot be read is replaced by a new one, which is told.
		require.NoError(t, here.Reset(t.Context(), "k"))
		one, two := hold(), hold()
		key := s.do("KEYS", "*:k").([]any)[0]
		s.do("SET", key, "damaged")
		_, err = one.Settle(t.Context(), 3)
		require.ErrorIs(t, err, ratelimit.ErrState)
		assert.Equal(t, 47, settle(two, 13).Remaining)
	})
}

// After a Reset by the limiter, a settlement gives nothing back; and none of a key that is gone.
func TestSettleAfterReset(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		l := limiter(t, create(t, s.addr(), redisstore.WithTimeout(patient)), hourly(100))
		r, _, err := l.Hold(t.Context(), "k", 10)
		require.NoError(t, err)
		again, _, err := l.Hold(t.Context(), "k", 10)
		require.NoError(t, err)
		require.NoError(t, l.Reset(t.Context(), "k"))
		d, err := again.Settle(t.Context(), 0)
		require.NoError(t, err)
		assert.Equal(t, 100, d.Remaining)
		require.True(t, l.AllowN("k", 20))
		d, err = r.Settle(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, 80, d.Remaining)
	})
}

// In a cluster, holds are settled while their slot moves.
func TestSettleInACluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.nodes[0].addr()}})
	t.Cleanup(func() { client.Close() })
	store, err := goredis.New(client, redisstore.WithTimeout(patient), redisstore.WithPrefix("{tag}"))
	require.NoError(t, err)
	l := limiter(t, store, hourly(100), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	slot := c.slotOf(t, "{tag}")
	from := c.owner(slot)
	for i := range 3 {
		r, d, err := l.Hold(t.Context(), "k", 10)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		c.moveSlot(t, slot, (from+i+1)%3)
		d, err = r.Settle(t.Context(), 4)
		require.NoError(t, err)
		assert.Equal(t, 100-4*(i+1)-i, d.Remaining)
		_, err = l.Charge(t.Context(), "k", 1)
		require.NoError(t, err)
	}
}

// A reservation can be cancelled after a hold from before it was settled for nothing.
func TestSettleBehindAReservation(t *testing.T) {
	s := startServer(t)
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(7), Burst: 10},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(10), Refill: ratelimit.RefillInterval},
		ratelimit.LeakyBucket{Rate: ratelimit.PerHour(10), Capacity: 10},
	} {
		store := makers["rueidis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLimiterClock())
		l := limiter(t, store, alg, ratelimit.WithClock(clk))
		require.True(t, l.AllowN("k", 8))
		h, _, err := l.Hold(t.Context(), "k", 2)
		require.NoError(t, err)
		r, _, err := l.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		_, err = h.Settle(t.Context(), 0)
		require.NoError(t, err)
		r.Cancel()
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 2, d.Remaining, "%#v", alg)
	}
}
