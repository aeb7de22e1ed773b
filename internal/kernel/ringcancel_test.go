package kernel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// TestRingGivesBack: events leave their slot. While a reservation in the current slot is
// ahead, the ring is marked, because that reservation counted them.
func TestRingGivesBack(t *testing.T) {
	r := newRing(3, second, 10)
	slot := begun / second
	st := r.Spend(make([]uint64, r.Width()), begun, 5)
	st, gone := r.giveBack(st, begun, begun+1, 2)
	assert.True(t, gone)
	assert.EqualValues(t, 3, r.back(st, slot, 0))
	assert.Zero(t, st[0]&touched)

	st = r.Spend(st, begun+second/2, 1) // ahead
	st, gone = r.giveBack(st, begun, begun+1, 2)
	assert.True(t, gone)
	assert.EqualValues(t, 2, r.back(st, slot, 0))
	assert.NotZero(t, st[0]&touched)
	assert.Equal(t, begun+second/2, r.frontier(st))

	st, _ = r.giveBack(st, begun, begun+1, 3)
	assert.EqualValues(t, 2, r.back(st, slot, 0), "the slot has fewer events")

	st = r.Spend(st, begun+4*second, 1)
	_, gone = r.giveBack(st, begun, begun+2, 1)
	assert.False(t, gone, "they return if the reservation far ahead is cancelled")
}

// TestRingMarkLasts: whatever is spent, a marked ring stays marked while the frontier is ahead.
func TestRingMarkLasts(t *testing.T) {
	r := newRing(3, second, 10)
	ahead := begun + second/2
	for name, spend := range map[string]func(st []uint64, now Instant) []uint64{
		"reserve": func(st []uint64, now Instant) []uint64 { st, _ = r.reserve(st, now, ahead, 1, nil); return st },
		"charge":  func(st []uint64, now Instant) []uint64 { return r.charge(st, now, 1) },
	} {
		for now, want := range map[Instant]uint64{begun: ahead | touched, ahead - 1: ahead | touched, ahead: ahead} {
			st := r.Spend(make([]uint64, r.Width()), ahead, 1)
			st[0] |= touched
			assert.Equal(t, want, spend(st, now)[0], "%s at %d", name, now)
		}
	}
}

// TestRingCancelIsPlainCancel compares the linear cancellation with its definition, on lines
// among which other limiters make reservations and remove events.
func TestRingCancelIsPlainCancel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	falls, marks := 0, 0
	for range budget.Histories(5000, 20_000) {
		var kernel Kernel
		slots := 1 + random.Uint64N(4)
		if random.IntN(2) == 0 {
			kernel = NewSlidingWindow(1+random.IntN(6), slots, 4, InMemory.Varying())
		} else {
			kernel = NewRollingWindow(1+random.IntN(6), random.IntN(3), slots, 4)
		}
		c := Compile(kernel, InMemory.Varying())
		r := c.Kernel.(interface{ self() *ring }).self()
		st, now := c.NewState(), Instant(1000)
		var line Line
		var waiters []*Waiter
		local := random.IntN(3) == 0
		for range 4 + random.IntN(30) {
			var a Answer
			n := 1 + random.IntN(min(3, c.Limit()))
			switch op := random.IntN(10); {
			case op < 5:
				st, _, a = do(c, st, now, Request{Op: OpReserve, N: n})
				if local || random.IntN(3) > 0 {
					w := NewWaiter(a.Grant.(*Grant), a.Due, !local && random.IntN(5) == 0)
					line.Insert(w, now)
					waiters = append(waiters, w)
				}
			case op < 6:
				st, _, _ = do(c, st, now, Request{Op: OpTake, N: n})
			case op < 7:
				now += random.Uint64N(5)
			case op < 8 && !local:
				st, _ = r.giveBack(st, now, now, 1)
			default:
				var asked, rest []*Waiter
				for _, w := range waiters {
					if random.IntN(2) == 0 {
						asked = append(asked, w)
					} else {
						rest = append(rest, w)
					}
				}
				waiters = rest
				cancel := line.Cancel(asked, now)
				if cancel == nil {
					continue
				}
				cancel.Local = local
				want, plain := slices.Clone(st), &undoing{now: now, line: cancel.line, local: local, done: make([][]progress, 1)}
				plain.behind = lastIndex(plain.line, func(w *Waiter) bool { return !plain.cancelled(w) }) + 1
				plainCancel(r, want, plain)
				st, _, a = do(c, st, now, Request{Op: OpCancel, Grant: cancel})
				require.Equal(t, want, st)
				out := a.Grant.(*Undone)
				if out.Any() {
					require.Equal(t, plain.done, out.done)
				}
				for _, done := range out.done {
					for _, to := range done {
						if to.fallen {
							falls++
						}
					}
				}
				if st[0]&touched != 0 {
					marks++
				}
				line.Release()
				line.Settle(cancel, out)
			}
		}
	}
	assert.Greater(t, falls, 100)
	assert.Greater(t, marks, 100)
}

func (r *ring) self() *ring { return r }

// plainCancel is the definition of cancel: as simple as it can be, in quadratic time.
func plainCancel(r *ring, st []uint64, u *undoing) {
	for again := true; again; again = plainFall(r, st, u) {
		for i, p := range u.pending() {
			slot, latest := u.trace(p).slot, r.latest(st)
			if slot <= latest && latest-slot < r.slots && slot+r.slots > u.floor() {
				if !u.local && !plainAlone(r, st, u, i) {
					st[0] |= touched
				}
				r.remove(st, slot, p.n)
				u.changed = true
				u.take(i)
			}
		}
	}
}

func plainFall(r *ring, st []uint64, u *undoing) bool {
	frontier := r.frontier(st)
	if frontier <= u.now || u.behind > 0 && u.line[u.behind-1].at >= frontier {
		return false
	}
	first := -1 // index of the grant that raised the frontier to where it is
	for i := len(u.line) - 1; i >= u.behind && u.line[i].at >= frontier; i-- {
		if p := u.line[i]; p.at == frontier && u.trace(p).raised && !u.progress(i).fallen {
			first = i
		} // if p.at is later, the frontier has already fallen below it
	}
	if first < 0 || !plainSole(r, st, u, first) {
		return false
	}
	t := u.trace(u.line[first])
	st[0] = t.pre[0] | st[0]&touched
	for _, c := range t.cleared {
		r.set(st, c.place, c.count)
	}
	u.changed = true
	u.fall(first)
	return true
}

func plainSole(r *ring, st []uint64, u *undoing, i int) bool {
	p := u.line[i]
	slot := u.trace(p).slot
	count := r.back(st, slot, 0)
	var since, earlier uint64
	for j, q := range u.line {
		switch {
		case u.gone(j) || u.trace(q).slot != slot:
		case j < i:
			earlier += uint64(q.n)
		default:
			since += uint64(q.n)
		}
	}
	if count == earlier+since {
		return true // all events are the line's
	}
	if p.unsure || st[0]&touched != 0 {
		return false
	}
	sum := u.trace(p).before + since
	sum -= min(sum, u.progress(i).less)
	for j, q := range u.line[:i] { // earlier grants that are removed now
		if u.trace(q).slot == slot && q.at < p.at && u.gone(j) && !q.parts[u.part].gone {
			sum -= min(sum, uint64(q.n))
		}
	}
	return count == sum
}

func plainAlone(r *ring, st []uint64, u *undoing, i int) bool {
	p := u.line[i]
	if r.frontier(st) <= max(p.at, u.now) {
		return true
	}
	for j := i + 1; j < len(u.line); j++ {
		next := u.line[j]
		t := u.trace(next)
		if next.at == p.at || !t.raised || u.progress(j).fallen {
			continue
		}
		return t.pre[0] <= max(p.at, u.now) && (t.slot != u.trace(p).slot || plainSole(r, st, u, j))
	}
	return false
}

// TestManyCancellations cancels a long line at once, and settles it: in one slot at different instants,
// in one slot at one instant, and over many slots. In quadratic time, it takes minutes.
func TestManyCancellations(t *testing.T) {
	many := int(budget.Histories(50_000, 100_000))
	for name, kernel := range map[string]Kernel{
		"instants": NewSlidingWindow(many, 1, uint64(many)*second, InMemory.Varying()),
		"instant":  NewRollingWindow(many, 0, 1, second),
		"slots":    NewRollingWindow(1, 0, 4, second),
		"fixed":    NewFixedWindow(1, second, true, InMemory),
		"window":   NewFixedWindow(many, second, true, InMemory),
	} {
		c := Compile(kernel, InMemory)
		st, _, _ := do(c, c.NewState(), begun, Request{Op: OpTake, N: c.Limit()})
		_, _, before := do(c, slices.Clone(st), begun, Request{Op: OpPeek})
		var line Line
		waiters := make([]*Waiter, 0, many)
		for range many {
			var a Answer
			st, _, a = do(c, st, begun, Request{Op: OpReserve, N: 1})
			require.True(t, a.Allowed, name)
			waiters = append(waiters, NewWaiter(a.Grant.(*Grant), a.Due, false))
			line.Insert(waiters[len(waiters)-1], begun)
		}
		cancel := line.Cancel(waiters, begun)
		st, _, a := do(c, st, begun, Request{Op: OpCancel, Grant: cancel})
		line.Release()
		line.Settle(cancel, a.Grant.(*Undone))
		assert.Zero(t, line.Len(), name)
		_, _, after := do(c, st, begun, Request{Op: OpPeek})
		assert.Equal(t, before, after, name)
	}
}
