package iolimit

import (
	"context"
	"os"
	"sync"
	"time"
)

// A deadline ends calls at a time that can be moved while they wait. The deadline of a context
// cannot be moved. So calls get a context without a deadline, which a timer cancels.
type deadline struct {
	mu     sync.Mutex // protects the fields below
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // cancels ctx when the deadline passes; nil if there is no deadline
	ended  bool        // whether end was called
}

func (d *deadline) init() {
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
}

// context returns the context of a call that begins now. It is canceled when the deadline
// passes, with the cause os.ErrDeadlineExceeded.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set moves the deadline to t; the zero time means no deadline. Calls that a deadline has ended
// stay ended.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.stopLocked()
	if d.ctx.Err() != nil {
		d.init()
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.cancel(os.ErrDeadlineExceeded)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timer == timer { // otherwise it fired while the deadline was moved
			d.cancel(os.ErrDeadlineExceeded)
		}
	})
	d.timer = timer
}

// end ends all calls, present and future, with cause.
func (d *deadline) end(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.stopLocked()
	if d.ctx.Err() != nil {
		d.init() // so that later calls get this cause, and not that of a passed deadline
	}
	d.cancel(cause)
}

func (d *deadline) stopLocked() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
