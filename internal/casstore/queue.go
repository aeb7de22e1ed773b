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
)

// The database is asked about a key by one goroutine at a time, which makes all calls that wait, round by round,
// and ends when none is left. So calls that wait share the next read and write, and do not depend on how long a
// write takes. A caller waits for its answer until its context ends or its timeout has passed, whatever the
// database does. The context of the database ends once nobody waits for the answers of a round any more.

// A queue has the calls on one key. The lock of the store protects it, but only the goroutine that serves it
// writes the fields of the round.
type queue struct {
	waiting list.List // of *call, in the order in which they came: those that are in no round yet
	callers int       // who wait for an answer, of these calls and those of the round

	// The present round:
	calls  []*call
	ctx    context.Context // of the database
	cancel context.CancelFunc
}

// A call is an Apply or, without a limit, a Reset.
type call struct {
	ctx   context.Context // of the caller
	l     *limit.Limit
	req   kernel.Request
	place *list.Element // in waiting, until it is in a round
	left  atomic.Bool   // whether nobody waits for the answer any more

	done   chan struct{} // closed when the following are set
	answer kernel.Answer
	err    error
}

// mostBehind bounds the goroutines that a hanging database can hold. Each has a stack of some kilobytes.
const mostBehind = 1024

// do makes a call, and waits for its answer until ctx ends or the timeout has passed.
func (s *Store) do(ctx context.Context, timeout time.Duration, key string, c *call) (kernel.Answer, error) {
	c.ctx, c.done = ctx, make(chan struct{})
	q, err := s.enter(key, c)
	if err != nil {
		return kernel.Answer{}, err
	}
	timer := time.NewTimer(timeout) // a context's deadline by a mock clock may have passed in real time
	defer timer.Stop()
	select {
	case <-c.done:
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded)
	}
	if err != nil && !s.leave(q, c) {
		return kernel.Answer{}, err
	}
	return c.answer, c.err
}

// enter adds c to the queue of key, and starts to serve that unless it is served already.
func (s *Store) enter(key string, c *call) (*queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind >= mostBehind {
		return nil, fmt.Errorf("not asked, because the calls on %d keys have not returned", s.behind)
	}
	q := s.queues[key]
	switch {
	case q == nil:
		q = new(queue)
		s.queues[key] = q
		go s.serve(key, q, nil)
	case q.callers == 0:
		s.behind--
	}
	q.callers++
	c.place = q.waiting.PushBack(c)
	return q, nil
}

// leave says that the caller of c waits no longer, unless it is answered just now.
func (s *Store) leave(q *queue, c *call) (answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-c.done:
		return true
	default:
	}
	c.left.Store(true)
	if q.callers--; q.callers == 0 {
		s.behind++
	}
	q.waiting.Remove(c.place) // which does nothing if c is in a round
	if q.callers == q.waiting.Len() && q.cancel != nil {
		q.cancel() // all that wait do so for the next round
	}
	return false
}

// serve answers the calls of a round with err, if there is one, and makes the others on the key until none waits.
func (s *Store) serve(key string, q *queue, err error) {
	defer func() {
		if q.calls == nil {
			return
		}
		err := errors.New("the database has ended the goroutine of the call") // as a test's Fatal does
		if v := recover(); v != nil {
			err = fmt.Errorf("the store panicked: %v\n\n%s", v, debug.Stack())
		}
		go s.serve(key, q, err)
	}()
	for s.next(key, q, err) {
		err = s.ask(key, q)
	}
}

// next ends a round, whose error is err if that is not nil, and begins the next one. If no call waits, the queue
// ends.
func (s *Store) next(key string, q *queue, err error) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.cancel != nil {
		q.cancel()
	}
	if q.callers == 0 {
		s.behind--
	}
	for _, c := range q.calls {
		if err != nil {
			c.answer, c.err = kernel.Answer{}, err
		}
		close(c.done)
	}
	q.calls, q.callers = nil, q.waiting.Len()
	if q.callers == 0 {
		delete(s.queues, key)
		return false
	}
	q.join()
	q.ctx, q.cancel = context.WithCancel(context.WithoutCancel(q.calls[0].ctx))
	return true
}

// join adds the calls that wait to the round, up to the first Reset, which has a round of its own.
func (q *queue) join() {
	for e := q.waiting.Front(); e != nil; e = q.waiting.Front() {
		c := e.Value.(*call)
		if c.l == nil && len(q.calls) > 0 {
			return
		}
		q.waiting.Remove(e)
		if q.calls = append(q.calls, c); c.l == nil {
			return
		}
	}
}

// ask asks the database for the calls of the round.
func (s *Store) ask(key string, q *queue) error {
	if q.calls[0].l == nil {
		return s.db.Delete(q.ctx, key)
	}
	for conflicts := 1; ; conflicts++ {
		began := time.Now()
		if done, err := s.try(q.ctx, key, q.calls); done || err != nil {
			return err
		}
		if err := pause(q.ctx, time.Since(began)*time.Duration(min(conflicts, mostPauses))); err != nil {
			return err
		}
	}
}

// try reads the state of key, applies calls to it, and replaces it. It reports whether that is done, which it
// is not if another process was faster.
func (s *Store) try(ctx context.Context, key string, calls []*call) (done bool, err error) {
	old, err := s.db.Get(ctx, key)
	if err != nil {
		return true, err
	}
	next, changed, expires := applyAll(old, calls)
	if !changed {
		return true, nil
	}
	if len(old) == 0 {
		old = nil
	}
	return s.db.CompareAndSwap(ctx, key, old, next, expires)
}

// applyAll applies calls to a state, one after the other, and sets their answers. It returns the
// state to store if it has changed, and when that expires: never if that is the zero Time.
func applyAll(state []byte, calls []*call) (next []byte, changed bool, expires time.Time) {
	for _, c := range calls {
		if c.err = c.ctx.Err(); c.err != nil || c.left.Load() {
			continue // nobody waits for the answer
		}
		req, _ := c.req.Read() // now that the state is at hand
		var wrote bool
		if next, wrote, c.answer, c.err = c.l.Apply(state, req); wrote {
			state, changed, expires = next, true, time.Time{}
			if idle := c.answer.IdleAfter(); idle < kernel.Never {
				expires = req.Fixed.Wall.Add(idle)
			}
		}
	}
	return state, changed, expires
}

// mostPauses bounds how long a process lets others go first, in reads and writes of its own: the
// longer it waits, the more often those win that do not.
const mostPauses = 8

// pause waits for a random time of at most d, or returns the error of ctx. Processes that wait
// equally long would meet again.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(rand.N(d + 1)):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
