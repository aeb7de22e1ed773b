package ratelimit

import (
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"time"
)

// An Op is what a [Request] asks of a key.
type Op uint8

const (
	// OpTake spends N events if they are granted now.
	OpTake Op = iota

	// OpPeek answers what OpTake of one event would, and spends nothing.
	OpPeek

	// OpReserve spends N events at the first instant at which they are granted
	// unless the wait for it would exceed MaxWait.
	OpReserve

	// OpCancel takes back what can be taken back of Grant. It may stand for several
	// reservations of the key.
	OpCancel

	// OpReturn takes back N events that OpTake granted at the time Taken, and that
	// will not happen: those that a store took in advance and did not hand out. A
	// LeakyBucket, WarmingUp, and a SlidingLog with CountDenied keep them.
	OpReturn
)

// A Request is what a [Limiter] asks of its store: one transition of one key.
type Request struct {
	Op      Op
	N       int           // how many events; from 0 for OpTake, from 1 for OpReserve
	MaxWait time.Duration // the longest wait that OpReserve may answer
	Grant   any           // for OpCancel: the Grants of earlier Results, as Transition.Apply reads them
	Taken   time.Time     // for OpReturn

	timeline *timeline
	fixed    *reading
	atOnce   bool // whether OpReserve needs no Grant if there is no wait
}

// A reading is what a clock showed, in nanoseconds.
type reading struct {
	now  instant
	lag  uint64    // by how much the clock is behind now
	wall time.Time // that the clock showed
	own  bool      // whether the clock is the limiter's
}

// At returns the request with its time fixed to t, for stores that have a
// clock of their own. Without it, the request is decided at the time that the
// limiter's clock shows when the state is at hand, so that a decision is never
// made at an earlier time than the one that left the state.
func (r Request) At(t time.Time) Request {
	r.fixed = &reading{now: instantOf(t), wall: t}
	return r
}

// Read returns the request with its time fixed to what the limiter's clock shows
// now, unless it was fixed before, and that time.
func (r Request) Read() (Request, time.Time) {
	if r.fixed == nil {
		now, lag := r.timeline.now()
		r.fixed = &reading{now: now, lag: lag, wall: r.timeline.wall(now, lag), own: true}
	}
	now := r.fixed.now
	return r, time.Unix(int64(now/1e9), int64(now%1e9))
}

func (r *Request) now() (now instant, lag uint64) {
	if r.fixed != nil {
		return r.fixed.now, r.fixed.lag
	}
	return r.timeline.now()
}

// renew is the timeline's, unless the time is fixed.
func (r *Request) renew() bool { return r.fixed == nil && r.timeline.renew() }

// check returns what is wrong with a request that did not come from a limiter.
func (r *Request) check() error {
	if r.N < 0 || r.Op > OpReturn || r.timeline == nil && r.fixed == nil {
		return invalid("Request", fmt.Sprintf("{Op: %d, N: %d}", r.Op, r.N), "must have an Op, no negative N, and a time: that of a Limiter or of At")
	}
	return nil
}

// A Result is a store's answer to a [Request].
type Result struct {
	// Decision is the answer to OpTake and OpPeek. For OpReserve, its Allowed
	// says whether the events were reserved, and RetryAfter is the wait until
	// the same request succeeds if they were not; the rest describes the key
	// afterwards, as it does for OpCancel and OpReturn.
	Decision Decision

	// Wait is, for OpReserve, the time until the events may happen: Never if
	// that never comes. It is told if it exceeds MaxWait, too.
	Wait time.Duration

	// QueueFull says that OpReserve found no room in a LeakyBucket.
	QueueFull bool

	// due is, for OpReserve, the instant at which the events may happen by the
	// limiter's clock, or 0 if the store decided by a clock of its own.
	due instant

	// Full says that the store had no room for a new key, see [RefuseUnseen].
	Full bool

	// Grant is, for OpReserve, what OpCancel needs to take events back, and for
	// OpCancel what came of it. A store passes both on as Transition.Apply returns
	// them; without the latter, the limiter assumes that cancelling has failed. A
	// store that does not use Transition.Apply may return a Grant of its own for
	// OpReserve, and gets it back as the Grant of the Request.
	Grant any
}

// A Transition is an algorithm ready to be applied: its parameters, checked,
// and its arithmetic. It holds no state of any key, and any number of
// goroutines may use it.
//
// A [Store] is given one, and applies it to states that it keeps as bytes
// ([Transition.Apply]).
//
// # For stores with scripts
//
// The other methods are for stores that do the same arithmetic elsewhere, such as
// in a script in a database. Tag and Varies also tell algorithms apart when a limiter
// is opened. See [Store].
type Transition struct {
	alg    Algorithm
	form   form
	kernel kernel
	varies bool // whether it is for a limiter with WithLimits

	header atomic.Pointer[[]byte]     // what states begin with among bytes, once needed
	other  atomic.Pointer[Transition] // t that varies, once needed, if t does not
}

// NewTransition checks the parameters of alg. Its error is the one that [New]
// would return.
func NewTransition(alg Algorithm) (*Transition, error) {
	return newTransition(alg, inMemory)
}

func newTransition(alg Algorithm, f form) (*Transition, error) {
	alg, k, err := compile(alg, f)
	if err != nil {
		return nil, err
	}
	return &Transition{alg: alg, form: f, kernel: k}, nil
}

// Portable returns t for a store whose clock counts in ticks, of whole
// microseconds for one, and whose states are also read and written elsewhere, such
// as in a script whose numbers are doubles: what is told is rounded up to ticks,
// reservations are for whole ticks, and states are [Transition.Tag] and the words
// that docs/design.md describes. Windows and periods must be multiples of tick; nothing may count
// beyond 2⁵¹ or last longer than 2⁵¹ ticks; the error says what does.
func (t *Transition) Portable(tick time.Duration) (*Transition, error) {
	if tick < 1 {
		return nil, invalid("tick", tick, "must be at least 1ns")
	}
	f := form{tick: uint64(tick), portable: true}
	if t.Varies() {
		return newVarying(t.alg, f)
	}
	return newTransition(t.alg, f)
}

// Algorithm returns the algorithm with the parameters that it was made with.
func (t *Transition) Algorithm() Algorithm {
	if parts, ok := t.alg.(All); ok {
		return slices.Clone(parts)
	}
	return t.alg
}

// stepFrom is step for a state that from left, which may have had other parameters,
// and returns by whom the next one is. A reservation is cancelled where it was made.
func (t *Transition) stepFrom(from *Transition, st []uint64, req *Request) (by *Transition, _ []uint64, changed bool, res Result) {
	if from == t {
		st, changed, res = t.step(st, req)
		return t, st, changed, res
	}
	v := t.view(req)
	switch req.Op {
	case OpCancel:
		t = from
	case OpReturn:
		if !reflect.DeepEqual(from.alg, t.alg) { // it may not have been counted
			v.kernel = from.kernel
			res.Decision = v.describe(st, 0, Decision{})
			return from, st, false, res
		}
	}
	st, adopted := t.adopt(from, st, v.now)
	st, changed, res = t.step(st, req)
	return t, st, changed || adopted, res
}

// step applies req to the words of a state, in place, and returns them and
// whether they changed. It reads the clock, so whoever may change the state
// meanwhile must be locked out, or found out afterwards.
func (t *Transition) step(st []uint64, req *Request) (_ []uint64, changed bool, res Result) {
	if req.Op > OpPeek {
		return t.stepOnce(st, req)
	}
	if t.kernel.notes() {
		req.renew() // since a denial that is noted cannot be decided on twice
	}
	st, changed, res = t.stepOnce(st, req)
	if !changed && !res.Decision.Allowed && req.renew() {
		return t.stepOnce(st, req)
	}
	return st, changed, res
}

func (t *Transition) stepOnce(st []uint64, req *Request) (_ []uint64, changed bool, res Result) {
	v := t.view(req)
	switch req.Op {
	case OpPeek:
		res.Decision = v.peek(st)
	case OpReserve:
		if st, changed, res = v.reserve(st, req); !res.Decision.Allowed {
			res.Decision = v.refused(st, req)
		}
	case OpCancel:
		st, changed, res.Grant = v.undo(st, req.Grant)
		res.Decision = v.describe(st, 0, Decision{})
	case OpReturn:
		before := slices.Clone(st)
		st = v.giveBack(st, instantOf(req.Taken)/v.tick, v.now, req.N)
		changed = !slices.Equal(st, before)
		res.Decision = v.describe(st, 0, Decision{})
	default:
		st, changed, res.Decision = v.take(st, req.N)
	}
	return st, changed, res
}

// parts returns the number of traces that a grant has.
func (v *view) parts() int {
	if k, ok := v.kernel.(*all); ok {
		return len(k.parts)
	}
	return 1
}

// view reads the clock.
func (t *Transition) view(req *Request) view {
	now, lag := req.now()
	if t.form.tick > 1 { // spares memory a division
		now /= t.form.tick
	}
	return view{t.kernel, now, lag, t.form.tick}
}

// A view is a kernel at a reading of the clock. What every algorithm means by
// the fields of a Decision, and by a reservation, is written here and nowhere
// else.
type view struct {
	kernel
	now  instant
	lag  uint64 // by how many nanoseconds the clock is behind now
	tick uint64 // the nanoseconds in a tick
}

// until returns the time from the reading of the clock to t.
func (v *view) until(t instant) time.Duration {
	if t <= v.now {
		return 0
	}
	if t-v.now > uint64(Never)/v.tick {
		return Never
	}
	return time.Duration(min((t-v.now)*v.tick+v.lag, uint64(Never)))
}

// ready is the kernel's, but also answers for n beyond the limit and for 0.
func (v *view) ready(st []uint64, n int) instant {
	switch {
	case n == 0:
		return v.now
	case n > v.limit():
		return forever
	}
	return v.kernel.ready(st, v.now, n)
}

// describe fills in what does not depend on the request, and Part: n events
// were asked for and refused, or n is 0.
func (v *view) describe(st []uint64, n int, d Decision) Decision {
	d.Part = v.part(st, v.now, n)
	d.Limit = v.limit()
	d.Remaining = v.room(st, v.now)
	d.ResetAfter = v.until(v.fresh(st))
	return d
}

// decide spends n events if they are granted now, and lets the kernel note it
// if not. It returns the instant at which they are granted, which is now or not.
func (v *view) decide(st []uint64, n int) (_ []uint64, at instant, changed bool) {
	if at = v.ready(st, n); at > v.now {
		return v.refuse(st, n, at)
	}
	if n > 0 {
		st = v.spend(st, v.now, n)
	}
	return st, at, n > 0
}

// refuse lets the kernel note that n events were refused, which would have been
// granted at an instant, and returns the one at which they are then.
func (v *view) refuse(st []uint64, n int, at instant) (_ []uint64, _ instant, changed bool) {
	if n <= v.limit() {
		if st, changed = v.kernel.refuse(st, v.now, n); changed {
			at = v.ready(st, n)
		}
	}
	return st, at, changed
}

func (v *view) take(st []uint64, n int) (_ []uint64, changed bool, d Decision) {
	hold := v.hold(st, v.now)
	st, at, changed := v.decide(st, n)
	if at > v.now {
		return st, changed, v.denial(st, n, at)
	}
	d.Allowed = true
	if n > 0 {
		d.Delay = v.until(after(v.now, hold))
	}
	return st, changed, v.describe(st, 0, d)
}

// denial is the answer to a request that would be granted only at an instant.
func (v *view) denial(st []uint64, n int, at instant) (d Decision) {
	d.RetryAfter = Never
	if at < forever {
		d.RetryAfter = v.until(at)
	}
	return v.describe(st, n, d)
}

func (v *view) peek(st []uint64) (d Decision) {
	if at := v.ready(st, 1); at > v.now {
		if v.notes() { // what Take would note is not to stay
			st, at, _ = v.refuse(slices.Clone(st), 1, at)
		}
		return v.denial(st, 1, at)
	}
	d.Allowed = true
	d.Delay = v.until(after(v.now, v.hold(st, v.now)))
	return v.describe(st, 0, d)
}

func (v *view) reserve(st []uint64, req *Request) (_ []uint64, changed bool, res Result) {
	if req.N <= v.limit() && v.full(st, v.now, req.N) {
		res.QueueFull = true
		res.Decision = v.describe(st, 0, Decision{})
		return st, false, res
	}
	at := v.ready(st, req.N)
	if at > maxInstant/v.tick {
		res.Wait = Never
		res.Decision = v.describe(st, 0, Decision{})
		return st, false, res
	}
	due := after(at, v.hold(st, at))
	if res.Wait = v.until(due); res.Wait > req.MaxWait || res.Wait == Never {
		res.Decision = v.describe(st, 0, Decision{})
		return st, false, res
	}
	if req.atOnce && due == v.now {
		st = v.spend(st, at, req.N)
	} else {
		g := &grant{by: v.kernel, at: at, due: due, n: req.N}
		st, g.traces = v.kernel.reserve(st, v.now, at, req.N, make([]trace, 0, v.parts()))
		res.Grant = g
	}
	if req.fixed == nil || req.fixed.own {
		res.due = due * v.tick // at most that of a wait that is not Never
	}
	res.Decision = v.describe(st, 0, Decision{Allowed: true})
	return st, true, res
}
