package kernel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// manyHolds returns states of c with holds at random instants, some of which give their events back.
func manyHolds(c *Compiled, rng *rand.Rand, holds int) *shared {
	s := keyOf(c)
	for i := range uint64(holds) {
		h := Handle{ID: 2*i + 1, For: time.Duration(1 + rng.IntN(int(second))), Back: rng.IntN(2) == 0}
		s.send(c, begun+Instant(i), Request{Op: OpHold, N: 1 + rng.IntN(2), Hold: h})
	}
	return s
}

// TestHolds_EndTogether: holds that end together leave the state that they leave one after the other.
func TestHolds_EndTogether(t *testing.T) {
	enc := InMemory.Varying()
	token, err := NewTokenBucket(10, time.Second, nil, 400, enc, "")
	require.NoError(t, err)
	leaky, err := NewLeakyBucket(10, time.Second, nil, 400, enc, "")
	require.NoError(t, err)
	for name, k := range map[string]Kernel{
		"log":       NewSlidingLog(400, 10*second, false),
		"in flight": NewInFlight(400, 10*second),
		"token":     token,
		"leaky":     leaky,
		"interval":  NewIntervalBucket(400, 3, second),
		"window":    NewFixedWindow(400, 10*second, true, enc),
		"all":       NewAll([]Kernel{NewSlidingLog(400, 10*second, false), token, NewInFlight(400, 5*second)}, enc),
	} {
		for seed := range uint64(50) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := manyHolds(Compile(k, enc), rng, 40+rng.IntN(60))
			by := s.from.open
			require.NotNil(t, by, name)
			now := begun + Instant(rng.IntN(int(second)))

			together, ended := by.endDue(slices.Clone(s.st), now, true)
			alone := slices.Clone(s.st)
			for i := 0; i < by.count(alone); {
				if by.holdAt(alone, i).end > now {
					i++
					continue
				}
				alone = by.settle(alone, now, by.refundAtEnd(alone, i, true))
				ended--
			}
			alone[firstEnd] = together[firstEnd]
			assert.Zero(t, ended, name)
			require.Equal(t, by.Pack(alone), by.Pack(together), "%s, seed %d", name, seed)
			require.True(t, by.count(together) == 0 || by.Valid(together), "%s, seed %d", name, seed)
		}
	}
}

// TestRemoveAll: each entry loses what is removed at its instant, in whatever order that is given, and
// a log that loses all is the fresh one.
func TestRemoveAll(t *testing.T) {
	log := NewSlidingLog(1<<20, 10*second, false).(*eventLog)
	var st []uint64
	var removals []removal
	const n = 1 << 12
	for i := range Instant(n) {
		st = log.Spend(st, begun+i, 2)
		removals = append(removals, removal{begun + i, 1})
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { removals[i], removals[j] = removals[j], removals[i] })
	st = log.removeAll(st, removals)
	require.Equal(t, uint64(n), st[0])
	require.Len(t, st, logHeader+n)
	require.True(t, log.Valid(st))
	st = log.removeAll(st, removals)
	require.Empty(t, st)
}
