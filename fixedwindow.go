package ratelimit

import (
	"math/bits"
	"time"
)

// A FixedWindow counts the events of each window of length Window, and grants
// n if count + n ≤ Limit.
//
// It is the easiest to explain ("1,000 a day") and bounds each window exactly,
// but two bursts on either side of a border are as close as the border: a span
// as long as a window may see 2·Limit. Its state is one word for most limits,
// two otherwise or with StartOnFirstEvent.
type FixedWindow struct {
	Limit  int           // the most events in one window
	Window time.Duration // the length of a window
	Start  WindowStart   // where windows begin
}

// WindowStart says where the windows of a [FixedWindow] begin.
type WindowStart int

const (
	// StartAligned begins windows at whole multiples of their length since the
	// Unix epoch, 1970-01-01 00:00 UTC: those of an hour begin on the hour.
	StartAligned WindowStart = iota

	// StartOnFirstEvent begins a window of a key with the first event that is
	// granted outside the window before, so that keys do not all start afresh
	// at once.
	StartOnFirstEvent
)

func (a FixedWindow) compile(f form) (kernel, error) {
	switch {
	case a.Limit < 1:
		return nil, invalid("FixedWindow.Limit", a.Limit, "must be at least 1")
	case a.Window < 1:
		return nil, invalid("FixedWindow.Window", a.Window, "must be at least 1ns")
	case a.Start != StartAligned && a.Start != StartOnFirstEvent:
		return nil, invalid("FixedWindow.Start", int(a.Start), "must be StartAligned or StartOnFirstEvent")
	}
	length, err := f.ticks(a.Window, "FixedWindow.Window")
	if err == nil {
		err = f.count(a.Limit, "FixedWindow.Limit")
	}
	if err != nil {
		return nil, err
	}
	k := &fixed{most: uint64(a.Limit), length: length, aligned: a.Start == StartAligned}
	last := maxInstant / k.length // the number of the last window
	low := bits.Len64(k.most)
	if k.aligned && !f.portable && low+bits.Len64(last) <= 64 && last<<low|k.most < gone {
		k.packed = uint(low)
	}
	return k, nil
}

// fixed is the arithmetic of a [FixedWindow]. Its state is the window of the
// latest event, as its start, and the events counted in it. Where windows are
// aligned, their number and the count often fit in one word, in that order from the
// top.
type fixed struct {
	plain
	most    uint64 // the limit
	length  uint64 // of a window, in ticks
	aligned bool   // whether windows begin at multiples of length
	packed  uint   // bits of the count in the only word; 0 if there are two words
}

func (k *fixed) limit() int { return int(k.most) }

func (k *fixed) width() int {
	if k.packed > 0 {
		return 1
	}
	return 2
}

func (k *fixed) load(st []uint64) (start instant, count uint64) {
	if k.packed > 0 {
		return st[0] >> k.packed * k.length, st[0] & (1<<k.packed - 1)
	}
	return st[0], st[1]
}

func (k *fixed) store(st []uint64, start instant, count uint64) []uint64 {
	if k.packed > 0 {
		st[0] = start/k.length<<k.packed | count
	} else {
		st[0], st[1] = start, count
	}
	return st
}

// current returns the window that t lies in, which is not before st's.
func (k *fixed) current(st []uint64, t instant) (start instant, count uint64) {
	start, count = k.load(st)
	switch {
	case count > 0 && t < k.end(start):
		return start, count
	case k.aligned:
		return t - t%k.length, 0
	}
	return t, 0
}

// end returns the end of the window that begins at start. One that was adopted from
// another limit need not be aligned, and lasts until one that is begins: otherwise
// that would begin before the instants that were promised in it.
func (k *fixed) end(start instant) instant {
	end := start + k.length
	if k.aligned && k.packed == 0 {
		if over := end % k.length; over != 0 {
			end = after(end, k.length-over)
		}
	}
	return end
}

func (k *fixed) ready(st []uint64, now instant, n int) instant {
	start, _ := k.load(st)
	now = max(now, start) // not ahead of a reservation
	start, count := k.current(st, now)
	if count+uint64(n) <= k.most {
		return now
	}
	return k.end(start)
}

func (k *fixed) spend(st []uint64, at instant, n int) []uint64 {
	start, count := k.current(st, at)
	return k.store(st, start, count+uint64(n))
}

// decide implements wordKernel. It is used if packed.
func (k *fixed) decide(word uint64, now instant, n int) (next uint64, granted bool) {
	st := [1]uint64{word}
	if granted = k.ready(st[:], now, n) == now; granted {
		k.spend(st[:], now, n)
	}
	return st[0], granted
}

func (k *fixed) room(st []uint64, now instant) int {
	if start, _ := k.load(st); now < start {
		return 0 // a reservation is ahead
	}
	_, count := k.current(st, now)
	return int(k.most - min(count, k.most))
}

// fresh returns the end of the window, or its start if all in it was
// cancelled: nobody may get ahead of it all the same.
func (k *fixed) fresh(st []uint64) instant {
	start, count := k.load(st)
	if count == 0 {
		return start
	}
	return k.end(start)
}

func (k *fixed) reserve(st []uint64, _, at instant, n int, to []trace) ([]uint64, []trace) {
	var t trace
	copy(t.pre[:], st)
	was, _ := k.load(st)
	st = k.spend(st, at, n)
	t.slot, _ = k.load(st)
	t.raised = t.slot != was
	return st, append(to, t)
}

// cancel takes the events out of the count. A window ahead that nothing is left in
// makes way for the one before it, if the line knows that.
func (k *fixed) cancel(st []uint64, u *undoing) []uint64 {
	for again := true; again; {
		again = false
		for _, p := range u.line {
			start, _ := k.load(st)
			if u.cancelled(p) && !u.gone(p) && p.at >= start && p.at < k.end(start) {
				st = k.remove(st, p.n)
				u.changed = true
				u.take(p)
			}
		}
		start, count := k.load(st)
		if count > 0 || start <= u.now {
			break
		}
		for _, p := range u.line {
			if t := u.trace(p); t.raised && t.slot == start && u.cancelled(p) && !u.progress(p).fallen {
				copy(st, t.pre[:])
				u.changed, again = true, true
				u.fall(p)
				break
			}
		}
	}
	return st
}

// remove takes n events out of the window, unless there are fewer: then it is that of
// another state.
func (k *fixed) remove(st []uint64, n int) []uint64 {
	start, count := k.load(st)
	if count < uint64(n) {
		return st
	}
	return k.store(st, start, count-uint64(n))
}

func (k *fixed) giveBack(st []uint64, at, _ instant, n int) []uint64 {
	if start, _ := k.load(st); at < start || at >= k.end(start) {
		return st
	}
	return k.remove(st, n)
}

func (k *fixed) valid(st []uint64) bool {
	if k.packed > 0 && st[0]>>k.packed > maxInstant/k.length {
		return false
	}
	start, count := k.load(st)
	return start <= maxInstant && count <= k.most
}
