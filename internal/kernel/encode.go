package kernel

import (
	"encoding/binary"
	"math"
	"slices"
)

// This file writes cancellations for stores whose scripts apply them: the arithmetic of
// cancel, in Lua. A line may be long, and most of its waiters make no difference to those
// that leave. So each kernel writes only what its cancel would look at; what it writes is
// proportional to the number of waiters that leave, or have left and can be undone now. Those
// that have left before one that stays cannot, except that their events leave counts at once.
// Cancellation.Local is not written: it is only set for states in memory.
//
// Numbers are little-endian: instants and counts as float64, which holds them exactly, and
// numbers of things as uint32. The encoding begins with the latest due of the waiters asked
// for, or −1 if there are none. If that has passed, the rest is not to be applied. Otherwise, it
// goes on with the instant at which the first waiter of the line was made. If the key was reset
// since, the rest is not to be applied either, but a shorter line; see Forget. Then, for each
// part, come the number of its entries and the entries, in the order of the line.
//
// The due of an entry says whether it is cancelled: if it is not before the time at which
// the script runs. For waiters cancelled before, it is +Inf, and for those that stay, −1.

// AppendCancellation appends the Grant of an OpCancel, as far as the kernel made it.
func (c *Compiled) AppendCancellation(b []byte, grant any) []byte {
	line, _ := c.lineOf(grant)
	last := -1.0
	for _, w := range line {
		if w.asked {
			last = max(last, w.leaves())
		}
	}
	if b = appendFloat(b, last); last < 0 {
		return b
	}
	b = appendFloat(b, float64(firstMade(line)))
	for part, leaf := range c.leaves() {
		b = leaf.encode(b, line, part)
	}
	return b
}

// Asked returns the number of events that the Grant of an OpCancel asks to take back.
func Asked(grant any) (events int) {
	if c, ok := grant.(*Cancellation); ok {
		for _, w := range c.line {
			if w.asked {
				events += w.n
			}
		}
	}
	return events
}

// leaves returns the due of an entry for w.
func (w *Waiter) leaves() float64 {
	switch {
	case w.cancelled:
		return math.Inf(1)
	case w.asked:
		return float64(w.due)
	}
	return -1
}

// stays reports whether w is not to be cancelled.
func (w *Waiter) stays() bool { return !w.asked && !w.cancelled }

// raises reports whether the frontier that w raised in a part can still fall back.
func (w *Waiter) raises(part int) bool { return w.traces[part].raised && !w.parts[part].fallen }

// behind returns the index of the first waiter behind all that stay.
func behind(line []*Waiter) int { return lastIndex(line, (*Waiter).stays) + 1 }

// encode writes the waiters to be undone: their due, and the words before and after.
func (unwound) encode(b []byte, line []*Waiter, part int) []byte {
	e := begin(b)
	for _, w := range line[behind(line):] {
		if w.parts[part].gone {
			continue
		}
		e.count++
		e.b = appendFloat(e.b, w.leaves())
		t := &w.traces[part]
		for _, word := range slices.Concat(t.pre[:], t.post[:]) {
			e.b = binary.LittleEndian.AppendUint64(e.b, word)
		}
	}
	return e.end()
}

// encode writes the waiters to be removed, with the starts of their windows instead of their
// instants, and of those that can fall back the words before.
func (k *fixed) encode(b []byte, line []*Waiter, part int) []byte {
	e, least := begin(b), floor(line, behind(line), part)
	for _, w := range line {
		t := &w.traces[part]
		falls := w.raises(part) && t.slot > least
		if w.stays() || t.slot < least || w.parts[part].gone && !falls {
			continue
		}
		e.add(w, part, t.slot, falls)
		if falls {
			e.floats(t.pre[0], t.pre[1])
		}
	}
	return e.end()
}

// encode writes the waiters to be removed.
func (k *eventLog) encode(b []byte, line []*Waiter, part int) []byte {
	e := begin(b)
	for _, w := range line {
		if !w.stays() && !w.parts[part].gone {
			e.add(w, part, w.at, false)
		}
	}
	return e.end()
}

// encode writes the waiters to be removed or to fall back. Of the others, it writes the last
// one that stays, because the frontier does not fall below that, and the first one behind
// each removed one that raised the frontier, for alone. Of the rest in the same slots, only
// their sums matter, for sole; but those at the instant of one that falls back keep it from
// that.
func (r *ring) encode(b []byte, line []*Waiter, part int) []byte {
	free := behind(line)
	least := floor(line, free, part)
	leaves := func(w *Waiter) bool {
		return !w.stays() && !w.parts[part].gone && w.traces[part].slot+r.slots > least
	}
	moves := func(i int, w *Waiter) bool {
		return leaves(w) || !w.stays() && i >= free && w.raises(part)
	}
	slots, instants, needed := map[uint64]bool{}, map[Instant]bool{}, map[int]bool{free - 1: true}
	next, after := -1, -1 // the first one that raised the frontier: so far, and at a later instant
	for i := len(line) - 1; i >= 0; i-- {
		w := line[i]
		if i+1 == len(line) || line[i+1].at != w.at {
			after = next
		}
		if w.raises(part) {
			next = i
		}
		if moves(i, w) {
			slots[w.traces[part].slot], instants[w.at] = true, true
			if leaves(w) {
				needed[after] = true
			}
		}
	}
	e := begin(b)
	var sum Grant // those that stay and are not written yet
	var slot uint64
	flush := func() {
		if sum.n > 0 {
			e.entry(0, sum.at, -1, sum.n)
			sum.n = 0
		}
	}
	for i, w := range line {
		t, p := &w.traces[part], &w.parts[part]
		switch {
		case moves(i, w) || needed[i]:
			flush()
			e.add(w, part, w.at, w.raises(part))
			if w.raises(part) {
				e.floats(t.pre[0], t.before, p.less)
				if i < free {
					e.number(0) // it will not fall back
					break
				}
				e.number(len(t.cleared))
				for _, c := range t.cleared {
					e.number(int(c.place))
					e.floats(c.count)
				}
			}
		case w.stays() && slots[t.slot]:
			if slot != t.slot || sum.at != w.at && (instants[sum.at] || instants[w.at]) {
				flush()
			}
			if sum.n == 0 {
				slot, sum.at = t.slot, w.at
			}
			sum.n += w.n
		}
	}
	flush()
	return e.end()
}

// Flags of an entry.
const (
	entryGone   = 1 // its events are not in the state any more
	entryRaises = 2 // it raised the frontier; then more numbers follow
	entryUnsure = 4 // it also is Waiter.unsure
)

// entries writes entries, and how many there are before them. An entry consists of its
// flags, the instant of the events or the start of their window, its due, the number of
// events, and the number of waiters. Equal waiters without flags share an entry.
type entries struct {
	b     []byte
	begin int // where the number of entries is
	count int
	run   int // where the number of waiters of the last entry is, if others may join it

	// The last entry, as far as it is compared.
	at  Instant
	due float64
	n   int
}

func begin(b []byte) *entries { return &entries{b: append(b, 0, 0, 0, 0), begin: len(b)} }

func (e *entries) end() []byte {
	binary.LittleEndian.PutUint32(e.b[e.begin:], uint32(e.count))
	return e.b
}

func (e *entries) add(w *Waiter, part int, at Instant, raises bool) {
	var flags byte
	if w.parts[part].gone {
		flags |= entryGone
	}
	if raises {
		flags |= entryRaises
		if w.unsure {
			flags |= entryUnsure
		}
	}
	e.entry(flags, at, w.leaves(), w.n)
}

func (e *entries) entry(flags byte, at Instant, due float64, n int) {
	if flags == 0 && e.run > 0 && e.at == at && e.due == due && e.n == n {
		times := e.b[e.run:]
		binary.LittleEndian.PutUint32(times, binary.LittleEndian.Uint32(times)+1)
		return
	}
	e.count++
	e.at, e.due, e.n, e.run = at, due, n, 0
	e.b = append(e.b, flags)
	e.floats(at)
	e.b = appendFloat(e.b, due)
	e.floats(uint64(n))
	if flags == 0 {
		e.run = len(e.b)
	}
	e.number(1)
}

func (e *entries) number(n int) { e.b = binary.LittleEndian.AppendUint32(e.b, uint32(n)) }

func (e *entries) floats(numbers ...uint64) {
	for _, n := range numbers {
		e.b = appendFloat(e.b, float64(n))
	}
}

func appendFloat(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}
