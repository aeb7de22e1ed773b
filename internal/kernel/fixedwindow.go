package kernel

import "math/bits"

// fixedWindow is the arithmetic of a FixedWindow. Its state is the start of the window of the
// latest event, and the number of events in that window. If windows are aligned, the
// window's number and the count often fit in one word, with the number in the high
// bits.
//
// A calendarWindow has the same arithmetic. Only the borders of its windows are those of a
// calendar.
type fixedWindow struct {
	Defaults
	most    uint64   // the limit
	length  uint64   // of a window, in ticks; not of a calendar's
	aligned bool     // whether windows begin at multiples of length
	borders *borders // of a calendar; nil of a FixedWindow
	packed  uint     // bits of the count in the only word; 0 if there are two words
	unit    uint64   // in which that word has the start of a window: length, or a second
}

// bitsOfDebt is how many bits a count has at least, so that there is room for a debt of 2³¹−1.
const bitsOfDebt = 31

// NewFixedWindow returns the kernel of a FixedWindow with windows of length ticks.
func NewFixedWindow(limit int, length uint64, aligned bool, enc Encoding) Kernel {
	k := &fixedWindow{most: uint64(limit), length: length, aligned: aligned, unit: length}
	// All bits that are left, because a debt exceeds the limit. The number of windows, shifted by
	// them, is at most NoWord: nearer to 2⁶⁴ it would be only for a length just above a power of
	// two, by less than a 2³²th.
	low := 64 - bits.Len64(MaxInstant/k.length+1)
	if aligned && !enc.Varies && low >= bits.Len64(k.most) {
		k.packed = uint(low)
	}
	return k
}

func (*fixedWindow) Kind() string { return "fixed" }

func (k *fixedWindow) Limit() int { return int(k.most) }

func (k *fixedWindow) Width() int {
	if k.packed > 0 {
		return 1
	}
	return 2
}

func (k *fixedWindow) load(st []uint64) (start Instant, count uint64) {
	if k.packed > 0 {
		return st[0] >> k.packed * k.unit, st[0] & (1<<k.packed - 1)
	}
	return st[0], st[1]
}

func (k *fixedWindow) store(st []uint64, start Instant, count uint64) []uint64 {
	if k.packed > 0 {
		st[0] = start/k.unit<<k.packed | count
	} else {
		st[0], st[1] = start, count
	}
	return st
}

// Frontier returns the start of the window, which is in the future if it was reserved.
func (k *fixedWindow) Frontier(st []uint64) Instant {
	start, _ := k.load(st)
	return start
}

// current returns the window of t, which is not before the window of st.
func (k *fixedWindow) current(st []uint64, t Instant) (start Instant, count uint64) {
	start, count = k.load(st)
	if k.borders != nil {
		begins := k.borders.begin(t)
		if count > 0 && start >= begins {
			return start, count
		}
		return begins, 0
	}
	if count > 0 && t < k.end(start) {
		return start, count
	}
	return k.begin(t), 0
}

// begin returns the start of a new window that contains t.
func (k *fixedWindow) begin(t Instant) Instant {
	switch {
	case k.borders != nil:
		return k.borders.begin(t)
	case k.aligned:
		return t - t%k.length
	}
	return t
}

// end returns the end of the window that begins at start. A window adopted from another
// limit need not be aligned. It lasts until an aligned one begins, because an aligned
// window that contained its end would begin before instants promised in it.
func (k *fixedWindow) end(start Instant) Instant {
	if k.borders != nil {
		return k.borders.end(start)
	}
	end := start + k.length
	if k.aligned && k.packed == 0 {
		if over := end % k.length; over != 0 {
			end = After(end, k.length-over)
		}
	}
	return end
}

func (k *fixedWindow) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	start, count := k.current(st, now)
	if count+uint64(n) <= k.most {
		return now
	}
	return k.end(start)
}

func (k *fixedWindow) Spend(st []uint64, at Instant, n int) []uint64 {
	start, count := k.current(st, max(at, k.Frontier(st)))
	return k.store(st, start, count+uint64(n))
}

func (k *fixedWindow) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if k.packed > 0 {
		next, granted := k.Decide(st[0], now, n)
		if granted {
			st[0] = next
		}
		return st, granted
	}
	if now < k.Frontier(st) {
		return st, false
	}
	start, count := k.current(st, now)
	count += uint64(n)
	if count > k.most {
		return st, false
	}
	k.store(st, start, count)
	return st, true
}

// Decide implements Word. It is used if packed.
func (k *fixedWindow) Decide(word uint64, now Instant, n int) (next uint64, granted bool) {
	start := word >> k.packed * k.length
	count := uint64(n)
	switch elapsed := now - start; {
	case elapsed < k.length:
		count += word & (1<<k.packed - 1)
		next = word + uint64(n)
	case now < start:
		return word, false // a reservation is ahead
	default:
		next = now/k.length<<k.packed | count
	}
	return next, count <= k.most
}

// Await implements Word.
func (k *fixedWindow) Await(word uint64, now Instant, n int) Instant {
	return k.Ready([]uint64{word}, now, n)
}

// Describe implements Word. It finds the end of the window once, which Remaining and Fresh would
// both look for.
func (k *fixedWindow) Describe(word uint64, now Instant) (remaining int, fresh Instant) {
	start, count := k.load([]uint64{word})
	fresh = k.fresh(start, count)
	switch {
	case now < start:
		return 0, fresh // a reservation is ahead
	case now >= fresh:
		return int(k.most), fresh
	}
	return int(k.most - min(count, k.most)), fresh
}

func (k *fixedWindow) Remaining(st []uint64, now Instant) int {
	_, count := k.current(st, now)
	return int(k.most - min(count, k.most))
}

func (k *fixedWindow) Fresh(st []uint64) Instant { return k.fresh(k.load(st)) }

// fresh returns the end of the window that begins at start. If all events in it were cancelled, it
// returns the start, because nothing may be granted before that.
func (k *fixedWindow) fresh(start Instant, count uint64) Instant {
	if count == 0 {
		return start
	}
	return k.end(start)
}

func (k *fixedWindow) Valid(st []uint64, enc Encoding) bool {
	start, count := k.load(st)
	return start <= enc.LastInstant() && count <= enc.mostAdded()
}

// Adopt keeps the count in the window that contains the old one. If there is none, the events
// may have happened at latest.
func (k *fixedWindow) Adopt(
	from Kernel,
	st []uint64,
	now, latest Instant,
) (_ []uint64, lasting bool) {
	old := from.(*fixedWindow)
	start, count := old.load(st)
	if k.SharesStates(from) {
		return []uint64{start, count}, true
	}
	if old.Fresh(st) <= now {
		return make([]uint64, 2), true
	}
	if start > now { // reserved: the window keeps its start, which it would not once that has come
		return []uint64{start, count}, false
	}
	if begins := k.begin(start); k.aligned && old.end(start) <= k.end(begins) {
		return []uint64{begins, count}, true
	}
	return []uint64{k.begin(max(start, latest)), count}, false
}

func (k *fixedWindow) SharesStates(from Kernel) bool {
	old := from.(*fixedWindow)
	if k.borders != nil {
		return k.borders.calendar.Equals(old.borders.calendar)
	}
	return k.length == old.length && k.aligned == old.aligned
}

func (k *fixedWindow) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	most := enc.MostCount()
	if k.packed > 0 { // as it may be in an All
		most = 1<<k.packed - 1
	}
	_, count := k.current(st, max(now, k.Frontier(st)))
	return most - min(count, most)
}

func (k *fixedWindow) Drifts() bool { return !k.aligned }

// Mark writes the start of the window that the events are counted in, plus 1.
func (k *fixedWindow) Mark(st []uint64, at Instant, _ int, mark []uint64) {
	start, _ := k.current(st, at)
	mark[0] = start + 1
}

// Settle takes the unused events out of their window. If it has fewer, the state is not the one
// that they were granted in.
func (k *fixedWindow) Settle(st []uint64, _ Instant, r Refund, m Marks) []uint64 {
	start, count := k.load(st)
	if start+1 == m.Of(r.Index)[0] && count >= uint64(r.Unused) {
		st = k.store(st, start, count-uint64(r.Unused))
	}
	return st
}

func (k *fixedWindow) Carry(from Kernel, was, st []uint64, _ Instant, old, mark []uint64) {
	began, had := from.(*fixedWindow).load(was)
	begins, has := k.load(st)
	switch {
	case k.SharesStates(from):
		copy(mark, old)
	case old[0] == began+1 && had > 0 && has > 0:
		mark[0] = begins + 1
	}
}
