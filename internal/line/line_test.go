package line

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// check fails the test if the line is not as it should be.
func (ln *Line) check(t *testing.T) {
	t.Helper()
	asking := 0
	for i, p := range ln.each {
		if p.asking {
			asking++
		}
		if i < len(ln.turns) {
			require.Equal(t, p.Terms, ln.turns[i].Terms, "each place has a turn of its own terms")
		}
	}
	require.Equal(t, asking, ln.asking)
	require.LessOrEqual(t, len(ln.turns), ln.Len(), "no turn is nobody's")
	for i := 1; i < len(ln.turns); i++ {
		require.True(t, ln.turns[i-1].Due <= ln.turns[i].Due || ln.turns[i-1].Terms != ln.turns[i].Terms)
	}
}

// In random histories (200 in CI, 20,000 at night), each turn that was made is served once or given back once, those
// with the same terms are served in the order in which they came, unless they asked at once, and nothing is left.
func TestLine_Histories(t *testing.T) {
	for seed := range budget.Histories(200, 20_000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var lines Lines
		wide, sizes := 1+rnd.IntN(3)*8, 1+rnd.IntN(2)
		var asking, resting, cancelling []*Place
		order := map[*Place]int{}
		made, ended, now, frontier, served := 0, 0, kernel.Instant(1), kernel.Instant(1), map[int]int{}
		left := func(p *Place, turns []Turn) {
			for i, turn := range turns {
				require.True(t, i == 0 || turn.Terms != turns[i-1].Terms || turn.Due <= turns[i-1].Due, "newest first")
			}
			if ended += len(turns); len(turns) > 0 {
				cancelling = append(cancelling, p)
			}
		}
		leave := func(p *Place) {
			turns, served := p.Leave(now)
			if !served {
				left(p, turns)
				return
			}
			require.Equal(t, p.N, turns[0].Held)
			ended++
			left(p, turns[1:])
		}
		grant := func(p *Place) {
			frontier = max(frontier, now) + kernel.Instant(rnd.IntN(5))
			made++
			p.Granted(frontier, p.N, now+20, wide)
		}
		forget := func(from []*Place, i int) []*Place { return append(from[:i:i], from[i+1:]...) }
		for step := range 200 {
			switch what := rnd.IntN(6); {
			case what < 2 && step < 150:
				came := int64(step)
				if wide > 1 { // who comes together does not enter in order
					came -= rnd.Int64N(20)
				}
				p, err := lines.Enter("key", Terms{N: 1 + rnd.IntN(sizes)}, came, func(*Line) error { return nil })
				require.NoError(t, err)
				order[p] = step + 1
				resting = append(resting, p)
			case what == 2 && len(asking) > 0:
				i := rnd.IntN(len(asking))
				p := asking[i]
				grant(p)
				asking, resting = forget(asking, i), append(resting, p)
			case what == 3 && len(resting) > 0 && rnd.IntN(2) == 0 || step >= 150 && len(resting) > 0:
				i := rnd.IntN(len(resting))
				p := resting[i]
				leave(p)
				resting = forget(resting, i)
			case what == 4 && len(cancelling) > 0:
				cancelling[0].Cancelled()
				cancelling = cancelling[1:]
			case what == 5 && step%16 == 0:
				lines.Renew("key")
			default:
				now += kernel.Instant(rnd.IntN(4))
			}
			for again := true; again; { // as they are woken
				again = false
				for i := 0; i < len(resting); i++ {
					p := resting[i]
					switch do, turns, _ := p.Next(now, 10); do {
					case Ask:
						if again = true; wide == 1 { // it is answered at once, as in memory
							grant(p)
							continue
						}
						asking, resting = append(asking, p), forget(resting, i)
						i--
					case GiveBack:
						left(p, turns)
					case Served:
						require.Equal(t, p.N, turns[0].Held)
						left(p, turns[1:])
						if wide == 1 && sizes == 1 {
							require.Greater(t, order[p], served[p.N], "it overtook")
							served[p.N] = order[p]
						}
						ended++
						resting = forget(resting, i)
						again, i = true, i-1
					}
				}
			}
			lines.Look("key", func(ln *Line) { ln.check(t) })
		}
		for _, p := range append(asking, resting...) {
			leave(p)
		}
		for _, p := range cancelling {
			p.Cancelled()
		}
		require.Equal(t, made, ended, "seed %d", seed)
		assert.Zero(t, lines.Count())
		assert.Empty(t, lines.shard("key").lines)
	}
}
