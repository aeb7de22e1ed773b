package kernel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMoveAll: events that a log moves together are where they are if it moves them one after the other,
// also if those of one hold are moved to where those of another one are.
func TestMoveAll(t *testing.T) {
	log := NewInFlight(1<<20, 0).(*inFlight)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var st []uint64
		for i := range Instant(20) {
			st = log.Spend(st, begun+i, 1+rng.IntN(3))
		}
		alone, moves := slices.Clone(st), []move{}
		for range 30 {
			m := move{begun + Instant(rng.IntN(25)), begun + Instant(rng.IntN(25)), uint64(rng.IntN(4))}
			alone = log.move(alone, int(m.n), m.from, m.to)
			moves = append(moves, m)
		}
		require.Equal(t, log.Pack(alone), log.Pack(log.moveAll(st, moves)), "seed %d", seed)
	}
}
