package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// In every format, an in-flight rule has a limit and a timeout.
func TestInFlightRule(t *testing.T) {
	want := ratelimit.InFlight{Limit: 5, Timeout: 90 * time.Second}
	for source, read := range map[string]func() (Rule, error){
		"table": func() (Rule, error) {
			return readRow(&inTable, map[string]any{"THROTTLE_ID": "r", "NORMALIZED_CALL": "/x", "MAX_LOCKS": 5, "LOCK_TIMEOUT_SECONDS": 90, "ALGORITHM": "in-flight"})
		},
		"file": func() (Rule, error) {
			return readRow(&inFile, map[string]any{"id": "r", "call": "/x", "limit": 5, "seconds": 90, "algorithm": "in-flight"})
		},
	} {
		r, err := read()
		require.NoError(t, err, source)
		alg, err := r.algorithm()
		require.NoError(t, err, source)
		assert.Equal(t, want, alg, source)
	}
	r := limited("r", "/x", 5, "in-flight")
	r.Burst = 5
	_, err := r.algorithm()
	assert.ErrorContains(t, err, "Burst is 5")
}

// What a rule holds is released.
func TestInFlightRuleIsReleased(t *testing.T) {
	rule := limited("r", "/x", 2, "in-flight")
	s, _ := newSet(t, Static(rule))
	compiled, err := rule.compile()
	require.NoError(t, err)
	l := limiterOf{set: s, rule: compiled}
	first, _, err := l.Hold(t.Context(), "ann", 2)
	require.NoError(t, err)
	assert.Zero(t, granted(t, s, "ann", "/x", 1))
	require.NoError(t, first.Release(t.Context()))
	r, err := l.WaitHold(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 2))
	require.NoError(t, r.Release(t.Context()))
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 2))
}
