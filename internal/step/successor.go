package step

import (
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides what the state of a key becomes when a limit is asked that may not be the one
// that left it. former.go has the rules.

// A successor is what a state becomes for the limit that is asked.
type successor struct {
	by        *Machine // which applies requests to it
	st        State
	mustStore bool   // whether it is stored even if the request changes nothing
	origin    origin // how it came from the state that was stored
	// If it was adopted: for each part of by, the index of the part whose state its own is made of,
	// or −1.
	sources []int
	// If it was adopted: for each limit that the state was of, the index of the one that the turns
	// of that limit belong to.
	heirs [2]int
}

// An origin says how a state came from another one.
type origin int

const (
	kept    origin = iota // it is the same one
	adopted               // it was made of that one
	fresh                 // nothing of that one is left
)

// succeed returns the successor, for c, of a state that from left. The state is the one before the
// turns of its key, if any are ahead: then a store cannot have forgotten it, and both limits stay
// until the turns have come.
func (c *Machine) succeed(
	from *Machine,
	st State,
	now kernel.Instant,
	turnsAhead bool,
) successor {
	if st.Form == Opened {
		return from.holdList().successorOf(c, st.Words, now, turnsAhead)
	}
	return c.successorOf(from, st.Words, now, turnsAhead)
}

// successorOf is succeed for a state without open holds.
func (c *Machine) successorOf(
	from *Machine,
	st []uint64,
	now kernel.Instant,
	turnsAhead bool,
) successor {
	if c.equal(from) {
		return successor{by: c, st: PlainState(st)}
	}
	if !c.SameKind(from) {
		return successor{by: c, st: PlainState(c.NewState()), origin: fresh}
	}
	shares := from.two == nil && c.Kernel.SharesStates(from.Kernel)
	if !shares && !turnsAhead && from.Fresh(st) <= now { // a store may have forgotten it already
		return successor{by: c, st: PlainState(c.NewState()), origin: fresh}
	}
	m := membersOf(from, st, now, turnsAhead)
	asked := m.index(func(limit *Machine) bool { return limit.equal(c) })
	if asked >= 0 {
		if len(m.of) == 2 {
			return successor{by: from.two.byAsked[asked], st: PlainState(st)}
		}
		return m.joined(c, asked, false)
	}
	asked = m.index(func(limit *Machine) bool { return c.Kernel.SharesStates(limit.Kernel) })
	if asked >= 0 {
		return m.joined(c, asked, m.share(asked, c, now))
	}
	return m.joined(c, 1, m.add(c, now))
}

// members are the limits that a state is of: one, or a present and a former one.
type members struct {
	of            []member
	present, last int                  // the indexes of the present one, and of the one asked last
	header        [formerHeader]uint64 // that a state of two limits has, or would have
	latest        kernel.Instant       // when the one asked last may have counted events
	// Whether a bucket of the one asked last may not have counted what the present one granted.
	uncounted bool
}

// A member is one of the limits that a state is of.
type member struct {
	limit   *Machine
	st      []uint64
	sources []int // for each part, the index of the one whose state its own is made of, or −1
	was     int   // its index among the limits of the state, or −1 if it was not there
}

// membersOf takes a state that from left apart, at an instant. A former limit that was not asked
// for long is left out, unless turns are ahead.
func membersOf(from *Machine, st []uint64, now kernel.Instant, turnsAhead bool) (m members) {
	if two := from.two; two != nil {
		states := two.states(st)
		m.of = []member{
			newMember(two.limits[0], states[0], 0, 0),
			newMember(two.limits[1], states[1], 1, len(two.limits[0].leaves)),
		}
		m.present, m.last = presentOf(st), lastOf(st)
		copy(m.header[:], st)
		forgets := kernel.After(max(askedAt(st), st[promised]), two.memory)
		if !turnsAhead && kernel.After(forgets, two.memory/2) <= now {
			m.of, m.present, m.last = m.of[m.present:m.present+1], 0, 0
			m.header[formerAsked], m.header[lastSpent] = now, now
		}
	} else {
		m.of = []member{newMember(from, st, 0, 0)}
		m.header[formerAsked], m.header[lastSpent] = now, now
	}
	m.latest = now
	if m.last != m.present {
		m.latest = min(now, spentAt(m.header[:]))
		m.uncounted = m.header[lastSpent]&bothCounted != 0
	}
	return m
}

// newMember returns a limit with an index, whose first part has the given index.
func newMember(limit *Machine, st []uint64, was, first int) member {
	m := member{limit, st, make([]int, len(limit.leaves)), was}
	for i := range m.sources {
		m.sources[i] = first + i
	}
	return m
}

// index returns the index of the first member whose limit f accepts, or −1.
func (m *members) index(f func(limit *Machine) bool) int {
	return slices.IndexFunc(m.of, func(of member) bool { return f(of.limit) })
}

// share lets c take the place of the i-th member, whose states it shares. It reports whether the
// result must be stored.
func (m *members) share(i int, c *Machine, now kernel.Instant) (mustStore bool) {
	own := &m.of[i]
	next, lasting := c.Kernel.Adopt(own.limit.Kernel, own.st, now, now)
	own.limit, own.st = c, next
	if i != m.last {
		own.raise(m.of[m.last].adoptedBy(c, now, m.latest), now)
	}
	if i != m.present && m.uncounted {
		own.raise(m.of[m.present].adoptedBy(c, now, now), now)
	}
	return i != m.present || i != m.last || !lasting
}

// add makes c the second member, which adopts the state of the one that was asked last. It reports
// whether the result must be stored.
func (m *members) add(c *Machine, now kernel.Instant) (mustStore bool) {
	old := m.of[m.last]
	next, lasting := c.Kernel.Adopt(old.limit.Kernel, old.st, now, m.latest)
	added := member{c, next, slices.Clone(old.sources), -1}
	if m.uncounted {
		added.deepen(m.of[m.present].adoptedBy(c, now, now), now)
	}
	m.of = []member{old, added}
	m.header[formerAsked], m.header[lastSpent] = now, m.latest
	return !lasting || added.outlasts(&old, now)
}

// outlasts reports whether a part of m remembers something for longer than that part of old does,
// from now on.
func (m *member) outlasts(old *member, now kernel.Instant) bool {
	was := old.limit.partStates(old.st)
	for i, st := range m.limit.partStates(m.st) {
		if m.limit.leaves[i].Fresh(st) > max(now, old.limit.leaves[i].Fresh(was[i])) {
			return true
		}
	}
	return false
}

// joined returns the state of the members, for a request that asks for c, which is one of them.
func (m *members) joined(c *Machine, asked int, mustStore bool) successor {
	first := m.of[0]
	if len(m.of) == 1 {
		return successor{c, PlainState(first.st), mustStore, adopted, first.sources, m.heirs()}
	}
	second := m.of[1]
	by := JoinLimits(first.limit, second.limit).two.byAsked[asked]
	m.header[firstLength] = uint64(len(first.st))
	st := slices.Concat(m.header[:], first.st, second.st)
	sources := slices.Concat(first.sources, second.sources)
	return successor{by, PlainState(st), mustStore, adopted, sources, m.heirs()}
}

// heirs returns, for each limit that was there, the index of the member that its turns belong to:
// the limit itself or, if it has left, the other one.
func (m *members) heirs() (of [2]int) {
	for i, member := range m.of {
		if member.was >= 0 {
			of[member.was] = i
		}
	}
	return of
}

// adoptedBy returns the state that c adopts from that of m.
func (m *member) adoptedBy(c *Machine, now, latest kernel.Instant) []uint64 {
	st, _ := c.Kernel.Adopt(m.limit.Kernel, m.st, now, latest)
	return st
}

// deepen gives each bucket of m that misses less than in level the state that it has there.
func (m *member) deepen(level []uint64, now kernel.Instant) {
	m.deepenBy(level, now, func(_ kernel.Kernel, st, deeper []uint64) []uint64 {
		copy(st, deeper)
		return st
	})
}

// raise is deepen for a limit that was there before: its buckets owe no more than they have credit
// for.
func (m *member) raise(level []uint64, now kernel.Instant) {
	m.deepenBy(level, now, func(part kernel.Kernel, st, deeper []uint64) []uint64 {
		if part.Credit(deeper, now) > 0 {
			copy(st, deeper)
			return st
		}
		more := min(part.Credit(st, now), part.Chargeable(st, now, m.limit.Encoding), math.MaxInt)
		if more == 0 {
			return st
		}
		return part.Spend(st, now, int(more))
	})
}

// deepenBy replaces the state of each bucket of m that misses less than in level with the result of
// f, which is called with the one that it has there.
func (m *member) deepenBy(
	level []uint64,
	now kernel.Instant,
	f func(part kernel.Kernel, st, deeper []uint64) []uint64,
) {
	levels := m.limit.partStates(level)
	m.st = m.limit.each(m.st, func(i int, _ bool, part kernel.Kernel, st []uint64) []uint64 {
		if !part.MissesLess(st, levels[i], now) {
			return st
		}
		m.sources[i] = -1
		return f(part, st, levels[i])
	})
}

// successorOf is Machine.successorOf for a state of k, with open holds. The holds go along, if the
// limit is of the same kind, with what they mark. If nothing counts any more, they have nothing to
// give back.
func (k *holdList) successorOf(
	c *Machine,
	st []uint64,
	now kernel.Instant,
	turnsAhead bool,
) successor {
	next := c.successorOf(k.base, k.inner(st), now, turnsAhead)
	switch {
	case next.origin == fresh && !c.SameKind(k.base):
		return next
	case next.origin == kept:
		next.st = State{st, Opened}
		return next
	}
	to := next.by.holdList()
	next.st = State{to.carry(k, st, next, now), Opened}
	if next.origin == adopted {
		next.st.Words = to.carryHolds(k, st, next)
	}
	return next
}

// carry puts the holds of a state of from in front of its successor.
func (k *holdList) carry(
	from *holdList,
	st []uint64,
	next successor,
	now kernel.Instant,
) []uint64 {
	count := from.count(st)
	size := holdsHeader + count*k.size
	carried := make([]uint64, size, size+len(next.st.Words)+k.size)
	copy(carried, st[:holdsHeader])
	was, is := from.base.partStates(from.inner(st)), next.by.partStates(next.st.Words)
	for i := range count {
		old, entry := from.entry(st, i), k.entry(carried, i)
		copy(entry[:holdMarks], old)
		for j, source := range next.sources {
			if source < 0 {
				continue
			}
			o, p := &from.parts[source], &k.parts[j]
			mark := entry[p.from:p.to]
			p.Carry(o.Kernel, was[source], is[j], now, old[o.from:o.to], mark)
		}
	}
	return append(carried, next.st.Words...)
}

// carryHolds lets what the holds of a state of from have in flight count until they end, in the
// successor of that state.
func (k *holdList) carryHolds(from *holdList, st []uint64, next successor) []uint64 {
	holds := make([]kernel.Hold, from.count(st))
	for i := range holds {
		holds[i] = from.holdAt(st, i)
	}
	return k.each(next.st.Words, func(j int, _ bool, part kernel.Kernel, inner []uint64) []uint64 {
		source := next.sources[j]
		if source < 0 {
			return inner
		}
		return part.CarryHolds(from.parts[source].Kernel, inner, holds)
	})
}
