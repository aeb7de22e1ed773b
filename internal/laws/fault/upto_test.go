package fault_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// While the store fails, the policy says how many events TakeUpTo is granted.
func TestPolicyOfTakeUpTo(t *testing.T) {
	share, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	foreign, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	for name, tt := range map[string]struct {
		policy  ratelimit.FailurePolicy
		granted []int // of 8, each time
		denied  ratelimit.Decision
	}{
		"open":   {ratelimit.FailOpen(), []int{8, 8}, ratelimit.Decision{}},
		"closed": {ratelimit.FailClosed(), []int{0}, ratelimit.Decision{Limit: 5, RetryAfter: time.Second, Degraded: true}},
		"fallback": {
			ratelimit.Fallback(share), []int{3, 0},
			ratelimit.Decision{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour, Degraded: true, StandIn: true},
		},
		"fallback that New has not made": {
			ratelimit.Fallback(reticent{foreign}), []int{3, 0},
			ratelimit.Decision{Limit: 3, RetryAfter: time.Hour, ResetAfter: time.Hour, Degraded: true, StandIn: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &fakes.Witness{}
			l, s := downLimiter(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, tt.policy, ratelimit.WithObserver(w.Observe))
			for _, want := range tt.granted {
				granted, d, err := l.TakeUpTo(t.Context(), "key", 8)
				require.ErrorIs(t, err, s.Err)
				assert.Equal(t, want, granted)
				assert.True(t, d.Degraded)
				assert.Equal(t, want > 0, d.Allowed)
				if want == 0 {
					assert.Equal(t, tt.denied, d)
				}
				o := w.One(t)
				assert.Equal(t, ratelimit.Failed, o.Outcome)
				assert.Equal(t, []int{8, want}, []int{o.N, o.Granted})
			}
		})
	}
}

// If the lookup fails, TakeUpTo takes what remains of the limit of New.
func TestTakeUpToOfTheLimitOfNew(t *testing.T) {
	for store, make := range fakes.Stores {
		for how, tt := range fails {
			p := newPlanned(t, make(), hours(3), hours(10))
			tt.fail(p.own)
			require.NoError(t, p.Reset(t.Context(), "key"))
			for _, want := range []int{3, 0} {
				granted, d, err := p.TakeUpTo(t.Context(), "key", 8)
				require.ErrorIs(t, err, tt.want)
				assert.Equal(t, want, granted, "%s, %s", store, how)
				assert.True(t, d.StandIn && d.Checked())
				if want == 0 {
					assert.Equal(t, time.Hour, d.RetryAfter)
				}
			}
		}
	}
}
