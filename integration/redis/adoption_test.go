package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A changeable is a limiter whose limit a test changes.
type changeable struct {
	ratelimit.Limiter
	*redisstore.Store
	limit atomic.Pointer[ratelimit.Algorithm]
}

func newChangeable(t *testing.T, store *redisstore.Store, limit ratelimit.Algorithm) *changeable {
	c := &changeable{Store: store}
	c.limit.Store(&limit)
	c.Limiter = limiter(t, store, hourly(1), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *c.limit.Load(), nil }))
	return c
}

// ask has callers take from key, each that many times, and returns the events granted. No
// decision may be made by the policy.
func (c *changeable) ask(t *testing.T, key string, callers, times int) int {
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range times {
				d, err := c.Take(t.Context(), key, 1)
				assert.NoError(t, err)
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(allowed.Load())
}

// A limit that changes while many callers use it stays exact. The script decides throughout.
func TestLimitChange(t *testing.T) {
	for name, w := range distances() {
		for client, create := range clients(t) {
			for _, callers := range []int{15, 60} {
				t.Run(fmt.Sprintf("%s/%s/%d callers", client, name, callers), func(t *testing.T) {
					t.Parallel()
					s := startServer(t)
					addr := startWire(t, s.addr(), w).addr()
					c := newChangeable(t, create(t, addr, redisstore.WithTimeout(patient), redisstore.WithDenialCache(0)), hourly(100))
					for _, step := range []struct{ limit, granted int }{{100, 100}, {150, 50}, {120, 0}, {151, 1}} {
						to := hourly(step.limit)
						c.limit.Store(&to)
						assert.Equal(t, step.granted, c.ask(t, "k", callers, 180/callers))
					}
					assert.Zero(t, c.Stats().Failures)
				})
			}
		}
	}
}

// Processes that disagree about a limit grant a key together what the higher limit does. The
// script decides throughout.
func TestDisagreement(t *testing.T) {
	lower, higher := algorithms(40), algorithms(60)
	lower["FixedWindow/length"] = ratelimit.FixedWindow{Limit: 40, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}
	higher["FixedWindow/length"] = ratelimit.FixedWindow{Limit: 60, Window: 2 * time.Hour, Start: ratelimit.StartOnFirstEvent}
	lower["SlidingWindow/segments"] = ratelimit.SlidingWindow{Limit: 40, Window: year, Segments: 5}
	higher["SlidingWindow/segments"] = ratelimit.SlidingWindow{Limit: 60, Window: 2 * year, Segments: 8}
	for name, w := range distances() {
		for client, create := range clients(t) {
			t.Run(client+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := startServer(t)
				addr := startWire(t, s.addr(), w).addr()
				var processes []*changeable
				for range 3 {
					processes = append(processes, newChangeable(t, create(t, addr, redisstore.WithTimeout(patient)), hourly(1)))
				}
				for name, limit := range lower {
					var granted atomic.Int64
					var wg sync.WaitGroup
					for i, p := range processes {
						limits := []ratelimit.Algorithm{limit, higher[name], limit}
						p.limit.Store(&limits[i])
						wg.Go(func() { granted.Add(int64(p.ask(t, name, 4, 25))) })
					}
					wg.Wait()
					switch want := 60; name {
					case "WarmingUp":
						assert.EqualValues(t, 1, granted.Load(), name)
					case "SlidingLog/count denied": // what is denied counts, too
						assert.LessOrEqual(t, granted.Load(), int64(want), name)
						assert.GreaterOrEqual(t, granted.Load(), int64(40), name)
					default:
						assert.EqualValues(t, want, granted.Load(), name)
					}
				}
				for _, p := range processes {
					assert.Zero(t, p.Stats().Failures)
				}
			})
		}
	}
}

// While two processes ask for limits that differ only in how much they grant, each call takes one
// command, except the first that meets the other limit. Otherwise, it takes two.
func TestCommandsUnderTwoLimits(t *testing.T) {
	s := startServer(t)
	addr := s.addr()
	for name, limit := range algorithms(100) {
		a := newChangeable(t, makers["goredis"](t, addr), limit)
		b := newChangeable(t, makers["goredis"](t, addr), algorithms(50)[name])
		for i := range 20 {
			for _, p := range []*changeable{a, b} {
				_, err := p.Take(t.Context(), fmt.Sprint(name, i%2), 1)
				require.NoError(t, err)
			}
		}
		each := 1
		switch name {
		case "TokenBucket", "TokenBucket/interval", "LeakyBucket", "All": // their rates differ
			each = 2
		case "Lockout": // what locks the key by one limit is counted by the other
			each = 2
		}
		for _, p := range []*changeable{a, b} {
			calls := 20*each + 1 + 2 // one to meet the other limit, and two to send scripts in full
			assert.LessOrEqual(t, p.Stats().Calls, uint64(calls), name)
		}
	}
}

// While calls of two priorities take from the same keys, each decision takes one command. The
// exceptions are few for all keys together: to send scripts in full, and to meet the other limit.
func TestCommandsOfPriorities(t *testing.T) {
	rate := ratelimit.PerHour(100)
	bucket := func(atOnce int) ratelimit.Algorithm {
		return ratelimit.TokenBucket{Rate: rate, Burst: atOnce}
	}
	for name, of := range map[string]func(atOnce int) ratelimit.Algorithm{
		"TokenBucket": bucket,
		"TokenBucket/interval": func(atOnce int) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: rate, Burst: atOnce, Refill: ratelimit.RefillInterval}
		},
		"LeakyBucket": func(atOnce int) ratelimit.Algorithm {
			return ratelimit.LeakyBucket{Rate: rate, Capacity: atOnce}
		},
		"FixedWindow": func(atOnce int) ratelimit.Algorithm {
			return ratelimit.FixedWindow{Limit: atOnce, Window: time.Hour}
		},
		"All": func(atOnce int) ratelimit.Algorithm {
			return ratelimit.All{bucket(atOnce), ratelimit.FixedWindow{Limit: atOnce, Window: time.Hour}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := newChangeable(t, makers["goredis"](t, startServer(t).addr()), of(10))
			full, most := of(10), of(8)
			const keys, takes = 20, 20
			for i := range takes {
				for key := range keys {
					limiter.limit.Store(&full)
					if (i+key)%2 == 0 {
						limiter.limit.Store(&most)
					}
					_, err := limiter.Take(t.Context(), fmt.Sprint(key), 1)
					require.NoError(t, err)
				}
			}
			assert.LessOrEqual(t, limiter.Stats().Calls, uint64(keys*takes+4))
		})
	}
}

// A limit of many parts changes in two commands as well, and one to send the script in full.
func TestAdoptManyParts(t *testing.T) {
	limit := func(n int) (all ratelimit.All) {
		for i := range 100 {
			all = append(all, ratelimit.FixedWindow{Limit: n, Window: time.Duration(100+i) * time.Hour})
		}
		return all
	}
	s := startServer(t)
	c := newChangeable(t, makers["goredis"](t, s.addr()), limit(100))
	require.Greater(t, len(tag(t, limit(100))), 1024)
	require.Equal(t, 30, c.ask(t, "k", 1, 30))
	calls := c.Stats().Calls
	var next ratelimit.Algorithm = limit(50)
	c.limit.Store(&next)
	require.Equal(t, 1, c.ask(t, "k", 1, 1))
	assert.EqualValues(t, 3, c.Stats().Calls-calls)
	assert.Equal(t, 19, c.ask(t, "k", 1, 30))
	assert.Zero(t, c.Stats().Failures)
}

// A process that starts with other parameters finds what was used, and the former limit is still in
// force for the others. The key stays until it is idle under both.
func TestRestartWithAnotherLimit(t *testing.T) {
	for client, create := range clients(t) {
		s := startServer(t)
		for name, former := range algorithms(5) {
			if name == "WarmingUp" || name == "All" {
				continue // they have no 5 at once
			}
			next := algorithms(50)[name]
			start := func(alg ratelimit.Algorithm) ratelimit.Limiter {
				store := create(t, s.addr(), redisstore.WithTimeout(patient))
				return limiter(t, store, alg, ratelimit.WithName("api"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			}
			a, b := start(former), start(next)
			d, err := a.Take(t.Context(), name, 5)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			for _, remaining := range []int{44, 43} {
				d, err = b.Take(t.Context(), name, 1)
				require.NoError(t, err)
				assert.Equal(t, remaining, d.Remaining, "%s, %s", client, name)
			}
			d, err = a.Take(t.Context(), name, 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "%s, %s", client, name)
			ttl := s.client().PTTL(t.Context(), s.client().Keys(t.Context(), "*:"+name).Val()[0]).Val()
			assert.Greater(t, ttl+time.Minute, d.ResetAfter, "%s, %s", client, name)
		}
	}
}

// The state of a bucket is converted exactly, whatever the rates and sizes are.
func TestAdoptBuckets(t *testing.T) {
	conn := connectors["goredis"](t, startServer(t).addr())
	for seed := range budget.Seeds(t, budget.Histories(40, 200)) {
		draw := newDrawer(seed, 4)
		var limits []ratelimit.Algorithm
		for range 8 {
			limits = append(limits, draw.bucket(seed%2 == 0))
		}
		g := &history.Generator{
			Choices: history.NewRandom(seed, 14),
			Keys:    []string{"a", "b"},
			Spans:   []time.Duration{spanOf(t, limits[0]), 3 * time.Microsecond},
			Limits:  len(limits),
		}
		history.Run(t, scripts(t, conn, limits, varying), history.AtMost(100, history.Before2100(g.Next)))
	}
}

// bucket returns a bucket of any rate and size for which a state has room.
func (d drawer) bucket(leaky bool) ratelimit.Algorithm {
	number := func(bits int) int { return 1 + int(d.rng.Uint64()>>(64-1-d.rng.IntN(bits))) }
	for {
		rate := ratelimit.Rate{Events: number(51), Per: time.Duration(number(61))}
		var alg ratelimit.Algorithm = ratelimit.TokenBucket{Rate: rate, Burst: number(51)}
		if leaky {
			alg = ratelimit.LeakyBucket{Rate: rate, Capacity: number(51)}
		}
		of, err := fakes.NewLimit(alg)
		if err != nil {
			continue
		}
		if _, err = of.Portable(time.Microsecond); err == nil {
			return alg
		}
	}
}

// A damaged state of another limit is reported once, and the key starts afresh.
func TestAdoptDamaged(t *testing.T) {
	s := startServer(t)
	store := makers["goredis"](t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
	c := newChangeable(t, store, hourly(3))
	to := hourly(2)
	require.Equal(t, 1, c.ask(t, "k", 1, 1))
	client := s.client()
	key := client.Keys(t.Context(), "*").Val()[0]
	for _, cut := range []int{3, 8, 11} {
		was := client.Get(t.Context(), key).Val()
		require.NoError(t, client.Set(t.Context(), key, was[:len(was)-cut], 0).Err())
		c.limit.Store(&to)
		_, err := c.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ratelimit.ErrState)
		assert.Equal(t, 1, c.ask(t, "k", 1, 5), "the first call has spent one of two")
		to = hourly(2 + cut)
		assert.Equal(t, cut, c.ask(t, "k", 1, 3*cut)) // adopted
		to = hourly(2)
	}
	assert.EqualValues(t, 3, c.Stats().Unreadable)
}

// TestShortValuesOfChangedRates: with a restart, a bucket's rate changes to one whose states have
// no short form, or from it, and the usage is kept. (A limiter with limits per key has no short
// values.)
func TestShortValuesOfChangedRates(t *testing.T) {
	t.Parallel()
	addr := startServer(t).addr()
	named := ratelimit.WithName("bucket")
	perHour := func(n int, leaky bool) ratelimit.Algorithm {
		if leaky {
			return ratelimit.LeakyBucket{Rate: ratelimit.PerHour(n), Capacity: 20}
		}
		return ratelimit.TokenBucket{Rate: ratelimit.PerHour(n), Burst: 20}
	}
	for name, leaky := range map[string]bool{"token": false, "leaky": true} {
		for _, rates := range [][2]int{{360, 252}, {252, 360}, {360, 36}} {
			key := fmt.Sprint(name, rates)
			before := limiter(t, makers["goredis"](t, addr), perHour(rates[0], leaky), named)
			d, err := before.Take(t.Context(), key, 5)
			require.NoError(t, err)
			require.Equal(t, 15, d.Remaining)

			store := makers["goredis"](t, addr) // of the process that is started again
			after := limiter(t, store, perHour(rates[1], leaky), named)
			d, err = after.Take(t.Context(), key, 5)
			require.NoError(t, err, key)
			assert.Equal(t, 10, d.Remaining, key)
			assert.Zero(t, store.Stats().Unreadable, key)
		}
	}
}
