package step

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// manyHolds returns states of c with holds at random instants, some of which give their events back.
func manyHolds(c *Machine, rng *rand.Rand, holds int) *shared {
	s := keyOf(c)
	for i := range uint64(holds) {
		h := Handle{ID: 2*i + 1, For: time.Duration(1 + rng.IntN(int(second))), Back: rng.IntN(2) == 0}
		s.send(c, begun+i, Request{Op: OpHold, N: 1 + rng.IntN(2), Hold: h})
	}
	return s
}

// TestHolds_EndTogether: holds that end together leave the state that they leave one after the other.
func TestHolds_EndTogether(t *testing.T) {
	enc := kernel.InMemory.Varying()
	token, err := kernel.NewTokenBucket(10, time.Second, nil, 400, enc, "")
	require.NoError(t, err)
	leaky, err := kernel.NewLeakyBucket(10, time.Second, nil, 400, enc, "")
	require.NoError(t, err)
	for name, k := range map[string]kernel.Kernel{
		"log":       kernel.NewSlidingLog(400, 10*second, false),
		"in flight": kernel.NewInFlight(400, 10*second),
		"token":     token,
		"leaky":     leaky,
		"interval":  kernel.NewIntervalBucket(400, 3, second),
		"window":    kernel.NewFixedWindow(400, 10*second, true, enc),
		"all":       NewAll([]kernel.Kernel{kernel.NewSlidingLog(400, 10*second, false), token, kernel.NewInFlight(400, 5*second)}, enc),
	} {
		for seed := range uint64(50) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := manyHolds(NewMachine(k, enc), rng, 40+rng.IntN(60))
			require.Equal(t, Opened, s.st.Form, name)
			by := s.from.holdList()
			now := begun + kernel.Instant(rng.IntN(int(second)))

			together, ended := by.endDue(slices.Clone(s.st.Words), now, true)
			alone := slices.Clone(s.st.Words)
			for i := 0; i < by.count(alone); {
				if by.holdAt(alone, i).End > now {
					i++
					continue
				}
				alone = by.endHold(alone, now, by.refundAtEnd(alone, i, true))
				ended--
			}
			alone[firstEnd] = together[firstEnd]
			assert.Zero(t, ended, name)
			got, want := s.from.PackIn(by.closed(together)), s.from.PackIn(by.closed(alone))
			require.Equal(t, want, got, "%s, seed %d", name, seed)
			require.True(t, s.from.ValidIn(got), "%s, seed %d", name, seed)
		}
	}
}

// BenchmarkTimeoutChanges asks a key with thousands of events in flight under another Timeout, so that
// each of these moves. The time is that of a hold.
func BenchmarkTimeoutChanges(b *testing.B) {
	for _, holds := range []int{64, 1024, 16_384} {
		shorter := NewMachine(kernel.NewInFlight(holds, 3600*second), kernel.InMemory)
		longer := NewMachine(kernel.NewInFlight(holds, 7200*second), kernel.InMemory)
		s := keyOf(longer)
		for i := range uint64(holds) {
			s.send(longer, begun+i, Request{Op: OpHold, N: 1, Hold: Handle{ID: 2*i + 1, For: time.Hour}})
		}
		req := Request{Op: OpPeek, Fixed: &Reading{Now: begun + uint64(holds)}}
		b.Run(strconv.Itoa(holds), func(b *testing.B) {
			for range b.N/holds + 1 {
				var a Answer
				shorter.StepFrom(s.from, s.st, &req, &a)
				if a.Allowed {
					b.Fatal("there is room")
				}
			}
		})
	}
}

// TestRetryAfter_ManyHolds: to find when a denied request will be granted takes as many copies of the state
// with thousands of holds that give their events back as with a few, because the shard is locked meanwhile.
func TestRetryAfter_ManyHolds(t *testing.T) {
	for name, k := range map[string]kernel.Kernel{
		"window": kernel.NewFixedWindow(MostHolds, 1000*second, false, kernel.InMemory),
		"log":    kernel.NewSlidingLog(MostHolds, 1000*second, false),
	} {
		for _, n := range []int{1, 2, 5} {
			allocs := func(holds int) float64 {
				c := NewMachine(k, kernel.InMemory)
				s := keyOf(c)
				s.send(c, begun, Request{Op: OpTake, N: MostHolds - holds})
				for i := range uint64(holds) {
					s.send(c, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 2*i + 1, For: time.Minute - time.Duration(i), Back: true}})
				}
				req := Request{Op: OpTake, N: n, Fixed: &Reading{Now: begun}}
				var a Answer
				allocs := testing.AllocsPerRun(10, func() { c.StepFrom(s.from, s.st, &req, &a) })
				require.False(t, a.Allowed)
				require.Equal(t, time.Minute-time.Duration(holds-n), a.RetryAfter, "%d of %s", n, name)
				return allocs
			}
			assert.Equal(t, allocs(8), allocs(MostHolds), "%d of %s", n, name)
		}
	}
}

// TestSearchNear: the result is right for every guess, and a guess that is right takes two calls at most.
func TestSearchNear(t *testing.T) {
	for n := range 20 {
		for result := range n + 1 {
			for guess := range n + 1 {
				calls := 0
				got := searchNear(n, guess, func(i int) bool {
					calls++
					require.True(t, 0 <= i && i < n, "call for %d of %d", i, n)
					return i >= result
				})
				require.Equal(t, result, got, "%d of %d, guess %d", result, n, guess)
				if guess == result {
					require.LessOrEqual(t, calls, 2, "%d of %d", result, n)
				}
			}
		}
	}
}
