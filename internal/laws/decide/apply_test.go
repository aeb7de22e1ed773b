package decide_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

func TestApplyRefusesNonsense(t *testing.T) {
	at := time.Unix(1, 0)
	for _, alg := range fakes.EveryWidth {
		tr, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		for _, size := range []int{1, 7, 9, 8 * 999} {
			state := make([]byte, size)
			for i := range state {
				state[i] = 0xff
			}
			_, err := tr.Apply(state, step.Request{N: 1}.At(at))
			assert.ErrorIs(t, err, ratelimit.ErrState, "%T, %d bytes", alg, size)
		}
	}
}

// A Tag names the limit that left a state, and nothing shorter does.
func TestOrigin(t *testing.T) {
	for _, alg := range append([]ratelimit.Algorithm{ratelimit.All{
		ratelimit.SlidingLog{Limit: 7, Window: time.Second},
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(7), Warmup: time.Second},
	}}, fakes.EveryWidth...) {
		of, err := fakes.NewLimit(alg)
		require.NoError(t, err)
		portable, err := of.Portable(time.Microsecond)
		require.NoError(t, err)
		other, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 9, Window: time.Minute})
		require.NoError(t, err)
		for _, by := range []*limit.Limit{other, of} {
			by, err := by.Portable(time.Microsecond)
			require.NoError(t, err)
			from, err := by.Origin(slices.Concat(portable.Tag(), []byte("words")))
			require.NoError(t, err)
			assert.Equal(t, portable.Spec, from.Spec)
			assert.Equal(t, portable.Tag(), from.Tag())
		}
		for i := range portable.Tag() {
			_, err := portable.Origin(portable.Tag()[:i])
			assert.Error(t, err, "%d bytes of the tag of %+v", i, alg)
		}
		_, err = portable.Origin(of.Tag())
		assert.Error(t, err, "it has another form")
	}
}

// FuzzApply gives limits states that anybody may have written: they are
// refused or worked with, and nothing panics.
func FuzzApply(f *testing.F) {
	algorithms := append([]ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Refill: ratelimit.RefillInterval},
		ratelimit.FixedWindow{Limit: 7, Window: time.Second},
		ratelimit.FixedWindow{Limit: 7, Window: time.Second, Start: ratelimit.StartOnFirstEvent},
		ratelimit.SlidingWindow{Limit: 7, Window: time.Second},
		ratelimit.RollingWindow{Quota: 7, Window: time.Second, Period: time.Second / 4, PeriodLimit: 3},
		ratelimit.SlidingLog{Limit: 7, Window: time.Second, CountDenied: true},
		ratelimit.WarmingUp{Rate: ratelimit.PerSecond(7), Warmup: time.Second},
		ratelimit.InFlight{Limit: 7, Timeout: time.Second},
	}, fakes.EveryWidth...)
	compiled := make([]*limit.Limit, len(algorithms))
	limits := make(map[*limit.Limit]int) // of a key that has used nothing
	for i, alg := range algorithms {
		t, err := fakes.NewLimit(alg)
		require.NoError(f, err)
		compiled[i] = t
		fresh, err := t.Apply(nil, step.Request{Op: step.OpPeek}.At(time.Unix(0, 0)))
		require.NoError(f, err)
		limits[t] = fresh.Answer.Limit
		var state []byte
		for n := range 3 {
			after, err := t.Apply(state, step.Request{N: 1}.At(time.Unix(int64(n), 5)))
			require.NoError(f, err)
			state = after.State
			f.Add(i, state, 1, int64(n))
			f.Add(i, state, math.MaxInt, int64(n))
		}
	}
	f.Fuzz(func(t *testing.T, which int, state []byte, n int, sec int64) {
		tr := compiled[uint(which)%uint(len(compiled))]
		at := time.Unix(sec, 0)
		apply := func(state []byte, req step.Request) (next []byte, _ step.Answer) {
			after, err := tr.Apply(state, req.At(at))
			if err != nil {
				return nil, step.Answer{}
			}
			res := after.Answer
			limit := limits[tr]
			if req.Op == step.OpSettle {
				limit = res.Limit // of the limit that has left the state
			}
			require.LessOrEqual(t, res.Remaining, limit)
			require.GreaterOrEqual(t, res.Remaining, 0)
			return after.State, res
		}
		some := max(0, n)
		for _, op := range []step.Op{step.OpTake, step.OpPeek, step.OpCharge} {
			apply(state, step.Request{Op: op, N: some})
		}
		apply(state, step.Request{Op: step.OpReserve, N: max(1, n), MaxWait: ratelimit.Never})
		between, _ := apply(state, step.Request{Op: step.OpHold, N: some, Hold: step.Handle{ID: 1, For: time.Hour}})
		at = at.Add(time.Duration(some))
		for id := range uint64(3) {
			for _, state := range [][]byte{state, between} {
				apply(state, step.Request{Op: step.OpSettle, N: some / 2, Of: some, Hold: step.Handle{ID: id}})
				apply(state, step.Request{Op: step.OpSettle, N: some, Of: some / 2, Hold: step.Handle{ID: id}})
			}
		}
	})
}
