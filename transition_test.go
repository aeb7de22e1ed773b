package ratelimit

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestApplyRefusesNonsense(t *testing.T) {
	at := time.Unix(1, 0)
	for _, alg := range everyWidth {
		tr, err := NewTransition(alg)
		require.NoError(t, err)
		for _, req := range []Request{{N: 1}, Request{N: -1}.At(at), Request{Op: OpExtend + 1}.At(at)} {
			_, _, _, err := tr.Apply(nil, req)
			assert.ErrorIs(t, err, ErrInvalid)
		}
		for _, size := range []int{1, 7, 9, 8 * 999} {
			state := make([]byte, size)
			for i := range state {
				state[i] = 0xff
			}
			_, _, res, err := tr.Apply(state, Request{N: 1}.At(at))
			require.NoError(t, err)
			assert.ErrorIs(t, res.StateErr(), ErrState, "%T, %d bytes", alg, size)
		}
	}
}

// A Tag names the limit that left a state, and nothing shorter does.
func TestOrigin(t *testing.T) {
	for _, alg := range append([]Algorithm{All{SlidingLog{Limit: 7, Window: time.Second}, WarmingUp{Rate: PerSecond(7), Warmup: time.Second}}}, everyWidth...) {
		of, err := NewTransition(alg)
		require.NoError(t, err)
		portable, err := of.Portable(time.Microsecond)
		require.NoError(t, err)
		other, err := NewTransition(FixedWindow{Limit: 9, Window: time.Minute})
		require.NoError(t, err)
		for _, by := range []*Transition{other, of} {
			by, err := by.Portable(time.Microsecond)
			require.NoError(t, err)
			from, err := by.Origin(slices.Concat(portable.Tag(), []byte("words")))
			require.NoError(t, err)
			assert.Equal(t, portable.Algorithm(), from.Algorithm())
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

// FuzzApply gives transitions states that anybody may have written: they are
// refused or worked with, and nothing panics.
func FuzzApply(f *testing.F) {
	algorithms := append([]Algorithm{
		TokenBucket{Rate: PerSecond(7)},
		TokenBucket{Rate: PerSecond(7), Refill: RefillInterval},
		FixedWindow{Limit: 7, Window: time.Second},
		FixedWindow{Limit: 7, Window: time.Second, Start: StartOnFirstEvent},
		SlidingWindow{Limit: 7, Window: time.Second},
		RollingWindow{Quota: 7, Window: time.Second, Period: time.Second / 4, PeriodLimit: 3},
		SlidingLog{Limit: 7, Window: time.Second, CountDenied: true},
		WarmingUp{Rate: PerSecond(7), Warmup: time.Second},
		InFlight{Limit: 7, Timeout: time.Second},
	}, everyWidth...)
	transitions := make([]*Transition, len(algorithms))
	for i, alg := range algorithms {
		t, err := NewTransition(alg)
		require.NoError(f, err)
		transitions[i] = t
		var state []byte
		for n := range 3 {
			state, _, _, err = t.Apply(state, Request{N: 1}.At(time.Unix(int64(n), 5)))
			require.NoError(f, err)
			f.Add(i, state, 1, int64(n))
			f.Add(i, state, math.MaxInt, int64(n))
		}
	}
	f.Fuzz(func(t *testing.T, which int, state []byte, n int, sec int64) {
		tr := transitions[uint(which)%uint(len(transitions))]
		at := time.Unix(sec, 0)
		apply := func(state []byte, req Request) (next []byte, _ Result) {
			next, _, res, err := tr.Apply(state, req.At(at))
			if err != nil {
				return nil, Result{}
			}
			limit := tr.kernel.Limit()
			if req.Op == OpReturn || req.Op == OpSettle {
				limit = res.Decision.Limit // of the limit that has left the state
			}
			require.LessOrEqual(t, res.Decision.Remaining, limit)
			require.GreaterOrEqual(t, res.Decision.Remaining, 0)
			return next, res
		}
		some := max(0, n)
		for _, op := range []Op{OpTake, OpPeek, OpTakeUpTo, OpCharge} {
			apply(state, Request{Op: op, N: some})
		}
		apply(state, Request{Op: OpReserve, N: max(1, n), MaxWait: Never})
		apply(state, Request{Op: OpReturn, N: some, Taken: at.Add(-time.Duration(some))})
		between, _ := apply(state, Request{Op: OpHold, N: some, Hold: Handle{ID: 1, For: time.Hour}})
		at = at.Add(time.Duration(some))
		for id := range uint64(3) {
			for _, state := range [][]byte{state, between} {
				apply(state, Request{Op: OpSettle, N: some / 2, Of: some, Hold: Handle{ID: id}})
				apply(state, Request{Op: OpSettle, N: some, Of: some / 2, Hold: Handle{ID: id}})
			}
		}
	})
}
