package casstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// One goroutine at a time asks the database about a key. The goroutine makes a round: it makes all
// calls that wait. If more calls have come meanwhile, it then starts the goroutine of the next
// round. So waiting calls share one read and one write, however long a write takes.
//
// A caller waits for its answer until its context ends or its timeout has passed, whatever the
// database does. The context that the database is given ends once the timeouts of all calls of the
// round have passed. It goes on if callers leave before, so that the limiter learns of a failure
// even if the deadlines of all callers are short: see OnLateFailure.

// A queue has the calls on one key. The lock of the store protects it.
type queue struct {
	// waiting has *call values: the calls that are in no round yet, in the order of their arrival.
	waiting list.List
	calls   []*call // of the round; only its goroutine writes them
	callers int     // the callers that wait for an answer to any of these calls
	// Those of the round that have left before their timeouts have passed.
	lingering int
	cancel    context.CancelFunc // ends the context of the database
}

// A call is an Apply or, without a limit, a Reset.
type call struct {
	ctx   context.Context // of the caller
	l     *limit.Limit
	req   step.Request
	place *list.Element // in waiting, until it is in a round
	left  atomic.Bool   // whether the caller no longer waits for the answer

	timeout   time.Duration
	isInRound bool            // whether it is, or was
	isLate    bool            // whether failed is to be called if the call fails
	expires   *time.Timer     // if the caller has left the round early, until that ends; else nil
	failed    func(err error) // tells the limiter; may be nil

	done   chan struct{} // closed when the following are set
	answer step.Answer
	err    error
}

// mostBehind bounds the goroutines that a hanging database can hold. Each has a stack of some
// kilobytes.
const mostBehind = 1024

// do makes a call, and waits for its answer until ctx ends or the timeout has passed.
func (s *Store) do(
	ctx context.Context,
	timeout time.Duration,
	key string,
	c *call,
) (step.Answer, error) {
	c.ctx, c.timeout, c.done = ctx, timeout, make(chan struct{})
	began := time.Now()
	q, err := s.enter(key, c)
	if err != nil {
		return step.Answer{}, err
	}
	// A context's deadline by a mock clock may have passed in real time.
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var left time.Duration // of the timeout
	select {
	case <-c.done:
	case <-ctx.Done():
		err, left = ctx.Err(), timeout-time.Since(began)
	case <-timer.C:
		err = c.noAnswer()
	}
	if err == nil || s.leave(q, c, left) {
		return c.answer, c.err
	}
	if !c.isInRound { // nor will it be
		err = limit.NotExecuted(err)
	}
	return step.Answer{}, err
}

// noAnswer returns the error of a call without an answer within its timeout.
func (c *call) noAnswer() error {
	return fmt.Errorf("no answer within %v: %w", c.timeout, context.DeadlineExceeded)
}

// enter adds c to the queue of key, and starts a round unless one is under way.
func (s *Store) enter(key string, c *call) (*queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind >= mostBehind {
		const text = "not asked, because the calls on %d keys have not returned"
		return nil, limit.NotExecuted(fmt.Errorf(text, s.behind))
	}
	q, known := s.queues[key]
	switch {
	case !known:
		q = new(queue)
		s.queues[key] = q
	case q.callers == 0:
		s.behind--
	}
	q.callers++
	c.place = q.waiting.PushBack(c)
	if !known {
		s.startRound(key, q)
	}
	return q, nil
}

// leave notes that the caller of c no longer waits, unless c was answered just now. The round of c
// goes on for what is left of the timeout of c.
func (s *Store) leave(q *queue, c *call, left time.Duration) (answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.done:
		return true
	default:
	}
	c.left.Store(true)
	q.callers--
	if q.callers == 0 {
		s.behind++
	}
	q.waiting.Remove(c.place) // which does nothing if c is in a round
	switch {
	case !c.isInRound: // the present round is that of others
	case left > 0 && s.behind <= mostBehind/2:
		c.isLate = c.failed != nil && errors.Is(context.Cause(c.ctx), context.DeadlineExceeded)
		q.lingering++
		c.expires = time.AfterFunc(left, func() { s.expire(q, c) })
	default:
		q.endUnawaited()
	}
	return false
}

// endUnawaited ends the context of the database if nobody waits for the present round, and the
// timeouts of all its calls have passed. The caller holds the lock.
func (q *queue) endUnawaited() {
	if q.callers == q.waiting.Len() && q.lingering == 0 {
		q.cancel()
	}
}

// expire is called when the timeout of a call has passed whose caller has left before.
func (s *Store) expire(q *queue, c *call) {
	if s.hasExpired(q, c) {
		c.failed(c.noAnswer())
	}
}

// hasExpired is expire, and reports whether to tell the limiter.
func (s *Store) hasExpired(q *queue, c *call) (fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.expires == nil {
		return false // the round has just ended
	}
	c.expires = nil
	q.lingering--
	q.endUnawaited()
	fails, c.isLate = c.isLate, false
	return fails
}

// startRound starts a round of the calls that wait, up to the first Reset, which has a round of its
// own. If none waits, the queue ends. The caller holds the lock.
func (s *Store) startRound(key string, q *queue) {
	if q.callers == 0 {
		delete(s.queues, key)
		return
	}
	for e := q.waiting.Front(); e != nil; e = q.waiting.Front() {
		c := e.Value.(*call)
		if c.l == nil && len(q.calls) > 0 {
			break
		}
		q.waiting.Remove(e)
		c.isInRound = true
		q.calls = append(q.calls, c)
		if c.l == nil {
			break
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.calls[0].ctx))
	q.cancel = cancel
	go s.runRound(ctx, key, q)
}

// runRound asks the database for the calls of a round, answers them and starts the next round,
// whether runCalls returns or not.
func (s *Store) runRound(ctx context.Context, key string, q *queue) {
	err := errors.New("the database has ended the goroutine of the call") // as a test's Fatal does
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the store panicked: %v\n\n%s", v, debug.Stack())
		}
		wasEnded := ctx.Err() != nil // which says nothing about the database
		for _, c := range s.endRound(key, q, err) {
			if !wasEnded {
				c.failed(err)
			}
		}
	}()
	err = s.runCalls(ctx, key, q.calls)
}

// endRound answers the calls of a round that has ended with err, and starts the next round. It
// returns the calls that have failed after the deadlines of their callers.
func (s *Store) endRound(key string, q *queue, err error) (late []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.strays.Answered()
	}
	q.cancel()
	if q.callers == 0 {
		s.behind--
	}
	for _, c := range q.calls {
		if err != nil {
			c.answer, c.err = step.Answer{}, err
			if c.isLate {
				late = append(late, c)
			}
		}
		c.isLate = false
		if c.expires != nil {
			c.expires.Stop()
			c.expires = nil
		}
		close(c.done)
	}
	q.calls, q.callers, q.lingering = nil, q.waiting.Len(), 0
	s.startRound(key, q)
	return late
}

// runCalls resets key, or applies calls to its state and replaces the state. If another process has
// changed the state in between, runCalls tries again.
func (s *Store) runCalls(ctx context.Context, key string, calls []*call) error {
	if calls[0].l == nil {
		return s.db.Delete(ctx, key)
	}
	for conflicts := 1; ; conflicts++ {
		began := time.Now()
		old, err := s.db.Get(ctx, key)
		if err != nil {
			return limit.NotExecuted(err)
		}
		next, changed, expires := applyAll(old, calls)
		if !changed {
			return nil
		}
		if len(old) == 0 {
			old = nil
		}
		swapped, err := s.db.CompareAndSwap(ctx, key, old, next, expires)
		if swapped || err != nil {
			return err
		}
		most := time.Since(began) * time.Duration(min(conflicts, mostPauses))
		if err := pause(ctx, most); err != nil {
			return limit.NotExecuted(err)
		}
	}
}

// applyAll applies calls to a state, one after the other, and sets their answers. If the state has
// changed, it returns the state to store, and when that expires: the zero Time means never.
func applyAll(state []byte, calls []*call) (next []byte, changed bool, expires time.Time) {
	for _, c := range calls {
		c.err = c.ctx.Err()
		if c.err != nil || c.left.Load() {
			continue // nobody waits for the answer
		}
		req, _ := c.req.Read() // now that the state is at hand
		t, unread := c.l.Apply(state, req)
		c.answer, c.err = t.Answer, unread
		if t.Changed {
			state, changed, expires = t.State, true, time.Time{}
			if idle := c.answer.IdleAfter(); idle < kernel.Never {
				expires = req.Fixed.Wall.Add(idle)
			}
		}
	}
	return state, changed, expires
}

// mostPauses bounds how long a process lets others go first, as a multiple of the time that its own
// read and write take. A process that waited longer would lose to others ever more often.
const mostPauses = 8

// pause waits for a random time of at most d, or returns the error of ctx. Processes that wait
// equally long would meet again.
func pause(ctx context.Context, d time.Duration) error {
	d = rand.N(d + 1)
	if d == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err()
}
