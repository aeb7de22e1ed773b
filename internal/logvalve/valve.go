// Package logvalve limits how often a message is logged.
package logvalve

import (
	"sync/atomic"
	"time"
)

// A Valve lets one message pass in each interval, and counts the others. Its zero value
// has seen no message. It has no lock, because a flood of messages comes from all cores.
type Valve struct {
	last atomic.Pointer[time.Time] // when the latest message passed; nil if none has
	held atomic.Int64              // messages held back that no message has told of yet
}

// Pass reports whether a message may be logged now, and how many were held back since the previous
// one that passed. If it may not, held is how many are held back now, with this one. The first of
// them, for which it is 1, can be logged when the interval is over: see Flush. If now is an
// interval or more before that one, the clock was set back, and the message passes. If it is less,
// another goroutine may have read the clock later and come earlier.
func (v *Valve) Pass(now time.Time, interval time.Duration) (held int, ok bool) {
	for {
		last := v.last.Load()
		if last != nil && now.Sub(*last).Abs() < interval {
			return int(v.held.Add(1)), false
		}
		passed := now // a copy, so that only messages that pass allocate
		if v.last.CompareAndSwap(last, &passed) {
			return int(v.held.Swap(0)), true
		}
	}
}

// Flush is called an interval after a message that was the first to be held back. If none has
// passed since, it lets that one pass, and returns how many were held back, with it. Without it,
// those at the end of a flood would be told only when the next message comes.
func (v *Valve) Flush(now time.Time, interval time.Duration) (held int, ok bool) {
	last := v.last.Load()
	if v.held.Load() == 0 || now.Sub(*last).Abs() < interval || !v.last.CompareAndSwap(last, &now) {
		return 0, false // another message passes, and tells of them
	}
	held = int(v.held.Swap(0))
	return held, held > 0
}
