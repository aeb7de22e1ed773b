package fakes

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
)

// A Hooked store is one whose calls a test sees, changes and fails. What of it is not set does nothing.
type Hooked struct {
	ratelimit.Store
	With   *ratelimit.Transition // that it was opened with
	Err    error                 // of Apply, instead of asking the store
	Before func(req ratelimit.Request) ratelimit.Request
	After  func(req ratelimit.Request, res ratelimit.Result)
}

// Open implements ratelimit.Store.
func (s *Hooked) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	s.With = t
	states, err := s.Store.Open(name, t)
	return hookedStates{states, s}, err
}

type hookedStates struct {
	ratelimit.States
	store *Hooked
}

func (s hookedStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	if s.store.Err != nil {
		return ratelimit.Result{}, s.store.Err
	}
	if s.store.Before != nil {
		req = s.store.Before(req)
	}
	res, err := s.States.Apply(ctx, key, t, req)
	if s.store.After != nil {
		s.store.After(req, res)
	}
	return res, err
}
