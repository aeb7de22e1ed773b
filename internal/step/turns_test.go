package step

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// turnOf is a reservation that ends at its turn, with an ID that is even.
func turnOf(n uint64) Handle { return Handle{ID: 2 * n} }

// queue reserves events for later, with the numbers from 1 on, and returns the waits.
func (s *shared) queue(t *testing.T, c *Machine, now kernel.Instant, events ...int) (waits []time.Duration) {
	t.Helper()
	for i, n := range events {
		a, changed := s.send(c, now, Request{Op: OpReserve, N: n, MaxWait: kernel.Never - 1, Hold: turnOf(uint64(i) + 1)})
		require.True(t, a.Held && changed)
		require.True(t, s.st.HasTurns() && s.from.ValidIn(s.st))
		waits = append(waits, a.Wait)
	}
	return waits
}

// TestContradicts: a state is one that its turns lead to, until one of its parts is damaged.
func TestContradicts(t *testing.T) {
	for name, enc := range encodings {
		for kind, c := range holdKernels(t, enc) {
			if strings.Contains(kind, "inflight") || kind == "leaky" || c.Word() != nil {
				continue // as in TestAhead_Cancel
			}
			s := &shared{from: c, st: PlainState(c.NewState())}
			assert.False(t, c.Contradicts(s.st), "%s %s: there are no turns", name, kind)
			s.send(c, begun, Request{Op: OpTake, N: c.Limit()})
			s.queue(t, c, begun, 1, 1)
			require.False(t, s.from.Contradicts(s.st), "%s %s", name, kind)
			s.st.Words[aheadHeader+turnWords+turnEvents] = 0
			require.True(t, s.from.ValidIn(s.st))
			assert.True(t, s.from.Contradicts(s.st), "%s %s: the second turn has no events", name, kind)
		}
	}
}

// TestAhead_Cancel: whatever is cancelled first, nothing comes before the turns that stay. Once all
// are cancelled, the key is as if none had been reserved.
func TestAhead_Cancel(t *testing.T) {
	for name, enc := range encodings {
		for kind, c := range holdKernels(t, enc) {
			if strings.Contains(kind, "inflight") || kind == "leaky" {
				continue // reservations are holds, or queued at once
			}
			if c.Word() != nil {
				continue // stores leave the words when a turn is ahead
			}
			for seed := range budget.Seeds(t, 20) {
				rng := rand.New(rand.NewPCG(seed, 0))
				s := keyOf(c)
				s.ask(c, begun, OpTake, c.Limit())
				fresh := &shared{from: s.from, st: s.st.Clone()}
				events := []int{1 + rng.IntN(3), 1 + rng.IntN(3), 1 + rng.IntN(3), 1 + rng.IntN(3)}
				waits := s.queue(t, c, begun, events...)
				for left := len(events); left > 0; left-- {
					var stay []int
					for i := range events {
						if waits[i] > 0 {
							stay = append(stay, i)
						}
					}
					i := stay[rng.IntN(len(stay))]
					a, changed := s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(uint64(i) + 1)})
					require.True(t, a.Held && changed, "%s %s", name, kind)
					waits[i] = 0
					if last := slices.Max(waits); last > 0 {
						require.GreaterOrEqual(t, a.RetryAfter, last, "%s %s: nothing comes before the turns that stay", name, kind)
					}
				}
				a, _ := s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(1)})
				assert.False(t, a.Held, "once")
				assert.Equal(t, fresh.from, s.from, "%s %s", name, kind)
				assert.Equal(t, fresh.ask(c, begun+1000, OpPeek, 1), s.ask(c, begun+1000, OpPeek, 1), "%s %s", name, kind)
			}
		}
	}
}

// TestAhead_Drifts: a turn is not left out as long as a later one would then come before its time.
func TestAhead_Drifts(t *testing.T) {
	bucket, err := kernel.NewTokenBucket(1, 4*time.Second, time.Second, 3, kernel.InMemory, "")
	require.NoError(t, err)
	c := NewMachine(NewAll([]kernel.Kernel{bucket, kernel.NewFixedWindow(3, 10*second, false, kernel.InMemory)}, kernel.InMemory), kernel.InMemory)
	s := keyOf(c)
	s.ask(c, begun, OpTake, 3)
	require.Equal(t, []time.Duration{10 * time.Second, 12 * time.Second, 20 * time.Second}, s.queue(t, c, begun, 1, 2, 2))
	for _, tt := range []struct{ cancel, left uint64 }{{1, 3}, {3, 1}, {2, 0}} { // without the first, a window from 12 s on has four events
		a, _ := s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(tt.cancel)})
		require.True(t, a.Held)
		a, _ = s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(tt.cancel)})
		require.False(t, a.Held, "once")
		require.True(t, s.from.ValidIn(s.st))
		if tt.left > 0 {
			require.Equal(t, tt.left, s.st.Words[aheadTurns])
		}
	}
	assert.Equal(t, c, s.from)
}

// TestAhead_Settle: a turn that is settled for fewer events leaves the key as if these had been reserved, and one that is
// settled for more charges the rest now.
func TestAhead_Settle(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	for happened := range 8 {
		s := keyOf(c)
		s.ask(c, begun, OpTake, 6)
		s.queue(t, c, begun, 5, 2)
		a, _ := s.send(c, begun, Request{Op: OpSettle, N: happened, Hold: turnOf(1)})
		require.True(t, a.Held && !a.Allowed)
		a, changed := s.send(c, begun, Request{Op: OpSettle, N: 5, Of: 5, Hold: turnOf(1)})
		require.False(t, a.Held || changed, "once")
		assert.Equal(t, 10-min(happened, 5)-2, s.ask(c, begun+second, OpPeek, 1).Remaining)
		a, _ = s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(2)})
		require.True(t, a.Held)
		if happened == 0 {
			assert.Equal(t, 4, a.Remaining)
		}
		s.send(c, begun, Request{Op: OpReserve, N: 10, MaxWait: kernel.Never - 1, Hold: turnOf(3)})
		a, _ = s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(3)})
		assert.Equal(t, 10-min(happened, 5), s.ask(c, begun+second, OpPeek, 1).Remaining)
	}
}

// TestAhead_Charge: what happens meanwhile counts now, and the turns stay.
func TestAhead_Charge(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	s := keyOf(c)
	s.ask(c, begun, OpTake, 5)
	s.queue(t, c, begun, 8)
	a := s.ask(c, begun, OpCharge, 3)
	assert.Equal(t, time.Second, a.RetryAfter)
	s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(1)})
	assert.Equal(t, 2, s.ask(c, begun, OpPeek, 1).Remaining)
	s.queue(t, c, begun, 8)
	assert.Equal(t, 2, s.ask(c, begun+second, OpPeek, 1).Remaining)

	held := keyOf(c)
	held.send(c, begun, Request{Op: OpHold, N: 9, Hold: hour(1)})
	held.queue(t, c, begun, 8)
	a, _ = held.send(c, begun, Request{Op: OpReserve, N: 1, MaxWait: kernel.Never - 1, Hold: turnOf(9), Yields: true})
	assert.False(t, a.Allowed, "a hold is open")
	assert.Equal(t, time.Hour, a.Ends)
	a, _ = held.send(c, begun, Request{Op: OpSettle, N: 4, Hold: hour(1)})
	assert.True(t, a.Held && !a.Allowed)
	held.send(c, begun, Request{Op: OpSettle, Hold: turnOf(1)})
	assert.Equal(t, 6, held.ask(c, begun, OpPeek, 1).Remaining)
	assert.True(t, held.st.IsPlain())
}

// TestAhead_NoRoomBesideTurns: events that leave too little room for the turns ahead are not
// charged, and the answer says how many would be. A bucket owes what it can pay before the last
// instant.
func TestAhead_NoRoomBesideTurns(t *testing.T) {
	const (
		now  = kernel.MaxInstant - 10*second // there are ten refills, and room for 30 events
		room = 12                            // which leaves two at the second turn
	)
	c := NewMachine(kernel.NewIntervalBucket(10, 3, second), kernel.InMemory)
	for name, req := range map[string]Request{
		"charged":                {Op: OpCharge, N: room},
		"beyond a hold":          {Op: OpSettle, N: 2 + room, Hold: hour(1)},
		"beyond one that ended":  {Op: OpSettle, N: 2 + room, Of: 2, Hold: hour(2)},
		"beyond the second turn": {Op: OpSettle, N: 2 + room, Hold: turnOf(2)},
		"beyond the first turn":  {Op: OpSettle, N: 6 + room, Hold: turnOf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := keyOf(c)
			s.send(c, now, Request{Op: OpHold, N: 2, Hold: hour(1)})
			s.ask(c, now, OpTake, 8)
			waits := s.queue(t, c, now, 6, 2)
			require.Equal(t, []time.Duration{2 * time.Second, 3 * time.Second}, waits)
			before := s.st.Clone()
			for _, more := range []int{1, 8, 9} { // without the turns, there is room for 8
				tooMany := req
				tooMany.N += more
				a, changed := s.send(c, now, tooMany)
				require.True(t, a.Excess && !changed)
				assert.Equal(t, uint64(room), a.Most)
				assert.Equal(t, before, s.st)
			}
			a, changed := s.send(c, now, req)
			require.True(t, changed && !a.Excess)
			assert.Equal(t, 7*time.Second, a.RetryAfter, "all events of the turns count")
		})
	}
}

// TestAhead_ChargeOfEverything: of a charge of more than any state can count, the answer says how many events fit, besides the turns
// ahead. So many are charged, and no more.
func TestAhead_ChargeOfEverything(t *testing.T) {
	for name, c := range each(t) {
		s := keyOf(c)
		s.ask(c, begun, OpTake, c.Limit())
		if a, _ := s.send(c, begun, Request{Op: OpReserve, N: 1, MaxWait: 1000 * time.Hour, Hold: turnOf(1)}); !a.Held {
			continue // as a queue that is full
		}
		a, changed := s.send(c, begun, Request{Op: OpCharge, N: math.MaxInt})
		if !a.Excess {
			require.Equal(t, 32, strconv.IntSize, name) // where some states count as many
			continue
		}
		require.False(t, changed, name)
		more, _ := s.send(c, begun, Request{Op: OpCharge, N: int(a.Most) + 1})
		require.True(t, more.Excess, name)
		require.Equal(t, a.Most, more.Most, name)
		all, changed := s.send(c, begun, Request{Op: OpCharge, N: int(a.Most)})
		require.True(t, changed && !all.Excess, name)
	}
}

// changing returns pairs of limits that a key may have one after the other: rivals, and some that differ in how much they grant.
func changing(t *testing.T) map[string][2]*Machine {
	enc := kernel.InMemory.Varying()
	flight := func(limit int, timeout uint64) *Machine { return NewMachine(kernel.NewInFlight(limit, timeout), enc) }
	log := func(limit int, window uint64) *Machine {
		return NewMachine(kernel.NewSlidingLog(limit, window, false), enc)
	}
	limits := rivals(t)
	limits["in flight: more"] = [2]*Machine{flight(2, second), flight(3, second)}
	limits["in flight: fewer"] = [2]*Machine{flight(3, second), flight(1, second)}
	limits["in flight: timeout"] = [2]*Machine{flight(3, second), flight(3, 3*second)}
	limits["log: more"] = [2]*Machine{log(2, second), log(3, second)}
	limits["log: fewer"] = [2]*Machine{log(3, second), log(1, second)}
	return limits
}

// TestAhead_AnotherLimit: when a key gets another limit, its turns stay ahead: nothing is granted before the last one, and once all
// are cancelled, in any order, the key is as if nothing had been reserved.
func TestAhead_AnotherLimit(t *testing.T) {
	for name, limits := range changing(t) {
		if strings.Contains(name, "leaky") {
			continue // what it grants is queued at once
		}
		t.Run(name, func(t *testing.T) {
			for seed := range budget.Seeds(t, 100) {
				rng := rand.New(rand.NewPCG(seed, 0))
				s, other := keyOf(limits[0]), keyOf(limits[0])
				now := begun
				for range 1 + rng.IntN(6) { // used up by the first limit in the end, so that a turn is ahead
					c := limits[rng.IntN(2)]
					now += uint64(rng.IntN(300)) * ms
					n := 1 + rng.IntN(c.Limit())
					require.Equal(t, other.ask(c, now, OpTake, n), s.ask(c, now, OpTake, n))
				}
				for _, key := range []*shared{s, other} {
					for key.ask(limits[0], now, OpTake, 1).Allowed {
					}
				}
				var open []Handle
				last := time.Duration(0)
				for i := range 1 + rng.IntN(4) {
					c := limits[0]
					if i > 0 {
						c = limits[rng.IntN(2)]
					}
					hold := turnOf(uint64(i) + 1)
					if rng.IntN(2) == 0 {
						hold = hour(2*uint64(i) + 1)
					}
					a, _ := s.send(c, now, Request{Op: OpReserve, N: 1 + rng.IntN(c.Limit()), MaxWait: kernel.Never - 1, Hold: hold})
					require.True(t, a.Allowed && a.Held && s.st.HasTurns() && s.from.ValidIn(s.st), "seed %d", seed)
					open, last = append(open, hold), max(last, a.Wait)
				}
				for range 1 + rng.IntN(4) {
					c := limits[rng.IntN(2)]
					op, n := OpTake, 0
					if rng.IntN(2) == 0 {
						op = OpPeek
					}
					other.ask(c, now, op, n)
					s.ask(c, now, op, n)
					denied := s.ask(c, now, OpPeek, 1)
					require.False(t, denied.Allowed, "seed %d", seed)
					require.GreaterOrEqual(t, denied.RetryAfter, last, "seed %d", seed)
					require.True(t, s.st.HasTurns() && s.from.ValidIn(s.st), "seed %d", seed)
				}
				rng.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
				for _, hold := range open {
					a, _ := s.send(limits[rng.IntN(2)], now, Request{Op: OpSettle, Hold: hold})
					require.True(t, a.Held, "seed %d", seed)
				}
				require.False(t, s.st.HasTurns(), "seed %d", seed)
				for _, c := range limits { // what is adopted later may be another state
					require.Equal(t, other.ask(c, now, OpPeek, 1).Decision, s.ask(c, now, OpPeek, 1).Decision, "seed %d", seed)
				}
				if !limits[0].ReadsStatesOf(limits[1]) {
					continue
				}
				for range 20 {
					c := limits[rng.IntN(2)]
					n := 1 + rng.IntN(c.Limit())
					require.Equal(t, other.ask(c, now, OpTake, n).Decision, s.ask(c, now, OpTake, n).Decision, "seed %d", seed)
					now += uint64(rng.IntN(200)) * ms
				}
			}
		})
	}
}

// TestAhead_CountInBoth: the events of a turn count in full for the limit that has reserved it, and
// leave another bucket no deeper in debt than it may be, whichever is asked when the turn comes.
func TestAhead_CountInBoth(t *testing.T) {
	limits := rivals(t)["bucket: burst and rate"] // the first grants 100 a second, and the second 1
	for asked, c := range limits {
		s := keyOf(limits[0])
		s.ask(limits[0], begun, OpTake, 1)
		for i := range uint64(50) {
			a, _ := s.send(limits[0], begun, Request{Op: OpReserve, N: 1, MaxWait: kernel.Never - 1, Hold: turnOf(i + 1)})
			require.True(t, a.Held)
		}
		s.ask(limits[1], begun, OpTake, 0)
		s.ask(c, begun+second, OpTake, 0) // all turns have come
		require.False(t, s.st.HasTurns())
		assert.Equal(t, 1, s.ask(limits[0], begun+second, OpPeek, 1).Remaining, "asked for %d", asked)
		assert.Equal(t, 100-51+1, s.ask(limits[1], begun+second, OpPeek, 1).Remaining, "asked for %d", asked)
	}
}

// TestAhead_BoundedInTheOther: a bucket that another limit's turns are counted in owes no more than twice what it grants at once,
// also of a turn that is a hold, which then gives back nothing there.
func TestAhead_BoundedInTheOther(t *testing.T) {
	limits := rivals(t)["bucket: burst and rate"] // the first grants 1 at once, and the second 100
	small := NewMachine(limits[0].Kernel, limits[0].Encoding)
	large, now := limits[1], begun
	s := keyOf(small)
	s.ask(small, now, OpTake, 1)
	s.ask(large, now+10*ms, OpTake, large.Limit()-1)
	a, _ := s.send(large, now+10*ms, Request{Op: OpReserve, N: 50, MaxWait: kernel.Never - 1, Hold: hour(1)})
	require.True(t, a.Held && s.st.HasTurns())
	s.ask(small, now+10*ms, OpTake, 0) // which does not make the turn its own
	now += uint64(a.Wait) + 10*ms
	a = s.ask(small, now, OpPeek, 1)
	require.False(t, a.Allowed)
	assert.LessOrEqual(t, a.RetryAfter, 20*time.Millisecond)
	before := s.ask(small, now, OpPeek, 1)
	s.send(small, now, Request{Op: OpSettle, Hold: hour(1)})
	assert.Equal(t, before.RetryAfter, s.ask(small, now, OpPeek, 1).RetryAfter)
}

// TestAhead_ThirdLimit: a third limit takes the place of one that has reserved a turn. The turn stays.
func TestAhead_ThirdLimit(t *testing.T) {
	window := func(length uint64) *Machine {
		enc := kernel.InMemory.Varying()
		return NewMachine(kernel.NewFixedWindow(10, length*second, true, enc), enc)
	}
	limits := []*Machine{window(1), window(2), window(4)}
	s := keyOf(limits[0])
	s.ask(limits[0], begun, OpTake, 10)
	s.ask(limits[1], begun+second, OpTake, 0)
	a, _ := s.send(limits[1], begun, Request{Op: OpReserve, N: 3, MaxWait: kernel.Never - 1, Hold: turnOf(1)})
	require.True(t, a.Held && a.Wait > 0)
	require.EqualValues(t, 1, s.st.Words[aheadHeader+turnAt]/bySecond)
	a = s.ask(limits[2], begun, OpTake, 1)
	require.False(t, a.Allowed)
	require.True(t, s.st.HasTurns() && s.from.ValidIn(s.st))
	assert.Zero(t, s.st.Words[aheadHeader+turnAt]/bySecond, "of the limit that has stayed")
	at := begun + 8*second
	assert.Equal(t, 10, s.ask(limits[2], at, OpPeek, 1).Remaining)
	a, _ = s.send(limits[2], begun, Request{Op: OpSettle, Hold: turnOf(1)})
	assert.True(t, a.Held)
	assert.False(t, s.st.HasTurns())
}

// TestAhead_Late: a turn stays when another limit is asked long after all that was spent before it has been forgotten, and
// either limit grants nothing before it.
func TestAhead_Late(t *testing.T) {
	limits := rivals(t)["bucket: rate"]
	for _, both := range []bool{false, true} { // whether the key has two limits already
		s := keyOf(limits[0])
		if both {
			s.ask(limits[1], begun, OpTake, 1)
			s.ask(limits[0], begun, OpTake, 1)
		}
		for s.ask(limits[0], begun, OpTake, 1).Allowed {
		}
		waits := s.queue(t, limits[0], begun, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10)
		for i := range uint64(9) {
			s.send(limits[0], begun, Request{Op: OpSettle, Hold: turnOf(i + 1)})
		}
		last := begun + uint64(waits[9])
		for _, now := range []kernel.Instant{last - second, last - 1} {
			for _, c := range limits {
				a := s.ask(c, now, OpTake, 1)
				require.False(t, a.Allowed)
				require.GreaterOrEqual(t, uint64(a.RetryAfter), last-now)
				require.True(t, s.st.HasTurns() && s.from.ValidIn(s.st))
				require.True(t, s.from.two != nil || c == limits[0], "both limits stay")
			}
		}
		a, _ := s.send(limits[1], last-1, Request{Op: OpSettle, Hold: turnOf(10)})
		require.True(t, a.Held)
	}
}

// TestAhead_Many: of too many turns, the oldest can no longer be cancelled, whatever its hold: its events count. Those of an
// InFlight all can.
func TestAhead_Many(t *testing.T) {
	enc := kernel.InMemory.Varying()
	for _, tt := range []struct {
		kernel    kernel.Kernel
		canCancel bool
	}{{kernel.NewSlidingLog(2, second, false), false}, {kernel.NewInFlight(2, second), true}} {
		c := NewMachine(tt.kernel, enc)
		s := keyOf(c)
		s.ask(c, begun, OpTake, 2)
		ended := 0
		for i := range uint64(MostHolds + 1) {
			hold := Handle{ID: 2*i + 1, For: time.Second, Back: i%2 == 0}
			a, _ := s.send(c, begun+second/2, Request{Op: OpReserve, N: 1, MaxWait: kernel.Never - 1, Hold: hold})
			require.True(t, a.Held)
			ended += a.Ended
		}
		require.True(t, s.st.HasTurns() && s.from.ValidIn(s.st))
		for i := range uint64(2) {
			a, _ := s.send(c, begun+second/2, Request{Op: OpSettle, Hold: Handle{ID: 2*i + 1}})
			assert.Equal(t, tt.canCancel || i > 0, a.Held)
		}
		assert.Equal(t, tt.canCancel, ended == 0)
	}
}

// TestAhead_TwoLimits: while a key has two limits, reservations of the present one can be cancelled.
func TestAhead_TwoLimits(t *testing.T) {
	for name, limits := range rivals(t) {
		if strings.Contains(name, "leaky") {
			continue // what it grants is queued at once
		}
		c, other := limits[0], limits[1]
		s := keyOf(c)
		s.ask(c, begun, OpTake, 1)
		s.ask(other, begun+1, OpCharge, other.Limit())
		fresh := &shared{from: s.from, st: s.st.Clone()}
		s.queue(t, other, begun+1, 1, 1)
		for _, n := range []uint64{1, 2} {
			a, _ := s.send(other, begun+1, Request{Op: OpSettle, Hold: turnOf(n)})
			require.True(t, a.Held, name)
		}
		assert.False(t, s.st.HasTurns(), name)
		assert.Equal(t, fresh.ask(other, begun+2, OpPeek, 1), s.ask(other, begun+2, OpPeek, 1), name)
		assert.Equal(t, fresh.ask(c, begun+2, OpPeek, 1), s.ask(c, begun+2, OpPeek, 1), name)
	}
}

// TestAhead_Valid: a state that is mangled is not one, or does no harm.
func TestAhead_Valid(t *testing.T) {
	for name, enc := range encodings {
		if !enc.Varies {
			continue
		}
		for kind, c := range holdKernels(t, enc) {
			if kind == "leaky" {
				continue
			}
			for _, open := range []bool{false, true} {
				s := keyOf(c)
				if open {
					s.send(c, begun, Request{Op: OpHold, N: 2, Hold: hour(1)})
				}
				s.ask(c, begun, OpTake, c.Limit()-2)
				s.send(c, begun, Request{Op: OpReserve, N: 3, MaxWait: kernel.Never - 1, Hold: turnOf(1)})
				if !s.st.HasTurns() {
					continue // the part that is full is a queue
				}
				s.send(c, begun, Request{Op: OpReserve, N: 1, MaxWait: kernel.Never - 1, Hold: hour(2)})
				k := s.from
				require.True(t, k.ValidIn(s.st), "%s %s", name, kind)
				for i := range aheadHeader + turnWords {
					assert.False(t, k.ValidIn(State{s.st.Words[:i], s.st.Form}), "%s %s: the first %d words", name, kind, i)
				}
				valid := 0
				for i := range s.st.Words {
					for _, to := range []uint64{0, 1, 2, s.st.Words[i] + 1, 1 << 52, kernel.MaxInstant, 1 << 63, kernel.Forever} {
						st := s.st.Clone()
						if st.Words[i] = to; !k.ValidIn(st) {
							continue
						}
						valid++
						mangled := shared{from: k, st: st}
						for _, id := range []Handle{turnOf(1), hour(1), hour(2)} {
							mangled.send(c, begun+second, Request{Op: OpSettle, Hold: id})
							mangled.ask(c, begun+2*second, OpTake, 1)
						}
						if !strings.Contains(kind, "leaky") {
							assert.True(t, mangled.from.ValidIn(mangled.st), "%s %s: word %d is %d", name, kind, i, to)
						}
					}
				}
				assert.Positive(t, valid, "%s %s", name, kind)
			}
		}
	}
}

// TestAhead_EveryMethod: a store that looks for a key to evict asks the kernel of whatever state it has.
func TestAhead_EveryMethod(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	s := keyOf(c)
	s.ask(c, begun, OpTake, 6)
	s.queue(t, c, begun, 5, 3)
	k := s.from
	assert.Same(t, c, k)
	assert.Zero(t, k.RemainingIn(s.st, begun))
	assert.Equal(t, begun+second, k.ReadyIn(s.st, begun, 2))
	assert.Equal(t, begun+2*second, k.ReadyIn(s.st, begun, 3))
	assert.Equal(t, begun+2*second, k.FreshIn(s.st))
	assert.Equal(t, s.st, k.PackIn(s.st.Clone()))
	for n, granted := range []bool{true, false} {
		assert.Equal(t, granted, k.Grants(s.st, &Request{Op: OpTake, N: n, Fixed: &Reading{Now: begun}}))
	}
	// One that meets the state when its turns have come finds none.
	by, st, _ := c.Reconcile(k, s.st, begun+second)
	assert.Equal(t, c, by)
	assert.True(t, st.IsPlain())
	assert.Equal(t, 2, by.RemainingIn(st, begun+second))
	by, st, _ = c.Reconcile(k, s.st, begun)
	assert.True(t, by == k && st.HasTurns())
	other := NewMachine(kernel.NewFixedWindow(20, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	by, st, _ = other.Reconcile(k, s.st, begun)
	assert.True(t, by == other && st.HasTurns())
	assert.Equal(t, begun+second, by.ReadyIn(st, begun, 1))
}

// TestAhead_NothingToSettle: what is not there is settled and extended without spending the turns again.
func TestAhead_NothingToSettle(t *testing.T) {
	bucket := func(n int) *Machine {
		k, err := kernel.NewTokenBucket(n, time.Second, time.Second, 5, kernel.InMemory.Varying(), "")
		require.NoError(t, err)
		return NewMachine(k, kernel.InMemory.Varying())
	}
	c, s := bucket(1000), keyOf(bucket(900))
	s.ask(s.from, begun, OpTake, 1)
	s.ask(c, begun, OpTake, 4)
	for i := range 100 {
		s.send(c, begun, Request{Op: OpReserve, N: 1, MaxWait: kernel.Never - 1, Hold: turnOf(uint64(i) + 1)})
	}
	for _, op := range []Op{OpSettle, OpExtend} {
		var a Answer
		assert.Less(t, testing.AllocsPerRun(10, func() {
			req := Request{Op: op, Of: 1, Hold: turnOf(1 << 20), Fixed: &Reading{Now: begun}}
			_, _, changed := c.StepFrom(s.from, s.st, &req, &a)
			require.False(t, changed || a.Held)
		}), 10.0)
	}
}

// TestAhead_Extend: a hold cannot end before its turn, whatever the clock of the process that extends it shows.
func TestAhead_Extend(t *testing.T) {
	c := NewMachine(kernel.NewFixedWindow(10, second, true, kernel.InMemory.Varying()), kernel.InMemory.Varying())
	s := keyOf(c)
	s.ask(c, begun, OpTake, 10)
	s.send(c, begun, Request{Op: OpReserve, N: 4, MaxWait: kernel.Never - 1, Hold: hour(1)})
	a, _ := s.send(c, begun, Request{Op: OpExtend, Hold: Handle{ID: 1, For: time.Millisecond}})
	assert.True(t, a.Held)
	assert.True(t, s.from.ValidIn(s.st))
	assert.Equal(t, 6, s.ask(c, begun+second, OpTake, 0).Remaining)
	assert.True(t, s.st.IsPlain())
}

// TestAhead_HoldsDrift: a hold that began a window gives nothing back if a turn in it would then begin a later one, which
// would have more events than the limit.
func TestAhead_HoldsDrift(t *testing.T) {
	bucket, err := kernel.NewTokenBucket(1, 4*time.Second, time.Second, 3, kernel.InMemory, "")
	require.NoError(t, err)
	c := NewMachine(NewAll([]kernel.Kernel{bucket, kernel.NewFixedWindow(3, 10*second, false, kernel.InMemory)}, kernel.InMemory), kernel.InMemory)
	for _, back := range []bool{false, true} {
		s := keyOf(c)
		s.ask(c, begun, OpTake, 3)
		now := begun + 11*second
		a, _ := s.send(c, now, Request{Op: OpHold, N: 1, Hold: Handle{ID: 1, For: time.Second / 2, Back: back}})
		require.True(t, a.Held)
		require.Equal(t, []time.Duration{time.Second, 10 * time.Second}, s.queue(t, c, now, 2, 2))
		if back {
			s.ask(c, now+second/2, OpCharge, 0)
			a = s.ask(c, now+second/2, OpTake, 1)
			assert.False(t, a.Allowed)
		} else {
			s.send(c, now, Request{Op: OpSettle, Of: 1, Hold: Handle{ID: 1}})
		}
		var h heldState
		h.read(s.from, s.st)
		window := c.partStates(h.after)[1]
		assert.Equal(t, []uint64{now + 10*second, 2}, window, "it begins with the second turn, and the first is of the window before")
	}
}

// TestAhead_ManyVoid: to cancel one of many turns takes time in proportion to their number, also if they drift.
func TestAhead_ManyVoid(t *testing.T) {
	c := NewMachine(kernel.NewWarmingUp(10, time.Second, time.Second, 3, kernel.InMemory), kernel.InMemory)
	s := keyOf(c)
	s.ask(c, begun, OpTake, c.Limit())
	const many = 1000
	s.queue(t, c, begun, slices.Repeat([]int{1}, many)...)
	for n := range uint64(many) {
		a, _ := s.send(c, begun, Request{Op: OpSettle, Hold: turnOf(n + 1)})
		require.True(t, a.Held)
	}
	assert.Equal(t, c, s.from)
}
