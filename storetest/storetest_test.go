package storetest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// The in-memory store keeps every promise, whatever its bound.
func TestMemoryStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return ratelimit.NewMemoryStore() },
	})
}

func TestMemoryStoreWithMaxKeys(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store {
			return ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(100))
		},
	})
}

// A store that has no more than get and compare-and-swap, as a third party's
// may, keeps them too.
func TestCompareAndSwapStore(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(testing.TB, clock.Clock) ratelimit.Store { return &casStore{} },
	})
}

// A casStore keeps states as bytes. It never forgets.
type casStore struct {
	states sync.Map // from [2]string, a name and a key, to string
}

func (s *casStore) Open(name string, _ *ratelimit.Transition) (ratelimit.States, error) {
	return casStates{s, name}, nil
}

type casStates struct {
	*casStore
	name string
}

func (s casStates) Apply(_ context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	id := [2]string{s.name, key}
	for {
		old, _ := s.states.LoadOrStore(id, "")
		next, changed, res, err := t.Apply([]byte(old.(string)), req)
		if err != nil || !changed || s.states.CompareAndSwap(id, old, string(next)) {
			return res, err
		}
	}
}

func (s casStates) Reset(_ context.Context, key string) error {
	s.states.Delete([2]string{s.name, key})
	return nil
}
