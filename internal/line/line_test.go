package line

import (
	"fmt"
	"math/rand/v2"
	"slices"
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
		if p.isAsked() {
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

// In random histories (200 in CI, 20,000 at night), each turn that was made is served once or given
// back once, those with the same terms are served in the order in which they came, unless they asked
// at once, and nothing is left.
func TestLine_Histories(t *testing.T) {
	for seed := range budget.Seeds(t, budget.Histories(200, 20_000)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newCrowd(t, seed)
			for i := range 200 {
				c.step(i)
				c.wake()
				c.count()
			}
			c.end()
		})
	}
}

// A crowd is callers in the line of a key. It does what Wait, the store and the clock do.
type crowd struct {
	*testing.T
	rnd   *rand.Rand
	lines Lines
	wide  int // how many may ask at once
	sizes int // how many different requests there are

	asking     []*Place // whose answer is to come
	resting    []*Place
	cancelling []*Place // whose caller gives turns back
	gone       []*Place // that were served or have left, and whose caller has not returned
	came       map[*Place]int
	until      map[*Place]kernel.Instant // when it wakes

	now, frontier kernel.Instant // frontier is the latest turn
	made, ended   int            // turns
	lastServed    map[int]int    // of the requests of a size, when the one that was served last came
}

func newCrowd(t *testing.T, seed uint64) *crowd {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return &crowd{
		T: t, rnd: rnd, wide: 1 + rnd.IntN(3)*8, sizes: 1 + rnd.IntN(2),
		came: map[*Place]int{}, until: map[*Place]kernel.Instant{}, lastServed: map[int]int{},
		now: 1, frontier: 1,
	}
}

// step does one thing: somebody comes, is answered or leaves, turns are given back, a caller
// returns, the key begins anew, or time passes. From step 150 on, nobody comes, and all leave.
func (c *crowd) step(i int) {
	leaves := c.rnd.IntN(2) == 0 || i >= 150
	switch what := c.rnd.IntN(6); {
	case what < 2 && i < 150:
		c.come(i)
	case what == 2 && len(c.asking) > 0:
		p := c.take(&c.asking, c.rnd.IntN(len(c.asking)))
		c.grant(p)
		c.resting = append(c.resting, p)
	case (what == 3 && leaves || i >= 150) && len(c.resting) > 0:
		c.leave(c.take(&c.resting, c.rnd.IntN(len(c.resting))))
	case what == 4 && len(c.cancelling) > 0:
		c.take(&c.cancelling, 0).Cancelled()
	case what == 5 && i%16 == 0:
		c.lines.Renew("key")
	case what == 5 && len(c.gone) > 0: // as every waiter does when its call returns
		require.Equal(c, Move{Do: Left}, c.take(&c.gone, 0).Leave(c.now))
	default:
		c.now += kernel.Instant(c.rnd.IntN(4))
	}
}

// take removes a place from a list.
func (c *crowd) take(from *[]*Place, i int) *Place {
	p := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return p
}

func (c *crowd) come(i int) {
	came := int64(i)
	if c.wide > 1 { // who comes together does not enter in order
		came -= c.rnd.Int64N(20)
	}
	p := c.lines.enter(Entrant{Terms: Terms{N: 1 + c.rnd.IntN(c.sizes)}, Came: came})
	c.came[p] = i + 1
	c.resting = append(c.resting, p)
}

// grant answers a place with a turn.
func (c *crowd) grant(p *Place) {
	c.frontier = max(c.frontier, c.now) + kernel.Instant(c.rnd.IntN(5))
	c.made++
	p.Granted(c.frontier, p.N, c.now+20, c.wide)
}

func (c *crowd) leave(p *Place) {
	move := p.Leave(c.now)
	if move.Do == Served {
		c.serve(p, move.Turns)
		return
	}
	c.gone = append(c.gone, p)
	c.giveBack(p, move.Turns)
}

// serve ends the first turn, and gives back the others that are the caller's to give.
func (c *crowd) serve(p *Place, turns []Turn) {
	require.Equal(c, p.N, turns[0].Held)
	c.ended++
	c.gone = append(c.gone, p)
	c.giveBack(p, turns[1:])
}

func (c *crowd) giveBack(p *Place, turns []Turn) {
	for i, turn := range turns {
		require.True(c, i == 0 || turn.Terms != turns[i-1].Terms || turn.Due <= turns[i-1].Due, "newest first")
	}
	c.ended += len(turns)
	if len(turns) > 0 {
		c.cancelling = append(c.cancelling, p)
	}
}

// wake lets all who are woken, or whose time has come, make their next move, until all rest.
func (c *crowd) wake() {
	for again := true; again; {
		again = false
		for _, p := range slices.Clone(c.resting) {
			again = c.move(p) || again
		}
	}
}

// move lets a place make its next move, and reports whether others may have to move then.
func (c *crowd) move(p *Place) bool {
	due := c.until[p] <= c.now
	select {
	case <-p.Woken():
		due = true
	default:
	}
	move := p.Next(c.now, 10)
	require.True(c, due || move.Do == Rest || move.Do == GiveBack, "it would sleep, and not %v", move.Do)
	c.until[p] = move.Until
	switch move.Do {
	case Ask:
		if c.wide == 1 { // it is answered at once, as in memory
			c.grant(p)
			return true
		}
		c.asking = append(c.asking, c.take(&c.resting, slices.Index(c.resting, p)))
		return true
	case GiveBack:
		c.giveBack(p, move.Turns)
	case Served:
		if c.wide == 1 {
			require.Greater(c, c.came[p], c.lastServed[p.N], "it overtook")
			c.lastServed[p.N] = c.came[p]
		}
		c.serve(p, move.Turns)
		c.take(&c.resting, slices.Index(c.resting, p))
		return true
	}
	return false
}

// count requires that all who ask or rest stand in one line.
func (c *crowd) count() {
	standing := 0
	c.lines.look(func(ln *Line) {
		ln.check(c.T)
		standing = ln.Len()
	})
	require.Equal(c, len(c.asking)+len(c.resting), standing, "all stand in one line")
}

// end lets all leave who are left. Then nothing is left, and each turn has ended.
func (c *crowd) end() {
	for _, p := range slices.Concat(c.asking, c.resting) {
		c.leave(p)
	}
	for _, p := range c.cancelling {
		p.Cancelled()
	}
	require.Equal(c, c.made, c.ended)
	assert.Zero(c, c.lines.Count())
	assert.Empty(c, c.lines.shard("key").lines)
}

// enter takes a place in the line of the key.
func (ls *Lines) enter(e Entrant) *Place {
	ln := ls.Lock("key")
	defer ln.Unlock()
	return ln.Enter(e)
}

// look calls f with the line of the key, if there is one.
func (ls *Lines) look(f func(ln *Line)) {
	ln := ls.Find("key")
	if ln != nil {
		defer ln.Unlock()
		f(ln)
	}
}

// in has places for as many events enter a line.
func in(lines *Lines, sizes ...int) (places []*Place) {
	for _, n := range sizes {
		places = append(places, lines.enter(Entrant{Terms: Terms{N: n}}))
	}
	return places
}

// granted has places ask, one after the other, and get turns that are due at 5, 6 and so on.
func granted(t *testing.T, places []*Place, wide int) {
	t.Helper()
	for i, p := range places {
		step(t, Ask, p, 1)
		p.Granted(kernel.Instant(5+i), i, 20, wide)
	}
}

// step checks what a place is to do at now.
func step(t *testing.T, want Step, p *Place, now kernel.Instant) (turns []Turn) {
	t.Helper()
	move := p.Next(now, 10)
	require.Equal(t, want, move.Do)
	return move.Turns
}

// A turn that has come is not given back when the turns are renewed, whoever looks first.
func TestLine_RenewsNoTurnThatHasCome(t *testing.T) {
	var lines Lines
	p := in(&lines, 1, 1)
	step(t, Ask, p[0], 1)
	p[0].Granted(5, "first", 20, 1)
	lines.Renew("key")
	step(t, Ask, p[1], 5)
	assert.Equal(t, "first", step(t, Served, p[0], 5)[0].Held)
}

// Renewed turns are given back once: not those that were made since, nor if there were none.
func TestLine_RenewsOnce(t *testing.T) {
	var lines Lines
	p := in(&lines, 1, 1)
	step(t, Ask, p[0], 1)
	p[0].Granted(5, "first", 20, 1)
	lines.Renew("key")
	step(t, Served, p[0], 5) // its turn comes before it is renewed
	step(t, Ask, p[1], 5)
	p[1].Granted(9, "second", 20, 1)
	step(t, Rest, p[1], 6)
	lines.Renew("key")
	require.Equal(t, "second", step(t, GiveBack, p[1], 6)[0].Held)
	p[1].Cancelled()
	step(t, Ask, p[1], 6)
	p[1].Granted(9, "third", 20, 1)
	step(t, Rest, p[1], 6)
	step(t, Served, p[1], 9)
}

// Whoever enters with a turn does not let others ask together with one of other terms.
func TestLine_EntersWithATurn(t *testing.T) {
	var lines Lines
	p := in(&lines, 1, 1)
	step(t, Ask, p[0], 1)
	p[0].Granted(2, "first", 20, 8) // two may ask at once
	step(t, Ask, p[1], 1)
	p = append(p, in(&lines, 2)...)
	p[2].Granted(8, "third", 20, 8)
	step(t, GiveBack, p[2], 1) // who asks, with other terms, is in front
	p[2].Cancelled()
	step(t, Rest, p[2], 1)
}

// Whose turn has come is served before it gives back the turns of others.
func TestLine_ServesBeforeItGivesBack(t *testing.T) {
	var lines Lines
	p := in(&lines, 1, 1, 2)
	granted(t, p[:2], 1)
	move := p[1].Leave(1) // so that the last one has a turn that does not suit it
	require.Equal(t, Left, move.Do)
	p[0].Cancelled()
	step(t, Ask, p[2], 1)
	p[2].Granted(7, 2, 20, 1)
	lines.look(func(ln *Line) { ln.turns[1].stale = true })
	require.Equal(t, 0, step(t, Served, p[0], 5)[0].Held)
	step(t, GiveBack, p[2], 5)
}

// A turn that is left over is for those in front, who are asking, and not for who enters behind them.
func TestLine_LeftoversAreForWhoAsks(t *testing.T) {
	var lines Lines
	p := in(&lines, 1, 1, 1)
	granted(t, p[:2], 8)
	step(t, Ask, p[2], 1)
	move := p[0].Leave(1)
	require.Equal(t, Left, move.Do)
	require.Empty(t, move.Turns, "who asks may need it")
	last := in(&lines, 1)[0]
	require.Equal(t, kernel.Forever, last.Next(1, 10).Until)
	require.Equal(t, Left, last.Leave(6).Do, "it is that of who asks")
	p[2].Granted(7, 2, 20, 8)
	require.Equal(t, 0, step(t, Served, p[1], 5)[0].Held)
	require.Equal(t, 1, step(t, Served, p[2], 6)[0].Held)
	lines.look(func(ln *Line) { require.Zero(t, ln.Len()) })
}

// A turn that another caller has taken has come, also for who read the clock before: who leaves then is served, and a
// renewal does not have it given back.
func TestLine_TurnsThatWereTakenHaveCome(t *testing.T) {
	var lines Lines
	first := in(&lines, 1)[0]
	step(t, Ask, first, 3)
	first.Denied("why", 5)
	move := lines.Behind("key", nil, 6)
	require.Equal(t, Ask, move.Do)
	require.Same(t, first, move.For)
	require.Equal(t, Rest, first.Leave(4).Do, "until there is an answer")
	first.Taken(5, "turn")
	lines.Renew("key")
	move = first.Leave(4)
	require.Equal(t, Served, move.Do)
	require.Equal(t, "turn", move.Turns[0].Held)
}

// Whoever finds that the next one waits no longer wakes those who are the next ones then, even if it asks for none of
// them: they do not know that they are, and who has left does not tell them.
func TestLine_WhoRemovesTheNextOneWakesThoseBehind(t *testing.T) {
	var lines Lines
	ended := make(chan struct{})
	first := lines.enter(Entrant{Terms: Terms{N: 1, By: "a"}, Ended: ended})
	second := lines.enter(Entrant{Terms: Terms{N: 1, By: "b"}})
	step(t, Ask, first, 1)
	first.Denied("why", 9)
	require.Equal(t, kernel.Forever, second.Next(1, 0).Until)
	close(ended)
	require.Equal(t, Rest, lines.Behind("key", "a", 2).Do)
	require.Equal(t, Left, first.Leave(2).Do)
	require.Len(t, second.Woken(), 1)
	step(t, Ask, second, 2)
}

// A place that has left may be given up once more, as every waiter does when its call returns. That
// changes nothing for those who have begun a new line of the key meanwhile: they stand in line, and
// are woken.
func TestLine_WhoHasLeftChangesNothing(t *testing.T) {
	for how, leave := range map[string]func(p *Place){
		"granted at once": func(p *Place) {
			step(t, Ask, p, 1)
			p.Granted(1, nil, 0, 1)
		},
		"served": func(p *Place) {
			step(t, Ask, p, 1)
			p.Granted(5, "turn", 20, 1)
			step(t, Served, p, 5)
		},
		"ended": func(p *Place) { require.Equal(t, Left, p.Leave(1).Do) },
	} {
		for again, look := range map[string]func(p *Place) Move{
			"Leave": func(p *Place) Move { return p.Leave(6) },
			"Next":  func(p *Place) Move { return p.Next(6, 10) },
		} {
			t.Run(how+"/"+again, func(t *testing.T) {
				var lines Lines
				first := in(&lines, 1)[0]
				leave(first)
				second := in(&lines, 1)[0]
				step(t, Ask, second, 6)
				second.Denied("why", kernel.Forever)
				step(t, Rest, second, 6)
				for len(second.Woken()) > 0 {
					<-second.Woken()
				}

				require.Equal(t, Move{Do: Left}, look(first))
				assert.True(t, lines.Has("key"))
				third := in(&lines, 1)[0]
				assert.Equal(t, Rest, third.Next(6, 10).Do, "behind the second one")
				lines.Wake("key", 7)
				assert.Len(t, second.Woken(), 1)

				require.Equal(t, Left, second.Leave(7).Do)
				require.Equal(t, Left, third.Leave(7).Do)
				assert.Empty(t, lines.shard("key").lines)
			})
		}
	}
}
