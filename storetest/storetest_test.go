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
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestMemoryStore checks that the in-memory store keeps every promise, and that Run returns when all
// subtests have ended.
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

// TestMemoryStoreWithMaxKeys: a bound that is not reached changes no promise.
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

func (s restlessStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	states, err := s.MemoryStore.Open(name, t, timeout)
	return &restlessStates{States: states, store: s.MemoryStore}, err
}

type restlessStates struct {
	limit.States
	store *ratelimit.MemoryStore
	calls atomic.Int64
}

func (s *restlessStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	other := req
	other.Op, other.N = step.OpTake, 1
	i := s.calls.Add(1)
	if _, err := s.States.Apply(ctx, fmt.Sprint("restless ", i), t, other); err != nil {
		return step.Answer{}, err
	}
	if i%4 == 0 {
		s.store.Shrink()
	}
	return s.States.Apply(ctx, key, t, req)
}

// TestTable runs the suite on a database as simple as can be.
func TestTable(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Database: func(testing.TB, clock.Clock) ratelimit.Database { return newTable() },
	})
}

// TestDatabaseByRevision has a database that can compare only versions.
func TestDatabaseByRevision(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Database: func(testing.TB, clock.Clock) ratelimit.Database {
			return newDatabase(func(db *database, key, old, state string, until time.Time) bool {
				found := db.value(key)
				return found.state == old && db.swap(key, func(v value) bool { return v.revision == found.revision }, state, until)
			})
		},
		Steps: few(100),
	})
}

// TestSlowDatabase has a database whose writes take 10 ms, one after the other.
func TestSlowDatabase(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Config{
		Database: func(testing.TB, clock.Clock) ratelimit.Database {
			return newDatabase(func(db *database, key, old, state string, until time.Time) bool {
				db.writing.Lock()
				defer db.writing.Unlock()
				time.Sleep(10 * time.Millisecond)
				return db.swap(key, same(old), state, until)
			})
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
		Database: func(_ testing.TB, clk clock.Clock) ratelimit.Database {
			db := newDatabase(nil)
			db.expires = clk.(*storetest.Clock).Clock
			return db
		},
		Steps: few(500),
	})
}

// TestDatabaseInMilliseconds runs the suite on a database that rounds up to milliseconds, and drops
// each state then. Config needs no Tick for it.
func TestDatabaseInMilliseconds(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Database: func(_ testing.TB, clk clock.Clock) ratelimit.Database {
			return inMilliseconds(time.Millisecond - 1)(clk)
		},
		Steps: few(500),
	})
}

// TestPortableStore runs the suite on a store with portable states and a coarse clock.
func TestPortableStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return portableStore{ratelimit.NewStore(newTable()), time.Microsecond}
		},
		Tick:  time.Microsecond,
		Steps: few(500),
	})
}

// A database keeps values in a map.
type database struct {
	swaps   func(db *database, key, old, state string, until time.Time) bool
	writing sync.Mutex  // of a slow database
	expires clock.Clock // if not nil, values are dropped as soon as they may be

	mu     sync.Mutex // protects the fields below
	values map[string]value
	writes int
	known  map[string]int // the revisions of states that Get has returned
}

type value struct {
	state    string
	revision int
	until    time.Time
}

// newDatabase returns a database that swaps states by swaps, or right if that is nil.
func newDatabase(swaps func(db *database, key, old, state string, until time.Time) bool) *database {
	if swaps == nil {
		swaps = func(db *database, key, old, state string, until time.Time) bool {
			return db.swap(key, same(old), state, until)
		}
	}
	return &database{swaps: swaps, values: map[string]value{}, known: map[string]int{}}
}

// same reports whether the state of a value is old.
func same(old string) func(value) bool { return func(v value) bool { return v.state == old } }

// value returns the value of a key, if there is one.
func (db *database) value(key string) value {
	db.mu.Lock()
	defer db.mu.Unlock()
	v := db.valueLocked(key)
	db.known[key+" "+v.state] = v.revision
	return v
}

func (db *database) valueLocked(key string) value {
	if v := db.values[key]; db.expires == nil || v.until.IsZero() || db.expires.Now().Before(v.until) {
		return v
	}
	delete(db.values, key)
	return value{}
}

// swap replaces a state if it is the right one.
func (db *database) swap(key string, right func(value) bool, state string, until time.Time) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if !right(db.valueLocked(key)) {
		return false
	}
	db.writes++
	db.values[key] = value{state, db.writes, until}
	return true
}

func (db *database) Get(_ context.Context, key string) ([]byte, error) {
	return []byte(db.value(key).state), nil
}

func (db *database) CompareAndSwap(_ context.Context, key string, old, state []byte, until time.Time) (bool, error) {
	return db.swaps(db, key, string(old), string(state), until), nil
}

func (db *database) Delete(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.values, key)
	return nil
}

// A portableStore keeps states in the portable encoding.
type portableStore struct {
	ratelimit.Store
	tick time.Duration
}

func (s portableStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	t, err := t.Portable(s.tick)
	if err != nil {
		return nil, err
	}
	states, err := s.Store.Open(name, t, timeout)
	return portableStates{states, s.tick}, err
}

type portableStates struct {
	limit.States
	tick time.Duration
}

func (s portableStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	t, err := t.Portable(s.tick)
	if err != nil {
		return step.Answer{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}
