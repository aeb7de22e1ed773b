package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/ratelimittest"
)

// TestPromise: an answer must be that which an earlier one has told, until the key changes.
func TestPromise(t *testing.T) {
	s := &Setup{Algorithm: ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, Start: time.Unix(1000, 0)}
	s.Open = func() ([]ratelimit.Limiter, Clock) {
		clk := ratelimittest.NewClock(s.Start)
		return []ratelimit.Limiter{ratelimit.Must(ratelimit.New(s.Algorithm, ratelimit.WithClock(clk)))}, clk
	}
	for name, tt := range map[string]struct {
		passed     time.Duration
		changes    bool
		granted    bool
		retryAfter time.Duration
		want       string
	}{
		"granted early":         {passed: 9 * time.Second, granted: true, want: "was told to be granted in 1s"},
		"denied with less left": {passed: 9 * time.Second, retryAfter: time.Second},
		"denied with more left": {passed: 9 * time.Second, retryAfter: 2 * time.Second, want: "is now told 2s"},
		"granted in time":       {passed: 10 * time.Second, granted: true},
		"denied in time":        {passed: 10 * time.Second, retryAfter: 1, want: "was told to be granted 0s ago"},
		"the key has changed":   {passed: 10 * time.Second, changes: true, retryAfter: 1},
	} {
		p := s.begin()
		k := p.Key("")
		p.keepPromise(k, takes(1), false, 10*time.Second)
		require.NoError(t, p.Do(Op{Verb: Pass, For: tt.passed}))
		if tt.changes {
			require.NoError(t, p.Do(Op{Verb: Charge, N: 1}))
		}
		p.keepPromise(k, takes(1), tt.granted, tt.retryAfter)
		if tt.want == "" {
			assert.NoError(t, p.wrong, name)
		} else {
			assert.ErrorContains(t, p.wrong, tt.want, name)
		}
	}
}
