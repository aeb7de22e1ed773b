package step

import (
	"iter"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// all is the arithmetic of an All. Its state consists of the states of its parts: first
// those of fixed width, in the order of the parts, then those that grow with use. If
// any grow, the state begins with the length of each of them.
type all struct {
	kernel.Defaults
	parts []kernel.Kernel
	// The index of each part among those that the user gave, of which unlimited ones are left out.
	places []int
	widths []int  // of the states of the parts, 0 if it grows: asking each time takes longer
	ends   []int  // for each part of fixed width, where its state would end if no others grew
	grows  int    // how many parts grow with use
	fixed  int    // the sum of the others' widths
	most   int    // the limit
	tick   uint64 // the nanoseconds in a tick
}

// NewAll returns the kernel of an All of the given parts, none of which is an All.
func NewAll(parts []kernel.Kernel, enc kernel.Encoding) kernel.Kernel {
	if k := statelessOf(parts); k != nil {
		return k
	}
	k := &all{parts: make([]kernel.Kernel, 0, len(parts)), most: math.MaxInt, tick: enc.Tick}
	for i, part := range parts {
		if _, unlimited := kernel.Stateless(part); unlimited { // which has no effect
			continue
		}
		part = kernel.PartOf(part)
		k.parts, k.places = append(k.parts, part), append(k.places, i)
		k.most = min(k.most, part.Limit())
		width := part.Width()
		if width == 0 {
			k.grows++
		}
		k.widths = append(k.widths, width)
		k.fixed += width
		k.ends = append(k.ends, k.fixed)
	}
	return k
}

// statelessOf returns the kernel of an All whose parts make it stateless: one of them is blocked,
// so that nothing is ever granted or counted, or all are unlimited. Otherwise, it returns nil.
func statelessOf(parts []kernel.Kernel) kernel.Kernel {
	limited := false
	for i, part := range parts {
		_, ok := kernel.Stateless(part)
		if ok && part.Limit() == 0 {
			return kernel.NewBlockedPart(i)
		}
		limited = limited || !ok
	}
	if limited {
		return nil
	}
	return kernel.NewUnlimited()
}

func (k *all) Kind() string { return kindsOf(k.parts) }

func (k *all) Limit() int { return k.most }

func (k *all) Width() int {
	if k.grows > 0 {
		return 0
	}
	return k.fixed
}

func (k *all) states(st []uint64) iter.Seq2[kernel.Kernel, []uint64] {
	return func(yield func(kernel.Kernel, []uint64) bool) {
		st := k.begin(st)
		c := k.cursor()
		for i, part := range k.parts {
			from, to := c.next(k.widths[i], st)
			if !yield(part, st[from:to:to]) {
				return
			}
		}
	}
}

// update replaces each part's state with the result of f.
func (k *all) update(
	st []uint64,
	f func(i int, part kernel.Kernel, st []uint64) []uint64,
) []uint64 {
	st = k.begin(st)
	c := k.cursor()
	for i, part := range k.parts {
		from, to := c.next(k.widths[i], st)
		if k.widths[i] > 0 {
			f(i, part, st[from:to:to])
			continue
		}
		limit := to // the end of what f may write
		if to == len(st) {
			limit = cap(st)
		}
		next := f(i, part, st[from:to:limit])
		moved := len(next) > 0 && (cap(st) == from || &next[0] != &st[:from+1][from])
		switch {
		case to < len(st) && (moved || len(next) != to-from):
			st = slices.Replace(st, from, to, next...)
		case to == len(st) && moved:
			st = append(st[:from], next...)
		case to == len(st):
			st = st[:from+len(next)]
		}
		c.resized(st, len(next))
	}
	return st
}

// begin returns st with its header and fixed part, even if it was empty.
func (k *all) begin(st []uint64) []uint64 {
	if len(st) == 0 {
		st = append(st, make([]uint64, k.grows+k.fixed)...)
	}
	return st
}

// A cursor walks over the states of the parts.
type cursor struct {
	fixed   int // where the next state of fixed width begins
	growing int // where the next that grows begins
	length  int // the word of the header that has the length of that one
}

func (k *all) cursor() cursor { return cursor{fixed: k.grows, growing: k.grows + k.fixed} }

// next returns where the state of the next part is. width is that of the part, or 0 if it grows.
func (c *cursor) next(width int, st []uint64) (from, to int) {
	if width > 0 {
		from, c.fixed = c.fixed, c.fixed+width
		return from, c.fixed
	}
	from, c.growing = c.growing, c.growing+int(st[c.length])
	c.length++
	return from, c.growing
}

// resized records the new length of the growing state that next returned.
func (c *cursor) resized(st []uint64, length int) {
	c.growing += length - int(st[c.length-1])
	st[c.length-1] = uint64(length)
}

// Frontier is 0: each part has one of its own.
func (k *all) Frontier([]uint64) kernel.Instant { return 0 }

func (k *all) Ready(st []uint64, now kernel.Instant, n int) kernel.Instant {
	at := now
	for part, st := range k.states(st) {
		at = max(at, part.Ready(st, now, n))
	}
	return at
}

// mostCopied is the greatest width of a state that Take copies, in words.
const mostCopied = 16

// Take restores the states of the parts before one that refuses.
func (k *all) Take(st []uint64, now kernel.Instant, n int) ([]uint64, bool) {
	if k.grows > 0 || k.fixed > mostCopied {
		if k.Ready(st, now, n) > now {
			return st, false
		}
		return k.Spend(st, now, n), true
	}
	var before [mostCopied]uint64
	from := 0
	for i, part := range k.parts {
		to := k.ends[i]
		for j := from; j < to; j++ {
			before[j] = st[j]
		}
		if _, granted := part.Take(st[from:to:to], now, n); !granted {
			copy(st, before[:from])
			return st, false
		}
		from = to
	}
	return st, true
}

func (k *all) Spend(st []uint64, at kernel.Instant, n int) []uint64 {
	return k.update(st, func(_ int, part kernel.Kernel, st []uint64) []uint64 {
		return part.Spend(st, at, n)
	})
}

func (k *all) Remaining(st []uint64, now kernel.Instant) int {
	most := k.most
	for part, st := range k.states(st) {
		most = min(most, remaining(part, st, now))
	}
	return most
}

func (k *all) Fresh(st []uint64) (at kernel.Instant) {
	for part, st := range k.states(st) {
		at = max(at, part.Fresh(st))
	}
	return at
}

func (k *all) Delay(st []uint64, at kernel.Instant) (ticks uint64) {
	for part, st := range k.states(st) {
		ticks = max(ticks, part.Delay(st, at))
	}
	return ticks
}

// Full checks the queues at the instant at which all other parts grant.
func (k *all) Full(st []uint64, now kernel.Instant, n int) bool {
	at := now
	for part, st := range k.states(st) {
		if !part.Delays() {
			at = max(at, part.Ready(st, now, n))
		}
	}
	if at > kernel.MaxInstant/k.tick {
		return false // never granted, which is not the same as a full queue
	}
	for part, st := range k.states(st) {
		if part.Full(st, at, n) {
			return true
		}
	}
	return false
}

func (k *all) Promise(st []uint64) {
	for part, st := range k.states(st) {
		part.Promise(st)
	}
}

func (k *all) Refuse(
	st []uint64,
	now kernel.Instant,
	n int,
	held uint64,
) (_ []uint64, changed bool) {
	st = k.update(st, func(_ int, part kernel.Kernel, st []uint64) []uint64 {
		st, noted := part.Refuse(st, now, n, held)
		changed = changed || noted
		return st
	})
	return st, changed
}

func (k *all) Pack(st []uint64) []uint64 {
	if len(st) == 0 {
		return st
	}
	return k.update(st, func(_ int, part kernel.Kernel, st []uint64) []uint64 {
		return part.Pack(st)
	})
}

// remaining returns the most events that a part grants at now: 0 while a reservation is ahead.
func remaining(part kernel.Kernel, st []uint64, now kernel.Instant) int {
	if now < part.Frontier(st) {
		return 0
	}
	return part.Remaining(st, now)
}

// part returns the index, among the parts that the user gave, of the one that decides: the one that
// grants n events last or, with turns, whose turn for them is the latest; if n is 0, the one with
// the fewest events remaining.
func (k *all) part(st []uint64, now kernel.Instant, n int, turns bool) (index int) {
	most, i := uint64(0), 0
	for part, st := range k.states(st) {
		by := kernel.Forever
		switch {
		case n == 0:
			by = uint64(math.MaxInt - remaining(part, st, now))
		case n <= part.Limit():
			by = part.Ready(st, now, n)
			if turns {
				by = kernel.After(by, part.Delay(st, by))
			}
		}
		if by > most {
			index, most = k.places[i], by
		}
		i++
	}
	return index
}

func (k *all) Notes() bool { return slices.ContainsFunc(k.parts, kernel.Kernel.Notes) }

func (k *all) Delays() bool { return slices.ContainsFunc(k.parts, kernel.Kernel.Delays) }

func (k *all) Drifts() bool { return slices.ContainsFunc(k.parts, kernel.Kernel.Drifts) }

func (k *all) Releases() bool { return slices.ContainsFunc(k.parts, kernel.Kernel.Releases) }

func (k *all) Valid(st []uint64, enc kernel.Encoding) bool {
	if len(st) == 0 {
		return true
	}
	left := uint64(len(st))
	for _, n := range append([]uint64{uint64(k.grows + k.fixed)}, st[:min(k.grows, len(st))]...) {
		if n > left {
			return false
		}
		left -= n
	}
	if left > 0 {
		return false
	}
	for part, st := range k.states(st) {
		if !part.Valid(st, enc) {
			return false
		}
	}
	return true
}

func (k *all) Adopt(
	from kernel.Kernel,
	st []uint64,
	now, latest kernel.Instant,
) (_ []uint64, lasting bool) {
	lasting = true
	var states [][]uint64
	for old, st := range from.(*all).states(st) {
		st, lasts := k.parts[len(states)].Adopt(old, st, now, latest)
		states, lasting = append(states, st), lasting && lasts
	}
	return joined(k.parts, states), lasting
}

func joined(parts []kernel.Kernel, states [][]uint64) []uint64 {
	var lengths, fixed, growing []uint64
	for i, st := range states {
		if parts[i].Width() > 0 {
			fixed = append(fixed, st...)
		} else {
			lengths, growing = append(lengths, uint64(len(st))), append(growing, st...)
		}
	}
	return append(append(lengths, fixed...), growing...)
}

func (k *all) SharesStates(from kernel.Kernel) bool {
	return slices.EqualFunc(k.parts, from.(*all).parts, kernel.Kernel.SharesStates)
}

func (k *all) Chargeable(st []uint64, now kernel.Instant, enc kernel.Encoding) uint64 {
	most := uint64(math.MaxUint64)
	for part, st := range k.states(st) {
		most = min(most, part.Chargeable(st, now, enc))
	}
	return most
}
