package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// A mapDB is a database in a map, whose functions fail and interfere as told.
type mapDB struct {
	mu     sync.Mutex
	states map[string]string
	until  map[string]time.Time
	err    error  // of get
	swap   error  // of compareAndSwap
	before func() // once, before the next compareAndSwap
}

func newMapDB() *mapDB { return &mapDB{states: map[string]string{}, until: map[string]time.Time{}} }

func (db *mapDB) store() *ratelimit.CASStore {
	return ratelimit.NewCASStore(db.get, db.compareAndSwap, db.remove)
}

func (db *mapDB) get(_ context.Context, key string) ([]byte, string, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return []byte(db.states[key]), db.states[key], db.err
}

func (db *mapDB) compareAndSwap(_ context.Context, key, version string, state []byte, expires time.Time) (bool, error) {
	db.mu.Lock()
	before := db.before
	db.before = nil
	db.mu.Unlock()
	if before != nil {
		before()
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.swap != nil || db.states[key] != version {
		return false, db.swap
	}
	db.states[key], db.until[key] = string(state), expires
	return true, nil
}

func (db *mapDB) remove(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.states, key)
	return db.err
}

// A brokenStore fails with err once that is set.
type brokenStore struct {
	ratelimit.States
	err error
}

func (s *brokenStore) Open(name string, tr *ratelimit.Transition) (_ ratelimit.States, err error) {
	s.States, err = ratelimit.NewMemoryStore().Open(name, tr)
	return s, err
}

func (s *brokenStore) Apply(ctx context.Context, key string, tr *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if s.err != nil {
		return ratelimit.Result{}, s.err
	}
	return s.States.Apply(ctx, key, tr, req)
}

func (s *brokenStore) Reset(ctx context.Context, key string) error {
	if s.err != nil {
		return s.err
	}
	return s.States.Reset(ctx, key)
}

// A witness remembers what it was told.
type witness struct {
	mu   sync.Mutex // protects seen
	seen []ratelimit.Observation
}

func (w *witness) Observe(_ context.Context, o ratelimit.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, o)
}

// told returns what it was told since the last call of told.
func (w *witness) told() []ratelimit.Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

func observedLimiter(t *testing.T, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, *witness, *clock.Mock) {
	t.Helper()
	w, clk := &witness{}, clock.NewMock()
	l, err := ratelimit.New(alg, append([]ratelimit.Option{ratelimit.WithName("api"), ratelimit.WithClock(clk), ratelimit.WithObserver(w)}, opts...)...)
	require.NoError(t, err)
	return l, w, clk
}

type wrapped struct{ ratelimit.Limiter }

func (w wrapped) Unwrap() ratelimit.Limiter { return w.Limiter }
