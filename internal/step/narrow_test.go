package step

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A limit is a kernel whose states are one word, and the same one where limits vary.
type limit struct{ narrow, wide *Machine }

// narrowLimits returns limits of three events a second.
func narrowLimits(t *testing.T) map[string]limit {
	t.Helper()
	limits := map[string]limit{}
	for name, of := range map[string]func(enc kernel.Encoding) (kernel.Kernel, error){
		"token": func(enc kernel.Encoding) (kernel.Kernel, error) {
			return kernel.NewTokenBucket(3, time.Second, time.Second, 3, enc, "")
		},
		"fixed": func(enc kernel.Encoding) (kernel.Kernel, error) {
			return kernel.NewFixedWindow(3, second, true, enc), nil
		},
		"sliding": func(enc kernel.Encoding) (kernel.Kernel, error) {
			return kernel.NewSlidingWindow(3, 1, second, enc), nil
		},
	} {
		var l limit
		for machine, enc := range map[**Machine]kernel.Encoding{&l.narrow: kernel.InMemory, &l.wide: kernel.InMemory.Varying()} {
			k, err := of(enc)
			require.NoError(t, err)
			*machine = NewMachine(k, enc)
		}
		limits[name] = l
	}
	return limits
}

// TestNarrowHasNoDebt: a count above the limit has no room in the word of a window. That a word decides
// as the state does which it was narrowed from, and is widened to, is walked by internal/laws/complete.
func TestNarrowHasNoDebt(t *testing.T) {
	for _, name := range []string{"fixed", "sliding"} {
		l := narrowLimits(t)[name]
		for more, ok := range []bool{true, false} {
			var a Answer
			st, _ := l.wide.Step(l.wide.NewState(), &Request{Op: OpCharge, N: l.wide.Limit() + more, Fixed: &Reading{Now: begun, Own: true}}, &a)
			_, narrow := l.narrow.Word().Narrow(st, begun+second/2)
			assert.Equal(t, ok, narrow, "%s, %d more", name, more)
		}
	}
}

// TestNarrowAfterTheLatest: the word of a TokenBucket or of a SlidingWindow does not say when the latest
// events were granted. So that instant must have passed: another caller, who has read the clock before, may
// be late.
func TestNarrowAfterTheLatest(t *testing.T) {
	for _, name := range []string{"token", "sliding"} {
		l := narrowLimits(t)[name]
		var a Answer
		st, _ := l.wide.Step(l.wide.NewState(), &Request{Op: OpTake, N: 1, Fixed: &Reading{Now: begun, Own: true}}, &a)
		_, narrow := l.narrow.Word().Narrow(st, begun)
		assert.False(t, narrow, name)
		_, narrow = l.narrow.Word().Narrow(st, begun+1)
		assert.True(t, narrow, name)
	}
}
