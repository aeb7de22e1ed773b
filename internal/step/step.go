package step

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// This file defines, once for all algorithms, what a decision, its durations and a reservation
// mean. RetryAfter is the instant for which Ready waits, less now, except where no kernel can know
// it: if the store fails, if it is full and the key is new, and if others stand in line.

// Step applies req to a state without open holds, in place. It returns the state and whether it
// changed, and sets a to the answer. It reads the clock, so the caller must prevent concurrent
// changes of the state, or detect them afterwards.
func (c *Machine) Step(st []uint64, req *Request, a *Answer) (_ []uint64, changed bool) {
	decides := req.Op.decides()
	if decides && c.denials {
		req.renew() // because a denial that is noted cannot be decided on twice
	}
	v := c.view(req)
	st, changed = v.step(st, req, a)
	if decides && !changed && !a.Allowed && req.renew() {
		v = c.view(req)
		return v.step(st, req, a)
	}
	return st, changed
}

// step applies req, apart from its Hold.
func (v *view) step(st []uint64, req *Request, a *Answer) (_ []uint64, changed bool) {
	*a = Answer{}
	switch req.Op {
	case OpPeek, OpSettle, OpExtend: // without open holds
		v.peek(st, a)
	case OpReserve:
		st, changed = v.reserve(st, req, a)
		if !a.Allowed {
			v.refused(st, req, a)
		}
	case OpCharge:
		st, changed = v.charge(st, req.N, a)
	default:
		n := req.N
		if req.UpTo {
			n = upTo(n, v.remaining(st))
		}
		st, changed = v.take(st, n, a)
		if req.UpTo && a.Allowed {
			a.Granted = n
		}
	}
	return st, changed
}

// upTo returns how many events an UpTo of n events asks for if so many remain.
func upTo(n, remaining int) int { return max(1, min(n, remaining)) }

// Allow is a faster Step for OpTake that only reports whether n events were granted, 1
// ≤ n ≤ limit.
func (c *Machine) Allow(
	st []uint64,
	clk *timeline.Timeline,
	n int,
) (_ []uint64, granted, changed bool) {
	if c.denials {
		clk.Renew() // as in Step; each denial changes the state
		v := view{Machine: c}
		v.now, _ = clk.Now()
		st, at, changed := v.decide(st, n)
		return st, at == v.now, changed
	}
	now, _ := clk.Now()
	st, granted = c.Take(st, now, n)
	if !granted && clk.Renew() {
		now, _ = clk.Now()
		st, granted = c.Take(st, now, n)
	}
	return st, granted, granted
}

func (c *Machine) view(req *Request) view {
	now, lag := req.Now()
	if c.Tick > 1 { // avoids a division for stores in memory
		now /= c.Tick
	}
	return view{Machine: c, now: now, lag: lag}
}

// A view is a kernel at a reading of the clock.
type view struct {
	*Machine
	now kernel.Instant
	lag uint64 // by how many nanoseconds the clock is behind now

	held uint64 // the events of open holds, if denials are noted
	// The turn ahead that comes last, before which nothing is granted; 0 if there is none.
	lastTurn kernel.Instant
}

func (v *view) until(t kernel.Instant) time.Duration {
	return kernel.UntilIn(t, v.now, v.lag, v.Tick)
}

// ready is the kernel's Ready, extended to n = 0 and n above the limit.
func (v *view) ready(st []uint64, n int) kernel.Instant {
	switch {
	case n == 0:
		return v.now
	case n > v.Limit():
		return kernel.Forever
	}
	return v.Ready(st, max(v.now, v.lastTurn), n)
}

// remaining is the kernel's Remaining: 0 while a turn is ahead.
func (v *view) remaining(st []uint64) int {
	if v.now < v.lastTurn {
		return 0
	}
	return v.Remaining(st, v.now)
}

// describe fills in the fields of a that do not depend on the request, and Part. n is
// the number of events denied, or 0.
func (v *view) describe(st []uint64, n int, a *Answer) {
	by, state := v.askedLimit(st)
	if by.parts != nil {
		a.Part = by.parts.part(state, v.now, n, false)
	}
	a.Limit = v.Limit()
	a.Remaining = v.remaining(st)
	a.ResetAfter = v.until(by.Fresh(state))
}

// decide spends n events if they are granted now, and otherwise lets the kernel note
// the denial. It returns the instant at which they are granted, which may be now.
func (v *view) decide(st []uint64, n int) (_ []uint64, at kernel.Instant, changed bool) {
	if n == 0 {
		return st, v.now, false
	}
	if n <= v.Limit() { // most requests are granted
		if st, granted := v.Take(st, v.now, n); granted {
			return st, v.now, true
		}
	}
	return v.refuse(st, n, v.ready(st, n))
}

// refuse lets the kernel note that n events, which were ready at the given instant, are
// denied. It returns the instant at which they are ready after that.
func (v *view) refuse(
	st []uint64,
	n int,
	at kernel.Instant,
) (_ []uint64, _ kernel.Instant, changed bool) {
	if n <= v.Limit() {
		st, changed = v.Refuse(st, v.now, n, v.held)
		if changed {
			at = v.ready(st, n)
		}
	}
	return st, at, changed
}

func (v *view) take(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	delay := v.Delay(st, v.now)
	st, at, changed := v.decide(st, n)
	if at > v.now {
		v.denial(st, n, at, a)
		return st, changed
	}
	a.Allowed = true
	if n > 0 && delay > 0 {
		a.Delay = v.until(kernel.After(v.now, delay))
	}
	v.describe(st, 0, a)
	return st, changed
}

// denial fills in the answer to a request that would be granted only at an instant.
func (v *view) denial(st []uint64, n int, at kernel.Instant, a *Answer) {
	a.RetryAfter = kernel.Never
	if at < kernel.Forever {
		a.RetryAfter = v.until(at)
	}
	v.describe(st, n, a)
}

func (v *view) peek(st []uint64, a *Answer) {
	v.describe(st, 0, a)
	a.Allowed = a.Remaining > 0
	if a.Allowed {
		a.Delay = v.until(kernel.After(v.now, v.Delay(st, v.now)))
		return
	}
	at := v.ready(st, 1)
	if v.denials { // OpTake would note the denial; OpPeek must not
		st, at, _ = v.refuse(slices.Clone(st), 1, at)
	}
	v.denial(st, 1, at, a)
}

func (v *view) reserve(st []uint64, req *Request, a *Answer) (_ []uint64, changed bool) {
	at, due, ok := v.turn(st, req, a)
	if !ok {
		return st, false
	}
	st = v.book(st, at, due, req.N)
	v.reserved(due, req, a)
	v.describe(st, 0, a)
	return st, true
}

// turn returns when the events of a reservation would be spent, and when they may happen. It
// reports whether that is soon enough.
func (v *view) turn(st []uint64, req *Request, a *Answer) (at, due kernel.Instant, ok bool) {
	if req.N <= v.Limit() && v.Full(st, max(v.now, v.lastTurn), req.N) {
		a.QueueFull = true
		return 0, 0, false
	}
	at = v.ready(st, req.N)
	if at > v.LastInstant() {
		a.Wait = kernel.Never
		return 0, 0, false
	}
	due = kernel.After(at, v.Delay(st, at))
	a.Wait = v.until(due)
	return at, due, a.Wait <= req.MaxWait && (!req.Again || a.Wait <= req.Near) &&
		a.Wait != kernel.Never
}

// book is Spend for events that may happen at an instant, which is promised if it is ahead.
func (v *view) book(st []uint64, at, due kernel.Instant, n int) []uint64 {
	st = v.Spend(st, at, n)
	if due > v.now {
		v.Promise(st)
	}
	return st
}

// reserved fills in the answer to a reservation that is made, apart from the description. Held is
// whether it is to be kept, so that it can be settled.
func (v *view) reserved(due kernel.Instant, req *Request, a *Answer) {
	if req.Fixed == nil || req.Fixed.Own {
		a.Due = due * v.Tick // does not overflow, because the wait is not Never
	}
	a.Allowed = true
	a.Held = req.Hold.ID != 0 && (due > v.now || req.Hold.For > 0)
}

// refused fills in the answer to a reservation that is denied. Without other requests,
// the turn is at the same instant whenever it is reserved, and a full queue has room
// again at the instant when all parts grant. So the same reservation succeeds once
// there is room and the turn is no more than MaxWait away.
func (v *view) refused(st []uint64, req *Request, a *Answer) {
	v.describe(st, req.N, a)
	at, turn := v.ready(st, req.N), kernel.Never
	if at <= v.LastInstant() {
		turn = v.until(kernel.After(at, v.Delay(st, at)))
	}
	if turn == kernel.Never {
		a.RetryAfter = kernel.Never
		return
	}
	var room time.Duration
	if v.Full(st, max(v.now, v.lastTurn), req.N) {
		room = v.until(at)
	}
	// A fraction of a tick of MaxWait does not count.
	tick, most := time.Duration(v.Tick), max(0, req.MaxWait)
	if req.Again && turn <= most && room == 0 {
		most = min(most, req.Near)
	}
	near := turn - most/tick*tick
	a.RetryAfter = max(room, near)
	if by, state := v.askedLimit(st); near > room && by.parts != nil {
		a.Part = by.parts.part(state, v.now, req.N, true)
	}
}
