package ratelimit

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A CASStore keeps states in a database that can get, compare-and-swap and delete
// values: bbolt, SQLite, DynamoDB, etcd, or a map. Make one with [NewCASStore].
// Any number of goroutines and limiters may use it. Any number of processes may use
// one database, if their clocks agree.
type CASStore struct {
	missing string // the name of a function that is nil, or empty
	try     func(ctx context.Context, key string, calls []*casCall) (done bool, err error)
	del     func(ctx context.Context, key string) error

	conflicts, unreadable atomic.Uint64
	lines                 line.Named

	mu     sync.Mutex             // protects the fields below, and the fields of queues
	open   map[string]*Transition // by the name of their limiters
	queues map[string]*casQueue   // of the keys with calls under way
}

// NewCASStore returns a store on a database that three functions access. Any number
// of goroutines call them at once, but get and compareAndSwap only one for each key: calls
// that wait for their turn share the next get and compareAndSwap, and so do not depend on
// how long a write takes. They should return when ctx ends; if they do not,
// the limiter abandons the call (see [WithStoreTimeout]). The limiter reports their
// errors.
//
// get returns the state of key and its version, which compareAndSwap uses to check
// that the state has not changed. If key has no state, state is nil or empty, err is
// nil, and version denotes that there is none. get may return an expired state.
//
// compareAndSwap stores state for key if the present state still has the version that
// get returned, and reports whether it did so, in one atomic step. It must return
// false if the key had a state and has none now, or had none and has one now. It may
// keep the slice state. From the time expires on, by the limiter's clock, the state
// equals that of a key never seen, and may be deleted; the zero Time means never. A
// database that deletes by its own clock should add the greatest difference between the
// two clocks: deleting late costs space, deleting early hands out a fresh limit.
//
// If the comparison fails, because another process has changed the state, roll the
// transaction back: a commit that changes nothing may wait for the disk as long as one
// that does. Then the store waits for a random time and starts over with get,
// until ctx ends.
//
// remove deletes the state of key, if it has one, whatever its version.
//
// A version may be the state itself (a string or []byte), compared byte by byte, or a
// number or token that is new for each write. A counter that restarts after a key was
// deleted is not a version, because different states would get the same number.
//
// Keys are ASCII, not empty, and at most 200 bytes long; a hash replaces longer ones.
// The database must distinguish upper and lower case. [Store] documents the size of
// states.
func NewCASStore[V any](
	get func(ctx context.Context, key string) (state []byte, version V, err error),
	compareAndSwap func(ctx context.Context, key string, version V, state []byte, expires time.Time) (swapped bool, err error),
	remove func(ctx context.Context, key string) error,
) *CASStore {
	s := &CASStore{del: remove, queues: make(map[string]*casQueue)}
	switch {
	case get == nil:
		s.missing = "get"
	case compareAndSwap == nil:
		s.missing = "compareAndSwap"
	case remove == nil:
		s.missing = "remove"
	}
	s.try = func(ctx context.Context, key string, calls []*casCall) (done bool, err error) {
		state, version, err := get(ctx, key)
		if err != nil {
			return true, err
		}
		next, changed, expires := applyAll(state, calls)
		if !changed {
			return true, nil
		}
		done, err = compareAndSwap(ctx, key, version, next, expires)
		return done || err != nil, err
	}
	return s
}

// A casQueue has the calls on one key. One of them at a time has the turn: it asks the
// database for all that wait.
type casQueue struct {
	turn    chan struct{} // has an element while a call has the turn
	users   int           // calls that have not returned
	waiting list.List     // of *casCall: those that nobody has begun to apply
}

// A casCall is a call of Apply.
type casCall struct {
	ctx   context.Context
	t     *Transition
	req   Request
	place *list.Element // in waiting; nil if it is not there

	done chan struct{} // closed when the results are set
	res  Result
	err  error
}

// apply applies req to the state of key in the database.
func (s *CASStore) apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	c := &casCall{ctx: ctx, t: t, req: req, done: make(chan struct{})}
	q := s.enter(key, c)
	defer s.leave(key, q, c)
	select {
	case <-c.done:
	case <-ctx.Done():
		return Result{}, ctx.Err()
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
		select {
		case <-c.done: // the turn before has served this call
		default:
			s.serve(key, q)
		}
	}
	return c.res, c.err
}

// enter adds c to the queue of key.
func (s *CASStore) enter(key string, c *casCall) *casQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[key]
	if q == nil {
		q = &casQueue{turn: make(chan struct{}, 1)}
		s.queues[key] = q
	}
	q.users++
	c.place = q.waiting.PushBack(c)
	return q
}

// leave ends c, and removes it from its queue if it still waits.
func (s *CASStore) leave(key string, q *casQueue, c *casCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.place != nil {
		q.waiting.Remove(c.place)
	}
	if q.users--; q.users == 0 {
		delete(s.queues, key)
	}
}

// begin appends the calls that wait to calls.
func (s *CASStore) begin(q *casQueue, calls []*casCall) []*casCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := q.waiting.Front(); e != nil; e = e.Next() {
		c := e.Value.(*casCall)
		c.place = nil
		calls = append(calls, c)
	}
	q.waiting.Init()
	return calls
}

// errCASPanic is the error of calls that share a read and a write with one that panics.
var errCASPanic = errors.New("a function of the database has panicked")

// serve applies the calls that wait. Its caller, who has the turn, is one of them.
func (s *CASStore) serve(key string, q *casQueue) {
	var calls []*casCall
	var err error
	defer func() {
		for _, c := range calls {
			if err != nil {
				c.res, c.err = Result{}, err
			} else if c.res.StateErr() != nil {
				s.unreadable.Add(1)
			}
			close(c.done)
		}
	}()
	for conflicts := int64(1); ; conflicts++ {
		calls, err = s.begin(q, calls), errCASPanic
		ctx, cancel := contextOf(calls)
		began := time.Now()
		var done bool
		if done, err = s.try(ctx, key, calls); !done {
			s.conflicts.Add(1)
			err = pause(ctx, time.Since(began)*time.Duration(min(conflicts, mostPauses)))
		}
		cancel()
		if done || err != nil {
			return
		}
	}
}

// contextOf returns a context that ends when those of all calls have ended.
func contextOf(calls []*casCall) (_ context.Context, cancel func()) {
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

// applyAll applies calls to a state, one after the other, and sets their results. It returns the
// state to store if it has changed, and when that expires.
func applyAll(state []byte, calls []*casCall) (next []byte, changed bool, expires time.Time) {
	for _, c := range calls {
		c.res = Result{}
		if c.err = c.ctx.Err(); c.err != nil {
			continue // nobody waits for the result
		}
		if c.err = c.req.check(); c.err != nil {
			continue
		}
		req, _ := c.req.Read() // now that the state is at hand
		var wrote bool
		if next, wrote, c.res, c.err = c.t.Apply(state, req); wrote {
			state, changed, expires = next, true, req.expiry(&c.res)
		}
	}
	return state, changed, expires
}

// CASStats are the counts of a [CASStore] since it was made.
type CASStats struct {
	Conflicts  uint64 // times that a swap failed, because another process or a Reset had changed the state
	Unreadable uint64 // keys that started afresh because their state could not be read: see ErrState
}

// Stats returns the counts of the store.
func (s *CASStore) Stats() CASStats {
	return CASStats{Conflicts: s.conflicts.Load(), Unreadable: s.unreadable.Load()}
}

// Open implements [Store]. Limiters with the same name on one CASStore must have the
// same algorithm. A limiter that another CASStore opens on the same database (after a
// restart, or in another process) may have another algorithm: its states are adopted as
// [WithLimits] describes.
func (s *CASStore) Open(name string, t *Transition) (States, error) {
	if s.try == nil {
		return nil, param.Invalid("the CASStore", "zero", "must be made by NewCASStore")
	}
	if s.missing != "" {
		return nil, param.Invalid("NewCASStore's "+s.missing, nil, "must be a function")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.open[name]; have != nil {
		if err := have.CheckSame(name, t); err != nil {
			return nil, err
		}
	}
	if s.open == nil {
		s.open = make(map[string]*Transition)
	}
	s.open[name] = t
	return &casStates{s, name}, nil
}

// Lines are those of all limiters of the name.
func (s *casStates) Lines() *line.Lines { return s.lines.Of(s.name) }

// casStates are the states of one limiter.
type casStates struct {
	*CASStore
	name string
}

// Apply implements [States].
func (s *casStates) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	return s.apply(ctx, s.key(key), t, req)
}

// Reset implements [States].
func (s *casStates) Reset(ctx context.Context, key string) error {
	return s.del(ctx, s.key(key))
}

// longestCASKey is a length that DynamoDB, etcd, MySQL's indexes and others accept.
const longestCASKey = 200

// key returns the key in the database, which is different for each pair of a limiter's
// name and a key.
func (s *casStates) key(key string) string {
	if len(s.name)+len(key) < longestCASKey {
		if k := url.QueryEscape(s.name) + ":" + url.QueryEscape(key); len(k) <= longestCASKey {
			return k
		}
	}
	sum := sha256.New()
	sum.Write(binary.AppendUvarint(nil, uint64(len(s.name))))
	sum.Write([]byte(s.name + key))
	return "#" + hex.EncodeToString(sum.Sum(nil)) // '#' is escaped in all other keys
}
