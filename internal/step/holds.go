package step

import (
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file keeps the open holds of a key as a part of its state. What users are promised, with the
// exceptions, is said of Reservation.Settle in the root.
//
// To settle a hold of h events, taken at t, for n leaves the key as if n had been taken at t,
// whatever was granted since. So there is an entry for each open hold, with marks: what each part
// of the algorithm needs to take its events back.
//
//   - Windows, logs and rings are sums. The mark says where the events were counted, and the unused
//     ones leave that window, entry or slot if it still counts. When a window began is a fact. It
//     does not change while anything counts in it.
//   - A bucket forgets: once it is full, it makes no difference what was taken before. Without u
//     events of a hold, the bucket misses u less at first, and from any instant on never more than
//     it misses then, since it cannot miss less than nothing. So the difference between the two
//     pasts is min(u, the least that was missing since). What is missing only falls between
//     decisions, so that is known if it is noted before events are spent. The mark has the least
//     that was missing since the hold and before the next younger one was made: a decision lowers
//     one mark, the youngest. If u events of a hold come back, u less were missing in all the time
//     since it was made: so its mark, and those of all younger holds, fall by u. When refills come
//     is a fact as well.
//   - A Lockout is a sum, too, until its lock has ended. That a lock was served is a fact.
//   - A WarmingUp takes unused events back only if it granted nothing since.
//   - What is InFlight counts until its hold has ended, and then no more, however many events
//     happened.
//
// When the last hold has ended, the state is plain again: while no hold is open, nothing of this
// exists. The words are:
//
//	how many holds are open
//	an instant before which none of them ends by itself
//	the latest instant at which one of them does
//	of each, oldest first:
//	    its ID
//	    when it ends by itself
//	    twice its events, plus 1 if these are given back then
//	    the marks of each part, in order
//	the state of the key's own kernel

const (
	openHolds = iota
	firstEnd
	lastEnd
	holdsHeader
)

// The words of an entry.
const (
	holdID = iota
	holdEnd
	holdEvents
	holdMarks
)

// holdOf returns what an entry, or a turn, says from the word with its end on.
func holdOf(words []uint64) kernel.Hold {
	return kernel.Hold{End: words[0], N: int(words[1] / 2), Back: words[1]%2 == 1}
}

// eventsWord returns the word after that.
func eventsWord(h kernel.Hold) (word uint64) {
	word = uint64(h.N) * 2
	if h.Back {
		word++
	}
	return word
}

// endsAtTurn reports whether an ID is that of a reservation that ends at its turn. Those of holds
// are odd.
func endsAtTurn(id uint64) bool { return id%2 == 0 }

// MostHolds is the most holds that are open on a key at once, unless an InFlight bounds them.
const MostHolds = 4096

// A holdList says what the open holds look like in the states of a machine.
type holdList struct {
	base  *Machine
	parts []markedPart
	size  int // of an entry
}

// A markedPart is a part of a kernel, and where its marks are in an entry.
type markedPart struct {
	kernel.Kernel
	from, to int
}

// holdList returns what open holds look like in the states of c.
func (c *Machine) holdList() *holdList {
	if k := c.holds.Load(); k != nil {
		return k
	}
	k := &holdList{base: c, size: holdMarks}
	for _, leaf := range c.leaves {
		p := markedPart{Kernel: leaf, from: k.size}
		k.size += p.Marks()
		p.to = k.size
		k.parts = append(k.parts, p)
	}
	c.holds.Store(k)
	return k
}

// HoldWords returns the most words that a hold takes in a state of c: those of the first one.
func (c *Machine) HoldWords() int { return holdsHeader + c.holdList().size }

// MayHaveHolds reports whether a hold was opened in a state of c, or may have been.
func (c *Machine) MayHaveHolds() bool { return c.holds.Load() != nil }

// hasHolds reports whether holds are open, and not only turns of events that a queue delays.
func (k *holdList) hasHolds(st []uint64) bool {
	for i := range k.count(st) {
		if !endsAtTurn(k.entry(st, i)[holdID]) {
			return true
		}
	}
	return false
}

// open returns st, a state without open holds, as one of k.
func (k *holdList) open(st []uint64) []uint64 {
	st = shift(st, 0, holdsHeader)
	st[openHolds], st[firstEnd], st[lastEnd] = 0, k.base.LastInstant(), 0
	return st
}

// begin returns where the state of the key's own kernel begins.
func (k *holdList) begin(st []uint64) int { return holdsHeader + k.count(st)*k.size }

func (k *holdList) count(st []uint64) int { return int(st[openHolds]) }

func (k *holdList) inner(st []uint64) []uint64 { return st[k.begin(st):] }

// replaceInner replaces the state of the key's own kernel with inner, which may be that state,
// changed in place.
func (k *holdList) replaceInner(st, inner []uint64) []uint64 {
	at := k.begin(st)
	if len(inner) > 0 && at < cap(st) && &inner[0] == &st[:at+1][at] {
		return st[:at+len(inner)]
	}
	return append(st[:at], inner...)
}

// shift moves the state of the key's own kernel from one word to another.
func shift(st []uint64, from, to int) []uint64 {
	if to < from {
		return slices.Delete(st, to, from)
	}
	st = append(st, make([]uint64, to-from)...)
	copy(st[to:], st[from:])
	return st
}

func (k *holdList) entries(st []uint64) []uint64 { return st[holdsHeader:k.begin(st)] }

func (k *holdList) entry(st []uint64, i int) []uint64 {
	return st[holdsHeader+i*k.size:][:k.size]
}

func (k *holdList) holdAt(st []uint64, i int) kernel.Hold {
	return holdOf(k.entry(st, i)[holdEnd:])
}

// held returns how many events the open holds have, or kernel.MostCounted if they have more.
func (k *holdList) held(st []uint64) (sum uint64) {
	for i := range k.count(st) {
		sum += min(k.entry(st, i)[holdEvents]/2, kernel.MostCounted-sum)
	}
	return sum
}

// indexOf returns the index of the entry, of a size in words, that begins with an ID, or −1.
func indexOf(id uint64, entries []uint64, size int) int {
	at := len(entries) - size
	for at >= 0 && entries[at] != id {
		at -= size
	}
	return at / size
}

func (k *holdList) marksOf(st []uint64, i int) kernel.Marks {
	p := &k.parts[i]
	return kernel.Marks{
		Entries: k.entries(st),
		Size:    k.size,
		From:    p.from,
		To:      p.to,
		Count:   k.count(st),
	}
}

func (k *holdList) each(
	st []uint64,
	f func(i int, asked bool, part kernel.Kernel, inner []uint64) []uint64,
) []uint64 {
	return k.replaceInner(st, k.base.each(k.inner(st), f))
}

// pass prepares the marks for events that are about to be spent at an instant. The mark of a bucket
// is the least number of missing events since its hold, as far as the next younger one, so that
// only the last one changes: mark[last] = min(mark[last], missing at that instant).
func (k *holdList) pass(st []uint64, at kernel.Instant) {
	if k.count(st) == 0 {
		return
	}
	mark := k.entry(st, k.count(st)-1)
	k.base.each(k.inner(st), func(i int, _ bool, _ kernel.Kernel, st []uint64) []uint64 {
		p := &k.parts[i]
		p.Lower(mark[p.from:p.to], st, at)
		return st
	})
}

// forfeit lets no open hold give back anything in a bucket of the limit that was not asked, if that
// owes as much as it may: it may not have counted all that was granted since the hold.
func (k *holdList) forfeit(st []uint64, at kernel.Instant) {
	if k.count(st) == 0 {
		return
	}
	mark := k.entry(st, k.count(st)-1)
	k.base.each(k.inner(st), func(i int, asked bool, part kernel.Kernel, inner []uint64) []uint64 {
		if !asked && part.Credit(inner, at) == 0 {
			clear(mark[k.parts[i].from:k.parts[i].to])
		}
		return inner
	})
}

// insert adds the entry of n events that are about to be spent at an instant: no earlier than at
// the frontier, which may be later than a turn if others were charged. A part that is not the asked
// limit's own does not count them if they are more than its state can hold.
func (k *holdList) insert(st []uint64, id uint64, h kernel.Hold, at kernel.Instant) []uint64 {
	k.pass(st, at)
	begin := k.begin(st)
	st = shift(st, begin, begin+k.size)
	st[openHolds]++
	st[firstEnd], st[lastEnd] = min(st[firstEnd], h.End), max(st[lastEnd], h.End)
	e := st[begin : begin+k.size]
	clear(e)
	e[holdID], e[holdEnd], e[holdEvents] = id, h.End, eventsWord(h)
	k.base.each(k.inner(st), func(i int, asked bool, part kernel.Kernel, st []uint64) []uint64 {
		at := max(at, part.Frontier(st))
		if p := &k.parts[i]; asked || uint64(h.N) <= part.Chargeable(st, at, k.base.Encoding) {
			p.Mark(st, at, h.N, e[p.from:p.to])
		}
		return st
	})
	return st
}

// refund returns what the i-th hold gives back if unused of its events have not happened.
func (k *holdList) refund(st []uint64, i, unused int) kernel.Refund {
	return kernel.Refund{Hold: k.holdAt(st, i), Index: i, Unused: unused}
}

// refundAtEnd returns what the i-th hold gives back if it ends by itself, which is nothing unless
// back is true.
func (k *holdList) refundAtEnd(st []uint64, i int, back bool) kernel.Refund {
	r := k.refund(st, i, 0)
	if r.Back && back {
		r.Unused = r.N
	}
	return r
}

// endHold takes the unused events of a hold back, and removes its entry.
func (k *holdList) endHold(st []uint64, now kernel.Instant, r kernel.Refund) []uint64 {
	k.pass(st, now)
	k.entry(st, r.Index)[holdID] = 0
	st = k.each(st, func(part int, _ bool, _ kernel.Kernel, inner []uint64) []uint64 {
		return k.parts[part].Settle(inner, now, r, k.marksOf(st, part))
	})
	return k.sweep(st, r.Index, r.Index+1)
}

// endHolds is endHold for several holds, at least one, in the order of their indexes.
func (k *holdList) endHolds(st []uint64, now kernel.Instant, refunds []kernel.Refund) []uint64 {
	k.pass(st, now)
	for _, r := range refunds {
		k.entry(st, r.Index)[holdID] = 0
	}
	st = k.each(st, func(part int, _ bool, _ kernel.Kernel, inner []uint64) []uint64 {
		m := k.marksOf(st, part)
		if batch, ok := k.parts[part].Kernel.(kernel.BatchHolder); ok {
			return batch.SettleAll(inner, now, refunds, m)
		}
		for _, r := range refunds {
			inner = k.parts[part].Settle(inner, now, r, m)
		}
		return inner
	})
	return k.sweep(st, refunds[0].Index, refunds[len(refunds)-1].Index+1)
}

// endDue ends the holds that are due, and returns how many these are. Their order makes no
// difference, nor does it that they end now and not at their time: nothing was spent in between.
// Only a WarmingUp may take back less, because it looks at what was granted last; and a Lockout,
// where a lock may have ended in between, looks at when each of them ends.
func (k *holdList) endDue(st []uint64, now kernel.Instant, back bool) (_ []uint64, ended int) {
	first := k.base.LastInstant()
	count, only, all := 0, kernel.Refund{}, []kernel.Refund(nil) // one alone allocates nothing
	for i := range k.count(st) {
		if end := k.entry(st, i)[holdEnd]; end > now {
			first = min(first, end)
			continue
		}
		if !endsAtTurn(k.entry(st, i)[holdID]) {
			ended++
		}
		r := k.refundAtEnd(st, i, back)
		count++
		switch count {
		case 1:
			only = r
		case 2:
			all = append(all, only, r)
		default:
			all = append(all, r)
		}
	}
	switch count {
	case 0:
	case 1:
		st = k.endHold(st, now, only)
	default:
		st = k.endHolds(st, now, all)
	}
	st[firstEnd] = first
	return st, ended
}

// sweep removes the holds that have ended, which are from the given index on, and before until. If
// the i-th one goes, what was least since it was so since the one before: mark[i−1] =
// min(mark[i−1], mark[i]).
func (k *holdList) sweep(st []uint64, from, until int) []uint64 {
	to, endedLast := from, false
	for i := from; i < until; i++ {
		e := k.entry(st, i)
		if e[holdID] != 0 {
			copy(k.entry(st, to), e)
			to++
			continue
		}
		endedLast = endedLast || e[holdEnd] == st[lastEnd]
		if to > 0 {
			older := k.entry(st, to-1)
			for _, p := range k.parts {
				p.LowerTo(older[p.from:p.to], e[p.from:p.to])
			}
		}
	}
	if to == until {
		return st
	}
	begin := k.begin(st)
	st[openHolds] -= uint64(until - to)
	copy(st[holdsHeader+to*k.size:], st[holdsHeader+until*k.size:begin])
	st = shift(st, begin, k.begin(st))
	if endedLast {
		st[lastEnd] = k.latestEnd(st)
	}
	return st
}

// latestEnd returns the latest instant at which an open hold ends by itself, or 0 if none is open.
func (k *holdList) latestEnd(st []uint64) (latest kernel.Instant) {
	for i := range k.count(st) {
		latest = max(latest, k.entry(st, i)[holdEnd])
	}
	return latest
}

func (k *holdList) extendHold(st []uint64, i int, end kernel.Instant) []uint64 {
	was := k.holdAt(st, i)
	k.entry(st, i)[holdEnd] = end
	st[firstEnd], st[lastEnd] = min(st[firstEnd], end), k.latestEnd(st)
	return k.each(st, func(_ int, _ bool, part kernel.Kernel, inner []uint64) []uint64 {
		return part.Extend(inner, was, end)
	})
}

// closed returns the state that st is: without the list of holds if none is open.
func (k *holdList) closed(st []uint64) State {
	if k.count(st) > 0 {
		return State{st, Opened}
	}
	return PlainState(shift(st, holdsHeader, 0))
}

func (k *holdList) valid(st []uint64) bool {
	if len(st) < holdsHeader || st[openHolds] == 0 ||
		st[openHolds] > uint64(len(st)-holdsHeader)/uint64(k.size) ||
		st[openHolds] > MostHolds && !k.base.Releases() ||
		st[lastEnd] > k.base.LastInstant() {
		return false
	}
	for i := range k.count(st) {
		e := k.entry(st, i)
		if e[holdID] == 0 || e[holdEnd] < st[firstEnd] || e[holdEnd] > st[lastEnd] ||
			e[holdEvents]/2 > k.base.MostCount() {
			return false
		}
		for _, p := range k.parts {
			if !p.ValidMark(e[p.from:p.to]) {
				return false
			}
		}
	}
	return k.base.sound(k.inner(st))
}

// sound reports whether c can work with st, of any length.
func (c *Machine) sound(st []uint64) bool {
	return (c.Width() == 0 || c.Width() == len(st)) && c.Valid(st)
}

// Valid reports whether c can work with words of the algorithm, which have its width.
func (c *Machine) Valid(st []uint64) bool { return c.Decider.Valid(st, c.Encoding) }
