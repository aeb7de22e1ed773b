package ratelimit

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// While events are held, nobody knows the time at which a Wait ends: they may come back at any
// moment. So it does not reserve events. Waiters on a key stand in a queue, and only the first
// one asks the store: when it becomes the first, whenever a hold is settled or extended through this limiter,
// when a hold ends by itself, and when the store has said that there will be room. If no hold is open by
// then, it reserves its events after all, and the next one asks.
//
// From the first denial of a waiter until the queue is empty, other requests on the key are
// denied without asking the store.

// waiting has the queues of keys. Limiters that share states in memory share it.
type waiting struct {
	count atomic.Int64 // waiters in all queues

	mu   sync.Mutex // protects what follows and the queues; never held while a store is called
	keys map[string]*queue
}

// A queue has the waiters on a key, at least one.
type queue struct {
	waiters list.List // of *ticket

	// The latest denial of a first waiter; by is nil if there was none.
	denial Decision
	at     kernel.Instant // when it was asked for
	by     *Transition    // what decided it
}

// A ticket is a place in a queue.
type ticket struct {
	key   string
	queue *queue
	place *list.Element

	// turn has an element if the ticket has become the first, or something may have made
	// room, since it was last received from.
	turn chan struct{}
}

// signal wakes the first waiter. The caller holds the lock.
func (q *queue) signal() {
	first := q.waiters.Front().Value.(*ticket)
	select {
	case first.turn <- struct{}{}:
	default: // it has not looked since the last signal
	}
}

// enter puts a new ticket at the end of the queue of key.
func (w *waiting) enter(key string) *ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.keys[key]
	if q == nil {
		q = &queue{}
		if w.keys == nil {
			w.keys = make(map[string]*queue)
		}
		w.keys[key] = q
	}
	t := &ticket{key: key, queue: q, turn: make(chan struct{}, 1)}
	t.place = q.waiters.PushBack(t)
	w.count.Add(1)
	if q.waiters.Len() == 1 {
		q.signal()
	}
	return t
}

// leave removes a ticket. If it was the first one, it wakes the next, which also gets the
// signals that this one has not received.
func (w *waiting) leave(t *ticket) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := t.queue
	first := q.waiters.Front() == t.place
	q.waiters.Remove(t.place)
	w.count.Add(-1)
	switch {
	case q.waiters.Len() > 0:
		if first {
			q.signal()
		}
	default:
		if delete(w.keys, t.key); len(w.keys) == 0 {
			w.keys = nil // maps do not shrink
		}
	}
}

// any reports whether somebody waits on some key. It is faster than the other methods.
func (w *waiting) any() bool { return w.count.Load() > 0 }

// released wakes the first waiter on key.
func (w *waiting) released(key string) {
	if !w.any() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.keys[key]; q != nil {
		q.signal()
	}
}

// denied records that t, the first waiter, was denied.
func (w *waiting) denied(t *ticket, d Decision, at kernel.Instant, by *Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.queue.denial, t.queue.at, t.queue.by = d, at, by
}

// has reports whether somebody waits on key.
func (w *waiting) has(key string) bool {
	if !w.any() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys[key] != nil
}

// blocked returns the latest denial of a waiter on key, which is the first one or was before
// it. by is nil if there is none.
func (w *waiting) blocked(key string) (d Decision, at kernel.Instant, by *Transition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.keys[key]; q != nil {
		d, at, by = q.denial, q.at, q.by
	}
	return d, at, by
}

// soon is the RetryAfter of requests behind a waiter that may be served at any moment.
const soon = time.Millisecond

// overtakes reports whether a request for n events of key would overtake a Wait, and returns
// the decision that denies it. Requests that are granted always or never overtake nobody. If there
// may be room that the Wait does not know of, overtakes wakes it.
func (l *limiter) overtakes(ctx context.Context, key string, n int) (d Decision, _ bool) {
	if n == 0 || !l.waiting.any() {
		return d, false
	}
	d, at, by := l.waiting.blocked(key)
	if by == nil {
		return Decision{}, false
	}
	if l.own != nil {
		if t, err := l.transitionOf(ctx, key); err != nil || t != by {
			l.waiting.released(key) // because it was denied by another limit
			by = t
		}
	}
	if by == nil || by.Stateless() || n > by.kernel.Limit() {
		return Decision{}, false
	}
	now, _ := l.timeline.Now()
	passed := time.Duration(now - min(now, at))
	if passed >= lookAgain {
		l.waiting.released(key) // another process may have released events
	}
	if d.RetryAfter < Never {
		d.RetryAfter = max(soon, d.RetryAfter-passed)
	}
	d.ResetAfter = max(d.RetryAfter, d.ResetAfter-passed)
	d.Remaining, d.Delay = 0, 0
	return d, true
}

// behind returns d, an answer to OpPeek, or if somebody waits on key, the denial that Take
// would return.
func (l *limiter) behind(ctx context.Context, key string, d Decision) Decision {
	if !l.waiting.any() {
		return d
	}
	if denial, ok := l.overtakes(ctx, key, 1); ok {
		return denial
	}
	return d
}

// errWaiters is the error of a Reserve that would overtake a Wait.
func errWaiters(n int) error {
	return fmt.Errorf("%w: no reservation of %d is made while others wait for held events; use WaitHold", ErrQueueFull, n)
}

// standInLine is reserve for a Wait of n events on a key with an [InFlight], with open holds, or on
// which others wait. It sets why.
func (l *limiter) standInLine(ctx context.Context, key string, n int, to purpose, h holding, why *reason) (*Reservation, error) {
	l.overtakes(ctx, key, n) // which wakes the first waiter if it may not know of room that there is
	t := l.waiting.enter(key)
	defer l.waiting.leave(t)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.turn:
	}
	for {
		by, err := l.transitionOf(ctx, key)
		before, _ := l.timeline.Now()
		var r *Reservation
		var denial *Result
		if err == nil && by.flies {
			r, denial, err = l.holdInFlight(ctx, key, n, by, h, why)
		} else {
			r, denial, err = l.reserveBy(ctx, key, n, l.patience(ctx), to, by, err, h, why)
		}
		if denial == nil {
			return r, err
		}
		l.waiting.denied(t, denial.Decision, before, by)
		wait := denial.Decision.RetryAfter
		if denial.ends > 0 {
			wait = min(wait, denial.ends)
		}
		due := kernel.Forever
		if wait < Never {
			due = l.timeline.In(wait)
		}
		if now, _ := l.timeline.Now(); now != before && !l.timeline.Flows() {
			continue // due may be too late: the clock has moved since it was read for d
		}
		if err := l.sleep(ctx, due, t.turn); err != nil {
			return nil, err
		}
	}
}

// holdInFlight holds n events of a key with an [InFlight], and waits for their delay. If they are denied for now,
// it returns the denial. It sets why.
func (l *limiter) holdInFlight(ctx context.Context, key string, n int, by *Transition, h holding, why *reason) (_ *Reservation, denial *Result, _ error) {
	r, res, err := l.holdOrRelease(ctx, key, n, by, h)
	switch {
	case r != nil:
		why.failed(err) // if there is an error, the policy has decided
		return r, nil, r.outlast(ctx)
	case err != nil && ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case err != nil:
		why.failed(err)
		if res.Decision.Degraded && l.policy.kind == fallback {
			err = &toFallback{err, mayGrant(by, n)}
		}
		return nil, nil, err
	case res.Full || n > by.kernel.Limit():
		why.denied(&res.Decision)
		return nil, nil, refusal(&res, n, by, 0)
	}
	return nil, &res, nil
}

// holdOrRelease is hold, and returns when ctx ends. If the events are held after that, they are
// released.
func (l *limiter) holdOrRelease(ctx context.Context, key string, n int, by *Transition, h holding) (r *Reservation, res Result, err error) {
	if l.local != nil { // it does not wait
		r, err := l.hold(ctx, key, n, by, nil, h, nil, &res)
		return r, res, err
	}
	type answer struct {
		r   *Reservation
		res Result
		err error
	}
	a, ok := unlessLate(ctx, func(ctx context.Context) (a answer) {
		a.r, a.err = l.hold(ctx, key, n, by, nil, h, nil, &a.res)
		return a
	}, func(ctx context.Context, late answer) {
		if late.r != nil {
			_, _ = late.r.giveBack(ctx)
		}
	})
	if !ok {
		a.err = ctx.Err()
	}
	return a.r, a.res, a.err
}

// applyOrRelease is applyBy for events in flight, and returns when ctx ends. If the store grants
// them after that, they are released: nobody else could do so, and others would not get them
// before they time out.
func (l *limiter) applyOrRelease(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	type answer struct {
		res Result
		err error
	}
	a, ok := unlessLate(ctx, func(ctx context.Context) (a answer) {
		a.res, a.err = l.states.Apply(ctx, key, t, req)
		return a
	}, func(ctx context.Context, late answer) {
		if late.err == nil && late.res.Held {
			_, _ = l.held(key, req.N, t, &late.res, req.Hold).giveBack(ctx)
		}
	})
	if !ok {
		a.err = ctx.Err()
	}
	return a.res, a.err
}

// unlessLate returns the answer of ask, or false when ctx ends. The context of ask does not end.
// Its answer goes to late if nobody waits for it any more. So the goroutine of ask ends after the
// store's timeout at the latest.
func unlessLate[T any](ctx context.Context, ask func(context.Context) T, late func(context.Context, T)) (answer T, ok bool) {
	answers, endless := make(chan T), context.WithoutCancel(ctx)
	go func() {
		a := ask(endless)
		select {
		case answers <- a:
		case <-ctx.Done():
			late(endless, a)
		}
	}()
	select {
	case answer = <-answers:
		return answer, true
	case <-ctx.Done():
		return answer, false
	}
}

// outlast waits until the delay of held events is over. If ctx ends before, they did not happen.
func (r *Reservation) outlast(ctx context.Context) error {
	err := r.await(ctx)
	if err != nil {
		_, _ = r.giveBack(context.WithoutCancel(ctx)) // if it fails, they stay spent
	}
	return err
}
