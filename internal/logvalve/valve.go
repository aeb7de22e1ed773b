// Package logvalve limits how often a message is logged.
package logvalve

import (
	"sync"
	"time"
)

// A Valve lets one message pass in each interval, and counts the others. Its zero value
// has seen no message.
type Valve struct {
	mu     sync.Mutex // protects the fields below
	passed bool       // whether a message has passed
	last   time.Time  // when the latest one did
	held   int        // messages held back since then
}

// Pass reports whether a message may be logged now, and how many were held back since the
// previous one that passed. If now is before that one, the clock was set back, and the
// message passes.
func (v *Valve) Pass(now time.Time, interval time.Duration) (held int, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if since := now.Sub(v.last); v.passed && since >= 0 && since < interval {
		v.held++
		return 0, false
	}
	held, v.passed, v.last, v.held = v.held, true, now, 0
	return held, true
}
