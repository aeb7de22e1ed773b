package ratelimit

import (
	"context"
	"sync"
	"sync/atomic"
)

// hangingStore is a store whose calls do not return while it hangs.
type hangingStore struct {
	States
	mu    sync.Mutex
	stuck chan struct{} // closed when it no longer hangs; nil if it does not
	op    int           // the only Op that hangs; -1 for all
	heeds bool          // whether a call ends with its context
	asked atomic.Int64
}

func newHangingStore() *hangingStore { return &hangingStore{op: -1} }

func (s *hangingStore) Open(name string, t *Transition) (_ States, err error) {
	s.States, err = NewMemoryStore().Open(name, t)
	return s, err
}

func (s *hangingStore) wait(ctx context.Context, op Op) error {
	s.asked.Add(1)
	s.mu.Lock()
	stuck := s.stuck
	s.mu.Unlock()
	if stuck == nil || s.op >= 0 && s.op != int(op) {
		return nil
	}
	if !s.heeds {
		ctx = context.Background()
	}
	select {
	case <-stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *hangingStore) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	if err := s.wait(ctx, req.Op); err != nil {
		return Result{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}

func (s *hangingStore) Reset(ctx context.Context, key string) error {
	if err := s.wait(ctx, 255); err != nil {
		return err
	}
	return s.States.Reset(ctx, key)
}
