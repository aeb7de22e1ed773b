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

// A Database keeps states for [NewStore]: a table of SQL, bbolt, DynamoDB, etcd, or a map.
// docs/redis.md shows how to write one in about 25 lines, and package storetest tests it.
//
// Keys are ASCII without spaces, not empty, and at most 200 bytes long. Upper and lower case differ.
//
// States are any bytes, mostly 10 to 60; [Store] says how many more. They are equal if
// all bytes are. A Database may keep a slice that it was given, but changes none, and
// what Get has returned stays as it is. The store changes no slices either.
//
// Any number of goroutines call the methods at once, also for one key. A method should return when
// ctx ends; if it does not, the limiter abandons the call (see [WithStoreTimeout]).
//
// Errors are those of the database. The limiter returns them, and its [FailurePolicy]
// decides. The store does not try again, because a call that failed may have had its effect.
type Database interface {
	// Get returns the state of key. If there is none, state is empty and err is nil.
	// An expired state may be returned or not.
	Get(ctx context.Context, key string) (state []byte, err error)

	// CompareAndSwap makes new the state of key if the present state is old, and reports
	// whether it did so, in one atomic step. old is what Get has returned, or nil if that was empty:
	// then it swaps only if key has no state. If key has none, because it was deleted
	// meanwhile, and old is not nil, it does not swap. new is never empty.
	//
	// If the comparison fails, it is best to roll the transaction back: a commit that changes
	// nothing may wait for the disk as long as one that does.
	//
	// From the time expires on, by the limiter's clock, the state means the same as none, and may be
	// deleted; the zero Time means never. A Database that deletes by another clock adds the
	// greatest difference between the two: deleting late costs space, deleting
	// early hands out a fresh limit.
	//
	// A database that can compare only versions reads the state and its version, compares the
	// state with old, and swaps if the version is still the same. A version must
	// not come back after a key was deleted, as that of a counter would that starts again.
	CompareAndSwap(ctx context.Context, key string, old, new []byte, expires time.Time) (swapped bool, err error)

	// Delete deletes the state of key, if it has one.
	Delete(ctx context.Context, key string) error
}

// NewStore returns a store that keeps states in db. Any number of limiters may
// use it, and any number of processes one database, if their clocks agree.
//
// Calls on one key take turns. Those that wait share the next Get and CompareAndSwap, and so
// do not depend on how long a write takes. If a swap fails, because another process has
// changed the state, the store waits for a random time and starts over, until the context ends.
//
// Limiters with the same name on one store must have the same algorithm. On another
// store with the same database (after a restart, or in another process) the algorithm
// may be another one: the states are adopted as [WithLimits] describes.
func NewStore(db Database) Store { return &casStore{db: db, queues: make(map[string]*casQueue)} }

// A casStore is what NewStore returns.
type casStore struct {
	db    Database
	lines line.Named

	mu     sync.Mutex             // protects the fields below, and the fields of queues
	open   map[string]*Transition // by the name of their limiters
	queues map[string]*casQueue   // of the keys with calls under way
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
func (s *casStore) apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
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
func (s *casStore) enter(key string, c *casCall) *casQueue {
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
func (s *casStore) leave(key string, q *casQueue, c *casCall) {
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
func (s *casStore) begin(q *casQueue, calls []*casCall) []*casCall {
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
var errCASPanic = errors.New("a method of the Database has panicked")

// serve applies the calls that wait. Its caller, who has the turn, is one of them.
func (s *casStore) serve(key string, q *casQueue) {
	var calls []*casCall
	var err error
	defer func() {
		for _, c := range calls {
			if err != nil {
				c.res, c.err = Result{}, err
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
			err = pause(ctx, time.Since(began)*time.Duration(min(conflicts, mostPauses)))
		}
		cancel()
		if done || err != nil {
			return
		}
	}
}

// try applies calls to the state of key. It reports whether it is done: if not, the state has changed
// meanwhile.
func (s *casStore) try(ctx context.Context, key string, calls []*casCall) (done bool, err error) {
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
	done, err = s.db.CompareAndSwap(ctx, key, old, next, expires)
	return done || err != nil, err
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

// Open implements [Store].
func (s *casStore) Open(name string, t *Transition) (States, error) {
	if param.IsNil(s.db) {
		return nil, param.Invalid("NewStore's Database", nil, "must not be nil")
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
	*casStore
	name string
}

// Apply implements [States].
func (s *casStates) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	return s.apply(ctx, s.key(key), t, req)
}

// Reset implements [States].
func (s *casStates) Reset(ctx context.Context, key string) error {
	return s.db.Delete(ctx, s.key(key))
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
