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

// A load is one call of the source. Whoever waits for it does so no longer than its own
// context lasts, whether or not the source heeds contexts.
type load struct {
	ctx     context.Context // of the first caller, without its end
	cancel  context.CancelFunc
	waiting int           // callers; protected by Set.mu
	begun   chan struct{} // closed when the source is called
	ended   chan struct{} // closed when it has answered or its time is up, and err is set
	err     error
}

// Reload loads the rules now, and puts all of them in force at once. If it fails, those
// of the last load that succeeded stay in force. If some rules cannot be used, the
// others are in force, with the last good versions of those, and the error is
// [BadRules].
//
// There is one load at a time. The one under way may have missed an edit, so Reload
// waits for it to end and then for the next one, which all callers that wait share. If
// ctx ends before, Reload returns, and what it waits for goes on if others wait for it.
func (s *Set) Reload(ctx context.Context) error {
	if ctx == nil {
		return errors.New("rules: Reload(nil): give a context, such as context.Background()")
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rules: they were not loaded: %w", err)
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
		return fmt.Errorf("rules: they were not loaded: %w", ctx.Err())
	case <-timeout.C:
		err := fmt.Errorf("rules: they cannot be loaded: the source still does not answer an earlier load: %w", context.DeadlineExceeded)
		s.fail(err)
		s.report(ctx, err)
		return err
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("rules: they were not loaded: %w", ctx.Err())
	}
}

var errClosed = errors.New("rules: the set is closed")

// join returns the load to wait for: the one after that which is under way.
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

// leave cancels a load that nobody waits for any more.
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

// beginLocked begins the next load, if there is one and none is under way.
func (s *Set) beginLocked() {
	if s.under != nil || s.next == nil || s.closed {
		return
	}
	l := s.next
	s.next, s.under = nil, l
	close(l.begun)
	within, cancel := context.WithTimeout(l.ctx, s.timeout)
	answer := make(chan error, 1)
	go func() { // it may outlast its time; there is never more than one
		defer cancel()
		rules, err := s.ask(within)
		answer <- s.put(rules, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.under = nil
		s.beginLocked()
	}()
	go func() {
		<-within.Done() // which the answer is followed by
		select {
		case l.err = <-answer:
		default:
			l.err = errClosed // or nobody waits, and nobody is told
			if l.ctx.Err() == nil {
				l.err = fmt.Errorf("rules: they cannot be loaded: no answer in %v: %w", s.timeout, context.DeadlineExceeded)
			}
		}
		if l.err != nil && l.ctx.Err() == nil {
			s.fail(l.err)
			s.report(within, l.err) // which may call Reload
		}
		close(l.ended)
	}()
}

// ask asks the source. A panic here would end the process.
func (s *Set) ask(ctx context.Context) (rules []Rule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the source panicked: %v", p)
		}
	}()
	return s.source.Load(ctx)
}

// put puts in force what the source has answered, and returns what is wrong with it.
func (s *Set) put(rules []Rule, err error) error {
	var bad BadRules
	if err != nil && !errors.As(err, &bad) {
		return fmt.Errorf("rules: they cannot be loaded: %w", err)
	}
	now := s.clk.Now()
	old := s.force.Load()
	t, bad := newIndex(rules, bad, old.lastGood(), now)
	if len(bad) > 0 && s.allOrNothing {
		return bad
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if old.same(t) {
		t = old.with(t.good)
	} else {
		s.status.Version++
	}
	s.force.Store(&inForce{t, s.status.Version})
	s.status.Loaded, s.status.Rules, s.status.Bad, s.status.Err = now, len(t.rules), len(bad), nil
	return bad.orNil()
}

// fail notes what is wrong with a load.
func (s *Set) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err = err
}

// report tells the error of a load.
func (s *Set) report(ctx context.Context, err error) {
	var bad BadRules
	if errors.As(err, &bad) && !s.allOrNothing {
		slog.ErrorContext(ctx, "rules: some cannot be used; their last good versions stay in force", "count", len(bad), "error", err)
	} else {
		slog.ErrorContext(ctx, "rules: those loaded before stay in force", "error", err)
	}
	if s.onError != nil {
		s.onError(err)
	}
}

// refresh loads the rules every so often.
func (s *Set) refresh(ctx context.Context, timer *clock.Timer) {
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			done := make(chan struct{})
			go func() { // Close does not wait for it: what is told of an error may call Close
				defer close(done)
				_ = s.Reload(ctx) // which has reported it
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
