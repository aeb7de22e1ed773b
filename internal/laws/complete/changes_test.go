package complete_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A change is two limits between which that of a key changes.
type change struct {
	specs       [2]limit.Spec
	definitions [2]definition
	small
	most int // holds at once
}

var changes = map[string]change{
	"TokenBucket, Burst": {
		specs:       [2]limit.Spec{numbers(limit.TokenBucket, 1, 2, 2), numbers(limit.TokenBucket, 1, 2, 1)},
		definitions: [2]definition{tokenBucket{events: 1, per: 2, burst: 2}, tokenBucket{events: 1, per: 2, burst: 1}},
		small:       small{unit: 1, memory: 10},
		most:        1,
	},
	"TokenBucket, Rate": {
		specs:       [2]limit.Spec{numbers(limit.TokenBucket, 1, 2, 2), numbers(limit.TokenBucket, 1, 3, 1)},
		definitions: [2]definition{tokenBucket{events: 1, per: 2, burst: 2}, tokenBucket{events: 1, per: 3, burst: 1}},
		small:       small{unit: 1, memory: 10},
		most:        1,
	},
	"LeakyBucket, Rate": {
		specs:       [2]limit.Spec{numbers(limit.LeakyBucket, 1, 1, 2), numbers(limit.LeakyBucket, 1, 2, 1)},
		definitions: [2]definition{leakyBucket{tokenBucket{events: 1, per: 1, burst: 2}}, leakyBucket{tokenBucket{events: 1, per: 2, burst: 1}}},
		small:       small{unit: 1, memory: 8},
		most:        1,
	},
	"TokenBucket, RefillInterval": {
		specs:       [2]limit.Spec{numbers(limit.TokenBucket, 1, 2, 2, 1), numbers(limit.TokenBucket, 1, 1, 1, 1)},
		definitions: [2]definition{intervalBucket{events: 1, per: 2, burst: 2, tokens: 2}, intervalBucket{events: 1, per: 1, burst: 1, tokens: 1}},
		small:       small{memory: 10},
		most:        1,
	},
	"TokenBucket, RefillInterval, Burst": {
		specs:       [2]limit.Spec{numbers(limit.TokenBucket, 1, 2, 2, 1), numbers(limit.TokenBucket, 1, 2, 1, 1)},
		definitions: [2]definition{intervalBucket{events: 1, per: 2, burst: 2, tokens: 2}, intervalBucket{events: 1, per: 2, burst: 1, tokens: 1}},
		small:       small{memory: 10},
		most:        1,
	},
	"FixedWindow, Limit": {
		specs:       [2]limit.Spec{numbers(limit.FixedWindow, 1, 3), numbers(limit.FixedWindow, 2, 3)},
		definitions: [2]definition{fixedWindow{limit: 1, window: 3}, fixedWindow{limit: 2, window: 3}},
		small:       small{grid: 3, memory: 8},
		most:        1,
	},
	"FixedWindow, Window": {
		specs:       [2]limit.Spec{numbers(limit.FixedWindow, 2, 2), numbers(limit.FixedWindow, 1, 3)},
		definitions: [2]definition{fixedWindow{limit: 2, window: 2}, fixedWindow{limit: 1, window: 3}},
		small:       small{grid: 6, memory: 8},
		most:        1,
	},
	"FixedWindow, StartOnFirstEvent": {
		specs:       [2]limit.Spec{numbers(limit.FixedWindow, 2, 3, 1), numbers(limit.FixedWindow, 1, 2, 1)},
		definitions: [2]definition{eventWindow{limit: 2, window: 3}, eventWindow{limit: 1, window: 2}},
		small:       small{memory: 8},
		most:        1,
	},
	"SlidingWindow, Window": {
		specs:       [2]limit.Spec{numbers(limit.SlidingWindow, 2, 2, 1), numbers(limit.SlidingWindow, 1, 1, 1)},
		definitions: [2]definition{slidingWindow{limit: 2, segments: 1, length: 2}, slidingWindow{limit: 1, segments: 1, length: 1}},
		small:       small{grid: 4, memory: 10},
	},
	"SlidingLog, Window": {
		specs:       [2]limit.Spec{numbers(limit.SlidingLog, 2, 2), numbers(limit.SlidingLog, 1, 3)},
		definitions: [2]definition{slidingLog{limit: 2, window: 2}, slidingLog{limit: 1, window: 3}},
		small:       small{memory: 8},
		most:        1,
	},
	"RollingWindow, Window": {
		specs:       [2]limit.Spec{numbers(limit.RollingWindow, 2, 2, 1), numbers(limit.RollingWindow, 1, 3, 1)},
		definitions: [2]definition{rollingWindow{quota: 2, periods: 2, length: 1}, rollingWindow{quota: 1, periods: 3, length: 1}},
		small:       small{grid: 6, memory: 8},
	},
	"Lockout": {
		specs:       [2]limit.Spec{numbers(limit.Lockout, 2, 2, 1, 2), numbers(limit.Lockout, 1, 1, 1, 2)},
		definitions: [2]definition{lockout{limit: 2, window: 2, shortest: 1, longest: 2}, lockout{limit: 1, window: 1, shortest: 1, longest: 2}},
		small:       small{memory: 12},
	},
	"All of two": {
		specs: [2]limit.Spec{
			{Kind: limit.All, Parts: []limit.Spec{numbers(limit.TokenBucket, 1, 1, 2), numbers(limit.SlidingLog, 1, 1)}},
			{Kind: limit.All, Parts: []limit.Spec{numbers(limit.TokenBucket, 1, 2, 1), numbers(limit.SlidingLog, 1, 2)}},
		},
		definitions: [2]definition{
			both{tokenBucket{events: 1, per: 1, burst: 2}, slidingLog{limit: 1, window: 1}},
			both{tokenBucket{events: 1, per: 2, burst: 1}, slidingLog{limit: 1, window: 2}},
		},
		small: small{unit: 1, memory: 8},
		most:  1,
	},
	"another kind": {
		specs:       [2]limit.Spec{numbers(limit.TokenBucket, 1, 2, 2), numbers(limit.SlidingLog, 2, 2)},
		definitions: [2]definition{tokenBucket{events: 1, per: 2, burst: 2}, slidingLog{limit: 2, window: 2}},
		small:       small{unit: 1, memory: 8},
		most:        1,
	},
}

// walk returns the walk of a key whose states are of a form, and that of a new one.
func (c *change) walk(
	t *testing.T,
	enc kernel.Encoding,
	of func(*limit.Limit) (*limit.Limit, stored),
) (w requestWalk, fresh stored) {
	w = requestWalk{T: t, namer: namer{base: bases[1], small: c.small}, most: c.most}
	w.definition = changing{limits: c.definitions}
	for _, spec := range c.specs {
		l, err := limit.New(spec, enc, nil)
		require.NoError(t, err)
		l, fresh = of(l)
		w.limits = append(w.limits, l)
	}
	w.machine = w.limits[0].Machine
	return w, fresh
}

// TestComplete_Changes: a key whose limit changes is granted, denied and charged as docs/algorithms.md
// says, in every state to which any requests for either of two limits lead.
func TestComplete_Changes(t *testing.T) {
	budget.Alone(t)
	for name, one := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			states, answers := 0, 0
			for form, of := range forms {
				if form == "in bytes" {
					continue // the words of "in words", written as those of "portable" are
				}
				w, fresh := one.walk(t, kernel.InMemory, of)
				states += w.run(fresh)
				answers += w.answers
			}
			t.Logf("complete: %d states, %d answers", states, answers)
		})
	}
}
