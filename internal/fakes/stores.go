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
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A MapDB is a database in a map. A test sets the errors of its methods, and a function that
// interferes.
type MapDB struct {
	// Whether the database answers calls that a limiter repeats in the background. Others fail,
	// because a test may set the other fields meanwhile.
	Repeats bool

	mu        sync.Mutex
	States    map[string]string
	Until     map[string]time.Time // when the states expire
	Err       error                // the error of Get and Delete
	Swap      error                // the error of CompareAndSwap
	Before    func()               // called once, before the next CompareAndSwap
	Conflicts int                  // how many swaps have found another state
}

// NewMapDB returns a database without states.
func NewMapDB() *MapDB { return &MapDB{States: map[string]string{}, Until: map[string]time.Time{}} }

// Store returns a store of bytes on db.
func (db *MapDB) Store() ratelimit.Store { return ratelimit.NewStore(db) }

// Down returns a store whose calls fail with err.
func Down(err error) ratelimit.Store { return (&MapDB{Err: err}).Store() }

// Get implements ratelimit.Database.
func (db *MapDB) Get(ctx context.Context, key string) ([]byte, error) {
	if limit.Repeats(ctx) && !db.Repeats {
		return nil, errRepeated
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return []byte(db.States[key]), db.Err
}

// errRepeated is the error of calls that a limiter repeats.
var errRepeated = errors.New("fakes: the store answers no calls that are repeated")

// CompareAndSwap implements ratelimit.Database.
func (db *MapDB) CompareAndSwap(
	_ context.Context,
	key string,
	old, state []byte,
	expires time.Time,
) (bool, error) {
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

// Stores make the stores with which most laws are tested: one in memory, and one that keeps bytes.
var Stores = map[string]func() ratelimit.Store{
	"memory": func() ratelimit.Store { return new(ratelimit.MemoryStore) },
	"bytes":  inMap,
}

// inMap returns a store in a MapDB that no test changes: so it answers calls that are repeated.
func inMap() ratelimit.Store {
	db := NewMapDB()
	db.Repeats = true
	return db.Store()
}

// Keepings are the ways to keep the state of any algorithm.
var Keepings = map[string]func() []ratelimit.Option{
	"memory": InMemory,
	"bytes":  InBytes,
	"limits": WithLimits,
}

// InMemory keeps states in memory.
func InMemory() []ratelimit.Option { return nil }

// InBytes keeps states as bytes.
func InBytes() []ratelimit.Option {
	return []ratelimit.Option{ratelimit.WithStore(inMap()), ratelimit.WithName("test")}
}

// WithLimits looks up a limit for each key, but finds none: keys have the limit of New.
func WithLimits() []ratelimit.Option { return []ratelimit.Option{OwnLimit(nil)} }

// An Opened is a store in memory that remembers the limit it was opened with.
type Opened struct {
	ratelimit.MemoryStore
	Limit *limit.Limit
}

// Open implements ratelimit.Store.
func (s *Opened) Open(name string, l *limit.Limit, timeout time.Duration) (limit.States, error) {
	s.Limit = l
	return s.MemoryStore.Open(name, l, timeout)
}

// NewLimit returns the limit that New makes of alg.
func NewLimit(alg ratelimit.Algorithm) (*limit.Limit, error) {
	var s Opened
	_, err := ratelimit.New(alg, ratelimit.WithStore(&s), ratelimit.WithName("test"))
	return s.Limit, err
}

// NoLine is embedded in States whose keys have no waiters, and that always answer.
type NoLine struct{}

// Timeout implements [limit.States].
func (NoLine) Timeout() time.Duration { return 0 }

// Strays implements limit.States.
func (NoLine) Strays() *stray.List { return nil }

// Lines implements limit.States.
func (NoLine) Lines() *line.Lines { return new(line.Lines) }

// MapStates are a store that keeps bytes, and its states. Only one goroutine may use it.
type MapStates map[string]string

// Timeout implements [limit.States].
func (MapStates) Timeout() time.Duration { return 0 }

// Strays implements limit.States.
func (m MapStates) Strays() *stray.List { return nil }

// Lines implements limit.States.
func (m MapStates) Lines() *line.Lines { return new(line.Lines) }

// Open implements ratelimit.Store.
func (m MapStates) Open(string, *limit.Limit, time.Duration) (limit.States, error) { return m, nil }

// Apply implements limit.States.
func (m MapStates) Apply(
	_ context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	t, err := l.Apply([]byte(m[key]), req)
	if t.Changed {
		m[key] = string(t.State)
	}
	return t.Answer, err
}

// Reset implements limit.States.
func (m MapStates) Reset(_ context.Context, key string) error {
	delete(m, key)
	return nil
}

// A Portable is a store that keeps states in a map, and counts time in microseconds, as a store
// with scripts does.
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
func (s *Portable) Open(_ string, l *limit.Limit, timeout time.Duration) (limit.States, error) {
	l, err := l.Portable(time.Microsecond)
	return portableStates{NoLine{}, s, l}, err
}

type portableStates struct {
	NoLine
	*Portable
	l *limit.Limit
}

func (s portableStates) Apply(
	_ context.Context,
	key string,
	_ *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.l.Apply(s.states[key], req.At(s.clk.Now()))
	s.states[key] = t.State
	return t.Answer, err
}

func (s portableStates) Reset(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, key)
	return nil
}

// A Broken store fails with Err once a test has set Err.
type Broken struct {
	limit.States
	Err error
}

// Open implements ratelimit.Store.
func (s *Broken) Open(
	name string,
	l *limit.Limit,
	timeout time.Duration,
) (_ limit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, l, timeout)
	return s, err
}

// Apply implements limit.States.
func (s *Broken) Apply(
	ctx context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	if s.Err != nil {
		return step.Answer{}, s.Err
	}
	return s.States.Apply(ctx, key, l, req)
}

// Reset implements limit.States.
func (s *Broken) Reset(ctx context.Context, key string) error {
	if s.Err != nil {
		return s.Err
	}
	return s.States.Reset(ctx, key)
}

// A Hanging database can hang: then its calls do not return.
type Hanging struct {
	MapDB
	stuck chan struct{} // protected by mu; nil if the database works; closed once it works again
	Heeds bool          // whether a call that hangs ends with its context
	Late  bool          // whether only swaps hang
	Asked atomic.Int64  // how many calls could have hung
}

// NewHanging returns a database that does not hang yet.
func NewHanging() *Hanging { return &Hanging{MapDB: *NewMapDB()} }

// Store returns a store of bytes on db.
func (db *Hanging) Store() ratelimit.Store { return ratelimit.NewStore(db) }

// Hang lets the calls from now on hang.
func (db *Hanging) Hang() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.stuck = make(chan struct{})
}

// Release lets the database work again, and the calls that hang return.
func (db *Hanging) Release() {
	db.mu.Lock()
	defer db.mu.Unlock()
	close(db.stuck)
	db.stuck = nil
}

func (db *Hanging) wait(ctx context.Context) error {
	db.Asked.Add(1)
	db.mu.Lock()
	stuck := db.stuck
	db.mu.Unlock()
	if stuck == nil {
		return nil
	}
	if !db.Heeds {
		ctx = context.Background()
	}
	select {
	case <-stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get implements ratelimit.Database.
func (db *Hanging) Get(ctx context.Context, key string) ([]byte, error) {
	if !db.Late {
		if err := db.wait(ctx); err != nil {
			return nil, err
		}
	}
	return db.MapDB.Get(ctx, key)
}

// CompareAndSwap implements ratelimit.Database.
func (db *Hanging) CompareAndSwap(
	ctx context.Context,
	key string,
	old, state []byte,
	expires time.Time,
) (bool, error) {
	if db.Late {
		if err := db.wait(ctx); err != nil {
			return false, err
		}
	}
	return db.MapDB.CompareAndSwap(ctx, key, old, state, expires)
}

// Delete implements ratelimit.Database.
func (db *Hanging) Delete(ctx context.Context, key string) error {
	if err := db.wait(ctx); err != nil {
		return err
	}
	return db.MapDB.Delete(ctx, key)
}

// A Strange database calls the function Call before it returns a state.
type Strange struct {
	*MapDB
	Call func(ctx context.Context) error
}

// Store returns a store of bytes on db.
func (db *Strange) Store() ratelimit.Store { return ratelimit.NewStore(db) }

// Get implements ratelimit.Database.
func (db *Strange) Get(ctx context.Context, key string) ([]byte, error) {
	if err := db.Call(ctx); err != nil {
		return nil, err
	}
	return db.MapDB.Get(ctx, key)
}

// A FailingCancel is a store in memory that can fail to cancel.
type FailingCancel struct {
	*ratelimit.MemoryStore
	Fails atomic.Bool // whether a cancellation takes effect and its answer is lost
	Drops atomic.Bool // whether a cancellation is lost before it takes effect
}

type failingStates struct {
	limit.States
	store *FailingCancel
}

// Open implements ratelimit.Store.
func (s *FailingCancel) Open(
	name string,
	l *limit.Limit,
	timeout time.Duration,
) (limit.States, error) {
	states, err := s.MemoryStore.Open(name, l, timeout)
	return failingStates{states, s}, err
}

func (s failingStates) Apply(
	ctx context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	if req.Op != step.OpSettle || req.N > 0 {
		return s.States.Apply(ctx, key, l, req)
	}
	if s.store.Drops.Load() {
		return step.Answer{}, errors.New("the request was lost")
	}
	res, err := s.States.Apply(ctx, key, l, req)
	if s.store.Fails.Load() {
		return step.Answer{}, errors.New("the answer was lost")
	}
	return res, err
}

// Check fails the test if the numbers of keys that the store returns do not agree, or exceed most.
// A most of 0 means no bound. The tests in internal/memory look inside the store.
func Check(t testing.TB, s *ratelimit.MemoryStore, most int) {
	t.Helper()
	keys := s.Stats().Keys
	require.Equal(t, keys, s.Len())
	if most > 0 {
		require.LessOrEqual(t, keys, most)
	}
}

// An EachStore is a store in memory that decides on the keys of a TakeEach at once. Some keys may
// fail.
type EachStore struct {
	limit.States
	Together int // how many keys it was asked for at once so far
	Down     func(key string) error
}

// Open implements ratelimit.Store.
func (s *EachStore) Open(
	name string, l *limit.Limit, timeout time.Duration,
) (_ limit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, l, timeout)
	return s, err
}

// Apply implements limit.States.
func (s *EachStore) Apply(
	ctx context.Context, key string, l *limit.Limit, req step.Request,
) (step.Answer, error) {
	if s.Down != nil && s.Down(key) != nil {
		return step.Answer{}, s.Down(key)
	}
	return s.States.Apply(ctx, key, l, req)
}

// ApplyEach implements limit.EachStates.
func (s *EachStore) ApplyEach(ctx context.Context, calls []limit.Call) {
	s.Together += len(calls)
	for i := range calls {
		c := &calls[i]
		c.Err = ctx.Err()
		if c.Err == nil {
			c.Answer, c.Err = s.Apply(ctx, c.Key, c.Limit, c.Request)
		}
	}
}
