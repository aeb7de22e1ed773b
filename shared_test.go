package ratelimit_test

import (
	"context"
	"sync"
	"time"

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
