package fakes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A MapDB is a database in a map, whose methods fail and interfere as told.
type MapDB struct {
	mu        sync.Mutex
	States    map[string]string
	Until     map[string]time.Time
	Err       error  // of Get and Delete
	Swap      error  // of CompareAndSwap
	Before    func() // once, before the next CompareAndSwap
	Conflicts int    // swaps that found another state
}

// NewMapDB returns a database without states.
func NewMapDB() *MapDB { return &MapDB{States: map[string]string{}, Until: map[string]time.Time{}} }

// Store returns a store of bytes on db.
func (db *MapDB) Store() ratelimit.Store { return ratelimit.NewStore(db) }

// Get implements ratelimit.Database.
func (db *MapDB) Get(_ context.Context, key string) ([]byte, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return []byte(db.States[key]), db.Err
}

// CompareAndSwap implements ratelimit.Database.
func (db *MapDB) CompareAndSwap(_ context.Context, key string, old, state []byte, expires time.Time) (bool, error) {
	db.mu.Lock()
	before := db.Before
	db.Before = nil
	db.mu.Unlock()
	if before != nil {
		before()
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.Swap != nil {
		return false, db.Swap
	}
	if db.States[key] != string(old) {
		db.Conflicts++
		return false, nil
	}
	db.States[key], db.Until[key] = string(state), expires
	return true, nil
}

// Delete implements ratelimit.Database.
func (db *MapDB) Delete(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.States, key)
	return db.Err
}

// Stores are those that most laws are tested with: one in memory, and one of bytes.
var Stores = map[string]func() ratelimit.Store{
	"memory": func() ratelimit.Store { return new(ratelimit.MemoryStore) },
	"bytes":  func() ratelimit.Store { return NewMapDB().Store() },
}

// Keepings are the ways to keep the state of any algorithm.
var Keepings = map[string]func() []ratelimit.Option{"memory": InMemory, "bytes": InBytes, "limits": WithLimits}

// InMemory keeps states in memory.
func InMemory() []ratelimit.Option { return nil }

// InBytes keeps states as bytes.
func InBytes() []ratelimit.Option {
	return []ratelimit.Option{ratelimit.WithStore(NewMapDB().Store()), ratelimit.WithName("test")}
}

// WithLimits gives each key a limit of its own that is that of all.
func WithLimits() []ratelimit.Option { return []ratelimit.Option{OwnLimit(nil)} }

// MapStates is a store of bytes for one goroutine. It looks as a third-party store may: nothing in
// it handles states that cannot be read.
type MapStates map[string]string

// Open implements ratelimit.Store.
func (m MapStates) Open(string, *ratelimit.Transition) (ratelimit.States, error) { return m, nil }

// Apply implements ratelimit.States.
func (m MapStates) Apply(_ context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	next, changed, res, err := t.Apply([]byte(m[key]), req)
	if err != nil || !changed {
		return res, err
	}
	m[key] = string(next)
	return res, nil
}

// Reset implements ratelimit.States.
func (m MapStates) Reset(_ context.Context, key string) error {
	delete(m, key)
	return nil
}

// A Portable keeps states in a map, and counts in microseconds, as a store with scripts does.
type Portable struct {
	mu     sync.Mutex // protects states
	states map[string][]byte
	clk    *storetest.Clock
}

// NewPortable returns a store that reads clk.
func NewPortable(clk *storetest.Clock) *Portable {
	return &Portable{states: map[string][]byte{}, clk: clk}
}

// Open implements ratelimit.Store.
func (s *Portable) Open(_ string, t *ratelimit.Transition) (ratelimit.States, error) {
	t, err := t.Portable(time.Microsecond)
	return portableStates{s, t}, err
}

type portableStates struct {
	*Portable
	t *ratelimit.Transition
}

func (s portableStates) Apply(_ context.Context, key string, _ *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, _, res, err := s.t.Apply(s.states[key], req.At(s.clk.Now()))
	s.states[key] = next
	return res, err
}

func (s portableStates) Reset(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, key)
	return nil
}

// A Broken store fails with Err once that is set.
type Broken struct {
	ratelimit.States
	Err error
}

// Open implements ratelimit.Store.
func (s *Broken) Open(name string, t *ratelimit.Transition) (_ ratelimit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, t)
	return s, err
}

// Apply implements ratelimit.States.
func (s *Broken) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if s.Err != nil {
		return ratelimit.Result{}, s.Err
	}
	return s.States.Apply(ctx, key, t, req)
}

// Reset implements ratelimit.States.
func (s *Broken) Reset(ctx context.Context, key string) error {
	if s.Err != nil {
		return s.Err
	}
	return s.States.Reset(ctx, key)
}

// A Hanging store is one whose calls do not return while it hangs.
type Hanging struct {
	ratelimit.States
	mu    sync.Mutex
	stuck chan struct{} // closed when it no longer hangs; nil if it does not
	Op    int           // the only Op that hangs; -1 for all
	Heeds bool          // whether a call ends with its context
	Asked atomic.Int64
}

// NewHanging returns a store all of whose calls will hang.
func NewHanging() *Hanging { return &Hanging{Op: -1} }

// Open implements ratelimit.Store.
func (s *Hanging) Open(name string, t *ratelimit.Transition) (_ ratelimit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, t)
	return s, err
}

// Hang begins to hang.
func (s *Hanging) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = make(chan struct{})
}

// Release ends it, for the calls that hang, too.
func (s *Hanging) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.stuck)
	s.stuck = nil
}

func (s *Hanging) wait(ctx context.Context, op ratelimit.Op) error {
	s.Asked.Add(1)
	s.mu.Lock()
	stuck := s.stuck
	s.mu.Unlock()
	if stuck == nil || s.Op >= 0 && s.Op != int(op) {
		return nil
	}
	if !s.Heeds {
		ctx = context.Background()
	}
	select {
	case <-stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Apply implements ratelimit.States.
func (s *Hanging) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if err := s.wait(ctx, req.Op); err != nil {
		return ratelimit.Result{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}

// Reset implements ratelimit.States.
func (s *Hanging) Reset(ctx context.Context, key string) error {
	if err := s.wait(ctx, 255); err != nil {
		return err
	}
	return s.States.Reset(ctx, key)
}

// A Strange store does what Call does, before it applies a request.
type Strange struct {
	ratelimit.States
	Call func(ctx context.Context) error
}

// Open implements ratelimit.Store.
func (s *Strange) Open(name string, t *ratelimit.Transition) (_ ratelimit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, t)
	return s, err
}

// Apply implements ratelimit.States.
func (s *Strange) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if err := s.Call(ctx); err != nil {
		return ratelimit.Result{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}

// A StrangeBounded store says of itself that it keeps to deadlines.
type StrangeBounded struct{ *Strange }

// Bounded implements ratelimit.BoundedStates.
func (s StrangeBounded) Bounded() bool { return true }

// Open implements ratelimit.Store.
func (s StrangeBounded) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	_, err := s.Strange.Open(name, t)
	return s, err
}

// A FailingCancel store fails to cancel.
type FailingCancel struct {
	*ratelimit.MemoryStore
	Fails atomic.Bool
	Drops atomic.Bool // whether it fails without cancelling
	Calls atomic.Int64
	Most  atomic.Int64  // the most events to cancel in one call
	Gate  chan struct{} // if not nil, cancelling waits for it
}

type failingStates struct {
	ratelimit.States
	store *FailingCancel
}

// Open implements ratelimit.Store.
func (s *FailingCancel) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	states, err := s.MemoryStore.Open(name, t)
	return failingStates{states, s}, err
}

func (s failingStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if req.Op != ratelimit.OpCancel {
		return s.States.Apply(ctx, key, t, req)
	}
	s.store.Calls.Add(1)
	s.store.Most.Store(max(s.store.Most.Load(), int64(kernel.Asked(req.Grant))))
	if s.store.Gate != nil {
		<-s.store.Gate
	}
	if s.store.Drops.Load() {
		return ratelimit.Result{}, errors.New("the request was lost")
	}
	res, err := s.States.Apply(ctx, key, t, req)
	if s.store.Fails.Load() {
		return ratelimit.Result{}, errors.New("the answer was lost")
	}
	return res, err
}

// Check fails the test if what the store says does not fit together; most is its bound, or 0. Its own
// tests, in internal/memory, look inside.
func Check(t testing.TB, s *ratelimit.MemoryStore, most int) {
	t.Helper()
	keys := s.Stats().Keys
	require.Equal(t, keys, s.Len())
	if most > 0 {
		require.LessOrEqual(t, keys, most)
	}
}
