package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestTakeAllTellsWhatWasGivenBack: if a key refuses, the Decision and observers see the keys that had granted before
// as they are once they have got their events back.
func TestTakeAllTellsWhatWasGivenBack(t *testing.T) {
	for call, do := range map[string]func(bounds ...ratelimit.Bound) (ratelimit.Decision, error){
		"TakeAll": func(bounds ...ratelimit.Bound) (ratelimit.Decision, error) {
			return ratelimit.TakeAll(t.Context(), 3, bounds...)
		},
		"HoldAll": func(bounds ...ratelimit.Bound) (ratelimit.Decision, error) {
			_, d, err := ratelimit.HoldAll(t.Context(), 3, bounds...)
			return d, err
		},
	} {
		w := &fakes.Witness{}
		first, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 4, Window: 24 * time.Hour},
			ratelimit.WithStore(fakes.NewMapDB().Store()), ratelimit.WithName("first"), ratelimit.WithObserver(w.Observe))
		second, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
		require.True(t, second.AllowN("key", 8))
		d, err := do(ratelimit.For(first, "key"), ratelimit.For(second, "key"))
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Limit: 4, Remaining: 2, RetryAfter: time.Hour, ResetAfter: time.Hour, Part: 1}, d, "%s: 2 are left of second", call)
		o := w.One(t)
		assert.Equal(t, ratelimit.Withheld, o.Outcome, call)
		assert.Equal(t, 4, o.Decision.Remaining, call)
		assert.Zero(t, o.Decision.ResetAfter, call)
	}
}
