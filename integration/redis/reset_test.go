package redis_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// twins returns limiters of the same name in two processes.
func twins(t *testing.T, create maker, addr string, alg ratelimit.Algorithm, opts ...redisstore.Option) (here, other ratelimit.Limiter) {
	opts = append([]redisstore.Option{redisstore.WithTimeout(patient), redisstore.WithDenialCache(0)}, opts...)
	closed := ratelimit.WithFailurePolicy(ratelimit.FailClosed())
	return limiter(t, create(t, addr, opts...), alg, closed), limiter(t, create(t, addr, opts...), alg, closed)
}

// valueOf returns the value of a key in Redis.
func valueOf(s *server, key string) (value string) {
	for _, name := range s.do("KEYS", "*@*").([]any) {
		if strings.HasSuffix(name.(string), ":"+key) {
			value = s.do("GET", name).(string)
		}
	}
	return value
}

// If another process resets a key, a hold from before gives nothing back of what others have
// spent since; what came on top is charged. A hold from after the Reset is settled as usual.
func TestSettleAfterAnotherReset(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		for name, alg := range algorithms(10) {
			here, other := twins(t, create, s.addr(), alg)
			take := func(l ratelimit.Limiter, n int) *ratelimit.Reservation {
				r, d, err := l.Hold(t.Context(), "k", n)
				require.NoError(t, err, name)
				if name == "WarmingUp" { // which grants one event at a time
					return r
				}
				require.True(t, d.Allowed, name)
				return r
			}
			settle := func(r *ratelimit.Reservation, n int) ratelimit.Decision {
				d, err := r.Settle(t.Context(), n)
				require.NoError(t, err, name)
				return d
			}
			less, none, same, more := take(here, 1), take(here, 1), take(here, 1), take(here, 1)
			require.NoError(t, other.Reset(t.Context(), "k"), name)
			take(other, 4)
			take(other, 1)
			before := valueOf(s, "k")
			require.NotEmpty(t, before, name)
			for r, n := range map[*ratelimit.Reservation]int{less: 0, none: 0, same: 1} {
				if r != nil {
					settle(r, n)
				}
			}
			assert.Equal(t, before, valueOf(s, "k"), name)
			if name == "WarmingUp" {
				require.NoError(t, here.Reset(t.Context(), "k"), name)
				continue
			}
			charged := 2
			if name == "InFlight" {
				charged = 0
			}
			assert.Equal(t, 5-charged, settle(more, 3).Remaining, name)

			// Of a hold after the Reset, events are given back, also together with others.
			require.NoError(t, other.Reset(t.Context(), "k"), name)
			old := take(here, 3)
			assert.Equal(t, 10, settle(old, 0).Remaining, name)
			old = take(here, 3)
			require.NoError(t, other.Reset(t.Context(), "k"), name)
			late := take(here, 3)
			assert.Equal(t, 10, settle(late, 0).Remaining, name)
			assert.Equal(t, 10, settle(old, 0).Remaining, name)
			require.NoError(t, here.Reset(t.Context(), "k"), name)
		}
	})
}

// However holds, also those on another key as well, alternate with Resets of other processes, events
// of holds from after the last Reset count as they were settled, and those from before not at all.
func TestSettleAmongResets(t *testing.T) {
	const limit = 100
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		for name, alg := range algorithms(limit) {
			if name == "WarmingUp" { // which keeps what others have queued behind
				continue
			}
			rng := budget.Rand(t)
			var keys, also [2]ratelimit.Limiter
			for i := range keys {
				store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithDenialCache(0))
				keys[i] = limiter(t, store, alg, ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				also[i] = limiter(t, store, hourly(1_000_000), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
			}
			type hold struct {
				*ratelimit.Reservation
				n, resets int
			}
			var holds []hold
			spent, resets := 0, 0
			for range 150 {
				i, n := rng.IntN(2), 1+rng.IntN(5)
				switch op := rng.IntN(8); {
				case op == 0:
					require.NoError(t, keys[i].Reset(t.Context(), "k"))
					spent, resets = 0, resets+1
				case op < 4:
					of := []ratelimit.Bound{ratelimit.For(keys[i], "k")}
					if op == 1 {
						of = append(of, ratelimit.For(also[i], "k"))
					}
					r, d, err := ratelimit.HoldAll(t.Context(), n, of...)
					require.NoError(t, err)
					if d.Allowed {
						holds, spent = append(holds, hold{r, n, resets}), spent+n
					}
				case len(holds) > 0:
					j := rng.IntN(len(holds))
					h := holds[j]
					holds = slices.Delete(holds, j, j+1)
					n = rng.IntN(h.n + 3)
					_, err := h.Settle(t.Context(), n)
					require.NoError(t, err)
					switch {
					case name == "InFlight":
						n = 0
						fallthrough
					case n < h.n:
						if h.resets < resets {
							n = h.n
						}
					}
					spent += n - h.n
				}
				d, err := keys[1-i].Peek(t.Context(), "k")
				require.NoError(t, err)
				require.LessOrEqual(t, d.Remaining, max(0, limit-spent), name)
				if name != "TokenBucket" && name != "LeakyBucket" && name != "All" { // what has come back meanwhile does not come back again
					require.Equal(t, max(0, limit-spent), d.Remaining, name)
				} else {
					require.GreaterOrEqual(t, d.Remaining, limit-spent-1, name)
				}
			}
		}
	})
}

// If another process resets a key, a reservation from before is cancelled without taking back what
// others have reserved since. One from after the Reset is cancelled as usual, also if one from
// before is ahead of it.
func TestCancelAfterAnotherReset(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		for name, alg := range algorithms(10) {
			switch name {
			case "WarmingUp", "LeakyBucket", "InFlight": // whose reservations have no room, are of an instant each, or are holds
				continue
			}
			here, other := twins(t, create, s.addr(), alg)
			fill := func(l ratelimit.Limiter) {
				for range 10 {
					require.True(t, l.Allow("k"), name)
				}
			}
			reserve := func(l ratelimit.Limiter, n int) *ratelimit.Reservation {
				r, _, err := l.Reserve(t.Context(), "k", n)
				require.NoError(t, err, name)
				require.Positive(t, r.Delay(), name)
				return r
			}
			fill(here)
			first, second, settled := reserve(here, 3), reserve(here, 2), reserve(here, 1)
			require.NoError(t, other.Reset(t.Context(), "k"), name)
			fill(other)
			empty := valueOf(s, "k")
			reserve(other, 3)
			before := valueOf(s, "k")
			require.NotEmpty(t, before, name)
			first.Cancel()
			require.Equal(t, before, valueOf(s, "k"), name)
			_, err := settled.Settle(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, before, valueOf(s, "k"), name)

			late := reserve(here, 4)
			require.NotEqual(t, before, valueOf(s, "k"), name)
			late.Cancel()
			second.Cancel()
			require.Equal(t, before, valueOf(s, "k"), "%s: as if only the other had reserved", name)
			require.NotEqual(t, empty, before)

			// One from before the Reset was for a later time.
			require.NoError(t, here.Reset(t.Context(), "k"), name)
			fill(here)
			last := reserve(here, 9)
			require.NoError(t, other.Reset(t.Context(), "k"), name)
			fill(other)
			before = valueOf(s, "k")
			late = reserve(here, 2)
			last.Cancel()
			late.Cancel()
			require.Equal(t, before, valueOf(s, "k"), name)
			require.NoError(t, here.Reset(t.Context(), "k"), name)
		}
	})
}

// A lease that was taken before another process reset the key is not given back to it. A Reset leaves nothing.
func TestLeaseAfterAnotherReset(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLease(100, time.Hour))
		alg := hourly(10_000)
		here := limiter(t, store, alg)
		other := limiter(t, create(t, s.addr(), redisstore.WithTimeout(patient)), alg)
		for store.Stats().Leased == 0 {
			require.True(t, here.Allow("k"))
		}
		require.NoError(t, other.Reset(t.Context(), "k"))
		require.True(t, other.AllowN("k", 5000))
		require.NoError(t, store.Close(t.Context()))
		d, err := other.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 5000, d.Remaining)
		assert.Zero(t, store.Stats().Lost)
	})
}
