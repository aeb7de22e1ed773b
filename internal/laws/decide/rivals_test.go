package decide_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// This file has laws of random histories of a key: takes, charges, holds, reservations and
// settlements, while the limit of the key changes and changes back.

// rivals are limits of one kind each, which a key has in turns. The first and the last differ only
// in how much they grant.
var rivals = map[string][]ratelimit.Algorithm{
	"token": {
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5},
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 8},
		ratelimit.TokenBucket{Rate: ratelimit.PerHour(5), Burst: 5},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 9},
	},
	"interval": {
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Burst: 5, Refill: ratelimit.RefillInterval},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 8, Refill: ratelimit.RefillInterval},
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(3), Burst: 9, Refill: ratelimit.RefillInterval},
	},
	"leaky": {
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5},
		ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(7), Capacity: 8},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 9},
	},
	"fixed": {
		ratelimit.FixedWindow{Limit: 5, Window: time.Minute},
		ratelimit.FixedWindow{Limit: 8, Window: 10 * time.Second},
		ratelimit.FixedWindow{Limit: 6, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		ratelimit.FixedWindow{Limit: 7, Window: time.Minute, Start: ratelimit.StartOnFirstEvent},
		ratelimit.FixedWindow{Limit: 9, Window: time.Minute},
	},
	"calendar": {
		ratelimit.CalendarWindow{Limit: 5, Every: ratelimit.Day},
		ratelimit.CalendarWindow{Limit: 8, Every: ratelimit.Day, Hour: 4},
		ratelimit.CalendarWindow{Limit: 6, Every: ratelimit.Week, Zone: "Asia/Tokyo"},
		ratelimit.CalendarWindow{Limit: 9, Every: ratelimit.Day},
	},
	"sliding": {
		ratelimit.SlidingWindow{Limit: 5, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingWindow{Limit: 9, Window: time.Minute},
	},
	"segments": {
		ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 6},
		ratelimit.SlidingWindow{Limit: 8, Window: 10 * time.Second, Segments: 2},
		ratelimit.SlidingWindow{Limit: 9, Window: time.Minute, Segments: 6},
	},
	"rolling": {
		ratelimit.RollingWindow{Quota: 5, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 3},
		ratelimit.RollingWindow{Quota: 8, Window: 10 * time.Second, Period: 5 * time.Second},
		ratelimit.RollingWindow{Quota: 9, Window: time.Minute, Period: 10 * time.Second, PeriodLimit: 3},
	},
	"log": {
		ratelimit.SlidingLog{Limit: 5, Window: time.Minute},
		ratelimit.SlidingLog{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingLog{Limit: 9, Window: time.Minute},
	},
	"denials": {
		ratelimit.SlidingLog{Limit: 5, Window: time.Minute, CountDenied: true},
		ratelimit.SlidingLog{Limit: 8, Window: 10 * time.Second},
		ratelimit.SlidingLog{Limit: 9, Window: time.Minute, CountDenied: true},
	},
	"warming": {
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: 4 * time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerMinute(7), Warmup: 40 * time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: 4 * time.Second, ColdFactor: 2},
	},
	"in flight": {
		ratelimit.InFlight{Limit: 5, Timeout: time.Minute},
		ratelimit.InFlight{Limit: 8, Timeout: 10 * time.Second},
		ratelimit.InFlight{Limit: 9, Timeout: time.Minute},
	},
	"lockout": {
		ratelimit.Lockout{Limit: 5, Window: time.Minute, First: 10 * time.Second, Longest: time.Minute},
		ratelimit.Lockout{Limit: 8, Window: 20 * time.Second, First: 30 * time.Second},
		ratelimit.Lockout{Limit: 3, Window: time.Hour, First: time.Second, Longest: 10 * time.Second},
		ratelimit.Lockout{Limit: 9, Window: time.Minute, First: 10 * time.Second, Longest: time.Minute},
	},
	"all": {
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 5}, ratelimit.FixedWindow{Limit: 20, Window: time.Minute}},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 8}, ratelimit.FixedWindow{Limit: 10, Window: time.Hour}},
		ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 9}, ratelimit.FixedWindow{Limit: 30, Window: time.Minute}},
	},
}

// A rivalry makes the same random calls on a key of several limiters. All limiters must give the
// same answers.
type rivalry struct {
	*testing.T
	rng      *rand.Rand
	algs     []ratelimit.Algorithm
	alg      ratelimit.Algorithm // the present limit of the key
	clk      *stepclock.Clock
	limiters []ratelimit.Limiter
	held     [][]*ratelimit.Reservation // by each of the limiters
	log      strings.Builder
}

func newRivalry(t *testing.T, name string, seed uint64, stores ...ratelimit.Store) *rivalry {
	h := &rivalry{T: t, rng: rand.New(rand.NewPCG(seed, 7)), algs: rivals[name], clk: stepclock.New()}
	h.alg = h.algs[0]
	for _, s := range stores {
		h.limiters = append(h.limiters, h.limiterOn(s, h.clk))
	}
	return h
}

func (h *rivalry) lookup(context.Context, string) (ratelimit.Algorithm, error) { return h.alg, nil }

func (h *rivalry) limiterOn(s ratelimit.Store, clk *stepclock.Clock) ratelimit.Limiter {
	l, err := ratelimit.New(h.algs[0], ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithClock(clk),
		ratelimit.WithStoreTimeout(time.Hour), ratelimit.WithLimits(h.lookup))
	require.NoError(h, err)
	return l
}

func (h *rivalry) note(format string, args ...any) { fmt.Fprintf(&h.log, format+"\n", args...) }

// each makes a call of all limiters, and returns the Decision, which must be the same.
func (h *rivalry) each(call func(i int, l ratelimit.Limiter) (ratelimit.Decision, error)) (d ratelimit.Decision) {
	h.Helper()
	for i, l := range h.limiters {
		got, err := call(i, l)
		require.NoError(h, err, "%s", &h.log)
		if i > 0 {
			require.Equal(h, d, got, "store %d differs from store 0 after\n%s", i, &h.log)
		}
		d = got
	}
	h.note("    %+v", d)
	return d
}

// holdOptions chooses for how long events are held, if they are.
func (h *rivalry) holdOptions() (opts []ratelimit.EndOption) {
	if h.rng.IntN(2) == 0 {
		opts = append(opts, ratelimit.HoldFor(time.Duration(1+h.rng.Int64N(int64(2*time.Minute)))))
	}
	if h.rng.IntN(3) == 0 {
		opts = append(opts, ratelimit.GiveBack())
	}
	return opts
}

// step lets something happen. It returns how many events were asked for, and the Decision on them,
// or zero if nothing was asked for.
func (h *rivalry) step() (n int, d ratelimit.Decision) {
	h.Helper()
	if h.rng.IntN(3) > 0 {
		h.clk.Advance(time.Duration(h.rng.Int64N(int64(20 * time.Second))))
	}
	if h.rng.IntN(40) == 0 {
		h.clk.Advance(time.Duration(h.rng.Int64N(int64(2 * time.Hour))))
	}
	if h.rng.IntN(4) == 0 {
		h.alg = h.algs[h.rng.IntN(len(h.algs))]
		h.note("limit %+v", h.alg)
	}
	n = 1 + h.rng.IntN(4)
	h.note("at %v", h.clk.Now().Format("15:04:05.000000000"))
	switch op := h.rng.IntN(12); op {
	case 0:
		h.note("Charge %d", n)
		h.each(func(_ int, l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Charge(h.Context(), "key", n) })
		return 0, d
	case 1, 2, 3:
		opts := h.holdOptions()
		h.note("op %d of %d, %d options", op, n, len(opts))
		held := make([]*ratelimit.Reservation, len(h.limiters))
		d = h.each(func(i int, l ratelimit.Limiter) (d ratelimit.Decision, err error) {
			if op == 1 {
				held[i], d, err = l.Reserve(h.Context(), "key", n, ends.OfReserve(opts)...)
			} else {
				held[i], d, err = l.Hold(h.Context(), "key", n, ends.OfHold(opts)...)
			}
			return d, err
		})
		if d.Allowed {
			h.held = append(h.held, held)
		}
		if op == 1 {
			return 0, d
		}
		return n, d
	case 4, 5, 6:
		if len(h.held) == 0 {
			return 0, d
		}
		i := h.rng.IntN(len(h.held))
		held := h.held[i]
		if h.rng.IntN(4) == 0 {
			last := time.Duration(1 + h.rng.Int64N(int64(time.Minute)))
			h.note("Extend %d by %v", i, last)
			var first error
			for j, r := range held {
				err := r.Extend(h.Context(), last)
				if j > 0 {
					require.Equal(h, first, err, "%s", &h.log)
				}
				first = err
			}
			return 0, d
		}
		h.held = append(h.held[:i], h.held[i+1:]...)
		spent := max(0, h.rng.IntN(7)-2)
		h.note("Settle %d for %d", i, spent)
		h.each(func(j int, _ ratelimit.Limiter) (ratelimit.Decision, error) {
			return held[j].Settle(h.Context(), spent)
		})
		return 0, d
	}
	h.note("Take %d", n)
	return n, h.each(func(_ int, l ratelimit.Limiter) (ratelimit.Decision, error) { return l.Take(h.Context(), "key", n) })
}

// An expiring is a database that deletes each state when it expires.
type expiring struct {
	*fakes.MapDB
	clk *stepclock.Clock
}

func (db expiring) Get(ctx context.Context, key string) ([]byte, error) {
	if until := db.Until[key]; !until.IsZero() && !db.clk.Now().Before(until) {
		delete(db.States, key)
		delete(db.Until, key)
	}
	return db.MapDB.Get(ctx, key)
}

// TestExpiredStates: it makes no difference whether a database deletes the states that have
// expired.
func TestExpiredStates(t *testing.T) {
	for name := range rivals {
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Seeds(t, budget.Histories(60, 2000)) {
				db := expiring{MapDB: fakes.NewMapDB()}
				h := newRivalry(t, name, seed, fakes.NewMapDB().Store(), ratelimit.NewStore(&db))
				db.clk = h.clk
				h.note("seed %d", seed)
				for range 60 {
					h.step()
				}
			}
		})
	}
}

// TestRetryAfterIsTrue: if nobody else uses the key, a request that was denied is granted after
// RetryAfter, or whenever it comes back later, and not a nanosecond earlier.
func TestRetryAfterIsTrue(t *testing.T) {
	for name := range rivals {
		t.Run(name, func(t *testing.T) {
			probed := 0
			for seed := range budget.Seeds(t, budget.Histories(60, 2000)) {
				db := fakes.NewMapDB()
				h := newRivalry(t, name, seed, db.Store())
				h.note("seed %d", seed)
				for range 60 {
					n, d := h.step()
					if n == 0 || d.Allowed || d.RetryAfter == ratelimit.Never {
						continue
					}
					probed++
					soon, late := h.rng.Int64N(int64(time.Second)), h.rng.Int64N(int64(time.Hour))
					for _, later := range []time.Duration{-1, 0, time.Duration(soon), time.Duration(late)} {
						clk, copied := stepclock.New(), fakes.NewMapDB()
						copied.States = maps.Clone(db.States)
						clk.Set(h.clk.Now().Add(d.RetryAfter + later))
						again, err := h.limiterOn(copied.Store(), clk).Take(t.Context(), "key", n)
						require.NoError(t, err)
						require.Equal(t, later >= 0, again.Allowed, "%d events, %v after the end of RetryAfter: %+v\n%s", n, later, again, &h.log)
					}
				}
			}
			require.Greater(t, probed, 50)
		})
	}
}
