package ratelimit

import (
	"slices"
	"time"
)

// A SlidingLog remembers the instant of every event, and grants n if no span
// of length Window then holds more than Limit: the events after t − Window and
// not after t, and n, are at most Limit. An event exactly one Window old no
// longer counts.
//
// It is the only one that bounds every span of length Window exactly, wherever
// it begins. The price is memory: three words for a key, and one for each event
// in the window (two for several at once), at most about Limit of them. A
// decision takes time for each event that has left the window since the last
// grant, for n if it is denied, and for each reservation that is pending.
//
// With CountDenied, refused events enter the log too, so that a caller who
// does not back off is not let in again until it does. That is the access
// list which many servlet filters keep.
type SlidingLog struct {
	Limit       int           // the most events in any span of length Window
	Window      time.Duration // the length of that span
	CountDenied bool          // whether refused events are logged too
}

func (a SlidingLog) compile(f form) (kernel, error) {
	switch {
	case a.Limit < 1:
		return nil, invalid("SlidingLog.Limit", a.Limit, "must be at least 1")
	case a.Window < 1:
		return nil, invalid("SlidingLog.Window", a.Window, "must be at least 1ns")
	}
	window, err := f.ticks(a.Window, "SlidingLog.Window")
	if err == nil {
		err = f.count(a.Limit, "SlidingLog.Limit")
	}
	return &log{most: uint64(a.Limit), window: window, countDenied: a.CountDenied, tight: f.portable}, err
}

// log is the arithmetic of a [SlidingLog]. Its state grows with use:
//
//	word 0   how many events the entries stand for, modulo 2⁶⁴
//	word 1   where the first entry begins; words before it are waste
//	word 2   the latest instant that events were granted at
//	         entries, oldest first: an instant, and then, if several events
//	         happened at it, their number with its top bit set
//
// An empty state is the fresh one. Instants are below 2⁶², so that the top bit
// tells a number from an instant from either end. Entries that have left the
// window are dropped when the next event is spent: those that have left it now. The
// others may count again when a reservation that is ahead is cancelled. So together
// the entries may stand for more events than the limit; in any window they do not,
// except for refused ones.
type log struct {
	plain
	most        uint64 // the limit
	window      uint64 // ticks
	countDenied bool
	tight       bool // whether there is to be no waste
}

const (
	logHeader = 3       // words before the first entry
	logMany   = 1 << 63 // marks a number of events
)

func (k *log) limit() int { return int(k.most) }
func (k *log) width() int { return 0 }

// entry returns the entry that begins at word i, and where the next begins.
func (k *log) entry(st []uint64, i uint64) (at instant, n, next uint64) {
	if i+1 < uint64(len(st)) && st[i+1]&logMany != 0 {
		return st[i], st[i+1] &^ logMany, i + 2
	}
	return st[i], 1, i + 1
}

// frontier returns the latest instant that events were granted at.
func (k *log) frontier(st []uint64) instant {
	if len(st) == 0 {
		return 0
	}
	return st[2]
}

// lastEntry returns where the entry that ends at word end begins, if any does.
func (k *log) lastEntry(st []uint64, end uint64) (begin uint64, ok bool) {
	if len(st) == 0 || end <= st[1] {
		return 0, false
	}
	if st[end-1]&logMany != 0 {
		return end - 2, true
	}
	return end - 1, true
}

// live returns how many events count at t, and where their entries begin.
func (k *log) live(st []uint64, t instant) (n, first uint64) {
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

// ready finds the event whose leaving makes room for n.
func (k *log) ready(st []uint64, now instant, n int) instant {
	now = max(now, k.frontier(st)) // not ahead of a reservation
	live, i := k.live(st, now)
	for live > k.most-uint64(n) {
		at, many, next := k.entry(st, i)
		live, i = live-many, next
		now = at + k.window
	}
	return now
}

func (k *log) spend(st []uint64, at instant, n int) []uint64 {
	st = k.insert(k.trim(st, at), at, uint64(n))
	st[2] = at
	return st
}

func (k *log) reserve(st []uint64, now, at instant, n int, to []trace) ([]uint64, []trace) {
	st = k.insert(k.trim(st, now), at, uint64(n))
	st[2] = at
	return st, append(to, trace{})
}

// trim drops the entries that no longer count at t, and moves the others to
// the front once more than half of the words are waste, so that both the
// moving and the waste stay in proportion to the use.
func (k *log) trim(st []uint64, t instant) []uint64 {
	if len(st) == 0 {
		return append(st, 0, logHeader, 0)
	}
	st[0], st[1] = k.live(st, t)
	return k.compact(st)
}

func (k *log) compact(st []uint64) []uint64 {
	if first := st[1]; first-logHeader > uint64(len(st))/2 || k.tight && first > logHeader {
		st = slices.Delete(st, logHeader, int(first))
		st[1] = logHeader
		if cap(st) > 64 && cap(st) > 4*len(st) {
			st = slices.Clone(st)
		}
	}
	return st
}

// insert adds an entry in the order of time. It goes to the end, but for an
// event that is refused while reservations are ahead.
func (k *log) insert(st []uint64, at instant, n uint64) []uint64 {
	end := uint64(len(st))
	for {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < at {
			break
		}
		if st[begin] == at {
			_, many, _ := k.entry(st, begin)
			return k.replace(st, begin, end, at, min(many+n, max(many, k.atOnce())))
		}
		end = begin
	}
	return k.replace(st, end, end, at, n)
}

// atOnce returns how many events at one instant are told apart, a number below 2⁶³:
// as many as may be granted, and cancelled, and as many refused.
func (k *log) atOnce() uint64 { return min(2*k.most, logMany-1) }

// replace puts n events at an instant in the place of the words from begin to
// end, which are one entry or none, and keeps the sum.
func (k *log) replace(st []uint64, begin, end uint64, at instant, n uint64) []uint64 {
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

func (k *log) room(st []uint64, now instant) int {
	if now < k.frontier(st) {
		return 0 // a reservation is ahead
	}
	live, _ := k.live(st, now)
	return int(k.most - min(live, k.most))
}

// fresh returns when the newest event leaves the window. If it was a
// reservation that was cancelled, the others may be gone before its instant,
// which nobody may get ahead of all the same.
func (k *log) fresh(st []uint64) instant {
	if i, ok := k.lastEntry(st, uint64(len(st))); ok {
		return max(k.frontier(st), st[i]+k.window)
	}
	return k.frontier(st)
}

// refuse logs refused events if it is told to. Of what happened before, only the
// newest Limit events can matter: while they are in the window, older ones make no
// difference.
func (k *log) refuse(st []uint64, now instant, n int) ([]uint64, bool) {
	if !k.countDenied {
		return st, false
	}
	st = k.insert(k.trim(st, now), now, uint64(n))
	before := st[0]
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < now {
			break
		}
		_, many, _ := k.entry(st, begin)
		before, end = before-many, begin
	}
	for before > k.most {
		at, many, next := k.entry(st, st[1])
		if excess := before - k.most; many > excess {
			st, before = k.replace(st, st[1], next, at, many-excess), k.most
		} else {
			st[0], st[1], before = st[0]-many, next, before-many
		}
	}
	return k.compact(st), true
}

// cancel takes the events out of the log. If refused ones are logged, then what is
// in the past stays: what they made no difference to any more may be forgotten.
func (k *log) cancel(st []uint64, u *undoing) []uint64 {
	for _, p := range u.line {
		if u.cancelled(p) && !u.gone(p) {
			u.take(p)
			if !k.countDenied || p.at >= u.now {
				st = k.remove(st, p.at, p.n)
				u.changed = true
			}
		}
	}
	return st
}

// remove takes out n events at an instant. The frontier falls to what is left.
func (k *log) remove(st []uint64, at instant, n int) []uint64 {
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < at {
			return st
		}
		if st[begin] == at {
			_, many, _ := k.entry(st, begin)
			st = k.replace(st, begin, end, at, many-min(many, uint64(n)))
			if last, ok := k.lastEntry(st, uint64(len(st))); !ok {
				st[2] = 0
			} else if st[last] < st[2] {
				st[2] = st[last]
			}
			return st
		}
		end = begin
	}
}

func (k *log) giveBack(st []uint64, at, _ instant, n int) []uint64 {
	if k.countDenied {
		return st
	}
	return k.remove(st, at, n)
}

func (k *log) notes() bool { return k.countDenied }

// valid walks over the entries: in the order of time, no more than the limit in any
// window, and as many events as the first word says.
func (k *log) valid(st []uint64) bool {
	if len(st) == 0 {
		return true
	}
	if len(st) < logHeader || st[1] < logHeader || st[1] > uint64(len(st)) || k.frontier(st) > maxInstant {
		return false
	}
	var sum, last uint64
	var within uint64 // in the window that ends with the entry
	oldest := st[1]   // in that
	for i := st[1]; i < uint64(len(st)); {
		at, n, next := k.entry(st, i)
		if at > maxInstant || at < last || n == 0 || n > k.atOnce() {
			return false
		}
		for oldest < i {
			first, many, after := k.entry(st, oldest)
			if first+k.window > at {
				break
			}
			within, oldest = within-many, after
		}
		if !k.countDenied && n > k.most-within {
			return false
		}
		sum, within, last, i = sum+n, within+n, at, next
	}
	return sum == st[0]
}
