package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file has a wait from its begin to its end.
//
// A waiter whose events are not granted at once takes a place in the line of its key: see package
// line. The store is asked for a turn of the next place in the line: in memory when the turn has
// come, and in other stores early enough for the answer to arrive. In other stores, the first place
// always has a turn, because callers in other processes wait as well.
//
// In a busy process, the goroutine that should ask for a turn does so late. In memory, the turn is
// then reserved as of the instant at which it came, so that the line keeps its rate. Line.From says
// how long ago that instant may be: as long as turns were taken late lately. A goroutine that runs
// also asks for the turns behind its own. A process that stood still goes on at the limit. In other
// stores, turns are asked for that much earlier.
//
// While events are held, and in an InFlight, no turn is known, because events may be given back at
// any moment. Then the first place is denied. It asks again when a hold is settled or extended
// through this limiter, when a hold ends by itself, when the store has said that there will be
// room, and when another call brings another limit of the key. In a store that is not in memory,
// another process may have given events back. So there it also asks again from time to time
// (askAgain), and when another call comes ten milliseconds after the denial.
//
// Nothing overtakes the line: other requests for the key are denied without asking the store.

// A waiter is one call of WaitN, or of Hold with Waiting, from its begin to its end. Its own
// goroutine alone uses it.
type waiter struct {
	l     *limiter
	ctx   context.Context // of calls of the store
	until context.Context // the waiter waits until this one ends, with ctx or before
	key   string
	n     int
	// How the events are held, if they are. Otherwise, a grant at once leaves no Reservation.
	hold    holdOptions
	options []HoldOption // those of hold, for a fallback

	state waitState
	place *line.Place // in the line of the key; nil in the states before stateEntered
	came  int64       // the number of callers that came before; 0 in memory
	// When the waiter first asked for a turn that the store denied; 0 before that.
	deniedSince kernel.Instant

	result waitResult // so far
}

// A waitResult is what came of a wait.
type waitResult struct {
	err  error        // why the events may not happen
	turn *Reservation // of events that may happen; nil if there is nothing to know of it

	decision Decision // if the events were granted at once, or denied; else zero
	unknown  error    // why the limit of the key is not known, so that that of New decided
	failure  error    // of the store, even if FailOpen allowed the events
	// With failure: whether the limit of the key, and not a fallback, may ever grant the events.
	mayGrant bool
}

// A waitState is how far a waiter has come. Its states follow each other in this order. A wait ends
// in one of the last three, from any of the others.
type waitState uint8

const (
	stateBegun   waitState = iota // nobody was asked yet
	stateAsking                   // the store is asked, without a place in line
	stateEntered                  // there is a place in line, and the events may be granted at once
	stateWaiting                  // the waiter has had to wait in line
	stateServed                   // the events may happen
	stateRefused                  // the events may not happen, or not in time
	stateLeft                     // the context ended first
)

var waitStateNames = [...]string{
	"begun", "asking", "entered", "waiting", "served", "refused", "left",
}

// String returns the state in a word.
func (s waitState) String() string { return waitStateNames[s] }

// String returns what the waiter waits for, its state and its place in line.
func (w *waiter) String() string {
	text := fmt.Sprintf("wait for %d of key %s: %v", w.n, keyhint.Of(w.key), w.state)
	if w.state == stateEntered || w.state == stateWaiting {
		text += ", " + w.place.String()
	}
	return text
}

// wait reserves the events, and returns when their turn has come.
func (w *waiter) wait() waitResult {
	w.result.turn, w.result.err = w.untilTurn()
	switch err := w.result.err; {
	case err == nil:
		w.state = stateServed
	case hasLeft(w.until, err):
		w.state = stateLeft
	default:
		w.state = stateRefused
	}
	return w.result
}

// untilTurn returns the turn of the events once that has come, or nil if there is nothing to know
// of it.
func (w *waiter) untilTurn() (*Reservation, error) {
	if w.n == 0 {
		return &Reservation{l: w.l, key: w.key}, nil
	}
	lim, unknown, err := w.l.limitFor(w.ctx, w.key)
	if err != nil {
		return nil, err
	}
	w.result.unknown = unknown
	if lim.Stateless() || w.n > lim.Limit() {
		return w.askInPassing(lim)
	}
	if w.l.local == nil {
		w.came = w.l.lines.Came.Add(1)
	}
	first, err := w.askWithoutPlace(lim)
	if err != nil || first.mayHappen() {
		return first.reservation, err
	}
	if !first.isAsked && w.result.unknown == nil {
		w.l.takeTurnsBehind(w.key, lim, w.hold)
	}
	err = w.enter(&first, lim)
	if err != nil {
		return nil, w.turnedAway(err)
	}
	// If the store has denied the events, stand asks again: there may be room since, which nobody
	// has told the waiter of.
	return w.stand(first.reservation)
}

// askInPassing asks for events that nobody waits for, because they are granted always or never.
func (w *waiter) askInPassing(lim *limit.Limit) (*Reservation, error) {
	w.l.wakeLineIfOutdated(w.key, lim)
	w.state = stateAsking
	reply, err := w.askStore(lim, kernel.Forever)
	return reply.reservation, err
}

// askWithoutPlace asks the store for the events before the waiter takes a place in line, unless
// that would overtake others. While events are in flight, a grant would not say when it ends: then
// the waiter asks from its place.
func (w *waiter) askWithoutPlace(lim *limit.Limit) (first turnReply, err error) {
	lines := w.l.lines
	switch {
	case lim.Releases():
		return turnReply{}, nil
	case w.l.local != nil:
		if lines.Has(w.key) {
			return turnReply{}, nil
		}
	case lines.BeginAsking(w.key):
		defer lines.EndAsking(w.key)
	default:
		return turnReply{}, nil
	}
	w.state = stateAsking
	return w.askStore(lim, kernel.Forever)
}

// enter takes a place in line, unless the waiter must not stand there. first is what the store has
// answered already.
func (w *waiter) enter(first *turnReply, lim *limit.Limit) error {
	since, _ := w.l.timeline.Now()
	ln := w.l.lines.Lock(w.key)
	defer ln.Unlock()
	if first.reservation == nil {
		if err := w.mayEnter(ln, lim); err != nil {
			return err
		}
	}
	w.place = ln.Enter(line.Entrant{
		Terms: line.Terms{N: w.n, By: reserver{w.l, lim, w.hold}},
		Came:  w.came,
		Since: since,
		Ended: w.until.Done(),
		Asked: first.isAsked,
	})
	w.state = stateEntered
	return nil
}

// turnedAway completes the denial of a waiter that must not enter, which err says.
func (w *waiter) turnedAway(err error) error {
	// A caller that tries again at once would keep those that wait from their turns.
	runtime.Gosched()
	if w.result.decision == (Decision{}) { // the line is too long
		c := newCall(w.ctx, step.OpTake, w.key, w.n)
		w.result.decision, _ = w.l.denialInLine(&c, w.n)
	}
	return err
}

// stand does what the line says, until the turn of the waiter has come or its context ends. first
// is a turn that the waiter has already, or nil.
func (w *waiter) stand(first *Reservation) (*Reservation, error) {
	// If no turn is needed, or code of the caller has panicked: a lookup, a clock, or a store.
	defer w.leave(0)
	if first != nil {
		w.addTurn(first, first.limit)
	}
	for {
		var r *Reservation
		var err error
		switch move := w.nextMove(); move.Do {
		case line.Served:
			return w.takeServed(move.Turns), nil
		case line.Ask:
			r, err = w.askForTurn(move)
		case line.GiveBack:
			w.giveBack(move.Turns)
		case line.Left:
			return nil, w.until.Err()
		case line.Rest:
			r, err = w.rest(move.Until)
		}
		if r != nil || err != nil {
			return r, err
		}
	}
}

// nextMove asks the line what to do now.
func (w *waiter) nextMove() line.Move {
	lead, _ := w.l.askAhead(w.place.By.(reserver).limit, w.hold.isHeld)
	now, _ := w.l.timeline.Now()
	return w.place.Next(now, lead)
}

// rest sleeps until an instant, or until the line wakes the waiter. If the context ends first, rest
// leaves the line, and returns the turn if that has come, or the error of the context.
func (w *waiter) rest(until kernel.Instant) (*Reservation, error) {
	w.state = stateWaiting
	err := w.l.sleep(w.until, until, w.place.Woken())
	if err == nil {
		return nil, nil
	}
	now, _ := w.l.timeline.Now()
	if w.mayStillAsk(until, now) {
		return nil, nil
	}
	r := w.leave(now)
	if r != nil {
		return r, nil
	}
	return nil, err
}

// mayStillAsk reports whether w, whose context has ended, may ask for its turn all the same. It may
// if the turn was to be asked for at an instant that has come, and the context ended by a deadline
// that was not before that instant.
func (w *waiter) mayStillAsk(at, now kernel.Instant) bool {
	deadline, ok := w.until.Deadline()
	if !ok || at > now || !errors.Is(w.until.Err(), context.DeadlineExceeded) {
		return false
	}
	late := -w.l.timeline.Clock().Until(deadline)
	return late >= 0 && at <= now-min(now, uint64(late))
}

// leave gives the place up, if the waiter still has it, and returns its turn if that has come.
func (w *waiter) leave(now kernel.Instant) *Reservation {
	move := w.place.Leave(now)
	for move.Do == line.Rest {
		// Another caller is asking for the turn of w, and waits for nothing meanwhile.
		<-w.place.Woken()
		move = w.place.Leave(now)
	}
	if move.Do == line.Served {
		return w.takeServed(move.Turns)
	}
	w.giveBack(move.Turns)
	return nil
}

// takeServed returns the first one of turns, which has come, and gives the others back.
func (w *waiter) takeServed(turns []line.Turn) *Reservation {
	w.giveBack(turns[1:])
	if w.l.ownLimits == nil { // else the limit would have to be looked up
		w.l.takeTurnsBehind(w.key, w.l.limit, w.hold)
	}
	return turns[0].Held.(*Reservation)
}

// giveBack gives turns back that fit no place in line.
func (w *waiter) giveBack(turns []line.Turn) {
	if len(turns) == 0 {
		return
	}
	defer w.place.Cancelled()
	w.l.cancelTurns(turns)
}

// askForTurn asks the store for a turn, as the line has said, and tells the line of the answer. The
// Reservation is nil if the waiter goes on waiting.
func (w *waiter) askForTurn(move line.Move) (*Reservation, error) {
	l := w.l
	lim, unknown, err := l.limitFor(w.ctx, w.key)
	if err != nil {
		return nil, err
	}
	w.result.unknown = unknown
	asked, _ := l.timeline.Now()
	began := time.Now()
	reply, err := w.askStore(lim, move.From)
	if l.local == nil {
		l.lines.Took.Store(int64(time.Since(began)))
	}
	if err != nil {
		return nil, err
	}
	if reply.denial != nil {
		w.state = stateWaiting
		d := &lineDenial{Decision(reply.denial.Decision), asked, lim}
		w.place.Denied(d, w.askAgain(reply.denial, asked))
		return nil, nil
	}
	w.addTurn(reply.reservation, lim)
	if reply.reservation.is(isAhead) {
		return nil, nil
	}
	if unknown == nil {
		l.takeTurnsBehind(w.key, lim, w.hold)
	}
	return reply.reservation, nil
}

// addTurn tells the line that lim has reserved r. If the events may happen now, because r is not
// ahead or a policy has decided, they have no turn, and the place leaves the line.
func (w *waiter) addTurn(r *Reservation, lim *limit.Limit) {
	lead, most := w.l.askAhead(lim, w.hold.isHeld)
	if !r.is(isAhead) {
		w.place.Granted(r.due, nil, 0, most)
		return
	}
	r.set(isQuiet)
	w.place.Granted(r.due, r, w.l.timeline.In(lead), most)
}

// A turnReply is what came of asking the store for a turn. The zero turnReply says that the store
// was not asked.
type turnReply struct {
	isAsked bool
	// reservation is the turn. It is nil if the events may happen now and there is nothing to know
	// of it.
	reservation *Reservation
	denial      *step.Answer // if not nil, nothing is reserved, and the store is to be asked again
}

// mayHappen reports whether the events may happen now.
func (t *turnReply) mayHappen() bool {
	r := t.reservation
	return t.isAsked && t.denial == nil && (r == nil || !r.is(isAhead) || r.Delay() == 0)
}

// askAgain returns when the store is to be asked again after a denial of a request that was made at
// an instant: when there will be room, or when the next hold ends. In a store that is not in
// memory, another process may give events back before that, and nobody tells the waiter. So it asks
// again after an eighth of the time for which it has been denied, but not before recentDenial, and
// after longestPause at the latest.
func (w *waiter) askAgain(denial *step.Answer, asked kernel.Instant) kernel.Instant {
	wait := denial.RetryAfter
	if denial.Ends > 0 {
		wait = min(wait, denial.Ends)
	}
	if w.deniedSince == 0 {
		w.deniedSince = asked
	}
	if w.l.local == nil {
		deniedFor := time.Duration(asked - min(asked, w.deniedSince))
		wait = min(wait, max(recentDenial, min(deniedFor/8, longestPause)))
	}
	if wait == Never {
		return kernel.Forever
	}
	return kernel.After(asked, uint64(wait))
}

// longestPause is the time after which a waiter that other processes may keep waiting asks again at
// the latest.
const longestPause = time.Second

// askStore asks for the events as lim decides, even if that overtakes another waiter. In memory, a
// turn that has come is taken as of from at the earliest. If w is to ask again, because its turn is
// not near or held events may be given back, nothing is reserved, and the reply has the denial.
func (w *waiter) askStore(lim *limit.Limit, from kernel.Instant) (turnReply, error) {
	patience := w.patience()
	c, whenDue := w.l.newTurnCall(w.ctx, w.key, w.n, lim, w.hold)
	c.unknown, c.Request.MaxWait = w.result.unknown, patience
	if !whenDue || !w.l.applyAsOf(&c, from) {
		w.l.apply(&c)
	}
	switch {
	case c.Err != nil:
		return w.storeFailed(&c)
	case !c.Answer.Allowed:
		return w.storeDenied(&c, whenDue, patience)
	}
	return w.storeGranted(&c)
}

// patience returns the time until the deadline of the wait.
func (w *waiter) patience() time.Duration {
	if deadline, ok := w.until.Deadline(); ok {
		return max(0, w.l.timeline.Clock().Until(deadline)) // a mock may be ahead
	}
	return Never - 1
}

// storeGranted returns the reply to a call that was granted.
func (w *waiter) storeGranted(c *call) (turnReply, error) {
	ans := &c.Answer
	if max(ans.Wait, ans.Delay) == 0 && w.state < stateWaiting {
		w.result.decision = Decision(ans.Decision)
	}
	if !c.Limit.Releases() && ans.Wait == 0 && !w.hold.isHeld && w.place == nil {
		return turnReply{isAsked: true}, nil
	}
	r := w.l.newReservation(&c.Call)
	if c.Limit.Releases() {
		if err := r.outlast(w.until); err != nil {
			w.result.decision = Decision{}
			return turnReply{}, err
		}
	}
	return turnReply{isAsked: true, reservation: r}, nil
}

// storeDenied returns the reply to a call that was denied: to be asked again, or an error if that
// is in vain. whenDue is whether the turn is asked for when it has come.
func (w *waiter) storeDenied(c *call, whenDue bool, patience time.Duration) (turnReply, error) {
	ans := &c.Answer
	isLater := whenDue && !ans.QueueFull && ans.Wait <= patience
	if w.n <= c.Limit.Limit() && !ans.Full && (c.Limit.Releases() || ans.Ends > 0 || isLater) {
		denial := *ans // so that other answers are not allocated
		return turnReply{isAsked: true, denial: &denial}, nil
	}
	return turnReply{}, w.refuse(ans, c.Limit, patience)
}

// storeFailed returns what FailOpen or FailClosed decide on a call for which the store has failed.
// A fallback is asked once the place in line is given up: see waitFor.
func (w *waiter) storeFailed(c *call) (turnReply, error) {
	if w.ctx.Err() != nil {
		return turnReply{}, w.ctx.Err()
	}
	w.result.failure = errors.Join(w.l.logStoreFailure(w.ctx, w.key, c.Err), w.result.unknown)
	w.result.mayGrant = c.mayGrant(w.n)
	if w.l.policy.kind == failOpen {
		return turnReply{isAsked: true, reservation: &Reservation{l: w.l, key: w.key}}, nil
	}
	return turnReply{}, w.result.failure
}

// refuse keeps a denial by lim, and returns the error of the wait.
func (w *waiter) refuse(ans *step.Answer, lim *limit.Limit, patience time.Duration) error {
	w.result.decision = Decision(ans.Decision)
	switch {
	case ans.Full:
		return errNoRoom
	case ans.QueueFull:
		return fmt.Errorf("%w: no room for %d", ErrQueueFull, w.n)
	case w.n > lim.Limit() && w.result.unknown != nil: // the limit of the key may grant them
		w.result.decision = closedDecision(lim)
		return w.result.unknown
	case w.n > lim.Limit():
		return fmt.Errorf("%w: %d at once with a limit of %d", ErrNever, w.n, lim.Limit())
	case ans.Wait == Never:
		return fmt.Errorf("%w: the turn of %d comes after 2116, where time ends", ErrNever, w.n)
	}
	return &TurnError{N: w.n, Wait: ans.Wait, Left: patience}
}

// markStandIn marks the Decision as one of a limit that is not the key's, unless it is one of
// FailClosed.
func (r *waitResult) markStandIn() {
	if !r.decision.Degraded {
		r.decision.Degraded, r.decision.StandIn = true, true
	}
}
