package redisstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A key in demand is leased, and then takes few calls.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)})
		s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
		for range 1000 {
			for range 20 {
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				require.Zero(t, d.RetryAfter)
				require.Positive(t, d.Remaining)
			}
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, f.calls(), 200)
		assert.Greater(t, s.Stats().Leased, uint64(19_000))
		require.NoError(t, s.Close(t.Context()))
	})
}

// A key in little demand is not leased, nor is one near its limit, nor an algorithm that
// cannot be leased.
func TestNoLease(t *testing.T) {
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		pause time.Duration
	}{
		"rare":          {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)}, time.Second},
		"near":          {ratelimit.TokenBucket{Rate: ratelimit.PerHour(15)}, 0},
		"a queue":       {ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1e9), Capacity: 1e6}, 0},
		"warming up":    {ratelimit.WarmingUp{Rate: ratelimit.PerHour(1e9), Warmup: time.Hour}, 0},
		"counts denied": {ratelimit.SlidingLog{Limit: 1e6, Window: time.Hour, CountDenied: true}, 0},
		"all":           {ratelimit.All{ratelimit.FixedWindow{Limit: 1e9, Window: time.Hour}, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1e9), Capacity: 1e6}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, tt.alg)
				s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
				for range 15 {
					l.Allow("k")
					time.Sleep(tt.pause)
				}
				assert.Zero(t, s.Stats().Leased)
			})
		})
	}
}

// Unused events are given back when a lease ends and when the store is closed, with every
// algorithm that can be leased.
func TestGivingBack(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":   ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1000, Per: 1000 * time.Hour}},
		"sevenths": ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 7, Per: 1000 * time.Hour}, Burst: 1000},
		"lumps":    ratelimit.TokenBucket{Rate: ratelimit.PerDay(1000), Refill: ratelimit.RefillInterval},
		"fixed":    ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour},
		"sliding":  ratelimit.SlidingWindow{Limit: 1000, Window: 1000 * time.Hour, Segments: 4},
		"log":      ratelimit.SlidingLog{Limit: 1000, Window: time.Hour},
		"rolling":  ratelimit.RollingWindow{Quota: 1000, Window: 1000 * time.Hour, Period: 100 * time.Hour},
		"all":      ratelimit.All{ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour}, ratelimit.SlidingLog{Limit: 1001, Window: time.Hour}},
	} {
		for how, end := range map[string]func(s *Store){
			"expiry": func(*Store) { time.Sleep(110 * time.Millisecond) },
			"close":  func(s *Store) { require.NoError(t, s.Close(context.Background())) },
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeServer(t, alg)
					f.delay = time.Millisecond
					s, l := f.store(t, WithLease(100, 100*time.Millisecond))
					_, other := f.store(t)
					used := 0
					for s.Stats().Leased < 30 {
						require.True(t, l.Allow("k"))
						used++
					}
					d, err := other.Peek(t.Context(), "k")
					require.NoError(t, err)
					require.Less(t, d.Remaining, 1000-used, "some is leased")
					end(s)
					synctest.Wait()
					d, err = other.Peek(t.Context(), "k")
					require.NoError(t, err)
					assert.Equal(t, 1000-used, d.Remaining)
				})
			})
		}
	}
}

// After Close there are no leases, and the store still works.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100_000)})
		s, l := f.store(t, WithLease(1000, 100*time.Millisecond))
		require.NoError(t, s.Close(t.Context()))
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		assert.Equal(t, 100, f.calls())
		require.NoError(t, s.Close(t.Context()))

		// Close returns when its context ends, even if the server is gone.
		s, l = f.store(t, WithLease(1000, time.Hour))
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		f.hangs = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		assert.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
		assert.Equal(t, 10*time.Millisecond, time.Since(begin))
		time.Sleep(time.Second) // until the commands in progress time out
	})
}

// A key that is reset gets its whole limit back, and its lease is dropped.
func TestLeaseReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: 1000 * time.Hour})
		s, l := f.store(t, WithLease(100, 100*time.Millisecond))
		for s.Stats().Leased == 0 {
			require.True(t, l.Allow("k"))
		}
		require.NoError(t, l.Reset(t.Context(), "k"))
		granted := 0
		for range 3000 {
			if l.Allow("k") {
				granted++
			}
		}
		assert.Equal(t, 1000, granted)
	})
}

// With N processes, a span of time has at most what the limit grants in it, plus the lesser
// of N leases and what the limit grants in the duration of one. In the long run the limit
// is exact.
func TestLeaseBound(t *testing.T) {
	const (
		processes = 5
		events    = 40
		age       = 100 * time.Millisecond
		rate      = 1000 // a second
		burst     = 1500
		seconds   = 6
	)
	bound := func(d time.Duration) float64 { return burst + rate*d.Seconds() }
	extra := min(processes*events, bound(age))
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(rate), Burst: burst})
			f.delay = 2 * time.Millisecond
			var mu sync.Mutex
			var granted []time.Duration // the instants at which one was
			begin := time.Now()
			leased := uint64(0)
			var wg sync.WaitGroup
			for p := range uint64(processes) {
				rng := rand.New(rand.NewPCG(seed, p))
				s, l := f.store(t, WithLease(events, age))
				wg.Go(func() {
					for time.Since(begin) < seconds*time.Second {
						// Rushes and pauses.
						for range rng.IntN(400) {
							if d, err := l.Take(t.Context(), "k", 1); err == nil && d.Allowed {
								mu.Lock()
								granted = append(granted, time.Since(begin))
								mu.Unlock()
							}
							time.Sleep(time.Duration(rng.IntN(600)) * time.Microsecond)
						}
						time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
					}
					assert.NoError(t, s.Close(t.Context()))
					mu.Lock()
					leased += s.Stats().Leased
					mu.Unlock()
				})
			}
			wg.Wait()
			require.Greater(t, leased, uint64(len(granted)/10), "too little was leased")
			most := 0.0
			for i := range granted {
				for _, span := range []time.Duration{0, age / 2, age, 10 * age, seconds * time.Second} {
					j := i
					for j < len(granted) && granted[j]-granted[i] <= span {
						j++
					}
					over := float64(j-i) - bound(span)
					most = max(most, over)
				}
			}
			t.Logf("seed %d: %d granted, %d from leases, at most %.0f more than the limit in a span; %v is the bound", seed, len(granted), leased, most, extra)
			assert.LessOrEqual(t, most, extra)
			assert.LessOrEqual(t, float64(len(granted)), bound(granted[len(granted)-1])+extra)
		})
	}
}

// The bound is tight: leased events can happen after others have spent the capacity that
// replaced them.
func TestLeaseWorstCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, events, age = 5, 40, 100 * time.Millisecond
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 1500})
		var fleet []ratelimit.Limiter
		var stores []*Store
		for range processes {
			s, l := f.store(t, WithLease(events, age))
			for s.Stats().Leased == 0 {
				require.True(t, l.Allow("k"))
			}
			stores, fleet = append(stores, s), append(fleet, l)
		}
		time.Sleep(age - time.Millisecond)
		granted := 0
		_, other := f.store(t)
		for other.Allow("k") {
			granted++
		}
		for i, l := range fleet {
			stores[i].denialAge = 0
			for l.Allow("k") {
				granted++
			}
		}
		over := granted - 1500
		t.Logf("%d more than the limit at one instant", over)
		assert.Positive(t, over)
		assert.LessOrEqual(t, over, processes*events)
	})
}
