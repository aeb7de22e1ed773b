package fakes

import (
	"context"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A Hooked store lets a test see, change and fail its calls, except those that a limiter repeats,
// which fail. A hook that is nil does nothing.
type Hooked struct {
	ratelimit.Store
	With   *limit.Limit // the limit that the store was opened with
	Err    error        // if it is set, Apply returns it without asking the store
	Before func(req step.Request) step.Request
	After  func(req step.Request, res step.Answer)
}

// Open implements ratelimit.Store.
func (s *Hooked) Open(name string, l *limit.Limit, timeout time.Duration) (limit.States, error) {
	s.With = l
	states, err := s.Store.Open(name, l, timeout)
	return hookedStates{states, s}, err
}

type hookedStates struct {
	limit.States
	store *Hooked
}

func (s hookedStates) Apply(
	ctx context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	if limit.Repeats(ctx) {
		return step.Answer{}, errRepeated
	}
	if s.store.Err != nil {
		return step.Answer{}, s.store.Err
	}
	if s.store.Before != nil {
		req = s.store.Before(req)
	}
	res, err := s.States.Apply(ctx, key, l, req)
	if s.store.After != nil {
		s.store.After(req, res)
	}
	return res, err
}
