package step

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A limit is a kernel in both forms.
type limit struct{ narrow, wide *Machine }

// limitsOf returns limits of one kind, among which a key may change.
func limitsOf(t *testing.T) map[string][]limit {
	t.Helper()
	gcra := func(of func(int, time.Duration, kernel.Encoding) (kernel.Kernel, error), sizes ...time.Duration) (all []limit) {
		for i, per := range sizes {
			var l limit
			for _, enc := range []kernel.Encoding{kernel.InMemory, kernel.InMemory.Varying()} {
				k, err := of(3+4*i, per, enc)
				require.NoError(t, err)
				l.narrow, l.wide = l.wide, NewMachine(k, enc)
			}
			all = append(all, l)
		}
		return all
	}
	fixed := func(windows ...uint64) (all []limit) {
		for i, window := range windows {
			k := func(enc kernel.Encoding) *Machine {
				return NewMachine(kernel.NewFixedWindow(3+4*i, window, true, enc), enc)
			}
			all = append(all, limit{k(kernel.InMemory), k(kernel.InMemory.Varying())})
		}
		return all
	}
	sliding := func(windows ...uint64) (all []limit) {
		for i, window := range windows {
			k := func(enc kernel.Encoding) *Machine {
				return NewMachine(kernel.NewSlidingWindow(3+4*i, 1, window, enc), enc)
			}
			all = append(all, limit{k(kernel.InMemory), k(kernel.InMemory.Varying())})
		}
		return all
	}
	return map[string][]limit{
		"token": gcra(func(n int, per time.Duration, enc kernel.Encoding) (kernel.Kernel, error) {
			return kernel.NewTokenBucket(3, per, per, n, enc, "")
		}, time.Second, 7*time.Second, time.Second),
		"leaky": gcra(func(n int, per time.Duration, enc kernel.Encoding) (kernel.Kernel, error) {
			return kernel.NewLeakyBucket(3, per, per, n, enc, "")
		}, time.Second, 7*time.Second, time.Second),
		"fixed":         fixed(second, second, 2*second),
		"sliding":       sliding(second, second, 2*second),
		"fixed/uneven":  fixed(3*second, 7*second),
		"fixed/the day": fixed(second, 86400*second),
	}
}

// TestNarrowStatesEqualWideOnes keeps one key twice: in the varying form, and as a word
// whenever that is possible. Takes and peeks are applied to the word, while its limit is
// that of the request. Every answer must be the same.
func TestNarrowStatesEqualWideOnes(t *testing.T) {
	for name, limits := range limitsOf(t) {
		narrow, wide := 0, 0 // decisions
		for seed := range budget.Seeds(t, 400) {
			rng := rand.New(rand.NewPCG(seed, 5))
			l, owner := limits[0], limits[0] // of the request, and of the word
			by, from := l.wide, l.wide       // what left want, and st
			want := PlainState(by.NewState())
			word, isWord := uint64(0), true
			st := PlainState(by.NewState()) // if not isWord
			now := begun + rng.Uint64N(second)
			for step := range 60 {
				switch rng.IntN(6) {
				case 0:
					l = limits[rng.IntN(len(limits))]
				case 1, 2:
					now += []uint64{1, rng.Uint64N(second), rng.Uint64N(10 * second)}[rng.IntN(3)]
				}
				req := Request{Op: []Op{OpTake, OpTake, OpTake, OpPeek, OpReserve, OpSettle}[rng.IntN(6)], N: 1 + rng.IntN(3)}
				req.Fixed, req.MaxWait = &Reading{Now: now, Own: true}, kernel.Never-1
				switch req.Op {
				case OpReserve:
					req.Hold.ID = uint64(2 * step)
				case OpSettle:
					req.N, req.Hold.ID = 0, uint64(2*rng.IntN(step+1))
				}
				other := req
				var a, b Answer
				by, want, _ = l.wide.StepFrom(by, want.Clone(), &req, &a)
				fits := req.Op <= OpPeek
				if isWord && (owner != l || !fits) {
					wider := owner.narrow.Word().Widen(word)
					st, from, isWord = PlainState(wider[:]), owner.wide, false
				}
				if !isWord && fits {
					if k, met, _ := l.wide.Reconcile(from, st, now); k == l.wide && met.IsPlain() {
						one, ok := l.narrow.Word().Narrow(met.Words, now)
						if _, changed := l.narrow.Step([]uint64{one}, &other, &b); ok && (changed || from == l.wide && st.IsPlain()) {
							word, owner, isWord = one, l, true
						}
					}
				}
				if isWord {
					one := []uint64{word}
					one, _ = l.narrow.Step(one, &other, &b)
					word = one[0]
					narrow++
				} else {
					from, st, _ = l.wide.StepFrom(from, st.Clone(), &other, &b)
					wide++
				}
				require.Equal(t, a, b, "%s, seed %d, step %d", name, seed, step)
			}
		}
		assert.Greater(t, narrow, 1000, "%s: %d narrow, %d wide", name, narrow, wide)
		assert.Greater(t, wide, 1000, name)
	}
}

// TestNarrowHasNoDebt: a count above the limit, or an event at this instant, has no room in the word of a
// window.
func TestNarrowHasNoDebt(t *testing.T) {
	for _, name := range []string{"fixed", "sliding"} {
		l := limitsOf(t)[name][0]
		for more, ok := range []bool{true, false} {
			var a Answer
			st, _ := l.wide.Step(l.wide.NewState(), &Request{Op: OpCharge, N: l.wide.Limit() + more, Fixed: &Reading{Now: begun, Own: true}}, &a)
			_, narrow := l.narrow.Word().Narrow(st, begun+second/2)
			assert.Equal(t, ok, narrow, "%s, %d more", name, more)
		}
	}
	l := limitsOf(t)["sliding"][0]
	var a Answer
	st, _ := l.wide.Step(l.wide.NewState(), &Request{Op: OpTake, N: 1, Fixed: &Reading{Now: begun, Own: true}}, &a)
	_, narrow := l.narrow.Word().Narrow(st, begun)
	assert.False(t, narrow)
}
