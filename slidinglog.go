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
// grant, and for n if it is denied.
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
//	word 0   how many events the entries stand for
//	word 1   where the first entry begins; words before it are waste
//	word 2   the latest instant that events were granted at, perhaps touched,
//	         and perhaps marked for events refused since
//	         entries, oldest first: an instant, and then, if several events
//	         happened at it, their number with its top bit set
//
// An empty state is the fresh one. Instants are below 2⁶², so that the top bit
// tells a number from an instant from either end. Entries that have left the
// window are dropped when the next event is spent.
type log struct {
	plain
	most        uint64 // the limit
	window      uint64 // ticks
	countDenied bool
	tight       bool // whether there is to be no waste
}

const (
	logHeader  = 3       // words before the first entry
	logMany    = 1 << 63 // marks a number of events
	logRefused = 1 << 62 // marks an instant that events were refused after
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
	return st[2] &^ (touched | logRefused)
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
	for live+uint64(n) > k.most {
		at, many, next := k.entry(st, i)
		live, i = live-many, next
		now = at + k.window
	}
	return now
}

func (k *log) spend(st []uint64, at instant, n int) []uint64 {
	var mark uint64
	if len(st) > 0 && k.fresh(st) > at {
		mark = st[2] & touched
	}
	st = k.insert(k.trim(st, at), at, uint64(n))
	st[2] = at | mark
	return st
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
			return k.replace(st, begin, end, at, min(many+n, max(many, k.most))) // a number below 2⁶³
		}
		end = begin
	}
	return k.replace(st, end, end, at, n)
}

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

// refuse logs refused events if it is told to. Only the newest Limit events
// can matter: once they are in the window, older ones make no difference.
func (k *log) refuse(st []uint64, now instant, n int) ([]uint64, bool) {
	if !k.countDenied {
		return st, false
	}
	st = k.insert(k.trim(st, now), now, uint64(n))
	st[2] |= logRefused
	for st[0] > k.most {
		at, many, next := k.entry(st, st[1])
		if excess := st[0] - k.most; many > excess {
			st = k.replace(st, st[1], next, at, many-excess)
		} else {
			st[0], st[1] = st[0]-many, next
		}
	}
	return k.compact(st), true
}

// cancel takes the events out of the log, whoever came after them. If refused
// ones are logged, then what they pushed out may count again without those, and
// is no longer known: so nothing is given back unless nothing came after.
func (k *log) cancel(st []uint64, g *grant) []uint64 {
	if len(st) > 0 && st[2]&touched == 0 {
		var ok bool
		if st, ok = g.undo(st); ok {
			return st
		}
	}
	if k.countDenied {
		return st
	}
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] < g.at {
			return st
		}
		if st[begin] == g.at {
			_, many, _ := k.entry(st, begin)
			st[2] |= touched
			return k.replace(st, begin, end, g.at, many-min(many, uint64(g.n)))
		}
		end = begin
	}
}

func (k *log) giveBack(st []uint64, at, _ instant, n int) []uint64 {
	return k.cancel(st, &grant{at: at, n: n})
}

func (k *log) notes() bool { return k.countDenied }

// valid walks over the entries: in the order of time, and as many events as
// the first word says.
func (k *log) valid(st []uint64) bool {
	if len(st) == 0 {
		return true
	}
	if len(st) < logHeader || st[1] < logHeader || st[1] > uint64(len(st)) || k.frontier(st) > maxInstant {
		return false
	}
	var sum, last uint64
	for i := st[1]; i < uint64(len(st)); {
		at, n, next := k.entry(st, i)
		if at > maxInstant || at < last || n == 0 || n > k.most-sum {
			return false
		}
		sum, last, i = sum+n, at, next
	}
	return sum == st[0]
}
