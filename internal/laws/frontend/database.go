package frontend

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A database keeps states in a map.
type database struct {
	mu     sync.Mutex
	states map[string]string
	err    error // of every call, if it is not nil

	meanwhile func()        // see during
	over      chan struct{} // closed when the call of during is over
}

func newDatabase() *database { return &database{states: map[string]string{}} }

var errSlow = errors.New("the store was too slow, and has done nothing")

// during makes a call, during which the database calls meanwhile when it is asked. It does not do
// what it is asked, and answers after the call.
func (db *database) during(call, meanwhile func()) {
	db.mu.Lock()
	over := make(chan struct{})
	db.meanwhile, db.over = meanwhile, over
	db.mu.Unlock()
	defer close(over)
	call()
}

// Get implements ratelimit.Database.
func (db *database) Get(_ context.Context, key string) ([]byte, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if meanwhile := db.meanwhile; meanwhile != nil {
		db.meanwhile = nil
		meanwhile()
		over := db.over
		db.mu.Unlock()
		<-over
		db.mu.Lock()
		return nil, errSlow
	}
	return []byte(db.states[key]), db.err
}

// CompareAndSwap implements ratelimit.Database.
func (db *database) CompareAndSwap(
	_ context.Context, key string, old, state []byte, _ time.Time,
) (bool, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.states[key] != string(old) {
		return false, nil
	}
	db.states[key] = string(state)
	return true, nil
}

// Delete implements ratelimit.Database.
func (db *database) Delete(_ context.Context, key string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.states, key)
	return nil
}
