package kernel

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/race"
)

// pairs returns a SlidingWindow of one segment in one word and in two.
func pairs(t testing.TB, limit int, length uint64) (one *pair, two *Compiled) {
	t.Helper()
	k := NewSlidingWindow(limit, 1, length, InMemory)
	require.IsType(t, &pair{}, k)
	return k.(*pair), Compile(NewSlidingWindow(limit, 1, length, InMemory.Varying()), InMemory)
}

// TestPairIsRing compares the answers of a state in one word with those of the same state
// in two, when several limiters make reservations and cancel them.
func TestPairIsRing(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	seen, ahead := 0, 0
	for range race.Few(20_000) {
		length := 1<<12 + random.Uint64N(50)
		p, two := pairs(t, 1+random.IntN(9), length)
		one := Compile(p, InMemory)
		step := 1 + random.Uint64N(length) // of the clock
		st1, st2, now := one.NewState(), two.NewState(), begun
		lines := [2][2]Line{} // of two limiters, in one word and in two
		waiters := [2][2][]*Waiter{}
		alone := random.IntN(2) == 0
		for range 4 + random.IntN(40) {
			now += random.Uint64N(step) * random.Uint64N(2)
			who := random.IntN(2)
			if alone {
				who = 0
			}
			req := Request{Op: OpTake, N: 1 + random.IntN(min(3, one.Limit()))}
			switch op := random.IntN(10); {
			case op < 4:
				req.Op = OpReserve
			case op < 5:
				req.Op, req.Taken = OpReturn, now-random.Uint64N(length)
			case op < 8:
				var cancel [2]*Cancellation
				picked := random.Uint64()
				for i := range 2 {
					var asked, rest []*Waiter
					for j, w := range waiters[who][i] {
						if picked>>(j%64)&1 == 1 {
							asked = append(asked, w)
						} else {
							rest = append(rest, w)
						}
					}
					waiters[who][i] = rest
					if cancel[i] = lines[who][i].Cancel(asked, now); cancel[i] != nil {
						cancel[i].Local = alone
					}
				}
				require.Equal(t, cancel[0] == nil, cancel[1] == nil)
				if cancel[0] == nil {
					continue
				}
				var a1, a2 Answer
				st1, _, a1 = do(one, st1, now, Request{Op: OpCancel, Grant: cancel[0]})
				st2, _, a2 = do(two, st2, now, Request{Op: OpCancel, Grant: cancel[1]})
				for i, a := range []*Answer{&a1, &a2} {
					lines[who][i].Release()
					lines[who][i].Settle(cancel[i], a.Grant.(*Undone))
					a.Grant = nil
				}
				require.Equal(t, a2, a1)
				if st1[0] >= marked {
					seen++
				}
				if one.frontier(st1) > now {
					ahead++
				}
				continue
			}
			var a1, a2 Answer
			var told Answer
			var taking Taking
			switch random.IntN(12) {
			case 4:
				req.Op = OpCharge
			case 5:
				req.Op = OpTakeUpTo
			}
			if req.Op == OpTake {
				taking.Take(p, st1[0], now, req.N)
				one.Tell(&taking, st1[0], &Reading{Now: now}, &told)
			}
			st1, _, a1 = do(one, st1, now, req)
			if a1.Excess {
				continue // two words hold more
			}
			st2, _, a2 = do(two, st2, now, req)
			if req.Op == OpTake {
				require.Equal(t, a1, told)
				require.Equal(t, st1[0], taking.Next)
			}
			if req.Op == OpReserve && a1.Grant != nil {
				for i, a := range []Answer{a1, a2} {
					w := NewWaiter(a.Grant.(*Grant), a.Due, false)
					lines[who][i].Insert(w, now)
					waiters[who][i] = append(waiters[who][i], w)
				}
			}
			a1.Grant, a2.Grant = nil, nil
			require.Equal(t, a2, a1)
			require.Equal(t, max(now, two.frontier(st2)), max(now, one.frontier(st1)))
			require.Equal(t, max(now, two.Fresh(st2)), max(now, one.Fresh(st1)))
			for n := 1; n <= one.Limit(); n++ {
				require.Equal(t, two.Ready(st2, now, n), one.Ready(st1, now, n))
			}
		}
	}
	assert.Greater(t, seen, 500, "marked words")
	assert.Greater(t, ahead, seen)
}

// TestPairHasRoomForADebt: half of the bits that are not needed are for charges beyond the limit.
func TestPairHasRoomForADebt(t *testing.T) {
	for _, tt := range []struct {
		limit  int
		length uint64
		want   uint64
	}{
		{10, second, 1<<8 - 1},
		{10, 3600 * second, 1<<11 - 1},
		{1000, second, 1<<11 - 1},
		{8191, second, 1<<13 - 1}, // no bit is left
	} {
		p, _ := pairs(t, tt.limit, tt.length)
		st := p.Spend([]uint64{0}, begun, 7)
		assert.Equal(t, tt.want-7, p.chargeable(st, begun, InMemory), "%+v", tt)
	}
}

// TestPairKeepsFrontiersForAWindow: frontiers are kept by state, not by key or by
// cancellation, and until their window ends.
func TestPairKeepsFrontiersForAWindow(t *testing.T) {
	p, _ := pairs(t, 200, second)
	c := Compile(p, InMemory)
	kept := func() int {
		ahead := <-p.ahead
		defer func() { p.ahead <- ahead }()
		return len(ahead.of)
	}
	// cancel makes two reservations and cancels the first one.
	cancel := func(st []uint64, now Instant, n int) []uint64 {
		var line []*Waiter
		for range 2 {
			var a Answer
			st, _, a = do(c, st, now, Request{Op: OpReserve, N: n})
			line = append(line, NewWaiter(a.Grant.(*Grant), a.Due, false))
		}
		line[0].asked = true
		st, _, _ = do(c, st, now, Request{Op: OpCancel, Grant: &Cancellation{line: line, Local: true}})
		require.GreaterOrEqual(t, st[0], uint64(marked))
		require.Equal(t, line[1].at, c.frontier(st))
		require.Equal(t, line[1].at, c.frontier(c.Spend(slices.Clone(st), c.Ready(st, now, n), n)), "it is ahead still")
		return st
	}
	used, _, _ := do(c, c.NewState(), begun, Request{Op: OpTake, N: 200})
	first := cancel(slices.Clone(used), begun, 1)
	for range 1000 {
		require.Equal(t, first, cancel(slices.Clone(used), begun, 1))
	}
	assert.Equal(t, 1, kept())
	for n := 2; n <= 50; n++ {
		cancel(slices.Clone(used), begun, n)
	}
	assert.Equal(t, 50, kept())
	later := begun
	for range 20 {
		later += 10 * second
		used, _, _ = do(c, c.NewState(), later, Request{Op: OpTake, N: 200})
		for n := 1; n <= 50; n++ {
			cancel(slices.Clone(used), later, n)
		}
	}
	assert.LessOrEqual(t, kept(), 128, "those of earlier windows are removed")
	// A state whose frontier is not known any more is decided on as if it had passed.
	assert.Equal(t, 199, c.Remaining(first, begun+2*second))
	assert.Equal(t, begun+3*second, c.Fresh(first))
}

// TestManyFrontiersAreGivenBack: when the windows of many frontiers have ended, the next one
// replaces their map.
func TestManyFrontiersAreGivenBack(t *testing.T) {
	p, _ := pairs(t, 8191, second)
	// mark keeps frontiers in the second window from now on, and returns the map.
	mark := func(now Instant, frontiers uint64) uintptr {
		slot := now/second + 1
		for i := range frontiers {
			w := p.load(slot<<p.shift | i)
			w[0] = slot*second + 1
			require.GreaterOrEqual(t, p.store(w, now), uint64(marked))
		}
		ahead := <-p.ahead
		defer func() { p.ahead <- ahead }()
		return reflect.ValueOf(ahead.of).Pointer()
	}
	first := mark(begun, 1000)
	require.Equal(t, first, mark(begun+second, 1), "they have not passed")
	assert.NotEqual(t, first, mark(begun+3*second, 1))

	// If there are always some that have not passed, those that have are removed.
	flood := mark(begun+10*second, 1000)
	for i := range Instant(30) {
		mark(begun+(11+i)*second, 60)
	}
	ahead := <-p.ahead
	p.ahead <- ahead
	assert.NotEqual(t, flood, reflect.ValueOf(ahead.of).Pointer())
	assert.Less(t, len(ahead.of), 300)
}

// TestPairWithoutTags: if all tags are in use, nothing is removed.
func TestPairWithoutTags(t *testing.T) {
	const limit = 8191
	p, _ := pairs(t, limit, second)
	assert.Equal(t, uint(tagBits), 63-p.tag)
	c := Compile(p, InMemory)
	used, _, _ := do(c, c.NewState(), begun, Request{Op: OpTake, N: limit})
	lost := 0
	for n := 1; n <= 20; n++ {
		st, _, first := do(c, slices.Clone(used), begun, Request{Op: OpReserve, N: n})
		st, _, second := do(c, st, begun, Request{Op: OpReserve, N: 30})
		before := st[0]
		line := []*Waiter{NewWaiter(first.Grant.(*Grant), first.Due, false), NewWaiter(second.Grant.(*Grant), second.Due, false)}
		line[0].asked = true
		st, _, a := do(c, st, begun, Request{Op: OpCancel, Grant: &Cancellation{line: line, Local: true}})
		assert.Equal(t, line[1].at, c.frontier(st))
		if st[0] == before {
			lost++
			assert.Nil(t, a.Grant.(*Undone).done[0])
		}
	}
	assert.Equal(t, 20-(1<<tagBits-2), lost)
}
