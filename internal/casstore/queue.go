package casstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// The database is asked about a key by one goroutine at a time, which serves all calls that wait, and ends when
// none is left. So calls that wait share the next read and write, and do not depend on how long a write takes. A
// caller waits for its answer until its context ends or its timeout has passed, whatever the database does. The
// context of the database ends once nobody waits for it any more.

// A queue has the calls on one key.
type queue struct {
	waiting []*call // those that nobody has begun to serve
	callers int     // who wait for an answer
	behind  bool    // whether all have left, and what they asked for has not returned
}

// A call is an Apply or, without a limit, a Reset.
type call struct {
	ctx context.Context // ends when nobody waits for the answer
	l   *limit.Limit
	req kernel.Request

	left     bool          // whether nobody waits for the answer; protected by the lock of the store
	done     chan struct{} // closed when the following are set
	answer   kernel.Answer
	err      error
	panicked *dbPanic
}

// mostBehind bounds the goroutines that a hanging database can hold. Each has a stack of some kilobytes.
const mostBehind = 1024

// do makes a call, and waits for its answer until ctx ends or the timeout has passed.
func (s *Store) do(ctx context.Context, timeout time.Duration, key string, c *call) (kernel.Answer, error) {
	// Not WithTimeout: the deadline of a context made with a mock clock may have passed in real time.
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(ctx)
	defer cancel() // reaches the database, once nobody waits
	c.done = make(chan struct{})
	q, err := s.enter(key, c)
	if err != nil {
		return kernel.Answer{}, err
	}
	timer := time.NewTimer(timeout)
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
	if c.panicked != nil {
		panic(c.panicked)
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
	if q == nil {
		q = new(queue)
		s.queues[key] = q
		go s.serve(key, q)
	}
	s.waitedFor(q)
	q.callers++
	q.waiting = append(q.waiting, c)
	return q, nil
}

// waitedFor says that somebody waits for q, or that nobody need do so.
func (s *Store) waitedFor(q *queue) {
	if q.behind {
		q.behind = false
		s.behind--
	}
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
	c.left = true
	q.waiting = slices.DeleteFunc(q.waiting, func(other *call) bool { return other == c })
	if q.callers--; q.callers == 0 {
		q.behind = true
		s.behind++
	}
	return false
}

// serve makes the calls on a key until none waits.
func (s *Store) serve(key string, q *queue) {
	for s.serveSome(key, q) {
	}
}

// serveSome makes the calls that wait, or the Reset that is the first of them. It reports whether there were any.
func (s *Store) serveSome(key string, q *queue) (some bool) {
	calls := s.begin(key, q, nil)
	if len(calls) == 0 {
		return false
	}
	err := errGoexit
	defer func() {
		v := recover()
		if v != nil {
			calls[0].panicked, err = &dbPanic{v, debug.Stack()}, errPanic
		}
		s.answer(q, calls, err)
		if some = true; v == nil && errors.Is(err, errGoexit) { // this goroutine ends
			go s.serve(key, q)
		}
	}()
	if calls[0].l == nil {
		err = s.db.Delete(calls[0].ctx, key)
		return true
	}
	for conflicts := int64(1); ; conflicts++ {
		ctx, cancel := contextOf(calls)
		began := time.Now()
		done, failed := s.try(ctx, key, calls)
		if !done && failed == nil {
			failed = pause(ctx, time.Since(began)*time.Duration(min(conflicts, mostPauses)))
		}
		cancel()
		if done || failed != nil {
			err = failed
			return true
		}
		calls = s.begin(key, q, calls)
	}
}

// begin appends the calls that wait to calls, up to the first Reset. If there are none at all, the queue ends.
func (s *Store) begin(key string, q *queue, calls []*call) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := slices.IndexFunc(q.waiting, func(c *call) bool { return c.l == nil })
	switch {
	case n < 0:
		n = len(q.waiting)
	case n == 0 && len(calls) == 0:
		n = 1
	}
	calls = append(calls, q.waiting[:n]...)
	if q.waiting = q.waiting[n:]; len(calls) == 0 {
		delete(s.queues, key)
		s.waitedFor(q)
	}
	return calls
}

// answer ends calls. If err is not nil, it is the error of all of them.
func (s *Store) answer(q *queue, calls []*call, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		if err != nil {
			c.answer, c.err = kernel.Answer{}, err
		}
		if !c.left {
			q.callers--
		}
		close(c.done)
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
		if c.err = c.ctx.Err(); c.err != nil {
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

// contextOf returns a context that ends when those of all calls have ended.
func contextOf(calls []*call) (_ context.Context, cancel func()) {
	if len(calls) == 1 {
		return calls[0].ctx, func() {}
	}
	ctx, end := context.WithCancel(context.WithoutCancel(calls[0].ctx))
	var left atomic.Int64
	left.Store(int64(len(calls)))
	stops := make([]func() bool, len(calls))
	for i, c := range calls {
		stops[i] = context.AfterFunc(c.ctx, func() {
			if left.Add(-1) == 0 {
				end()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
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

// Errors of calls.
var (
	errPanic  = errors.New("a method of the database has panicked") // of those that share a read and a write with it
	errGoexit = errors.New("the goroutine of the call was ended")   // as a test's Fatal does
)

// A dbPanic carries a panic of the database to a caller's goroutine. If all callers have left, it is dropped.
type dbPanic struct {
	value any
	stack []byte
}

func (p *dbPanic) Error() string {
	return fmt.Sprintf("the store panicked: %v\n\n%s", p.value, p.stack)
}

// Unwrap returns the value of the panic if it is an error.
func (p *dbPanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}
