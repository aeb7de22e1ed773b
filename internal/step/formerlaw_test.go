package step_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// A counting is what one limit of a key has counted, by the written definition of its algorithm.
type counting interface {
	Take(now int64, n int) ratelimit.Decision
	Peek(now int64) ratelimit.Decision
	Charge(now int64, n int) ratelimit.Decision

	// follow counts n events that the other limit of the key has granted, and reports whether it
	// counts them all.
	follow(now int64, n int) (all bool)
}

// A modelled is the counting of every algorithm in which all that the other limit grants counts.
type modelled struct{ *model.Key }

func (m modelled) follow(now int64, n int) bool {
	m.Charge(now, n)
	return true
}

// A warming is the counting of a WarmingUp. The model has no part for its changes.
type warming struct {
	stable, cooldown float64 // ns for each permit: once it is warm, and to store one
	most, threshold  float64 // permits: stored when it is cold, and those that cost no more than stable
	slope            float64 // ns that a permit costs more for each one stored above the threshold
	free             int64   // the next free time
	stored           float64 // at free
}

// newWarming returns that of a new key.
func newWarming(alg ratelimit.WarmingUp) *warming {
	const factor = 3 // of a cold limit
	w := &warming{stable: float64(alg.Rate.Per) / float64(alg.Rate.Events)}
	warmup := float64(alg.Warmup)
	w.threshold = warmup / (2 * w.stable)
	w.most = w.threshold + 2*warmup/(w.stable+factor*w.stable)
	w.slope = (factor - 1) * w.stable / (w.most - w.threshold)
	w.cooldown = warmup / w.most
	w.stored = w.most
	return w
}

func (w *warming) limit() int { return int(w.most) }

// adopt takes over what another WarmingUp has counted: the next free time, and the warmth in
// proportion.
func (w *warming) adopt(from *warming, now int64) {
	w.free, w.stored = max(now, from.free), from.at(now)/from.most*w.most
}

// at returns how many permits are stored at t, or at the next free time if that is later.
func (w *warming) at(t int64) float64 {
	return min(w.most, w.stored+float64(max(0, t-w.free))/w.cooldown)
}

// spend makes the next request wait for the cost of n events.
func (w *warming) spend(now int64, n int) {
	begins, stored := max(now, w.free), w.at(now)
	w.stored = max(0, stored-float64(n))
	cost := float64(n) * w.stable
	above := func(stored float64) float64 { return max(0, stored-w.threshold) }
	cost += w.slope / 2 * (above(stored)*above(stored) - above(w.stored)*above(w.stored))
	w.free = begins + int64(math.Round(cost))
}

func (w *warming) Take(now int64, n int) ratelimit.Decision {
	d := w.Peek(now)
	if !d.Allowed {
		return d
	}
	w.spend(now, n)
	d = w.Peek(now)
	d.Allowed, d.RetryAfter = true, 0
	return d
}

func (w *warming) Charge(now int64, n int) ratelimit.Decision {
	w.spend(now, n)
	return w.Peek(now)
}

func (w *warming) Peek(now int64) ratelimit.Decision {
	d := ratelimit.Decision{Limit: w.limit()}
	cold := max(now, w.free) + int64(math.Ceil((w.most-w.at(now))*w.cooldown))
	d.ResetAfter = time.Duration(cold - now)
	if now < w.free {
		d.RetryAfter = time.Duration(w.free - now)
		return d
	}
	d.Allowed, d.Remaining = true, d.Limit
	return d
}

// follow: the next free time becomes no later than two requests of the whole limit, made when idle,
// would make it.
func (w *warming) follow(now int64, n int) (all bool) {
	idle := *w
	idle.free, idle.stored = now, w.most
	idle.spend(now, w.limit())
	idle.spend(now, w.limit())
	for counts := n; counts > 0; counts-- {
		after := *w
		after.spend(now, counts)
		if after.free <= idle.free {
			*w = after
			return counts == n
		}
	}
	return false
}

// rivals are two limits each that a key has in turns.
var rivals = map[string][2]ratelimit.Algorithm{
	"fixed: window": {
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.FixedWindow{Limit: 20, Window: 2 * time.Second},
	},
	"fixed: a long window": {
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.FixedWindow{Limit: 15, Window: time.Minute},
	},
	"fixed: equal limits": {
		ratelimit.FixedWindow{Limit: 7, Window: time.Second},
		ratelimit.FixedWindow{Limit: 7, Window: 2 * time.Second},
	},
	"fixed: start": {
		ratelimit.FixedWindow{Limit: 10, Window: time.Second},
		ratelimit.FixedWindow{Limit: 10, Window: time.Second, Start: ratelimit.StartOnFirstEvent},
	},
	"sliding: segments": {
		ratelimit.SlidingWindow{Limit: 10, Window: time.Second, Segments: 5},
		ratelimit.SlidingWindow{Limit: 10, Window: time.Second, Segments: 10},
	},
	"sliding: window": {
		ratelimit.SlidingWindow{Limit: 10, Window: time.Second},
		ratelimit.SlidingWindow{Limit: 20, Window: 2 * time.Second},
	},
	"rolling: period": {
		ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: time.Second / 5},
		ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: time.Second / 10},
	},
	"rolling: period limit": {
		ratelimit.RollingWindow{Quota: 10, Window: time.Second, Period: time.Second / 5, PeriodLimit: 3},
		ratelimit.RollingWindow{Quota: 7, Window: 2 * time.Second, Period: time.Second / 5},
	},
	"log: window": {
		ratelimit.SlidingLog{Limit: 10, Window: time.Second},
		ratelimit.SlidingLog{Limit: 20, Window: 2 * time.Second},
	},
	"log: a long window": {
		ratelimit.SlidingLog{Limit: 10, Window: time.Second},
		ratelimit.SlidingLog{Limit: 15, Window: time.Minute},
	},
	"warming up": {
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(10), Warmup: time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: 2 * time.Second},
	},
	"all": { // the bucket never owes more than it counts
		ratelimit.All{
			ratelimit.SlidingLog{Limit: 10, Window: time.Second},
			ratelimit.TokenBucket{Rate: ratelimit.PerMinute(100), Burst: 95},
		},
		ratelimit.All{
			ratelimit.SlidingLog{Limit: 20, Window: 2 * time.Second},
			ratelimit.TokenBucket{Rate: ratelimit.PerMinute(200), Burst: 100},
		},
	},
}

// A law is a key of two limits, and what it is to answer.
type law struct {
	*testing.T
	algs    [2]ratelimit.Algorithm
	rng     *rand.Rand
	limiter ratelimit.Limiter
	own     *fakes.OwnLimits
	counts  [2]counting
	memory  time.Duration // for how long either limit remembers what it grants at once
	asked   [2]int64      // when each limit was asked last
	granted [2]int        // how often each has granted, or was charged
	bounded int           // how often the other one has not counted all of that
}

// newLaw returns one of a key that has both limits from now on. The first has granted an event; the
// other one has counted it, at its time, when it was asked.
func newLaw(t *testing.T, algs [2]ratelimit.Algorithm, seed uint64) (*law, func(time.Duration) int64) {
	l, own, _, clk := fakes.Varying(t, algs[0])
	la := &law{T: t, algs: algs, rng: rand.New(rand.NewPCG(seed, 2)), limiter: l, own: own}
	now := clk.Now().UnixNano()
	for i, alg := range algs {
		la.asked[i] = now
		fresh := model.New(alg, 1)
		la.counts[i] = modelled{fresh.Clone()}
		la.memory = max(la.memory, fresh.Take(now, fresh.Limit()).ResetAfter)
	}
	warms, ok := algs[0].(ratelimit.WarmingUp)
	if !ok {
		la.counts[1].Charge(now, 1)
	} else {
		first, second := newWarming(warms), newWarming(algs[1].(ratelimit.WarmingUp))
		first.spend(now, 1)
		second.adopt(first, now)
		la.counts = [2]counting{newWarming(warms), second}
	}
	own.Set("key", algs[0])
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	la.equal(la.counts[0].Take(now, 1), d, "the first event")
	return la, func(d time.Duration) int64 {
		clk.Advance(d)
		return clk.Now().UnixNano()
	}
}

// ask asks one of the limits.
func (la *law) ask(now int64, i int, op string, n int) {
	la.Helper()
	la.own.Set("key", la.algs[i])
	var want, got ratelimit.Decision
	var err error
	switch own := la.counts[i]; op {
	case "take":
		want = own.Take(now, n)
		got, err = la.limiter.Take(la.Context(), "key", n)
	case "charge":
		want = own.Charge(now, n)
		got, err = la.limiter.Charge(la.Context(), "key", n)
	case "peek":
		want = own.Peek(now)
		got, err = la.limiter.Peek(la.Context(), "key")
	}
	require.NoError(la, err)
	la.equal(want, got, "limit %d, %s of %d", i, op, n)
	if op == "peek" {
		return
	}
	la.asked[i] = now
	if op == "charge" || want.Allowed {
		la.granted[i]++
		if !la.counts[1-i].follow(now, n) {
			la.bounded++
		}
	}
}

// equal compares decisions exactly, except the times of a WarmingUp, which are floating-point
// numbers that each charge rounds to a nanosecond: of 60 charges, each may be off by one.
func (la *law) equal(want, got ratelimit.Decision, what ...any) {
	la.Helper()
	if _, ok := la.counts[0].(*warming); ok {
		assert.InDelta(la, want.RetryAfter, got.RetryAfter, 60, what...)
		assert.InDelta(la, want.ResetAfter, got.ResetAfter, 60, what...)
		got.RetryAfter, got.ResetAfter = want.RetryAfter, want.ResetAfter
	}
	require.Equal(la, want, got, what...)
}

// TestFormer_Law: each of the two limits of a key decides as it would alone if what the other one
// grants were charged to it. What it counts is computed here by the definitions of the algorithms,
// one limit at a time.
//
// Two limits of a kind of bucket are not among these: what a bucket counts is bounded. The model of
// internal/laws/decide's TestChangingLimits has them, and internal/laws/complete's TestComplete_Changes
// has small ones in all states.
func TestFormer_Law(t *testing.T) {
	budget.Alone(t) // of fewer histories, none may reach the bound that is counted below
	for name, algs := range rivals {
		t.Run(name, func(t *testing.T) {
			_, warms := algs[0].(ratelimit.WarmingUp)
			most := 3 // events that are asked for at once
			if warms {
				most = 10 // so that the bound is reached
			}
			granted, bounded := [2]int{}, 0
			for seed := range budget.Seeds(t, budget.Histories(40, 1000)) {
				la, advance := newLaw(t, algs, seed)
				now := advance(0)
				la.ask(now, 1, "take", 1)
				for range 60 {
					now = advance(time.Duration(la.rng.Int64N(int64(min(time.Second, la.memory) / 4))))
					i := la.rng.IntN(2)
					op := []string{"take", "take", "take", "peek", "charge"}[la.rng.IntN(5)]
					for j, asked := range la.asked {
						// Or else it goes: a denial need not be noted for half of the memory.
						if now-asked > int64(la.memory/4) {
							i, op = j, "take"
						}
					}
					la.ask(now, i, op, 1+la.rng.IntN(most))
				}
				granted[0] += la.granted[0]
				granted[1] += la.granted[1]
				bounded += la.bounded
			}
			assert.Positive(t, min(granted[0], granted[1]))
			assert.Equal(t, warms, bounded > 0, "a grant was not counted in full %d times", bounded)
		})
	}
}
