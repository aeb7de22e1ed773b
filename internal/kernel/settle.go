package kernel

import (
	"encoding/binary"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// This file counts what has happened: events of a hold that were fewer or more than held, and
// events that nobody asked for.
//
// A hold is a Take that leaves a Grant with the state of each part before and after. To settle it
// for fewer events is to give the rest back. The state is then as if only the others had been taken when the hold
// was made:
//
//   - Counts are sums: the events leave the window or the entry that they are in, if it
//     still counts.
//   - A bucket is as full as if they had not been taken, if nothing was granted since. Otherwise,
//     it may have been full meanwhile without them, and what overflowed then is lost. The state
//     does not say when others took theirs. So only as much comes back as would be missing now if
//     nothing but the hold had been taken, from a full bucket: whatever others took, before and
//     since, at least as much of the hold is still missing. (What the hold left in the state says
//     less, because it includes events of other holds, which may have been settled since. Nor does
//     it matter whether the state is the one that the hold left: others may have been granted just
//     as much as has come back of earlier holds.)
//
// Events beyond the limit are spent like any others, at the present instant or, while
// reservations are ahead, at that of the last one. Nothing in the states is special about a
// debt: more is missing, or counted, than the limit allows, and Ready tells when there is
// room again. Only the words bound it.

// A settler counts events whatever the limit says, and takes back those of a hold.
type settler interface {
	// chargeable returns the most events that charge can count.
	chargeable(st []uint64, now Instant, enc Encoding) uint64

	// charge spends n events, at most chargeable, at now or, if that is later, at the
	// frontier.
	charge(st []uint64, now Instant, n int) []uint64

	// refund takes back some events of a grant, as far as the state allows. It reports
	// whether the state has changed.
	refund(st []uint64, r refunding) (_ []uint64, changed bool)

	// encodeRefund appends what refund looks at in a part of a grant; see AppendSettlement.
	encodeRefund(b []byte, g *Grant, part int) []byte
}

// A refunding is the application of an OpSettle that takes events back of a part. It is passed
// by value, because a pointer that kernels were given would be allocated.
type refunding struct {
	at    Instant // when the events were spent
	n     int     // how many they were
	*ends         // the state then
	now   Instant
	back  int  // how many of the events did not happen
	ahead bool // whether a reservation is ahead, or a debt
}

// all reports whether none of the events happened.
func (r refunding) all() bool { return r.back == r.n }

// pending reports whether the events are reserved for later.
func (r refunding) pending() bool { return r.at > r.now }

// last reports whether nothing was granted since, given the words of a state that change with
// each grant.
func (r refunding) last(st []uint64) bool {
	return slices.Equal(st, r.post[:len(st)])
}

// mostCount is the greatest count in a state.
func (enc Encoding) mostCount() uint64 {
	if enc.Portable {
		return portableMost
	}
	return mostCounted
}

// lastInstant is the latest instant in a state.
func (enc Encoding) lastInstant() Instant { return MaxInstant / enc.Tick }

// Nothing is the Grant of a hold of no events.
var Nothing = new(Grant)

// takeHeld is take, and sets the Grant of the answer.
func (v *view) takeHeld(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	var delay uint64
	if n > 0 {
		delay = v.hold(st, v.now)
	}
	at := v.ready(st, n)
	if at > v.now {
		st, at, changed = v.refuse(st, n, at)
		v.denial(st, n, at, a)
		return st, changed
	}
	now := v.now         // a closure that captured v would make each decision allocate
	held := new(struct { // one allocation
		Grant
		room [1]ends
	})
	g := &held.Grant
	g.by, g.at, g.due, g.n, g.ends = v.stored(), now, After(now, delay), n, held.room[:0]
	if v.parts != nil {
		g.ends = make([]ends, 0, len(v.parts.leaves()))
		st = v.parts.update(st, func(part *capable, st []uint64) []uint64 { return part.spendHeld(st, now, n, g) })
	} else {
		st = v.spendHeld(st, now, n, g)
	}
	a.Allowed, a.Grant, a.Due = true, g, g.due*v.Tick
	if delay > 0 {
		a.Delay = v.until(g.due)
	}
	v.describe(st, 0, a)
	return st, n > 0
}

// spendHeld is Spend for n > 0, and appends the state before and after to those of g.
func (c *capable) spendHeld(st []uint64, now Instant, n int, g *Grant) []uint64 {
	part := len(g.ends)
	g.ends = g.ends[:part+1]
	e := &g.ends[part]
	e.pre.keep(st)
	if n > 0 {
		st = c.Spend(st, now, n)
	}
	e.post.keep(st)
	return st
}

// takeUpTo takes as many of n events as are granted. If there is none, it denies one.
func (v *view) takeUpTo(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	granted := 0
	if n > 0 {
		granted = max(1, min(n, v.Remaining(st, v.now)))
	}
	st, changed = v.take(st, granted, a)
	if a.Allowed {
		a.Granted = granted
	}
	return st, changed
}

// charge counts n events whatever the limit says, and answers as OpPeek does afterwards.
func (v *view) charge(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	if n > 0 && !v.exceeds(st, n, a) {
		st, changed = v.Kernel.charge(st, v.now, n), true
	}
	v.peek(st, a)
	return st, changed
}

// exceeds reports whether the state cannot hold n more events. Then it sets a to say so.
func (v *view) exceeds(st []uint64, n int, a *Answer) bool {
	most := v.chargeable(st, v.now, v.Encoding)
	if uint64(n) <= most {
		return false
	}
	a.Excess, a.Most = true, most
	return true
}

// ahead reports whether a reservation is ahead of the present instant in some part, whose
// events may then be counted in all of them at its instant. A bucket in one word shows that
// only as a debt.
func (v *view) ahead(st []uint64) bool {
	if v.parts == nil {
		return v.behind(st, v.now)
	}
	for part, st := range v.parts.states(st) {
		if part.behind(st, v.now) {
			return true
		}
	}
	return false
}

// behind reports whether a reservation, or a debt, keeps the kernel from granting at now.
func (c *capable) behind(st []uint64, now Instant) bool {
	k, ok := c.Kernel.(*gcra)
	return now < c.frontier(st) || ok && !k.grants(k.load(st), uint128.Mul(now, k.unit))
}

// settle counts what happened of a grant. In an inFlight, the events are over, whatever their
// number, even if its parameters have changed or the key may have been forgotten since: it keeps
// their times, so that a release removes nothing else, unless a forgotten key was granted events
// again at the same instant.
func (v *view) settle(st []uint64, req *Request, a *Answer) (_ []uint64, changed bool) {
	s := settling{now: v.now, actual: req.N}
	if g, ok := req.Grant.(*Grant); ok {
		s.at, s.n, s.grant = g.at, g.n, g
		s.known, s.same = v.left(g, req.Lost, req.Doubt)
	} else {
		v.peek(st, a)
		return st, false
	}
	if len(st) == 0 {
		s.known, s.same = false, false
	}
	if s.known && s.actual < s.n {
		s.ahead = v.ahead(st)
	}
	if more := s.actual - s.n; more > 0 && v.exceeds(st, more, a) {
		v.peek(st, a)
		return st, false
	}
	if v.parts == nil {
		st, changed = s.settle(&v.capable, st)
	} else {
		st, changed = s.settleAll(v.parts, st)
	}
	v.peek(st, a)
	return st, changed
}

// left reports whether states of c are of the same kind as the one that g left, and whether
// their limit is the same as well, and the key was not forgotten since. lost and doubt are
// those of the Request.
func (c *Compiled) left(g *Grant, lost, doubt bool) (known, same bool) {
	switch {
	case lost || g.by == nil:
		return false, false
	case c == g.by:
		return true, !doubt
	}
	known = c.Alike(g.by)
	return known, known && !doubt && c.same(g.by)
}

// A settling is the application of an OpSettle that the state has room for.
type settling struct {
	at     Instant // when the events were spent
	n      int     // how many they were
	grant  *Grant
	now    Instant
	actual int  // how many of the events happened
	ahead  bool // see refunding
	part   int  // the current part
	known  bool // whether the state is of the same kind as when they were granted
	same   bool // whether its limit is the same as well, and the key was not forgotten since
}

// settle settles a part.
func (s *settling) settle(part *capable, st []uint64) (_ []uint64, changed bool) {
	over, more := part.can&flies != 0, s.actual-s.n
	back := max(0, -more)
	if over {
		back, more = s.n, 0
	}
	switch {
	case back > 0 && (s.same || s.known && over):
		r := refunding{at: s.at, n: s.n, now: s.now, back: back, ahead: s.ahead}
		r.ends = s.grant.endsOf(s.part % len(s.grant.by.leaves())) // of a grant before another limit was asked, those of one
		return part.refund(st, r)
	case more > 0:
		return part.charge(st, s.now, more), true
	}
	return st, false
}

// settleAll settles each part.
func (s *settling) settleAll(parts *all, st []uint64) (_ []uint64, changed bool) {
	st = parts.update(st, func(part *capable, st []uint64) []uint64 {
		st, here := s.settle(part, st)
		s.part++
		changed = changed || here
		return st
	})
	return st, changed
}

// What an encoded settlement does to the parts that are not an inFlight.
const (
	settleNothing = iota
	settleBack    // takes events back
	settleMore    // charges events
)

// AppendSettlement appends what a script needs to settle grant for n events: the counterpart
// of AppendCancellation. It returns by how many events the parts that are not an inFlight
// change: more than 0 are charged, and fewer are taken back.
//
// If that is all and there is nothing to take back, it appends nothing. Otherwise, it appends
// the instant at which the events were charged, that at which the grant was made, and the number
// of events that were held, or 0 if none of them are in the state, as float64; then, as a byte,
// what the other parts do; and, if they take events back, what the refund of each of them looks
// at.
func (c *Compiled) AppendSettlement(b []byte, grant any, n int, lost, doubt bool) (_ []byte, more int) {
	g, ok := grant.(*Grant)
	if !ok {
		return b, 0
	}
	known, same := c.left(g, lost, doubt)
	held, does := 0, byte(settleNothing)
	if known {
		held = g.n
	}
	switch more = n - g.n; {
	case more > 0:
		does = settleMore
	case more < 0 && same:
		does = settleBack
	default:
		more = 0
	}
	// An inFlight is never charged, and releases what it has.
	if differs := c.Flies() && (held > 0 || does == settleMore); does != settleBack && !differs {
		return b, more
	}
	b = append(appendFloat(appendFloat(appendFloat(b, float64(g.at)), float64(g.made())), float64(held)), does)
	if does == settleBack {
		for part, leaf := range c.leaves() {
			b = leaf.encodeRefund(b, g, part)
		}
	}
	return b, more
}

// appendTo appends the first width words of the states before and after.
func (e *ends) appendTo(b []byte, width int) []byte {
	return appendWords(appendWords(b, e.pre[:width]...), e.post[:width]...)
}

// appendWords appends the words of states.
func appendWords(b []byte, words ...uint64) []byte {
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
