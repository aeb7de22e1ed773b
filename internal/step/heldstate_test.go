package step

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// send applies any request of a limit.
func (s *shared) send(c *Machine, now kernel.Instant, req Request) (a Answer, changed bool) {
	req.Fixed = &Reading{Now: now, Own: true}
	s.from, s.st, changed = c.StepFrom(s.from, s.st, &req, &a)
	return a, changed
}

func keyOf(c *Machine) *shared { return &shared{from: c, st: PlainState(c.NewState())} }

// hour is a hold of an hour, with an ID that is odd.
func hour(n uint64) Handle { return Handle{ID: 2*n - 1, For: time.Hour} }

// TestHolds_ThereAndBack: whatever is asked of another limit meanwhile, a hold is settled exactly.
func TestHolds_ThereAndBack(t *testing.T) {
	for name, limits := range rivals(t) {
		if name == "warming up" {
			continue // it has granted since
		}
		for i, c := range limits {
			other := limits[1-i]
			for _, ask := range []struct {
				op Op
				n  int
			}{{OpPeek, 1}, {OpTake, other.Limit()}, {OpTake, other.Limit() + 1}, {OpHold, 1}} {
				s, want := keyOf(c), keyOf(c)
				used := (c.Limit() + 1) / 2
				a, _ := s.send(c, begun, Request{Op: OpHold, N: used, Hold: hour(1)})
				require.True(t, a.Held, name)
				want.ask(c, begun, OpTake, 1)
				const after = 5 * ms // nothing is idle yet
				a, _ = s.send(other, begun+after, Request{Op: ask.op, N: ask.n, Hold: hour(2)})
				if a.Allowed && ask.op != OpPeek {
					want.ask(c, begun+after, OpCharge, ask.n)
				}
				require.True(t, s.from.ValidIn(s.st), name)
				a, _ = s.send(limits[ask.n%2], begun+2*after, Request{Op: OpSettle, N: 1, Hold: hour(1)})
				require.True(t, a.Held, name)
				require.Equal(t, ask.op == OpHold && a.Remaining >= 0 && !s.st.IsPlain(), !s.st.IsPlain(), name)
				for later := range kernel.Instant(4) {
					now := begun + 2*after + later*second/4
					got, want := s.ask(c, now, OpPeek, 1), want.ask(c, now, OpPeek, 1)
					got.Idle, want.Idle, got.Ends, want.Ends = 0, 0, 0, 0
					assert.Equal(t, want, got, "%s %d: %+v, later %d", name, i, ask, later)
				}
			}
		}
	}
}

// TestHolds_Adopted: a hold of a limit that is replaced is settled in the state of the new one.
func TestHolds_Adopted(t *testing.T) {
	for name, limits := range rivals(t) {
		for i, c := range limits {
			other := limits[1-i]
			s, want := keyOf(c), keyOf(c)
			used := min(c.Limit(), other.Limit())
			if name == "warming up" || used == 1 {
				continue
			}
			s.send(c, begun, Request{Op: OpHold, N: used, Hold: hour(1)})
			want.ask(c, begun, OpTake, 1)
			const after = 5 * ms // nothing is idle yet
			s.ask(other, begun+after, OpCharge, 1)
			want.ask(other, begun+after, OpCharge, 1)
			a, _ := s.send(other, begun+2*after, Request{Op: OpSettle, N: 1, Hold: hour(1)})
			require.True(t, a.Held, name)
			for later := range kernel.Instant(4) {
				now := begun + 2*after + later*second/4
				got, want := s.ask(other, now, OpPeek, 1), want.ask(other, now, OpPeek, 1)
				assert.Equal(t, want.Remaining, got.Remaining, "%s %d, later %d", name, i, later)
				assert.Equal(t, want.ResetAfter, got.ResetAfter, "%s %d, later %d", name, i, later)
			}
		}
	}
}

// TestHolds_Reserved: a hold that one limit has reserved is settled in the states of others, too.
func TestHolds_Reserved(t *testing.T) {
	for _, name := range []string{"fixed: window", "fixed: start", "interval: per"} {
		limits := rivals(t)[name]
		for i, c := range limits {
			other := limits[1-i]
			key := func(n, used int) *shared {
				s := keyOf(c)
				s.ask(c, begun+ms, OpTake, c.Limit()-1)
				s.ask(other, begun+2*ms, OpCharge, 1)
				a, _ := s.send(c, begun+3*ms, Request{Op: OpReserve, N: n, MaxWait: time.Minute, Hold: hour(1)})
				require.True(t, a.Held, name)
				a, _ = s.send(c, begun+3*ms+uint64(a.Wait), Request{Op: OpSettle, N: used, Hold: hour(1)})
				require.True(t, a.Held, name)
				return s
			}
			s, want := key(3, 1), key(1, 1)
			for later := range kernel.Instant(4) {
				for _, c := range limits {
					now := begun + 2*second + later*second/4
					assert.Equal(t, want.ask(c, now, OpPeek, 1), s.ask(c, now, OpPeek, 1), "%s %d, later %d", name, i, later)
				}
			}
		}
	}
}

// missing returns how many whole events c lacks at an instant, if it is a bucket and a limit of the key.
func (s *shared) missing(c *Machine, now kernel.Instant) (events uint64, owes bool) {
	var h heldState
	h.read(s.from, s.st)
	i := slices.Index(s.from.Limits(), c)
	if i < 0 {
		return 0, false
	}
	st := s.from.partStates(h.inner())[i]
	if !isBucket(c) {
		return 0, false
	}
	return 2*uint64(c.Limit()) - c.Kernel.Credit(st, now), true
}

func isBucket(c *Machine) bool {
	return slices.Contains([]string{"gcra", "leaky", "intervalBucket"}, c.Kind())
}

// TestHolds_Former: with holds that are settled for less, too, each of two limits that are asked in any
// order would alone have granted what it did, after all that happened, as far as a bucket counts that.
func TestHolds_Former(t *testing.T) {
	for name, limits := range rivals(t) {
		cut := false
		if name == "warming up" {
			continue // warmth is converted in proportion
		}
		if name == "fixed: start" {
			continue // windows that begin at different instants overlap, so events that come together do not count as one by one
		}
		for seed := range budget.Seeds(t, budget.Histories(8, 20)) {
			rng := rand.New(rand.NewPCG(seed, 0))
			s := keyOf(limits[seed%2])
			open := map[uint64]int{} // where the hold is in s.grants
			asked, last := [2]kernel.Instant{}, uint64(0)
			for now := begun; now < begun+20*second; now += rng.Uint64N(60 * ms) {
				turn := rng.IntN(2)
				c := limits[turn]
				if len(open) > 0 && rng.IntN(3) == 0 {
					for id, i := range open {
						g := &s.grants[i]
						n := 1 + rng.IntN(g.n) // so that windows begin when they did
						a, _ := s.send(c, now, Request{Op: OpSettle, N: n, Of: g.n, Hold: hour(id)})
						require.True(t, a.Held || !a.Held && s.st.IsPlain() || len(open) > 0)
						if a.Held {
							g.n = n
						}
						delete(open, id)
						break
					}
					continue
				}
				if asked[turn] == 0 { // to settle is not to ask
					asked[turn] = now
				}
				n := 1 + rng.IntN(min(4, c.Limit()))
				req := Request{Op: OpTake, N: n}
				if rng.IntN(2) == 0 {
					last++
					req.Op, req.Hold = OpHold, hour(last)
				}
				before, _ := s.missing(limits[1-turn], now)
				if a, _ := s.send(c, now, req); a.Allowed {
					charged := n
					if after, owes := s.missing(limits[1-turn], now); owes {
						charged = int(after - before)
						cut = cut || charged < n
					}
					if s.grants = append(s.grants, grantAt{now, n, c, charged}); a.Held {
						open[last] = len(s.grants) - 1
					}
				}
				require.True(t, s.from.ValidIn(s.st), "%s, seed %d", name, seed)
			}
			s.grants = slices.DeleteFunc(s.grants, func(g grantAt) bool { return g.at < max(asked[0], asked[1]) })
			if isBucket(limits[0]) && !limits[0].Delays() {
				bounded(t, name, limits, s.grants)
				continue
			}
			for i, c := range limits {
				replay := keyOf(c)
				for _, g := range s.grants {
					if g.by == c {
						require.True(t, replay.ask(c, g.at, OpTake, g.n).Allowed, "%s, seed %d: limit %d granted too much", name, seed, i)
					} else {
						replay.ask(c, g.at, OpCharge, g.n)
					}
				}
			}
		}
		assert.Equal(t, isBucket(limits[0]), cut, name)
	}
}

// TestHolds_AnotherKind: a hold is gone if its limit is replaced by one of another kind.
func TestHolds_AnotherKind(t *testing.T) {
	log := NewMachine(kernel.NewSlidingLog(10, second, false), kernel.InMemory.Varying())
	window := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	s := keyOf(log)
	s.send(log, begun, Request{Op: OpHold, N: 5, Hold: hour(1)})
	s.send(window, begun+1, Request{Op: OpTake, N: 5})
	assert.Equal(t, window, s.from)
	a, changed := s.send(window, begun+2, Request{Op: OpSettle, N: 5, Of: 5, Hold: hour(1)})
	assert.False(t, a.Held || changed)
	assert.Equal(t, 5, a.Remaining)
	a, _ = s.send(window, begun+3, Request{Op: OpSettle, N: 7, Of: 5, Hold: hour(1)})
	assert.False(t, a.Held)
	assert.Equal(t, 3, a.Remaining, "what exceeds the hold is charged")
	a, _ = s.send(window, begun+4, Request{Op: OpSettle, N: 2, Of: 1})
	assert.Equal(t, 2, a.Remaining, "of no hold")
}

// TestHolds_NothingCounts: a hold stays open if nothing of its key counts any more when the limit
// changes. It has nothing to give back then.
func TestHolds_NothingCounts(t *testing.T) {
	enc := kernel.InMemory.Varying()
	bucket := func(rate int) *Machine {
		k, err := kernel.NewTokenBucket(rate, time.Second, nil, 10, enc, "")
		require.NoError(t, err)
		return NewMachine(k, enc)
	}
	for _, limits := range [][2]*Machine{
		{NewMachine(kernel.NewSlidingLog(10, second, false), enc), NewMachine(kernel.NewSlidingLog(10, 2*second, false), enc)},
		{NewMachine(kernel.NewFixedWindow(10, second, true, enc), enc), NewMachine(kernel.NewFixedWindow(10, 2*second, true, enc), enc)},
		{bucket(100), bucket(50)},
	} {
		was, is := limits[0], limits[1]
		s := keyOf(was)
		s.send(was, begun, Request{Op: OpHold, N: 5, Hold: hour(1)})
		s.send(was, begun, Request{Op: OpHold, N: 5, Hold: hour(3)})
		a := s.ask(is, begun+10*second, OpTake, 4)
		assert.Equal(t, 6, a.Remaining)
		assert.Equal(t, 2, s.from.OpenHolds(s.st))
		a, _ = s.send(is, begun+10*second, Request{Op: OpExtend, Hold: hour(1)})
		assert.True(t, a.Held)
		a, _ = s.send(is, begun+10*second, Request{Op: OpSettle, Of: 5, Hold: hour(3)})
		assert.True(t, a.Held)
		assert.Equal(t, 6, a.Remaining, "nothing was left to give back")
		a, _ = s.send(is, begun+10*second, Request{Op: OpSettle, N: 7, Of: 5, Hold: hour(1)})
		assert.Equal(t, 4, a.Remaining, "what exceeds the hold is charged")
		assert.Equal(t, is, s.from)
	}
}

// TestHolds_LastEnd: a key is idle when the last of the holds that are still open has ended, and not
// when one would have that was settled, or that ends earlier now.
func TestHolds_LastEnd(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	minute := Handle{ID: 1, For: time.Minute}
	for name, sooner := range map[string]Request{
		"cancelled": {Op: OpSettle, Of: 1, Hold: hour(2)},
		"settled":   {Op: OpSettle, N: 1, Of: 1, Hold: hour(2)},
		"extended":  {Op: OpExtend, Hold: Handle{ID: 3, For: time.Second}},
	} {
		s := keyOf(c)
		s.send(c, begun, Request{Op: OpHold, N: 1, Hold: minute})
		a, _ := s.send(c, begun, Request{Op: OpHold, N: 1, Hold: hour(2)})
		assert.Equal(t, time.Hour, a.Idle)
		a, _ = s.send(c, begun, sooner)
		assert.Equal(t, time.Minute, a.Idle, name)
		assert.Equal(t, begun+60*second, s.from.FreshIn(s.st), name)
	}
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 1, Hold: hour(1)})
	for i := range uint64(MostHolds) {
		s.send(c, begun+second*(i+1), Request{Op: OpHold, N: 1, Hold: Handle{ID: 2*i + 3, For: time.Second}})
	}
	assert.Equal(t, begun+second*(MostHolds+1), s.from.FreshIn(s.st), "of the oldest, which ended early")
}

// TestHolds_InFlight: what is in flight counts until its hold has ended, even if the timeout changes, and
// then no more.
func TestHolds_InFlight(t *testing.T) {
	enc := kernel.InMemory.Varying()
	c := NewMachine(kernel.NewInFlight(10, second), enc)
	longer := NewMachine(kernel.NewInFlight(8, 5*second), enc)
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 3, Hold: Handle{ID: 1, For: 2 * time.Second}})
	s.send(c, begun, Request{Op: OpHold, N: 4, Hold: Handle{ID: 3, For: 3 * time.Second, Back: true}})
	a := s.ask(c, begun+2*second-1, OpTake, 4)
	assert.Equal(t, time.Duration(1), a.RetryAfter)
	a = s.ask(longer, begun+2*second-1, OpTake, 1)
	assert.True(t, a.Allowed)
	assert.Equal(t, 0, a.Remaining)
	a = s.ask(longer, begun+2*second, OpTake, 1)
	assert.Equal(t, 1, a.Ended)
	assert.Equal(t, 2, a.Remaining)
	a, _ = s.send(c, begun+2*second, Request{Op: OpExtend, Hold: Handle{ID: 3, For: 9 * time.Second}})
	assert.True(t, a.Held)
	a = s.ask(c, begun+11*second-1, OpPeek, 1)
	assert.Equal(t, 6, a.Remaining)
	a, _ = s.send(c, begun+11*second-1, Request{Op: OpSettle, N: 7, Hold: hour(2)})
	assert.Equal(t, 8, a.Remaining, "nothing is charged")
	assert.True(t, s.st.IsPlain())
}

// TestHolds_TurnsInFlight: nothing is granted before the turn of a hold that is reserved, whatever others
// release.
func TestHolds_TurnsInFlight(t *testing.T) {
	c := NewMachine(kernel.NewInFlight(2, 3*second), kernel.InMemory)
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 1, For: 3 * time.Second}})
	s.send(c, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 3, For: 2 * time.Second}})
	a, _ := s.send(c, begun, Request{Op: OpReserve, N: 2, MaxWait: time.Hour, Hold: Handle{ID: 5, For: time.Second / 2}})
	require.Equal(t, 3*time.Second, a.Wait)
	s.send(c, begun, Request{Op: OpSettle, N: 1, Hold: hour(2)})
	assert.Equal(t, 3*time.Second+time.Second/2, s.ask(c, begun, OpTake, 1).RetryAfter)
	s.send(c, begun, Request{Op: OpSettle, Hold: hour(3)})
	assert.True(t, s.ask(c, begun, OpTake, 1).Allowed, "its turn is not ahead any more")
}

// TestHolds_TurnsThatAreOnlyTurns: if the limit of a key changes, nothing is granted before a turn
// that cannot be settled any more, whatever others release or cancel.
func TestHolds_TurnsThatAreOnlyTurns(t *testing.T) {
	enc := kernel.InMemory.Varying()
	c := NewMachine(kernel.NewInFlight(2, 3*second), enc)
	raised := NewMachine(kernel.NewInFlight(4, 3*second), enc)
	reserve := func(s *shared, hold Handle, wait time.Duration) {
		a, _ := s.send(c, begun, Request{Op: OpReserve, N: 2, MaxWait: time.Hour, Hold: hold})
		require.Equal(t, wait, a.Wait)
	}
	for name, settled := range map[string]Request{
		"settled for some": {Op: OpSettle, N: 1, Hold: Handle{ID: 5}},
		"settled for all":  {Op: OpSettle, N: 2, Hold: Handle{ID: 5}},
	} {
		s := keyOf(c)
		s.send(c, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 1, For: 3 * time.Second}})
		s.send(c, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 3, For: 2 * time.Second}})
		reserve(s, Handle{ID: 5, For: time.Second / 2}, 3*time.Second)
		s.send(c, begun, settled)
		reserve(s, Handle{ID: 7, For: time.Second}, 3*time.Second)
		wait := 3*time.Second - 1
		require.Equal(t, wait, s.ask(raised, begun+1, OpTake, 1).RetryAfter, name)
		a, _ := s.send(raised, begun+1, Request{Op: OpSettle, Hold: Handle{ID: 7}})
		require.True(t, a.Held && s.from.ValidIn(s.st), name)
		assert.Equal(t, wait, a.RetryAfter, "%s: the other reservation is cancelled", name)
		a, _ = s.send(raised, begun+1, Request{Op: OpSettle, N: 1, Hold: Handle{ID: 3}})
		require.True(t, a.Held, name)
		assert.Equal(t, wait, a.RetryAfter, "%s: a hold is released", name)
		a = s.ask(raised, begun+3*second, OpTake, 4)
		assert.True(t, a.Allowed, name)
		assert.Equal(t, 1, a.Ended, "%s: a turn is no hold", name)
		assert.True(t, s.st.IsPlain(), name)
	}
}

// TestHolds_Cancel: a reservation that is cancelled takes its hold with it.
func TestHolds_Cancel(t *testing.T) {
	for _, enc := range encodings {
		for name, c := range holdKernels(t, enc) {
			if strings.Contains(name, "leaky") {
				continue // it is full
			}
			s := keyOf(c)
			s.send(c, begun, Request{Op: OpHold, N: 5, Hold: hour(1)})
			s.send(c, begun, Request{Op: OpHold, N: c.Limit() - 5, Hold: hour(2)})
			want := shared{from: s.from, st: s.st.Clone()}
			a, _ := s.send(c, begun, Request{Op: OpReserve, N: 1, MaxWait: 2 * time.Hour, Hold: Handle{ID: 5, For: time.Hour, Back: true}})
			require.True(t, a.Held, name)
			a, _ = s.send(c, begun, Request{Op: OpSettle, Hold: Handle{ID: 5}})
			require.True(t, a.Held, name)
			for settled := range 2 {
				at := begun + second*5/4
				assert.Equal(t, want.ask(c, at, OpPeek, 1), s.ask(c, at, OpPeek, 1), name)
				for _, s := range []*shared{s, &want} {
					a, _ = s.send(c, at, Request{Op: OpSettle, N: 2, Hold: hour(2)})
					assert.Equal(t, settled == 0, a.Held, name)
				}
			}
			a, _ = s.send(c, begun+second*5/4, Request{Op: OpSettle, N: 1, Of: 1, Hold: hour(3)})
			assert.False(t, a.Held, name)
		}
	}
}

// TestHolds_NobodyOvertakes: a hold that is settled makes room, but not before the turn of a reservation.
func TestHolds_NobodyOvertakes(t *testing.T) {
	wide, err := kernel.NewTokenBucket(7, time.Second, time.Second, 10, kernel.InMemory, "")
	require.NoError(t, err)
	narrow, err := kernel.NewTokenBucket(10, time.Second, time.Second, 10, kernel.InMemory, "")
	require.NoError(t, err)
	for name, k := range map[string]kernel.Kernel{"wide": wide, "all": NewAll([]kernel.Kernel{narrow, narrow}, kernel.InMemory)} {
		c := NewMachine(k, kernel.InMemory)
		s := keyOf(c)
		s.send(c, begun, Request{Op: OpHold, N: 10, Hold: hour(1)})
		a, _ := s.send(c, begun, Request{Op: OpReserve, N: 2, MaxWait: time.Hour})
		require.Positive(t, a.Wait, name)
		a, _ = s.send(c, begun, Request{Op: OpSettle, Hold: hour(1)})
		assert.Zero(t, a.Remaining, name)
		a, _ = s.send(c, begun+uint64(a.RetryAfter)-1, Request{Op: OpPeek})
		assert.False(t, a.Allowed, name)
		a, _ = s.send(c, begun+second, Request{Op: OpTake, N: 8})
		assert.True(t, a.Allowed, name)
	}
}

// TestHolds_Yields: a reservation that yields is denied if it must wait while a hold is open.
func TestHolds_Yields(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory), kernel.InMemory)
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 9, Hold: hour(1)})
	for _, tt := range []struct {
		n       int
		yields  bool
		allowed bool
	}{{2, true, false}, {1, true, true}, {1, true, false}, {1, false, true}} {
		a, _ := s.send(c, begun, Request{Op: OpReserve, N: tt.n, MaxWait: time.Hour, Yields: tt.yields})
		assert.Equal(t, tt.allowed, a.Allowed, "%+v", tt)
		if !a.Allowed {
			assert.Equal(t, time.Second, a.RetryAfter)
		}
	}
}

// TestHolds_Most: of more holds than may be open, the oldest ends early, as it would have at its time.
func TestHolds_Most(t *testing.T) {
	c := NewMachine(kernel.NewSlidingLog(3*MostHolds, 3600*second, false), kernel.InMemory.Varying())
	s := keyOf(c)
	for id := range uint64(MostHolds + 3) {
		a, _ := s.send(c, begun+id, Request{Op: OpHold, N: 2, Hold: Handle{ID: 2*id + 1, For: time.Hour, Back: id == 1}})
		require.True(t, a.Held)
		early := 0
		if id >= MostHolds {
			early = 1
		}
		require.Equal(t, early, a.Ended)
	}
	o := s.from.holdList()
	assert.Equal(t, MostHolds, o.count(s.st.Words))
	assert.True(t, s.from.ValidIn(s.st))
	assert.Equal(t, 3*MostHolds-2*(MostHolds+2), s.ask(c, begun+2*MostHolds, OpPeek, 1).Remaining)
	assert.LessOrEqual(t, 8*o.size, 40)
	a := s.ask(c, begun+3600*second+MostHolds, OpTake, 1)
	assert.Equal(t, MostHolds-2, a.Ended)

	flying := NewMachine(kernel.NewInFlight(2*MostHolds, 3600*second), kernel.InMemory)
	s = keyOf(flying)
	for id := range uint64(MostHolds + 3) {
		s.send(flying, begun, Request{Op: OpHold, N: 1, Hold: hour(id + 1)})
	}
	assert.Equal(t, MostHolds+3, s.from.holdList().count(s.st.Words))
}

// TestHolds_Excess: a settlement for more than the state can hold changes nothing.
func TestHolds_Excess(t *testing.T) {
	const most = 1 << 51 // events in a portable state
	more := uint64(most + 1)
	if more > math.MaxInt {
		t.Skip("no int is as large")
	}
	enc := kernel.Encoding{Tick: 1000, Portable: true, Varies: true}
	c := NewMachine(kernel.NewFixedWindow(10, second/1000, true, enc), enc)
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 4, Hold: hour(1)})
	before := s.st.Clone()
	a, changed := s.send(c, begun, Request{Op: OpSettle, N: int(more), Hold: hour(1)})
	assert.True(t, a.Excess && a.Held && !changed)
	assert.Equal(t, uint64(most-4), a.Most)
	assert.Equal(t, before, s.st)
}

// TestHolds_Charged: what others are charged for is not given back to a hold that came back already.
func TestHolds_Charged(t *testing.T) {
	c := holdKernels(t, kernel.InMemory)["token"]
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 10, Hold: hour(1)})
	s.send(c, begun+second/2, Request{Op: OpSettle, N: 5, Hold: hour(2)}) // one that is not open
	a, _ := s.send(c, begun+second/2, Request{Op: OpSettle, Hold: hour(1)})
	assert.Equal(t, 5, a.Remaining)
}

// TestHolds_WarmingUp: what was not used comes back if nothing was granted since.
func TestHolds_WarmingUp(t *testing.T) {
	for _, enc := range encodings {
		c := NewMachine(kernel.NewWarmingUp(10, time.Second, time.Second, 3, enc), enc)
		hold := func(between int) (used, held Answer) {
			s, want := keyOf(c), keyOf(c)
			s.ask(c, begun, OpTake, 1)
			want.ask(c, begun, OpTake, 1)
			s.send(c, begun+second, Request{Op: OpHold, N: 5, Hold: hour(1)})
			want.ask(c, begun+second, OpTake, 2)
			if between > 0 {
				s.send(c, begun+5*second, Request{Op: OpTake, N: between})
			}
			require.True(t, !c.Varies || s.from.ValidIn(s.st))
			s.send(c, begun+5*second, Request{Op: OpSettle, N: 2, Hold: hour(1)})
			return want.ask(c, begun+5*second, OpPeek, 1), s.ask(c, begun+5*second, OpPeek, 1)
		}
		want, got := hold(0)
		assert.Equal(t, want, got)
		_, got = hold(1)
		assert.False(t, got.Allowed, "it has granted since")
	}
}

// TestHolds_CountDenied: what was not used leaves the log; what was denied stays.
func TestHolds_CountDenied(t *testing.T) {
	c := NewMachine(kernel.NewSlidingLog(10, second, true), kernel.InMemory)
	s := keyOf(c)
	s.send(c, begun, Request{Op: OpHold, N: 8, Hold: hour(1)})
	assert.False(t, s.ask(c, begun+1, OpTake, 3).Allowed)
	a, _ := s.send(c, begun+2, Request{Op: OpSettle, N: 2, Hold: hour(1)})
	assert.Equal(t, 5, a.Remaining)

	// What was taken before the hold counts again without it, although the log is full of later denials.
	s = keyOf(c)
	s.ask(c, begun, OpTake, 4)
	s.send(c, begun+1, Request{Op: OpHold, N: 5, Hold: hour(1)})
	s.ask(c, begun+2, OpTake, 2)
	s.ask(c, begun+3, OpTake, 4)
	a, _ = s.send(c, begun+4, Request{Op: OpSettle, Hold: hour(1)})
	assert.Zero(t, a.Remaining)
	assert.Equal(t, time.Duration(second-4), a.RetryAfter)

	// Nor does it make a difference if the hold has very many events.
	const most = math.MaxInt >> 5
	c = NewMachine(kernel.NewSlidingLog(most, second, true), kernel.InMemory)
	s = keyOf(c)
	s.ask(c, begun, OpTake, 4)
	s.send(c, begun+1, Request{Op: OpHold, N: most - 4, Hold: hour(1)})
	s.ask(c, begun+2, OpTake, most-20)
	s.ask(c, begun+3, OpTake, 10)
	a, _ = s.send(c, begun+4, Request{Op: OpSettle, Hold: hour(1)})
	assert.Equal(t, 20-4-10, a.Remaining)
}

// TestHolds_Valid: a state that is mangled is not one.
func TestHolds_Valid(t *testing.T) {
	for name, enc := range encodings {
		if !enc.Varies {
			continue
		}
		kernels := holdKernels(t, enc)
		kernels["warming"] = NewMachine(kernel.NewWarmingUp(10, time.Second, time.Second, 3, enc), enc)
		for kind, c := range kernels {
			s := keyOf(c)
			for id := range uint64(3) {
				a, _ := s.send(c, begun+id*second, Request{Op: OpHold, N: 2, Hold: Handle{ID: 2*id + 1, For: time.Hour + time.Duration(id)*time.Second}})
				require.True(t, a.Held, kind)
			}
			k, o := s.from, s.from.holdList()
			require.True(t, k.ValidIn(s.st), kind)
			for i := range s.st.Words {
				if c.Width() == 0 && i == o.begin(s.st.Words) {
					continue // nothing counts
				}
				assert.False(t, k.ValidIn(State{s.st.Words[:i], s.st.Form}), "%s %s: the first %d words of %d", name, kind, i, len(s.st.Words))
			}
			for _, bad := range []struct {
				word int
				to   uint64
			}{
				{openHolds, 0}, {openHolds, 2}, {openHolds, 4}, {openHolds, 1 << 63},
				{firstEnd, s.st.Words[firstEnd] + 1}, {lastEnd, s.st.Words[lastEnd] - 1}, {lastEnd, kernel.Forever},
				{holdsHeader + holdID, 0}, {holdsHeader + holdEnd, s.st.Words[lastEnd] + 1}, {holdsHeader + holdEnd, kernel.MaxInstant},
				{holdsHeader + holdEvents, kernel.Forever},
			} {
				st := s.st.Clone()
				st.Words[bad.word] = bad.to
				assert.False(t, k.ValidIn(st), "%s %s: %+v", name, kind, bad)
			}
			valid := 0
			for i := range s.st.Words { // whatever is Valid does no harm
				for _, to := range []uint64{0, 1, s.st.Words[i] + 1, 1 << 52, kernel.MaxInstant, 1 << 63, kernel.Forever} {
					st := s.st.Clone()
					if st.Words[i] = to; k.ValidIn(st) {
						valid++
						mangled := shared{from: k, st: st}
						for id := range uint64(3) {
							mangled.send(c, begun+3*second, Request{Op: OpSettle, Hold: hour(id + 1)})
							mangled.ask(c, begun+3*second, OpTake, 1)
						}
						if !strings.Contains(kind, "leaky") { // whose turns may end after MaxInstant
							assert.True(t, mangled.from.ValidIn(mangled.st), "%s %s: word %d is %d", name, kind, i, to)
						}
					}
				}
			}
			assert.Positive(t, valid, "%s %s", name, kind)
		}
	}
}

// TestHolds_EveryMethod: whoever asks the kernel of a state with open holds gets the answer of its inner state: a store
// that looks for a key to evict, or takes a state from bytes, does not know which one it has.
func TestHolds_EveryMethod(t *testing.T) {
	for name, enc := range encodings {
		for kind, c := range holdKernels(t, enc) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				key, now := keyOf(c), 1000*second/enc.Tick
				for id, n := range []int{2, 3, 2} {
					a, _ := key.send(c, now*enc.Tick, Request{Op: OpHold, N: n, Hold: hour(uint64(id) + 1)})
					require.True(t, a.Held)
					now += second / enc.Tick / 100
				}
				o, st := key.from, key.st
				k := o.holdList()
				inner := func() []uint64 { return slices.Clone(k.inner(st.Words)) }
				list := slices.Clone(st.Words[:k.begin(st.Words)])
				for n := range c.Limit() {
					assert.Equal(t, c.Ready(inner(), now, n+1), o.ReadyIn(st, now, n+1), n)
				}
				assert.Equal(t, c.Remaining(inner(), now), o.RemainingIn(st, now))
				assert.Equal(t, max(st.Words[lastEnd], c.Fresh(inner())), o.FreshIn(st))
				assert.True(t, o.ValidIn(st))

				packed := o.PackIn(st.Clone())
				assert.Equal(t, c.Pack(inner()), k.inner(packed.Words))
				assert.Equal(t, list, packed.Words[:len(list)])
				assert.True(t, o.ValidIn(packed))
			})
		}
	}
}

// TestHolds_Opened: a state with open holds decides by StepFrom and Grants as one without.
func TestHolds_Opened(t *testing.T) {
	for name, c := range holdKernels(t, kernel.InMemory.Varying()) {
		s := keyOf(c)
		s.send(c, begun, Request{Op: OpHold, N: 6, Hold: Handle{ID: 1, For: time.Second / 2, Back: true}})
		k := s.from
		assert.Same(t, c, k)
		assert.GreaterOrEqual(t, k.FreshIn(s.st), (begun+second/2)/c.Tick, name)
		for _, now := range []kernel.Instant{begun, begun + second/2} {
			clk := &Reading{Now: now, Own: true}
			free := c.Limit() - 6
			if now > begun {
				free = c.Limit()
			}
			for _, n := range []int{free, free + 1} {
				req := Request{Op: OpTake, N: n, Fixed: clk}
				granted := n == free
				assert.Equal(t, granted, k.Grants(s.st, &req), name)
				var a Answer
				by, st, changed := c.StepFrom(k, s.st.Clone(), &req, &a)
				assert.Equal(t, granted, a.Allowed, name)
				assert.Equal(t, granted || now > begun, changed, name)
				assert.True(t, by.ValidIn(st), name)
				req.Refused, req.Notes = true, true
				by, st, _ = c.StepFrom(k, s.st.Clone(), &req, &a)
				assert.Equal(t, granted, a.Allowed, name)
				assert.Equal(t, now > begun, st.IsPlain(), name)
				assert.True(t, by.ValidIn(st), name)
			}
		}
	}
}

// TestHolds_Allocs: once a state has grown, no request on it allocates.
func TestHolds_Allocs(t *testing.T) {
	budget.Alone(t) // the race detector allocates
	if testing.CoverMode() != "" {
		t.Skip("coverage changes what is inlined")
	}
	for name, c := range holdKernels(t, kernel.InMemory) {
		s := keyOf(c)
		s.send(c, begun, Request{Op: OpHold, N: 1, Hold: hour(1)})
		s.st.Words = slices.Grow(s.st.Words, 100)
		var a Answer
		at := &Reading{Now: begun + 1, Own: true}
		reqs := []Request{
			{Op: OpHold, N: 1, Hold: hour(2), Fixed: at}, {Op: OpTake, N: 0, Fixed: at}, {Op: OpExtend, Hold: hour(2), Fixed: at},
			{Op: OpTake, N: 100, Fixed: at}, {Op: OpSettle, N: 0, Hold: hour(2), Fixed: at},
		}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			for i := range reqs {
				s.from, s.st, _ = c.StepFrom(s.from, s.st, &reqs[i], &a)
			}
		}), name)
	}
}

// TestHolds_Throughput: callers that always wait, and each hold more than they use, are granted what they
// use: as often as the limit allows with those that are open at full.
func TestHolds_Throughput(t *testing.T) {
	const held, used = 1000, 250
	bucket := func(k kernel.Kernel, err error) kernel.Kernel {
		require.NoError(t, err)
		return k
	}
	minute := 60 * second
	for name, tt := range map[string]struct {
		kernel.Kernel
		want [3]int // events in ten minutes, if a stream lasts 0.5, 5 or 20 seconds
	}{
		"token":    {bucket(kernel.NewTokenBucket(10_000, time.Minute, time.Minute, 10_000, kernel.InMemory, "")), [3]int{100_000, 100_000, 97_500}},
		"leaky":    {bucket(kernel.NewLeakyBucket(10_000, time.Minute, time.Minute, 10_000, kernel.InMemory, "")), [3]int{100_000, 100_000, 97_500}},
		"interval": {kernel.NewIntervalBucket(10_000, 1000, minute/10), [3]int{100_000, 100_000, 92_500}},
		"fixed":    {kernel.NewFixedWindow(10_000, minute, true, kernel.InMemory), [3]int{92_500, 92_500, 55_000}},
		"sliding":  {kernel.NewSlidingWindow(10_000, 1, minute, kernel.InMemory.Varying()), [3]int{90_000, 75_000, 45_000}},
		"log":      {kernel.NewSlidingLog(10_000, minute, false), [3]int{92_500, 77_750, 47_500}},
		"rolling":  {kernel.NewRollingWindow(10_000, 0, 60, second), [3]int{92_500, 77_750, 47_500}},
	} {
		c := NewMachine(tt.Kernel, kernel.InMemory)
		for i, lasts := range []kernel.Instant{second / 2, 5 * second, 20 * second} {
			const first, minutes = 2, 10
			s, id, granted := keyOf(c), uint64(0), 0
			var open []kernel.Instant
			for now := begun; now < begun+(first+minutes)*minute; {
				for len(open) > 0 && open[0] <= now {
					a, _ := s.send(c, now, Request{Op: OpSettle, N: used, Hold: hour(id - uint64(len(open)) + 1)})
					require.True(t, a.Held)
					open = open[1:]
				}
				a, _ := s.send(c, now, Request{Op: OpHold, N: held, Hold: hour(id + 1)})
				if a.Allowed {
					id++
					open = append(open, now+lasts)
					if now >= begun+first*minute {
						granted += used
					}
					continue
				}
				now += uint64(a.RetryAfter)
				if len(open) > 0 {
					now = min(now, open[0])
				}
			}
			assert.Equal(t, tt.want[i], granted, "%s: streams of %d ms", name, lasts/ms)
		}
	}
}
