package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// pairs returns a SlidingWindow of one segment in one word and in two.
func pairs(t testing.TB, limit int, length uint64) (one kernel.Word, two *Machine) {
	t.Helper()
	k := kernel.NewSlidingWindow(limit, 1, length, kernel.InMemory)
	require.Equal(t, 1, k.Width())
	return k.(kernel.Word), NewMachine(kernel.NewSlidingWindow(limit, 1, length, kernel.InMemory.Varying()), kernel.InMemory)
}

// TestPairIsRing compares the answers of a state in one word with those of the same state
// in two, and both after each is converted to the other.
func TestPairIsRing(t *testing.T) {
	random := budget.Rand(t)
	for range budget.Histories(4000, 20_000) {
		length := 1<<12 + random.Uint64N(50)
		p, two := pairs(t, 1+random.IntN(9), length)
		one := NewMachine(p.(kernel.Kernel), kernel.InMemory)
		step := 1 + random.Uint64N(length) // of the clock
		st1, st2, now := one.NewState(), two.NewState(), begun
		for range 4 + random.IntN(40) {
			now += random.Uint64N(step) * random.Uint64N(2)
			req := Request{Op: []Op{OpTake, OpCharge, OpReserve}[random.IntN(3)], N: 1 + random.IntN(min(3, one.Limit()))}
			if req.Op > OpTake && two.Remaining(st2, now) < req.N {
				req.Op = OpPeek
			}
			var told Answer
			var taking WordStep
			if req.Op == OpTake {
				taking.Take(p, st1[0], now, req.N)
				one.Tell(&taking, st1[0], &Reading{Now: now}, &told)
			}
			var a1, a2 Answer
			st1, _, a1 = do(one, st1, now, req)
			st2, _, a2 = do(two, st2, now, req)
			if req.Op == OpTake {
				require.Equal(t, a1, told)
				require.Equal(t, st1[0], taking.Next)
			}
			require.Equal(t, a2, a1)
			require.LessOrEqual(t, one.Frontier(st1), now)
			require.Equal(t, max(now, two.Fresh(st2)), max(now, one.Fresh(st1)))
			for n := 1; n <= one.Limit(); n++ {
				require.Equal(t, two.Ready(st2, now, n), one.Ready(st1, now, n))
			}
			if random.IntN(4) == 0 {
				wide := p.Widen(st1[0])
				st2 = wide[:]
			}
			if word, ok := p.Narrow(st2, now); ok {
				st1[0] = word
			}
		}
	}
}
