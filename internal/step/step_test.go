package step

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// TestWordStep: a WordStep and Tell leave the state, and give the answer, that Step does.
func TestWordStep(t *testing.T) {
	kernels := each(t)
	kernels["pair"] = NewMachine(kernel.NewSlidingWindow(10, 1, second, kernel.InMemory), kernel.InMemory)
	thirds, err := kernel.NewTokenBucket(3, time.Second, time.Second, 10, kernel.InMemory, "")
	require.NoError(t, err)
	kernels["thirds"] = NewMachine(thirds, kernel.InMemory)
	slow, err := kernel.NewTokenBucket(1, time.Duration(kernel.MaxInstant-1<<32), time.Second, 1, kernel.InMemory, "")
	require.NoError(t, err)
	kernels["slow"] = NewMachine(slow, kernel.InMemory)
	seen := 0
	for name, c := range kernels {
		by := c.Word()
		if by == nil {
			continue
		}
		seen++
		random := budget.Rand(t)
		for i := range budget.Histories(200, 1000) {
			st, at := c.NewState(), Reading{Now: begun}
			if i%2 == 1 {
				at.Now = kernel.MaxInstant - 5*second
			}
			for range 50 {
				at.Now = min(kernel.MaxInstant, at.Now+random.Uint64N(second/5)*random.Uint64N(2)*(1+random.Uint64N(2)*random.Uint64N(10)))
				at.Lag = random.Uint64N(2) * random.Uint64N(second)
				n := 1 + random.IntN(c.Limit())
				if name != "pair" {
					if random.IntN(8) == 0 {
						st, _, _ = do(c, st, at.Now, Request{Op: OpReserve, N: n})
						continue
					}
				}
				word := st[0]
				taking, got := WordStep{}, Answer{Decision: Decision{Part: 1}, Wait: 1}
				taking.Take(by, word, at.Now, n)
				c.Tell(&taking, word, &at, &got)
				var want Answer
				st, _ = c.Step(st, &Request{Op: OpTake, N: n, Fixed: &at}, &want)
				require.Equal(t, want, got, "%s at %d: %d events from %x", name, at.Now, n, word)
				require.Equal(t, st[0], taking.Next, name)
				require.Equal(t, want.Allowed, taking.Granted, name)
			}
		}
	}
	assert.Equal(t, 7, seen)
}

// TestRetryAfterIsExact: a denied request is granted after RetryAfter, and not a
// nanosecond before.
func TestRetryAfterIsExact(t *testing.T) {
	for name, c := range each(t) {
		if name == "counted" {
			continue // each denial is an event
		}
		st, changed, a := do(c, c.NewState(), begun, Request{Op: OpTake, N: min(10, c.Limit())})
		require.True(t, changed && a.Allowed, name)
		kept := slices.Clone(st)
		st, changed, a = do(c, st, begun, Request{Op: OpTake, N: 1})
		require.False(t, changed || a.Allowed, name)
		assert.Equal(t, kept, st, "%s: a denial changes nothing", name)
		require.Positive(t, a.RetryAfter, name)
		at := begun + uint64(a.RetryAfter)
		_, _, early := do(c, slices.Clone(st), at-1, Request{Op: OpTake, N: 1})
		assert.Equal(t, time.Duration(1), early.RetryAfter, name)
		_, _, a = do(c, st, at, Request{Op: OpTake, N: 1})
		assert.True(t, a.Allowed, name)
	}
}
