package storetest_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A table is a database in a map.
type table struct {
	mu     sync.Mutex
	states map[string][]byte
}

func newTable() *table { return &table{states: map[string][]byte{}} }

func (db *table) Get(_ context.Context, key string) (state []byte, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.states[key], nil
}

func (db *table) CompareAndSwap(_ context.Context, key string, old, state []byte, expires time.Time) (swapped bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if !bytes.Equal(db.states[key], old) {
		return false, nil
	}
	db.states[key] = state
	return true, nil
}

func (db *table) Delete(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.states, key)
	return nil
}

// A map becomes a store.
func Example() {
	db := newTable()
	l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour},
		ratelimit.WithStore(ratelimit.NewStore(db)), ratelimit.WithName("logins"))
	if err != nil {
		panic(err)
	}
	for range 3 {
		fmt.Println(l.Allow("alice@example.com"))
	}
	for key := range db.states {
		fmt.Println(key)
	}
	// Output:
	// true
	// true
	// false
	// logins:alice%40example.com
}
