package redisstore

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// An algorithm that no script knows decides as its kernel does: the process computes what follows, and a
// script of all algorithms replaces the value.
func TestWithoutAScript(t *testing.T) {
	t.Cleanup(script.WithoutAny())
	for _, alg := range storetest.Algorithms() {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, alg)
			require.False(t, f.prog.HasScript())
			_, l := f.store(t, WithDenialCache(0))
			var state []byte
			apply := func(op step.Op, n int) (d ratelimit.Decision) {
				after, err := f.prog.Limit.Apply(state, step.Request{Op: op, N: n}.At(time.Now()))
				require.NoError(t, err)
				state = after.State
				return ratelimit.Decision(after.Answer.Decision)
			}
			granted, random := 0, rand.New(rand.NewPCG(1, 2))
			for range 200 {
				time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))).Truncate(script.Tick))
				n := random.IntN(3)
				d, err := l.Take(t.Context(), "k", n)
				require.NoError(t, err)
				require.Equal(t, apply(step.OpTake, n), d, "%v", alg)
				if d.Allowed {
					granted += n
				}
				d, err = l.Charge(t.Context(), "k", 1)
				if err == nil {
					require.Equal(t, apply(step.OpCharge, 1), d, "%v", alg)
				}
			}
			assert.Positive(t, granted, "%v", alg)
			r, d, err := l.Hold(t.Context(), "held", 1)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			_, err = r.Settle(t.Context(), 0)
			require.NoError(t, err)
			d, err = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "one"), ratelimit.For(l, "two"))
			require.NoError(t, err)
			assert.True(t, d.Allowed, "%v", alg)
		})
	}
}
