package kernel

import (
	"cmp"
	"math"
	"slices"
)

// eventLog is the arithmetic of a SlidingLog. Its state grows with use:
//
//	word 0   how many events the entries stand for, modulo 2⁶⁴
//	word 1   index of the first entry; words between are unused
//	word 2   the frontier: the latest instant at which events were granted
//	         entries, oldest first: an instant, followed, if several events
//	         happened at it, by their number with its top bit set
//
// An empty state is the fresh one. Instants are below 2⁶², so the top bit distinguishes
// numbers from instants when reading from either end. Spending drops the entries that
// have left the window. The others stand for at most as many events as the limit, except
// for those that were denied or charged.
type eventLog struct {
	Defaults
	most        uint64 // the limit
	window      uint64 // ticks
	countDenied bool
}

const (
	logHeader = 3       // words before the first entry
	logMany   = 1 << 63 // marks a number of events
)

// NewSlidingLog returns the kernel of a SlidingLog with a window in ticks.
func NewSlidingLog(limit int, window uint64, countDenied bool) Kernel {
	return &eventLog{most: uint64(limit), window: window, countDenied: countDenied}
}

func (*eventLog) Kind() string { return "eventLog" }

func (k *eventLog) Limit() int { return int(k.most) }
func (k *eventLog) Width() int { return 0 }

// entry returns the entry that begins at word i, and the index of the next one.
func (k *eventLog) entry(st []uint64, i uint64) (at Instant, n, next uint64) {
	if i+1 < uint64(len(st)) && st[i+1]&logMany != 0 {
		return st[i], st[i+1] &^ logMany, i + 2
	}
	return st[i], 1, i + 1
}

func (k *eventLog) Frontier(st []uint64) Instant {
	if len(st) == 0 {
		return 0
	}
	return st[2]
}

// lastEntry returns the index of the entry that ends at word end, if there is one.
func (k *eventLog) lastEntry(st []uint64, end uint64) (begin uint64, ok bool) {
	if len(st) == 0 || end <= st[1] {
		return 0, false
	}
	if st[end-1]&logMany != 0 {
		return end - 2, true
	}
	return end - 1, true
}

// live returns the number of events that count at t, and the index of the first of
// them.
func (k *eventLog) live(st []uint64, t Instant) (n, first uint64) {
	if len(st) == 0 {
		return 0, logHeader
	}
	n, first = st[0], st[1]
	for first < uint64(len(st)) {
		at, many, next := k.entry(st, first)
		if at+k.window > t {
			break
		}
		n, first = n-many, next
	}
	return n, first
}

// Ready finds the event that makes room for n when it leaves the window.
func (k *eventLog) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	live, i := k.live(st, now)
	for live > k.most-uint64(n) {
		at, many, next := k.entry(st, i)
		live, i = live-many, next
		now = at + k.window
	}
	return now
}

func (k *eventLog) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	live, first := k.live(st, now)
	if live > k.most-uint64(n) {
		return st, false
	}
	st = k.insert(k.drop(st, live, first), now, uint64(n), logMany-1)
	st[2] = now
	return st, true
}

func (k *eventLog) Spend(st []uint64, at Instant, n int) []uint64 {
	at = max(at, k.Frontier(st))
	st = k.insert(k.trim(st, at), at, uint64(n), logMany-1)
	st[2] = at
	return st
}

func (k *eventLog) trim(st []uint64, t Instant) []uint64 {
	live, first := k.live(st, t)
	return k.drop(st, live, first)
}

// drop drops the entries before the given one. The others stand for live events.
func (k *eventLog) drop(st []uint64, live, first uint64) []uint64 {
	if len(st) == 0 {
		return append(st, 0, logHeader, 0)
	}
	st[0], st[1] = live, first
	return k.compact(st)
}

// Shed drops the oldest entries beyond twice as many as decisions can depend on.
func (k *eventLog) Shed(st []uint64) []uint64 {
	for (uint64(len(st))-st[1])/4 > k.most { // an entry has two words at most
		_, many, next := k.entry(st, st[1])
		st[0], st[1] = st[0]-many, next
	}
	return k.compact(st)
}

// compact packs the state once more than half of the words are unused, so that both the
// moving and the unused memory are proportional to the use.
func (k *eventLog) compact(st []uint64) []uint64 {
	if st[1]-logHeader > uint64(len(st))/2 {
		st = k.Pack(st)
		if cap(st) > 64 && cap(st) > 4*len(st) {
			st = slices.Clone(st)
		}
	}
	return st
}

// Pack moves the entries to the front.
func (k *eventLog) Pack(st []uint64) []uint64 {
	if len(st) == 0 {
		return st
	}
	st = slices.Delete(st, logHeader, int(st[1]))
	st[1] = logHeader
	return st
}

// insert adds an entry in the order of time. That is at the end, except for an event that is denied
// while reservations are ahead. An entry that was there counts at most as many events as given,
// below 2⁶³.
func (k *eventLog) insert(st []uint64, at Instant, n, most uint64) []uint64 {
	end := uint64(len(st))
	for {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < at {
			break
		}
		if st[begin] == at {
			_, many, _ := k.entry(st, begin)
			return k.replace(st, begin, end, at, min(many+n, max(many, most)))
		}
		end = begin
	}
	return k.replace(st, end, end, at, n)
}

// replace replaces the words from begin to end, which are one entry or none, with n
// events at an instant, and updates the sum.
func (k *eventLog) replace(st []uint64, begin, end uint64, at Instant, n uint64) []uint64 {
	if begin < end {
		_, old, _ := k.entry(st, begin)
		st[0] -= old
	}
	st[0] += n
	switch n {
	case 0:
		return slices.Delete(st, int(begin), int(end))
	case 1:
		return slices.Replace(st, int(begin), int(end), at)
	}
	return slices.Replace(st, int(begin), int(end), at, n|logMany)
}

func (k *eventLog) Remaining(st []uint64, now Instant) int {
	live, _ := k.live(st, now)
	return int(k.most - min(live, k.most))
}

// Fresh returns when the newest event leaves the window, or the frontier if that is
// later: after a settlement, it may be. Nothing is granted before the frontier.
func (k *eventLog) Fresh(st []uint64) Instant {
	if i, ok := k.lastEntry(st, uint64(len(st))); ok {
		return max(k.Frontier(st), st[i]+k.window)
	}
	return k.Frontier(st)
}

// Refuse logs denied events, if they count. Of the events before, only the newest Limit
// can matter, and as many more as may leave when holds are settled: while they are in the window,
// older ones make no difference. But no more are dropped than are added, because a limiter with a
// higher Limit may use the state too, and must not find room that it did not have before.
func (k *eventLog) Refuse(st []uint64, now Instant, n int, held uint64) ([]uint64, bool) {
	if !k.countDenied {
		return st, false
	}
	st = k.trim(st, now)
	total := st[0]
	// As many as may be granted, and as many denied.
	st = k.insert(st, now, uint64(n), min(2*k.most, logMany-1))
	before := st[0]
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < now {
			break
		}
		_, many, _ := k.entry(st, begin)
		before, end = before-many, begin
	}
	for drop := min(st[0]-total, before-min(before, k.most+held)); drop > 0; {
		at, many, next := k.entry(st, st[1])
		if many > drop {
			st, drop = k.replace(st, st[1], next, at, many-drop), 0
		} else {
			st[0], st[1], drop = st[0]-many, next, drop-many
		}
	}
	return k.compact(st), true
}

// remove removes n events at an instant. The frontier falls to the last remaining
// entry. If there is none, the state is the fresh one.
func (k *eventLog) remove(st []uint64, at Instant, n int) []uint64 {
	if n == 0 {
		return st
	}
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < at {
			return st
		}
		if st[begin] == at {
			_, many, _ := k.entry(st, begin)
			st = k.replace(st, begin, end, at, many-min(many, uint64(n)))
			last, ok := k.lastEntry(st, uint64(len(st)))
			if !ok {
				return st[:0]
			}
			st[2] = min(st[2], st[last])
			return st
		}
		end = begin
	}
}

// A removal is a number of events at an instant that leave a log.
type removal struct {
	at Instant
	n  uint64
}

// removeAll is remove for any number of removals, which it sorts. It looks at each entry once,
// because a key may have thousands of holds that end at once, and as many entries.
func (k *eventLog) removeAll(st []uint64, removals []removal) []uint64 {
	if len(st) == 0 {
		return st
	}
	slices.SortFunc(removals, func(a, b removal) int { return cmp.Compare(a.at, b.at) })
	removed, to := false, st[1]
	for from := st[1]; from < uint64(len(st)); {
		at, many, next := k.entry(st, from)
		left := many
		for len(removals) > 0 && removals[0].at <= at {
			if removals[0].at == at {
				left -= min(left, removals[0].n)
				removed = removed || removals[0].n > 0
			}
			removals = removals[1:]
		}
		st[0] -= many - left
		from = next
		if left > 0 { // it moves to the front, which is no longer than what was read
			st[to] = at
			to++
			if left > 1 {
				st[to] = left | logMany
				to++
			}
		}
	}
	if !removed {
		return st
	}
	st = st[:to]
	last, ok := k.lastEntry(st, to)
	if !ok {
		return st[:0]
	}
	st[2] = min(st[2], st[last])
	return st
}

func (k *eventLog) Notes() bool { return k.countDenied }

// Valid checks the entries: they are in the order of time, no window has more than can
// be counted, and the first word is their sum.
func (k *eventLog) Valid(st []uint64, enc Encoding) bool {
	if len(st) == 0 {
		return true
	}
	if len(st) < logHeader || st[1] < logHeader || st[1] > uint64(len(st)) ||
		k.Frontier(st) > enc.LastInstant() {
		return false
	}
	var sum, last uint64
	var within uint64 // in the window that ends with the entry
	oldest := st[1]   // in that
	for i := st[1]; i < uint64(len(st)); {
		at, n, next := k.entry(st, i)
		if at > enc.LastInstant() || at < last || n == 0 {
			return false
		}
		for oldest < i {
			first, many, after := k.entry(st, oldest)
			if first+k.window > at {
				break
			}
			within, oldest = within-many, after
		}
		if !k.countDenied && n > math.MaxInt64-within {
			return false
		}
		sum, within, last, i = sum+n, within+n, at, next
	}
	return sum == st[0]
}

func (k *eventLog) Adopt(_ Kernel, st []uint64, _, _ Instant) (_ []uint64, lasting bool) {
	return slices.Clone(st), true
}

func (k *eventLog) SharesStates(from Kernel) bool {
	old := from.(*eventLog)
	return k.window == old.window && k.countDenied == old.countDenied
}

func (k *eventLog) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	live, _ := k.live(st, now)
	return enc.MostCount() - min(live, enc.MostCount())
}

// Mark writes the instant of the events, plus 1.
func (k *eventLog) Mark(_ []uint64, at Instant, _ int, mark []uint64) { mark[0] = at + 1 }

// Settle removes the unused events. Denied ones stay.
func (k *eventLog) Settle(st []uint64, _ Instant, r Refund, m Marks) []uint64 {
	if mark := m.Of(r.Index)[0]; mark > 0 && r.Unused > 0 {
		st = k.remove(st, mark-1, r.Unused)
	}
	return st
}

// SettleAll implements BatchHolder.
func (k *eventLog) SettleAll(st []uint64, _ Instant, refunds []Refund, m Marks) []uint64 {
	removals := make([]removal, 0, len(refunds))
	for _, r := range refunds {
		if mark := m.Of(r.Index)[0]; mark > 0 && r.Unused > 0 {
			removals = append(removals, removal{mark - 1, uint64(r.Unused)})
		}
	}
	return k.removeAll(st, removals)
}
