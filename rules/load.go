package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/benbjohnson/clock"
)

// A load is one call of the source. A caller waits for it at most until the caller's
// own context ends, even if the source ignores its context.
type load struct {
	ctx     context.Context // the first caller's, without its cancellation
	cancel  context.CancelFunc
	waiting int           // callers; protected by Set.mu
	begun   chan struct{} // closed when the source is called
	ended   chan struct{} // closed after the source has answered or timed out, and err is set
	err     error
}

// Reload loads the rules now, and puts all of them in force together. If the load
// fails, the rules of the last successful load stay in force. If some rules are invalid,
// the error is [BadRules]; the other rules are put in force, together with the last
// valid versions of the invalid ones.
//
// Only one load runs at a time. A load that is already running may have missed an edit,
// so Reload waits for it to end and then for the next one, which all waiting callers
// share. If ctx ends first, Reload returns; the load continues if other callers wait
// for it.
func (s *Set) Reload(ctx context.Context) error {
	if ctx == nil {
		return invalid("Reload(nil): give a context, such as context.Background()")
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rules: not loaded: %w", err)
	}
	l, err := s.join(ctx)
	if err != nil {
		return err
	}
	defer s.leave(l)
	timeout := time.NewTimer(s.timeout)
	defer timeout.Stop()
	select {
	case <-l.begun:
	case <-l.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("rules: not loaded: %w", ctx.Err())
	case <-timeout.C:
		err := fmt.Errorf("rules: cannot load: the source has not answered an earlier load yet: %w", context.DeadlineExceeded)
		s.fail(err)
		s.report(ctx, err)
		return err
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("rules: not loaded: %w", ctx.Err())
	}
}

var errClosed = errors.New("rules: the set is closed")

// join returns the load to wait for: the one after the load that is running, if any.
func (s *Set) join(ctx context.Context) (*load, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	l := s.next
	if l == nil {
		l = &load{begun: make(chan struct{}), ended: make(chan struct{})}
		l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
		s.next = l
		s.beginLocked()
	}
	l.waiting++
	return l, nil
}

// leave undoes a join. It cancels the load if no other caller waits for it.
func (s *Set) leave(l *load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.waiting--; l.waiting > 0 {
		return
	}
	l.cancel()
	if s.next == l {
		s.next = nil
	}
}

// beginLocked starts the next load, if there is one and none is running.
func (s *Set) beginLocked() {
	if s.current != nil || s.next == nil || s.closed {
		return
	}
	l := s.next
	s.next, s.current = nil, l
	close(l.begun)
	within, cancel := context.WithTimeout(l.ctx, s.timeout)
	answer := make(chan error, 1)
	go func() { // may outlast the timeout, but there is never more than one
		defer cancel()
		rules, err := s.ask(within)
		answer <- s.put(rules, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.current = nil
		s.beginLocked()
	}()
	go func() {
		<-within.Done() // canceled after the answer, or the timeout
		select {
		case l.err = <-answer:
		default:
			l.err = errClosed // or no caller waits any more, so no caller sees this
			if l.ctx.Err() == nil {
				l.err = fmt.Errorf("rules: cannot load: the source did not answer within %v: %w", s.timeout, context.DeadlineExceeded)
			}
		}
		if l.err != nil && l.ctx.Err() == nil {
			s.fail(l.err)
			s.report(within, l.err) // user code, which may call Reload
		}
		close(l.ended)
	}()
}

// ask calls the source. It recovers from panics, because a panic in this goroutine
// would end the process.
func (s *Set) ask(ctx context.Context) (rules []Rule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked: %v", p)
		}
	}()
	return s.source.Load(ctx)
}

// put puts the source's answer in force, and returns an error for what is invalid.
func (s *Set) put(rules []Rule, err error) error {
	var bad BadRules
	if err != nil && !errors.As(err, &bad) {
		return fmt.Errorf("rules: cannot load: %w", err)
	}
	now := s.clk.Now()
	old := s.force.Load()
	var last *index
	if old != nil {
		last = old.index
	}
	t, bad := newIndex(rules, bad, last, now)
	if len(bad) > 0 && s.allOrNothing {
		return bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if old.same(t) {
		same := *old.index // whose rules have handlers
		same.valid = t.valid
		t = &same
	} else {
		s.status.Version++
	}
	s.force.Store(&inForce{t, s.status.Version})
	s.status.Loaded, s.status.Rules, s.status.Bad, s.status.Err = now, len(t.rules), len(bad), nil
	return bad.orNil()
}

// fail records the error of a load.
func (s *Set) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
}

// report logs the error of a load and passes it to WithOnError's function.
func (s *Set) report(ctx context.Context, err error) {
	var bad BadRules
	if errors.As(err, &bad) && !s.allOrNothing {
		slog.ErrorContext(ctx, "rules: some rules are invalid; their last valid versions stay in force", "count", len(bad), "error", err)
	} else {
		slog.ErrorContext(ctx, "rules: loading failed; the rules loaded before stay in force", "error", err)
	}
	if s.onError != nil {
		s.onError(err)
	}
}

// refresh loads the rules at intervals until ctx ends.
func (s *Set) refresh(ctx context.Context, timer *clock.Timer) {
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			done := make(chan struct{})
			go func() { // Close does not wait for it, because WithOnError's function may call Close
				defer close(done)
				_ = s.Reload(ctx) // has reported the error
			}()
			select {
			case <-done:
				timer.Reset(s.jittered())
			case <-ctx.Done():
				return
			}
		}
	}
}

// jittered returns the time until the next load.
func (s *Set) jittered() time.Duration {
	return max(1, time.Duration(float64(s.interval)*(0.9+0.2*rand.Float64())))
}
