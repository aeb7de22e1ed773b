package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// WaitAll waits until several keys grant n events each, or the number that [Bound.N] has given to a
// key, and then spends them in all of them, like [TakeAll]: at the first instant at which all grant.
// It returns nil when the events may happen. Until then it spends nothing.
//
// WaitAll stands in the line of each key, in the order of arrival, behind every [Limiter.Wait] before
// it. As with a Wait, once a key has refused the first in its line, the limiter denies all other requests
// for the key until nobody stands in line. So whoever waits for a key of their own and for one that many
// share holds up the others for as long: give ctx a deadline, or ask TakeAll again.
//
// The limiters must be made by [New] on a [MemoryStore], as nobody could keep a place in the keys of
// other stores: otherwise the error matches [ErrInvalid], and names the Bound. The other errors are those
// of [Limiter.WaitN], except that WaitAll waits for room in the queue of a [LeakyBucket]. It spends the
// events when they enter that queue, and gives them back if ctx ends before they leave it.
// In an [InFlight], they are held for its Timeout.
//
// Observers are told of one [CallWait] for each key, whose Decision, if it is refused, is that on all keys.
//
// If all keys grant at once, WaitAll costs as much as TakeAll or, with a LeakyBucket, as HoldAll and
// Release.
func WaitAll(ctx context.Context, n int, of ...Bound) error {
	own, err := checkTogether(ctx, n, of)
	if err != nil {
		return err
	}
	w := waitAll{n: n, own: own, of: append([]Bound(nil), of...)} // so that of may be on its caller's stack
	if err := w.addKeys(); err != nil {
		return err
	}
	began := w.keys[0].l.timeline
	from, _ := began.Now()
	err = w.wait(ctx)
	until, _ := began.Now()
	for i := range w.keys {
		k := &w.keys[i]
		if l, ok := k.limiter.(*observed); ok {
			l.ended(ctx, CallWait, k.key, k.n, time.Duration(until-min(until, from)), &w.why, err)
		}
	}
	return err
}

// A waitAll is a call of WaitAll.
type waitAll struct {
	n    int
	own  bool // whether a Bound has a number of its own
	of   []Bound
	keys []waitKey // each once

	turn chan struct{} // of all tickets
	why  reason        // of the latest question, as what follows
	ends time.Duration // until the first open hold of a key ends by itself; 0 if none is open
	full bool          // whether there is no room for a key
}

// A waitKey is a key that a WaitAll waits for.
type waitKey struct {
	Bound
	l      *limiter
	n      int     // how many events of it
	ticket *ticket // nil if it is not in line, or the first of two keys with one line is

	asked kernel.Instant // when it was asked
	by    *Transition    // what decides on it; nil if that could not be looked up
}

// addKeys looks at the keys, and returns an error if one cannot be waited for.
func (w *waitAll) addKeys() error {
	for i, b := range w.of {
		l, ok := bare(b.limiter)
		if !ok {
			return param.Invalid(fmt.Sprintf("WaitAll's bounds[%d]", i), fmt.Sprintf("a %T", b.limiter), "must be a limiter that New has made, because no other can keep a place in line; use TakeAll")
		}
		if _, ok := l.states.(*memoryStates); !ok {
			return param.Invalid(fmt.Sprintf("WaitAll's bounds[%d]", i), fmt.Sprintf("a limiter on a %T", l.store), "must be in memory, because nobody can keep a place in the lines of several processes; use TakeAll")
		}
		if k := w.find(b); k != nil {
			k.n = sum(k.n, b.events(w.n))
		} else {
			w.keys = append(w.keys, waitKey{Bound: b, l: l, n: b.events(w.n)})
		}
	}
	return nil
}

// find returns the key of b, or nil.
func (w *waitAll) find(b Bound) *waitKey {
	for i := range w.keys {
		if w.keys[i].equals(b) {
			return &w.keys[i]
		}
	}
	return nil
}

// wait waits until the events may happen.
func (w *waitAll) wait(ctx context.Context) error {
	r, err := w.take(ctx)
	if r == nil {
		return err
	}
	return w.outlast(ctx, r)
}

// take waits until the keys grant the events, which r holds if they may have a delay. It has left the
// lines before that delay, so that others are served when they can be.
func (w *waitAll) take(ctx context.Context) (r *Reservation, err error) {
	if !w.behind() {
		if r, denial, err := w.ask(ctx); denial == nil {
			return r, err
		}
	} else if err := w.never(ctx); err != nil {
		return nil, err
	}
	w.lineUp()
	defer w.leave() // even if a lookup panics
	for {
		if err := w.becomeFirst(ctx); err != nil {
			return nil, err
		}
		r, denial, err := w.ask(ctx)
		if denial == nil {
			return r, err
		}
		if now, _ := denial.l.timeline.Now(); now != denial.asked && !denial.l.timeline.Flows() {
			continue // the time of the next question may be too late: the clock has moved since it was read for the denial
		}
		for i := range w.keys {
			if k := &w.keys[i]; k.ticket != nil && k.by != nil {
				d := w.why.denial
				d.Limit = k.by.kernel.Limit()
				k.l.waiting.denied(k.ticket, d, k.asked, k.by)
			}
		}
		wait := w.why.denial.RetryAfter
		if w.ends > 0 {
			wait = min(wait, w.ends)
		}
		if err := denial.l.sleep(ctx, denial.l.timeline.In(wait), w.turn); err != nil {
			return nil, err
		}
	}
}

// behind reports whether somebody waits for one of the keys.
func (w *waitAll) behind() bool {
	return slices.ContainsFunc(w.keys, func(k waitKey) bool { return k.n > 0 && k.l.waiting.has(k.key) })
}

// never returns an error if a key never grants as many events.
func (w *waitAll) never(ctx context.Context) error {
	for i := range w.keys {
		k := &w.keys[i]
		if t, err := k.l.transitionOf(ctx, k.key); err == nil && k.n > t.kernel.Limit() {
			w.why.denial = Decision{Limit: t.kernel.Limit(), RetryAfter: Never}
			return refusal(&Result{}, k.n, t, 0)
		}
	}
	return nil
}

// liningUp is locked while a WaitAll enters the lines of its keys, so that of any two, one is before the
// other in all lines that they share, and they do not wait for each other.
var liningUp sync.Mutex

// lineUp enters the lines of all keys.
func (w *waitAll) lineUp() {
	liningUp.Lock()
	defer liningUp.Unlock()
	w.turn = make(chan struct{}, 1)
	for i := range w.keys {
		k := &w.keys[i]
		if k.n > 0 && !slices.ContainsFunc(w.keys[:i], func(o waitKey) bool { return o.ticket != nil && o.key == k.key && o.l.waiting == k.l.waiting }) {
			k.ticket = k.l.waiting.enter(k.key, w.turn)
		}
	}
}

// leave leaves the lines.
func (w *waitAll) leave() {
	for i := range w.keys {
		if k := &w.keys[i]; k.ticket != nil {
			k.l.waiting.leave(k.ticket)
		}
	}
}

// becomeFirst waits until the WaitAll is the first in all lines.
func (w *waitAll) becomeFirst(ctx context.Context) error {
	for i := range w.keys {
		for k := &w.keys[i]; k.ticket != nil && !k.l.waiting.first(k.ticket); {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-w.turn:
			}
		}
	}
	return nil
}

// ask asks all keys. If the events have to wait, it returns the key that refuses them for longest.
// r is that of takeTogether.
func (w *waitAll) ask(ctx context.Context) (r *Reservation, denial *waitKey, _ error) {
	delays := false
	for i := range w.keys {
		k := &w.keys[i]
		k.asked, _ = k.l.timeline.Now()
		k.by, _ = k.l.transitionOf(ctx, k.key)
		delays = delays || k.by != nil && k.by.kernel.Delays()
	}
	w.ends, w.full = 0, false
	r, d, err := takeTogether(ctx, w.n, w.of, w.own, delays, w)
	if err != nil {
		w.why.failed(err)
	}
	if d.Allowed {
		return r, nil, nil
	}
	w.why.denial = d
	k := w.find(w.of[d.Part])
	left := k.l.patience(ctx)
	switch {
	case err != nil:
		return nil, nil, err
	case w.full:
		return nil, nil, refusal(&Result{Full: true}, k.n, k.by, 0)
	case d.RetryAfter == Never:
		return nil, nil, refusal(&Result{Wait: Never}, k.n, k.by, 0)
	case w.ends == 0 && d.RetryAfter > left:
		return nil, nil, &TurnError{N: k.n, Wait: d.RetryAfter, Left: left}
	}
	return nil, k, nil
}

// told notes an answer of a key in memory.
func (w *waitAll) told(a *kernel.Answer) {
	w.full = w.full || a.Full
	if a.Ends > 0 && (w.ends == 0 || a.Ends < w.ends) {
		w.ends = a.Ends
	}
}

// outlast waits for the delay of events that are granted. If ctx ends before, or would, they did not
// happen.
func (w *waitAll) outlast(ctx context.Context, r *Reservation) (err error) {
	of := r.parts().of
	for i := range of {
		if p := of[i].r; p != nil {
			p.set(isQuiet)
		}
	}
	for i := range of {
		p := of[i].r
		if p == nil || p.l == nil {
			continue
		}
		if left := p.l.patience(ctx); p.Delay() > left {
			err = &TurnError{N: p.n, Wait: p.Delay(), Left: left}
			break
		}
		if err = p.await(ctx); err != nil {
			break
		}
	}
	ctx = context.WithoutCancel(ctx)
	for i := range of {
		switch p := of[i].r; {
		case p == nil:
		case err != nil:
			_, _ = p.Settle(ctx, 0)
		case p.by == nil || !p.by.flies:
			_ = p.Release(ctx)
		}
	}
	return err
}
