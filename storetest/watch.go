package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// A watch records the failures of a store in one subtest. Limiters hide some failures: Allow and
// Cancel return no errors.
type watch struct {
	timeout   time.Duration
	impatient bool // whether limiters bound the time of calls as well

	mu   sync.Mutex // protects the fields below
	err  error      // the first failure
	dead bool       // whether the store hangs; then guard calls it no more
}

func (w *watch) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// note records err, unless ctx has ended. In a test of the limiter's timeout, note also ignores the
// error that the timeout causes.
func (w *watch) note(ctx context.Context, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := w.impatient && errors.Is(err, context.DeadlineExceeded)
	if err != nil && w.err == nil && ctx.Err() == nil && !late {
		w.err = err
	}
	return err
}

// guard calls f, a method of the store, and returns its error. If f panics or does not return in
// time, guard returns an error that says so.
func (w *watch) guard(ctx context.Context, what string, f func() error) error {
	w.mu.Lock()
	dead := w.dead
	w.mu.Unlock()
	if dead {
		return errors.New("not called, because an earlier call hangs")
	}
	done := make(chan error, 1)
	go func() {
		err := fmt.Errorf("%s ended its goroutine", what)
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("%s panicked: %v\n%s", what, v, debug.Stack())
			}
			done <- err
		}()
		err = f()
	}()
	timer := time.NewTimer(w.timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return w.note(ctx, err)
	case <-timer.C:
		w.mu.Lock()
		w.dead = true
		w.mu.Unlock()
		return w.note(ctx, fmt.Errorf("%s did not return within %v", what, w.timeout))
	}
}

// store returns s with its failures recorded by w. It returns a MemoryStore unchanged, because a
// MemoryStore never fails, and because limiters take shortcuts with it that a wrapper would bypass.
func (w *watch) store(s ratelimit.Store) ratelimit.Store {
	if s, ok := s.(*ratelimit.MemoryStore); ok {
		return s
	}
	return &watchedStore{s, w}
}

type watchedStore struct {
	store ratelimit.Store
	watch *watch
}

// unwatched returns the store that Config.New has returned.
func unwatched(s ratelimit.Store) ratelimit.Store {
	if w, ok := s.(*watchedStore); ok {
		return w.store
	}
	return s
}

func (s *watchedStore) Open(
	name string,
	l *limit.Limit,
	timeout time.Duration,
) (limit.States, error) {
	longest := timeout
	if !s.watch.impatient {
		longest = s.watch.timeout // guard bounds the time of calls
	}
	var states limit.States
	var refused error // may be legitimate, so it is not recorded
	err := s.watch.guard(context.Background(), "Open", func() (err error) {
		states, refused = s.store.Open(name, l, longest)
		if refused != nil && longest != timeout { // perhaps because it has a shorter one of its own
			states, refused = s.store.Open(name, l, timeout)
		}
		return nil
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, err
	}
	return &watchedStates{states, s.watch}, nil
}

type watchedStates struct {
	states limit.States
	watch  *watch
}

// Timeout implements [limit.States].
func (s *watchedStates) Timeout() time.Duration { return s.states.Timeout() }

// Strays implements [limit.States].
func (s *watchedStates) Strays() *stray.List { return s.states.Strays() }

// Lines implements [limit.States].
func (s *watchedStates) Lines() *line.Lines { return s.states.Lines() }

func (s *watchedStates) Apply(
	ctx context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (step.Answer, error) {
	var a step.Answer
	err := s.watch.guard(ctx, fmt.Sprintf("Apply(%.20q)", key), func() error {
		got, err := s.states.Apply(ctx, key, l, req)
		a = got
		return err
	})
	if err != nil {
		return step.Answer{}, err
	}
	return a, nil
}

func (s *watchedStates) Reset(ctx context.Context, key string) error {
	return s.watch.guard(ctx, fmt.Sprintf("Reset(%.20q)", key), func() error {
		return s.states.Reset(ctx, key)
	})
}
