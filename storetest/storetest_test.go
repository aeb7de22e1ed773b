package storetest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Random histories of these tests: 500 calls of each algorithm on TestMemoryStore and TestStore, and
// on other stores 50 in CI and up to 500 at night (RATELIMIT_NIGHTLY=1).

// TestMemoryStore checks that the in-memory store keeps every promise, whatever its bound, and that
// Run returns when all subtests have ended.
func TestMemoryStore(t *testing.T) {
	var made, ended atomic.Int64
	storetest.Run(t, storetest.Config{
		New: func(t testing.TB, _ clock.Clock) ratelimit.Store {
			made.Add(1)
			t.Cleanup(func() { ended.Add(1) })
			return new(ratelimit.MemoryStore)
		},
	})
	if made, ended := made.Load(), ended.Load(); made == 0 || ended < made {
		t.Errorf("Run has returned: %d stores were made, and the subtests of %d have ended", made, ended)
	}
}

func TestMemoryStoreWithMaxKeys(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return &ratelimit.MemoryStore{MaxKeys: 400}
		},
		Keys:  390,
		Steps: few(500),
	})
}

// TestRestlessMemoryStore runs the suite while other keys are added and tables are
// replaced.
func TestRestlessMemoryStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return restlessStore{new(ratelimit.MemoryStore)}
		},
		Keys:  1000, // because it shrinks at every fourth call
		Steps: few(200),
	})
}

type restlessStore struct{ *ratelimit.MemoryStore }

func (s restlessStore) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	states, err := s.MemoryStore.Open(name, t)
	return &restlessStates{States: states, store: s.MemoryStore}, err
}

type restlessStates struct {
	ratelimit.States
	store *ratelimit.MemoryStore
	calls atomic.Int64
}

func (s *restlessStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	other := req
	other.Op, other.N = ratelimit.OpTake, 1
	i := s.calls.Add(1)
	if _, err := s.States.Apply(ctx, fmt.Sprint("restless ", i), t, other); err != nil {
		return ratelimit.Result{}, err
	}
	if i%4 == 0 {
		s.store.Shrink()
	}
	return s.States.Apply(ctx, key, t, req)
}

// TestCASStore runs the suite on a store that has only get and compare-and-swap. The
// versions of its states are the states themselves.
func TestCASStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return newDatabase().byState() },
		Reopen: func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store {
			return s.(*dbStore).db.byState()
		},
		Steps: few(500),
	})
}

// TestCASStoreByRevision is the same with numbers as versions.
func TestCASStoreByRevision(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return newDatabase().byRevision() },
		Reopen: func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store {
			return s.(*dbStore).db.byRevision()
		},
		Exclusive: true,
		Steps:     few(100),
	})
}

// TestSlowCASStore has a database whose writes take 10 ms, one after the other.
func TestSlowCASStore(t *testing.T) {
	t.Parallel()
	newSlow := func(db *database) *dbStore {
		return db.by(func(db *database, key string, old value, state []byte, until time.Time) bool {
			db.writing.Lock()
			defer db.writing.Unlock()
			time.Sleep(10 * time.Millisecond)
			return db.swap(key, func(v value) bool { return v.revision == old.revision }, state, until)
		})
	}
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return newSlow(newDatabase()) },
		Reopen: func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store {
			return newSlow(s.(*dbStore).db)
		},
		Steps: 20,
		Keys:  100,
	})
}

// few returns the steps of a store that differs little from those of TestMemoryStore and
// TestStore, which always run 500: 50 in CI, and nightly at night.
func few(nightly int) int { return int(budget.Histories(50, nightly)) }

func newStore() ratelimit.Store { return newLockedStore() }

// TestStore runs the suite on a simple store, as in the package documentation.
func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(t testing.TB, clk clock.Clock) ratelimit.Store { return newStore() },
	})
}

// TestExpiringStore runs the suite on a store that drops each state as soon as it may.
func TestExpiringStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(_ testing.TB, clk clock.Clock) ratelimit.Store {
			db := newDatabase()
			db.expires = clk
			return db.byState()
		},
		Steps: few(500),
	})
}

// TestPortableStore runs the suite on a store with portable states and a coarse clock.
func TestPortableStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return portableStore{newDatabase().byState(), time.Microsecond}
		},
		Tick:  time.Microsecond,
		Steps: few(500),
	})
}

// A database keeps values in a map.
type database struct {
	writing sync.Mutex // of a slow database
	mu      sync.Mutex
	values  map[string]value
	writes  int
	clk     clock.Clock
	expires clock.Clock // if not nil, values are dropped as soon as they may be
}

type value struct {
	state    string
	revision int
	until    time.Time
}

func newDatabase() *database { return &database{values: map[string]value{}} }

// value returns the value of a key, if there is one.
func (db *database) value(key string) value {
	db.mu.Lock()
	defer db.mu.Unlock()
	v := db.values[key]
	if db.expires != nil && !v.until.IsZero() && !db.expires.Now().Before(v.until) {
		delete(db.values, key)
		return value{}
	}
	return v
}

// swap replaces a state if it has not changed.
func (db *database) swap(key string, same func(value) bool, state []byte, until time.Time) bool {
	now := time.Time{}
	if db.expires != nil {
		now = db.expires.Now()
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	old := db.values[key]
	if !old.until.IsZero() && db.expires != nil && !now.Before(old.until) {
		old = value{}
	}
	if !same(old) {
		return false
	}
	db.writes++
	db.values[key] = value{string(state), db.writes, until}
	return true
}

func (db *database) remove(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.values, key)
	return nil
}

// A dbStore is a handle on a database.
type dbStore struct {
	*ratelimit.CASStore
	db    *database
	swaps func(db *database, key string, old value, state []byte, until time.Time) bool // of cas
}

func (db *database) byState() *dbStore {
	return &dbStore{ratelimit.NewCASStore(
		func(_ context.Context, key string) ([]byte, string, error) {
			v := db.value(key)
			return []byte(v.state), v.state, nil
		},
		func(_ context.Context, key, old string, state []byte, until time.Time) (bool, error) {
			return db.swap(key, func(v value) bool { return v.state == old }, state, until), nil
		},
		db.remove), db, nil}
}

func (db *database) byRevision() *dbStore {
	return &dbStore{ratelimit.NewCASStore(
		func(_ context.Context, key string) ([]byte, int, error) {
			v := db.value(key)
			return []byte(v.state), v.revision, nil
		},
		func(_ context.Context, key string, old int, state []byte, until time.Time) (bool, error) {
			return db.swap(key, func(v value) bool { return v.revision == old }, state, until), nil
		},
		db.remove), db, nil}
}

// A portableStore keeps states in the portable encoding.
type portableStore struct {
	ratelimit.Store
	tick time.Duration
}

func (s portableStore) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	t, err := t.Portable(s.tick)
	if err != nil {
		return nil, err
	}
	states, err := s.Store.Open(name, t)
	return portableStates{states, s.tick}, err
}

type portableStates struct {
	ratelimit.States
	tick time.Duration
}

func (s portableStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	t, err := t.Portable(s.tick)
	if err != nil {
		return ratelimit.Result{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}
