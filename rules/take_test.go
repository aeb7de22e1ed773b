package rules

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestVerdictsAfterGivingBack: if a rule refuses a call because others were faster, the verdicts of the rules that had
// granted it before are those after they have got their events back.
func TestVerdictsAfterGivingBack(t *testing.T) {
	faster := func() {}
	s, _ := newSet(t, Static(limited("a", "/a", 5, "fixed-window"), limited("b", "/b", 5, "fixed-window")),
		WithLimiter(ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			if o.Call == ratelimit.CallHold && o.Outcome == ratelimit.Granted {
				faster()
			}
		})))
	rules := append(s.match(nil, "GET", "/a"), s.match(nil, "GET", "/b")...)
	require.Len(t, rules, 2)
	faster = func() { granted(t, s, "ann", "/b", 5) }
	verdicts, strictest := s.takeAll(t.Context(), "ann", 2, rules, true)
	require.Equal(t, 1, strictest)
	require.False(t, verdicts[1].Allowed)
	assert.Equal(t, time.Minute, verdicts[1].RetryAfter)
	assert.Equal(t, 5, verdicts[0].Remaining)
	assert.Zero(t, verdicts[0].ResetAfter)
	assert.Nil(t, verdicts[0].held)
	assert.Equal(t, 5, granted(t, s, "ann", "/a", 6))
}
