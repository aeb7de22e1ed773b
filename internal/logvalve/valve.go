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

// Pass reports whether a message may be logged now, and how many messages are held back. If the
// message passes, held is the number of messages held back since the previous one that passed. If
// it does not pass, held counts this message as well. If held is 1 then, the caller can log the
// message at the end of the interval: see Flush.
//
// now may be earlier than the previous message that passed. If it is earlier by an interval or
// more, the clock was set back, and the message passes. If it is earlier by less, another goroutine
// may have read the clock later and called Pass earlier, and the message does not pass.
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

// Flush is called an interval after Pass has held back a first message. If no message has passed
// since, Flush lets this message pass, and returns how many messages were held back, this one
// included. Without Flush, the messages held back at the end of a flood would be reported only with
// the next message.
func (v *Valve) Flush(now time.Time, interval time.Duration) (held int, ok bool) {
	last := v.last.Load()
	if v.held.Load() == 0 || now.Sub(*last).Abs() < interval || !v.last.CompareAndSwap(last, &now) {
		return 0, false // another message passes, and tells of them
	}
	held = int(v.held.Swap(0))
	return held, held > 0
}

// Forget drops the count of the messages held back, of which another message tells.
func (v *Valve) Forget() { v.held.Store(0) }
