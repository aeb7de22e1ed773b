package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// Reserve implements [Limiter].
func (l *limiter) Reserve(ctx context.Context, key string, n int, opts ...HoldOption) (*Reservation, Decision, error) {
	h, err := newHolding(l.check(ctx, n), ofReserve, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	c := newCall(ctx, kernel.OpReserve, key, n)
	c.h, c.opts, c.Request.MaxWait = h, opts, h.within
	if n == 0 {
		c.Request.Op, c.opts = kernel.OpHold, nil // which grants them, whatever the state
	}
	r, err := l.do(&c)
	l.decided(ctx, CallReserve, &c.Call, r, err)
	return r, Decision(c.Answer.Decision), err
}

// A want is what a Hold or a Wait asks for, and why a Wait was not simply granted.
type want struct {
	ctx   context.Context // of calls of the store
	until context.Context // ends with ctx, or before: then it waits no longer
	key   string
	n     int
	h     holding      // how they are held, if they are: otherwise, a grant at once leaves no Reservation
	opts  []HoldOption // likewise
	place *line.Place  // that it has in line, or nil
	stood bool         // whether it had to wait there, so that it is not granted at once
	reason
}

// newTurn returns the call that asks t for a turn of n events of key. If again, it is asked for when it has come, and
// denied before.
func (l *limiter) newTurn(ctx context.Context, key string, n int, t *limit.Limit, h holding) (c call, again bool) {
	soon, _ := l.reach(t, h.holds)
	again = soon == 0 && !t.Flies()
	c = newCall(ctx, kernel.OpReserve, key, n)
	c.h, c.Limit, c.kept = h, t, again && !h.holds
	c.Request.MaxWait, c.Request.Again, c.Request.Yields = Never-1, again, true
	if t.Flies() { // when a turn comes is not known
		c.Request.Op = kernel.OpHold
	}
	return c, again
}

// applyFrom has the store make a call for a turn that has come since an instant, as if that had been asked for when it
// came, and reports whether there is one. While somebody stands in line, nothing else changes the state of the key. There
// is none while a hold is open, nor if the turn is a hold itself, since what comes back makes others earlier.
func (l *limiter) applyFrom(c *call, from kernel.Instant) bool {
	if c.h.holds || from == kernel.Forever {
		return false
	}
	now, _ := l.timeline.Now()
	if from >= now {
		return false
	}
	late := *c
	late.Request.Fixed = &kernel.Reading{Now: from, Own: true}
	late.Request.Near = time.Duration(now - from)
	l.apply(&late)
	if late.Err != nil || !late.Answer.Allowed {
		return false
	}
	*c = late
	c.Answer.Wait = 0
	return true
}

// reserveTurn reserves what w wants as t decides, even if that overtakes another Wait. In memory, its turn may have come
// since an instant. If w is to ask again, because its turn is not near or held events may come back, it reserves nothing
// and returns the denial.
func (l *limiter) reserveTurn(w *want, t *limit.Limit, from kernel.Instant) (_ *Reservation, denied *kernel.Answer, _ error) {
	patience := l.patience(w.until)
	c, again := l.newTurn(w.ctx, w.key, w.n, t, w.h)
	c.unknown, c.Request.MaxWait = w.unknown, patience
	flies := t.Flies()
	if !again || !l.applyFrom(&c, from) {
		l.apply(&c)
	}
	a := &c.Answer
	switch {
	case c.Err != nil && w.ctx.Err() != nil:
		return nil, nil, w.ctx.Err()
	case c.Err != nil:
		w.failure, w.may = errors.Join(l.failing(w.ctx, c.Err), w.unknown), c.mayGrant(w.n)
		if l.policy.kind == failOpen {
			return &Reservation{l: l, key: w.key}, nil, nil // now
		}
		return nil, nil, w.failure // a fallback is asked once the place in line is given up: see waitFor
	case !a.Allowed:
		if w.n <= t.Limit() && !a.Full && (flies || a.Ends > 0 || again && !a.QueueFull && a.Wait <= patience) {
			denial := *a // so that other answers are not allocated
			return nil, &denial, nil
		}
		return nil, nil, w.refusal(a, t, patience)
	}
	if max(a.Wait, a.Delay) == 0 && !w.stood {
		w.grant = Decision(a.Decision)
	}
	switch {
	case flies:
		r := l.held(&c.Call)
		return r, nil, r.outlast(w.until)
	case a.Wait == 0 && !w.h.holds && w.place == nil:
		return nil, nil, nil
	}
	return l.held(&c.Call), nil, nil
}

// refusal returns the error of a Wait that t has denied.
func (w *want) refusal(a *kernel.Answer, t *limit.Limit, patience time.Duration) error {
	w.denial = Decision(a.Decision)
	switch {
	case a.Full:
		return fmt.Errorf("%w: no room for a new key", ErrFull)
	case a.QueueFull:
		return fmt.Errorf("%w: no room for %d", ErrQueueFull, w.n)
	case w.n > t.Limit() && w.unknown != nil: // the limit of the key may grant them
		w.denial = closed(t)
		return w.unknown
	case w.n > t.Limit():
		return fmt.Errorf("%w: %d at once with a limit of %d", ErrNever, w.n, t.Limit())
	case a.Wait == Never:
		return fmt.Errorf("%w: the turn of %d comes after 2116, where time ends", ErrNever, w.n)
	}
	return &TurnError{N: w.n, Wait: a.Wait, Left: patience}
}

func (l *limiter) Wait(ctx context.Context, key string) error { return l.WaitN(ctx, key, 1) }

func (l *limiter) WaitN(ctx context.Context, key string, n int) error {
	if err := l.check(ctx, n); err != nil {
		return err
	}
	_, _, err := l.waitFor(&want{ctx: ctx, until: ctx, key: key, n: n})
	return err
}

// WaitFor is WaitN or, to hold the events, Hold with Waiting. It also returns the Decision, if the events were
// granted at once or denied without a failure; otherwise, that is zero. Middlewares call it, to know what is left,
// or when to retry, without another call of the store. It waits at most until a context ends that may end before
// ctx, but does not hurry the store.
func (l *limiter) WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...HoldOption) (r *Reservation, d Decision, err error) {
	h, err := newHolding(l.check(ctx, n), ofHold, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	h.holds = holds
	return l.waitFor(&want{ctx: ctx, until: until, key: key, n: n, h: h, opts: opts})
}

// patience returns the time until the deadline of ctx.
func (l *limiter) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, l.timeline.Clock().Until(deadline)) // a mock may be ahead
	}
	return Never - 1
}

// waitFor is WaitFor without checks. If the store fails, a fallback waits instead.
func (l *limiter) waitFor(w *want) (*Reservation, Decision, error) {
	began := l.began()
	r, err := l.wait(w)
	switch fallsBack := err != nil && w.failure != nil && l.policy.kind == fallback; {
	case fallsBack:
		r, err = w.fallBack(l.policy.limiter)
	case r != nil:
		r.clear(isQuiet | isAhead)
	}
	if w.may && errors.Is(err, ErrNever) {
		err = w.failure
	}
	if w.unknown != nil && w.failure == nil {
		w.standIn()
	}
	l.waited(w, began, r, err)
	switch {
	case err != nil:
		return nil, w.denial, err
	case !w.h.holds:
		r = nil
	}
	return r, w.grant, nil
}

// fallBack has a fallback wait, no longer than the want does. One that New has made does so even if that time is
// over, because the store took it: then it grants what may happen now.
func (w *want) fallBack(to Limiter) (r *Reservation, err error) {
	l, ok := to.(*limiter)
	switch {
	case ok:
		r, _, err = l.WaitFor(w.ctx, w.until, w.key, w.n, w.h.holds, w.opts...)
	case w.h.holds:
		r, _, err = to.Hold(w.until, w.key, w.n, slices.Concat(w.opts, []HoldOption{Waiting()})...)
	default:
		err = to.WaitN(w.until, w.key, w.n)
	}
	return r, err
}

// Hold implements [Limiter].
func (l *limiter) Hold(ctx context.Context, key string, n int, opts ...HoldOption) (r *Reservation, d Decision, _ error) {
	h, err := newHolding(l.check(ctx, n), ofHold, opts)
	if err != nil {
		return nil, Decision{}, err
	}
	if h.waits {
		r, d, err = l.waitFor(&want{ctx: ctx, until: ctx, key: key, n: n, h: h, opts: opts})
		d.Allowed = err == nil
		return r, d, err
	}
	c := newCall(ctx, kernel.OpHold, key, n)
	c.h, c.opts = h, opts
	r, err = l.do(&c)
	l.decided(ctx, CallHold, &c.Call, r, err)
	return r, Decision(c.Answer.Decision), err
}

// held returns the Reservation of what an OpHold or OpReserve has granted.
func (l *limiter) held(c *limit.Call) *Reservation {
	a := &c.Answer
	due := a.Due
	if due == 0 { // the store has a clock of its own
		due = l.timeline.In(max(a.Wait, a.Delay))
	}
	r := &Reservation{l: l, n: c.Request.N, due: due, key: c.Key, by: c.Limit}
	if a.Held {
		if r.hold = c.Request.Hold.ID; a.Wait > 0 {
			r.set(isAhead)
		}
	}
	return r
}

// newID returns an ID by which a store finds a hold or, if that lasts for no time, a reservation. No other one of
// the key has it: among as many as a key may have, the chance that two have the same one is below 10⁻⁸.
func newID(last time.Duration) uint64 {
	id := 2 + rand.Uint64N(1<<53-3)&^1
	if last > 0 {
		id--
	}
	return id
}

// A HoldOption says how [Limiter.Hold], [Limiter.Reserve] and [For] hold events, and how long they wait.
type HoldOption func(*holding)

// A holding has the values of options.
type holding struct {
	holds   bool // whether the events are held
	last    time.Duration
	lastSet bool
	back    bool

	within time.Duration // of a Reserve: the longest wait
	waits  bool          // of a Hold
}

// Within makes [Limiter.Reserve] reserve events only if their turn comes within maxWait. If maxWait is 0, they
// must be free now. It must not be negative.
func Within(maxWait time.Duration) HoldOption {
	return func(h *holding) { h.within = maxWait }
}

// Waiting makes [Limiter.Hold] wait in line, as [Limiter.WaitN] does, and with its errors. The Decision says what
// is left only if the events were granted at once, and when to retry if they were denied.
func Waiting() HoldOption { return func(h *holding) { h.waits = true } }

// HoldFor makes a hold end by itself after d; that of a reservation, or of events that a [LeakyBucket] queues, d
// after these may happen. The default is ten minutes or, with an [InFlight], the longest Timeout. d must be
// positive. It should exceed the time that a request takes: a hold that has ended cannot be settled any more.
// [Reservation.Extend] moves the end.
func HoldFor(d time.Duration) HoldOption {
	return func(h *holding) { h.last, h.lastSet, h.holds = d, true, true }
}

// GiveBack gives the events of a hold back if it ends by itself, because its holder has crashed before they
// happened. Without GiveBack, they count as they were held. The events of an [InFlight] are over in either case.
// RetryAfter counts on what is given back by itself. So while such holds are open, a denial takes as long as some
// copies of the state, as many as the logarithm of their number.
func GiveBack() HoldOption { return func(h *holding) { h.back, h.holds = true, true } }

// A use is what options are for.
type use int

const (
	ofHold    use = iota
	ofReserve     // which holds nothing without options that say so
	ofBound
)

// newHolding returns err, or the values of options, and an error if they cannot be used.
func newHolding(err error, of use, opts []HoldOption) (holding, error) {
	h := holding{holds: of != ofReserve, within: Never}
	if err != nil || len(opts) == 0 {
		return h, err
	}
	return h.with(of, opts)
}

// with returns h, which is allocated, with options.
func (h holding) with(of use, opts []HoldOption) (holding, error) {
	for i, opt := range opts {
		if opt == nil {
			return h, param.Invalid(fmt.Sprintf("option %d of a hold", i), nil, "must be the result of HoldFor, GiveBack, Within or Waiting")
		}
		opt(&h)
	}
	switch {
	case h.lastSet && h.last <= 0:
		return h, param.Invalid("HoldFor's d", h.last, "must be positive")
	case h.within != Never && of != ofReserve:
		return h, param.Invalid("the option Within", h.within, "is for Reserve; Hold waits with Waiting until its context ends")
	case h.within < 0:
		return h, param.Invalid("Within's maxWait", h.within, "must be at least 0, which means not to wait")
	case h.waits && of != ofHold:
		return h, param.Invalid("the option Waiting", "given to Reserve or For", "is for Hold")
	}
	return h, nil
}

// holding returns the values of the options of b, for a Hold.
func (b Bound) holding() (holding, error) {
	return newHolding(nil, ofBound, b.held())
}

// newHandle returns the Handle of new events that t grants. If they are not held, it is only that of their turn.
// Those of an InFlight always are.
func newHandle(t *limit.Limit, h holding) kernel.Handle {
	last := time.Duration(0)
	switch {
	case h.lastSet:
		last = h.last
	case h.holds || t.Flies():
		last = t.HoldFor
	}
	return kernel.Handle{ID: newID(last), For: last, Back: h.back}
}

// A Wait that is not granted at once is a place in the line of its key: see package line. The store is asked for the
// reservation of the next one in it, a turn: in memory when that has come, and elsewhere early enough for the answer to
// arrive. In other stores, the first place always has a turn, because other processes wait as well.
//
// In a busy process, whoever should ask does so late. In memory, the turn is then reserved at the instant at which it
// came, if that is no longer ago than turns were taken late of late (line.From), so that the line keeps its rate; and
// whoever runs asks for those behind. A process that stood still goes on at the limit. Elsewhere, turns are asked for
// that much earlier.
//
// While events are held, and in an InFlight, nobody knows when a turn comes: they may come back at any moment.
// Then the first one is denied, and asks again when a hold is settled or extended through this limiter, when a
// hold ends by itself, and when the store has said that there will be room.
//
// Nothing overtakes the line: other requests on the key are denied without asking the store.

// terms are what a turn is for, besides the number of its events.
type terms struct {
	l  *limiter
	by *limit.Limit
	h  holding
}

// A denied says why the first one in a line was denied.
type denied struct {
	Decision
	at kernel.Instant // when it was asked for
	by *limit.Limit   // what decided it
}

func (d *denied) age(now kernel.Instant) time.Duration { return time.Duration(now - min(now, d.at)) }

// An ahead is the state of a key after those who stand in line.
type ahead struct {
	by   *kernel.Compiled
	st   []uint64
	last kernel.Instant // when the turn of the last one comes
}

// apply applies a request of t to the state, at now.
func (a *ahead) apply(t *limit.Limit, req kernel.Request, now kernel.Instant) (ans kernel.Answer) {
	req.Fixed = &kernel.Reading{Now: now, Own: true}
	if req.Refused = req.Op == kernel.OpTake; req.Refused {
		t.StepFrom(a.by, slices.Clone(a.st), &req, &ans) // which may change it in place
	} else {
		a.by, a.st, _ = t.StepFrom(a.by, a.st, &req, &ans)
		a.last = max(a.last, ans.Due)
	}
	return ans
}

// stateAhead returns the state of key after all who stand in its line, or nil if it is not known: because it is
// not in this process, or because events may come back at any moment. t is the present limit of the key.
func (l *limiter) stateAhead(ln *line.Line, key string, t *limit.Limit, now kernel.Instant) *ahead {
	if a, ok := ln.Ahead.(*ahead); ok {
		return a
	}
	if l.local == nil {
		return nil
	}
	by, st := l.local.Space.State(key)
	if by == nil {
		return nil
	}
	a := &ahead{by: by, st: st}
	from := ln.From(now)
	for of := range ln.Turnless {
		by := of.By.(terms).by
		if of.By.(terms).l == l { // it will ask for its turn by t
			by = t
		}
		if by.Flies() {
			return nil
		}
		a.apply(by.Loose(), kernel.Request{Op: kernel.OpReserve, N: of.N, MaxWait: Never - 1}, max(from, min(of.Since, now)))
	}
	ln.Ahead = a
	return a
}

// mayEnter returns an error if a Wait for n events must not stand in line: because the line is too long or, if
// that is known, because its turn comes too late, or a queue is full by then.
func (l *limiter) mayEnter(ln *line.Line, w *want, t *limit.Limit) error {
	l.nudge(ln, t)
	if l.mostWaiters > 0 && ln.Len() >= l.mostWaiters {
		return fmt.Errorf("%w: %d wait for key %q already; see WithMaxWaiters", ErrQueueFull, ln.Len(), w.key)
	}
	_, hurries := w.until.Deadline()
	if t.Flies() || ln.Len() == 0 || ln.Ahead == nil && !hurries && !t.Delays() {
		return nil // it is not known, or the first one is told when it asks, or nothing can go wrong
	}
	now, _ := l.timeline.Now()
	left := l.patience(w.until)
	if a := l.stateAhead(ln, w.key, t, now); a != nil {
		ans := a.apply(t.Loose(), kernel.Request{Op: kernel.OpReserve, N: w.n, MaxWait: left}, now)
		if ans.Allowed {
			return nil
		}
		return w.refusal(&ans, t, left)
	}
	last := time.Duration(ln.Last() - min(now, ln.Last()))
	if last <= left || l.local != nil || l.madeBy(ln) != t { // events may come back, or other turns will be made
		return nil
	}
	return &TurnError{N: w.n, Wait: last, Left: left} // nobody behind the turns is served before the last
}

// soon is the RetryAfter of requests behind a waiter that may be served at any moment.
const soon = time.Millisecond

// overtakes reports whether c, which is about n events, would overtake a Wait, and returns the decision that
// denies it. Requests that are granted always or never overtake nobody. If there may be room that the Wait does
// not know of, overtakes wakes it.
func (l *limiter) overtakes(c *call, n int) (d Decision, does bool) {
	key := c.Key
	if n == 0 || !l.waiters.Any() || !l.waiters.Has(key) {
		return d, false
	}
	t := l.presentLimit(c)
	now, _ := l.timeline.Now()
	l.waiters.Look(key, func(ln *line.Line) {
		l.nudge(ln, t)
		why, _ := ln.Denial.(*denied)
		if t == nil || t.Stateless() || n > t.Limit() || !ln.Waits() {
			return // or it is being decided whether the only one there waits
		}
		does, d.Limit = true, t.Limit()
		turn, passed := ln.Last(), time.Duration(0)
		if a := l.stateAhead(ln, key, t, now); a != nil {
			ans := a.apply(t.Loose(), kernel.Request{Op: kernel.OpTake, N: n}, now)
			d = Decision(ans.Decision)
			turn = max(turn, a.last) // a LeakyBucket has room before
		} else if why != nil {
			d, passed = why.Decision, why.age(now)
		}
		if d.RetryAfter < Never {
			d.RetryAfter = max(soon, time.Duration(turn-min(now, turn)), d.RetryAfter-passed)
		}
		d.ResetAfter = max(d.RetryAfter, d.ResetAfter-passed)
		d.Allowed, d.Remaining, d.Delay = false, 0, 0
	})
	if does {
		l.serveBehind(key, t, holding{})
	}
	return d, does
}

// nudge wakes the first one in a line if there may be room that it does not know of: because it was denied by
// another limit than t, the present one, or some time ago, since when another process may have released events. If
// turns were made by another limit, they are made again.
func (l *limiter) nudge(ln *line.Line, t *limit.Limit) {
	now, _ := l.timeline.Now()
	why, _ := ln.Denial.(*denied)
	if why != nil && (t != nil && !why.by.Equals(t) || l.local == nil && why.age(now) >= lookAgain) {
		ln.Wake(now)
	}
	if l.outdates(ln, t, now) {
		ln.Renew()
	}
}

// outdates reports whether l has made a turn of a line, which has not come, by another limit than t, the present one.
func (l *limiter) outdates(ln *line.Line, t *limit.Limit, now kernel.Instant) bool {
	if l.limits == nil || t == nil {
		return false // it never changes, or is not known
	}
	for turn := range ln.Turns {
		r := turn.Held.(*Reservation)
		if r.l == l && !turn.HasCome(now) && !r.by.Equals(t) {
			return true
		}
	}
	return false
}

// renewTurns gives the turns in the line of key back that l has made by another limit than t, so that they are made
// again by t. It does so before t decides on anything else: the store would then keep their events as spent.
func (l *limiter) renewTurns(key string, t *limit.Limit) {
	var outdated []line.Turn
	l.waiters.Look(key, func(ln *line.Line) {
		now, _ := l.timeline.Now()
		if l.outdates(ln, t, now) {
			outdated = ln.Outdated(now)
		}
	})
	if len(outdated) > 0 {
		defer l.waiters.Cancelled(key)
		l.cancel(outdated)
	}
}

// madeBy returns the limit by which l has made the first turn of a line, or nil if there is none of l.
func (l *limiter) madeBy(ln *line.Line) *limit.Limit {
	if r, _ := ln.Held().(*Reservation); r != nil && r.l == l {
		return r.by
	}
	return nil
}

// wake wakes those who wait for key, because something may have made room.
func (l *limiter) wake(key string) {
	if l.waiters.Any() {
		now, _ := l.timeline.Now()
		l.waiters.Wake(key, now)
	}
}

// reach returns how far ahead a turn is asked for, which is 0 if that is done when it has come, and how many may ask t at
// once. Elsewhere than in memory, answers are on their way, and many may be; but what is in flight may be denied to the
// first of them and granted to the second. And what a LeakyBucket holds leaves it later than it enters it, by what is held
// before that: so it enters it as soon as there is room, since others may be settled for less.
func (l *limiter) reach(t *limit.Limit, holds bool) (soon time.Duration, wide int) {
	switch {
	case l.local != nil && holds && t.Delays():
		return Never - 1, 1
	case l.local != nil:
		return 0, 1
	}
	soon = max(line.Tolerance, 2*time.Duration(l.waiters.Took.Load()))
	if t.Flies() {
		return soon, 1
	}
	return soon, line.MostTurns
}

// wait reserves what w wants, and returns when its turn has come. The Reservation is nil if there is nothing to
// know of it.
func (l *limiter) wait(w *want) (*Reservation, error) {
	if w.n == 0 {
		return &Reservation{l: l, key: w.key}, nil
	}
	t, unknown, err := l.limitFor(w.ctx, w.key)
	if err != nil {
		return nil, err
	}
	w.unknown = unknown
	if t.Stateless() || w.n > t.Limit() {
		l.waiters.Look(w.key, func(ln *line.Line) { l.nudge(ln, t) })
		r, _, err := l.reserveTurn(w, t, kernel.Forever)
		return r, err
	}
	var came int64
	if l.local == nil {
		came = l.waiters.Came.Add(1)
	}
	var first *Reservation
	var denial *kernel.Answer
	asked, ask := false, func() { first, denial, err = l.reserveTurn(w, t, kernel.Forever) }
	switch {
	case t.Flies():
	case l.local == nil:
		asked = l.waiters.Alone(w.key, ask)
	case !l.waiters.Has(w.key):
		asked = true
		ask()
	}
	if err != nil || asked && denial == nil && (first == nil || !first.is(isAhead) || first.Delay() == 0) {
		return first, err
	}
	if !asked && unknown == nil {
		l.serveBehind(w.key, t, w.h)
	}
	in := &waiter{want: *w, l: l} // if it was denied, it asks again: there may be room since, which nobody has told it of
	defer func() { w.reason = in.reason }()
	since, _ := l.timeline.Now()
	entrant := line.Entrant{Terms: line.Terms{N: w.n, By: terms{l, t, w.h}}, Came: came, Since: since, Ended: w.until.Done(), Asked: asked}
	in.place, err = l.waiters.Enter(w.key, entrant, func(ln *line.Line) error {
		if first != nil {
			return nil
		}
		return l.mayEnter(ln, &in.want, t)
	})
	if err == nil {
		return in.stand(first)
	}
	runtime.Gosched() // a caller that tries again at once would keep those who wait from their turns
	if in.denial == (Decision{}) { // the line is too long
		c := newCall(w.ctx, kernel.OpTake, w.key, w.n)
		in.denial, _ = l.overtakes(&c, w.n)
	}
	return nil, err
}

// A waiter is a want that stands in line.
type waiter struct {
	want
	l *limiter
}

// stand returns when the turn has come. first is a turn that it has already, or nil.
func (w *waiter) stand(first *Reservation) (*Reservation, error) {
	defer w.leave(0) // if no turn is needed, or code of the caller has panicked: a lookup, a clock, or a store
	if first != nil {
		w.granted(first, first.by)
	}
	for {
		soon, _ := w.l.reach(w.place.By.(terms).by, w.h.holds)
		now, _ := w.l.timeline.Now()
		switch move := w.place.Next(now, soon); move.Do {
		case line.Served:
			return w.served(move.Turns), nil
		case line.Ask:
			if done, r, err := w.ask(move); done {
				return r, err
			}
		case line.GiveBack:
			w.giveBack(move.Turns)
		case line.Left:
			return nil, w.until.Err()
		default:
			w.stood = true
			if err := w.l.sleep(w.until, move.Until, w.place.Woken()); err != nil {
				now, _ = w.l.timeline.Now()
				if r := w.leave(now); r != nil {
					return r, nil
				}
				return nil, err
			}
		}
	}
}

// leave gives the place up, if that is not done, and returns its turn if that has come.
func (w *waiter) leave(now kernel.Instant) *Reservation {
	move := w.place.Leave(now)
	for move.Do == line.Rest { // another caller is asking for its turn, and waits for nothing meanwhile
		<-w.place.Woken()
		move = w.place.Leave(now)
	}
	if move.Do == line.Served {
		return w.served(move.Turns)
	}
	w.giveBack(move.Turns)
	return nil
}

// served returns the first one of turns, which has come, and gives the others back.
func (w *waiter) served(turns []line.Turn) *Reservation {
	w.giveBack(turns[1:])
	if w.l.limits == nil { // else the limit would have to be looked up
		w.l.serveBehind(w.key, w.l.t, w.h)
	}
	return turns[0].Held.(*Reservation)
}

// serveBehind takes the turns of those in the line of key that have come, in memory, as by decides: their own callers
// may be late, and this one runs.
func (l *limiter) serveBehind(key string, by *limit.Limit, h holding) {
	if l.local == nil || h.holds || by.Flies() {
		return
	}
	for again := true; again; {
		now, _ := l.timeline.Now()
		move := l.waiters.Behind(key, terms{l, by, h}, now)
		again = move.Do == line.Ask && l.askFor(key, move, by)
	}
}

// giveBack gives turns back that fit nobody in line.
func (w *waiter) giveBack(left []line.Turn) {
	if len(left) == 0 {
		return
	}
	defer w.place.Cancelled()
	w.l.cancel(left)
}

// cancel gives turns back. Elsewhere than in memory, it does so at once, so that the store can take them together.
func (l *limiter) cancel(turns []line.Turn) {
	var all sync.WaitGroup
	for _, turn := range turns {
		r := turn.Held.(*Reservation)
		if len(turns) == 1 || l.local != nil {
			r.Cancel()
		} else {
			all.Go(func() { logvalve.Safely(r.Cancel) })
		}
	}
	all.Wait()
}

// ask asks the store for a turn. done says that the wait is over.
func (w *waiter) ask(move line.Move) (done bool, _ *Reservation, _ error) {
	l := w.l
	by, unknown, err := l.limitFor(w.ctx, w.key)
	if err != nil {
		return true, nil, err
	}
	w.unknown = unknown
	before, _ := l.timeline.Now()
	began := time.Now()
	r, denial, err := l.reserveTurn(&w.want, by, move.From)
	if l.local == nil {
		l.waiters.Took.Store(int64(time.Since(began)))
	}
	switch {
	case err != nil:
		return true, nil, err
	case denial == nil:
		if done = w.granted(r, by); done && unknown == nil {
			l.serveBehind(w.key, by, w.h)
		}
		return done, r, nil
	}
	wait, again := denial.RetryAfter, kernel.Forever
	if denial.Ends > 0 {
		wait = min(wait, denial.Ends)
	}
	if wait < Never {
		again = kernel.After(before, uint64(wait))
	}
	w.stood = true
	w.place.Denied(&denied{Decision(denial.Decision), before, by}, again)
	return false, nil, nil
}

// askFor asks for the turn of a place of another caller, if that has come, as by decides, and reports whether there is one.
func (l *limiter) askFor(key string, move line.Move, by *limit.Limit) (ok bool) {
	p := move.For
	defer func() {
		if !ok { // or the clock has panicked
			p.InVain(move.Now)
		}
	}()
	c, again := l.newTurn(context.Background(), key, p.N, by, p.By.(terms).h)
	if !again || p.N > by.Limit() || !l.applyFrom(&c, move.From) {
		return false
	}
	r := l.held(&c.Call)
	r.set(isQuiet)
	p.Taken(r.due, r)
	return true
}

// granted says that r was reserved as a limit decides, and returns whether its events may happen now: then it has
// no turn, nor has a policy's decision, for which nothing is reserved.
func (w *waiter) granted(r *Reservation, by *limit.Limit) (now bool) {
	soon, wide := w.l.reach(by, w.h.holds)
	if now = !r.is(isAhead); now {
		w.place.Granted(r.due, nil, 0, wide)
	} else {
		r.set(isQuiet)
		w.place.Granted(r.due, r, w.l.timeline.In(soon), wide)
	}
	return now
}

// applyOrRelease has a store that is not in memory hold events, some of them in flight, by apply, and returns when
// ctx ends, which does not end the context of apply. If the store grants the events after that, they are released:
// nobody else could do so, and others would not get them before they time out. So the goroutine ends after the
// store's timeout at the latest. of are the limiters of the calls.
func applyOrRelease(ctx context.Context, calls []limit.Call, of []*limiter, apply func(context.Context, []limit.Call) (bool, error)) (decided bool, err error) {
	type answer struct {
		decided bool
		err     error
	}
	own, answers, endless := slices.Clone(calls), make(chan answer), context.WithoutCancel(ctx)
	go func() {
		decided, err := apply(endless, own)
		select {
		case answers <- answer{decided, err}:
		case <-ctx.Done():
			for i, l := range of {
				if decided && err == nil && own[i].Answer.Held {
					logvalve.Safely(func() { l.held(&own[i]).giveBack(endless) })
				}
			}
		}
	}()
	select {
	case a := <-answers:
		copy(calls, own)
		return a.decided, a.err
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// outlast waits until the delay of held events is over. If ctx ends before, they did not happen.
func (r *Reservation) outlast(ctx context.Context) error {
	err := r.await(ctx)
	if err != nil {
		r.giveBack(context.WithoutCancel(ctx))
	}
	return err
}
