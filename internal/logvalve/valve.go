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

// Pass reports whether a message may be logged now, and how many were held back since the
// previous one that passed. If now is an interval or more before that one, the clock was set
// back, and the message passes. If it is less, another goroutine may have read the clock later
// and come earlier.
func (v *Valve) Pass(now time.Time, interval time.Duration) (held int, ok bool) {
	for {
		last := v.last.Load()
		if last != nil && now.Sub(*last).Abs() < interval {
			v.held.Add(1)
			return 0, false
		}
		passed := now // a copy, so that only messages that pass allocate
		if v.last.CompareAndSwap(last, &passed) {
			return int(v.held.Swap(0)), true
		}
	}
}
