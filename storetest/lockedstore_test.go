package storetest_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A lockedStore is a simple store as a user would write it: a map protected by a mutex.
// Its fields break it in various ways.
type lockedStore struct {
	mu     sync.Mutex
	names  map[string]string // the Tag of the limiter of each name
	states map[string]string

	id       func(name, key string) string      // of a state
	put      func(state string) (string, error) // returns the state to store
	open     func(name string) error            // returns the error of Open
	fail     func(key string) error             // returns the error of Apply
	reset    func(s *lockedStore, key string)   // implements Reset
	request  func(step.Request) step.Request
	keeps    func(step.Answer) bool // whether a change is stored
	shares   bool                   // whether any algorithm may have any name
	forgets  int                    // the most states that it keeps
	order    []string               // in which the states were added
	context  context.Context        // of the first call
	oneFirst bool                   // whether all calls use that context
}

func newLockedStore() *lockedStore {
	return &lockedStore{
		names: map[string]string{}, states: map[string]string{},
		id: func(name, key string) string { return fmt.Sprintf("%d:%s%s", len(name), name, key) },
	}
}

func (s *lockedStore) Open(name string, t *limit.Limit, timeout time.Duration) (limit.States, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open != nil {
		if err := s.open(name); err != nil {
			return nil, err
		}
	}
	tag := fmt.Sprintf("%x %v", t.Tag(), t.Varies)
	if have, ok := s.names[name]; ok && have != tag && !s.shares {
		return nil, fmt.Errorf("%q has another algorithm: %w", name, ratelimit.ErrInvalid)
	}
	s.names[name] = tag
	return &lockedStates{s, name}, nil
}

type lockedStates struct {
	*lockedStore
	name string
}

// Timeout implements [limit.States].
func (*lockedStates) Timeout() time.Duration { return 0 }

// Strays implements limit.States.
func (s *lockedStates) Strays() *stray.List { return nil }

// Lines implements limit.States.
func (s *lockedStates) Lines() *line.Lines { return new(line.Lines) }

func (s *lockedStates) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	if s.fail != nil {
		if err := s.fail(key); err != nil {
			return step.Answer{}, err
		}
	}
	if s.request != nil {
		req = s.request(req)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.context == nil {
		s.context = ctx
	}
	if s.oneFirst && s.context.Err() != nil {
		return step.Answer{}, s.context.Err()
	}
	id := s.id(s.name, key)
	state := s.states[id]
	after, unread := t.Apply([]byte(state), req)
	if !after.Changed || s.keeps != nil && !s.keeps(after.Answer) {
		return after.Answer, unread
	}
	if _, known := s.states[id]; !known {
		s.order = append(s.order, id)
	}
	stored := string(after.State)
	if s.put != nil {
		var err error
		if stored, err = s.put(stored); err != nil {
			return step.Answer{}, err
		}
	}
	s.states[id] = stored
	if s.forgets > 0 && len(s.order) > s.forgets {
		delete(s.states, s.order[0])
		s.order = s.order[1:]
	}
	return after.Answer, unread
}

func (s *lockedStates) Reset(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reset != nil {
		s.reset(s.lockedStore, key)
		return nil
	}
	delete(s.states, s.id(s.name, key))
	return nil
}
