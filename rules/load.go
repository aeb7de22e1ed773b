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

// Reload loads the rules now, and puts all of them in force together. If the load
// fails, the rules of the last successful load stay in force. If some rules are invalid,
// the error is [BadRules]; the other rules are put in force, together with the last
// valid versions of the invalid ones.
//
// Only one load runs at a time. A load that is already running may have missed an edit,
// so Reload waits for it to end and then for the next one, which all waiting callers
// share. If ctx ends first, Reload returns, and the load goes on.
func (s *Set) Reload(ctx context.Context) error {
	if ctx == nil {
		return invalid("Reload(nil): give a context, such as context.Background()")
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rules: not loaded: %w", err)
	}
	if s.reloads == nil {
		return invalid("the set was not made by New")
	}
	result := make(chan error, 1)
	select {
	case s.reloads <- result:
	case <-s.ended:
		return errClosed
	case <-ctx.Done():
		return fmt.Errorf("rules: not loaded: %w", ctx.Err())
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("rules: not loaded: %w", ctx.Err())
	}
}

var errClosed = errors.New("rules: the set is closed")

// A loader puts the rules of the source in force: at intervals, and when Reload is called. It is
// one goroutine, so there is one load at a time. The goroutine ends with Close. It never waits for
// code of the user, which may hang or call the set: the source is called, and errors are reported,
// by other goroutines.
type loader struct {
	*Set
	ctx   context.Context   // ends with Close
	timer *clock.Timer      // nil without an interval
	late  <-chan loadResult // of a call of the source that has missed its timeout, or nil
}

// A loadResult is what a call of the source returns.
type loadResult struct {
	rules []Rule
	err   error
}

// run makes loads until the set is closed.
func (l *loader) run() {
	defer close(l.ended)
	var interval <-chan time.Time
	if l.timer != nil {
		defer l.timer.Stop()
		interval = l.timer.C
	}
	for {
		var waiting []chan<- error
		select {
		case <-l.ctx.Done():
			return
		case a := <-l.late:
			l.putLate(a)
			continue
		case <-interval:
		case first := <-l.reloads:
			waiting = append(waiting, first)
		}
		waiting = append(waiting, l.others()...)
		err := l.load()
		if l.timer != nil {
			l.timer.Reset(l.jittered())
		}
		l.finish(err, waiting)
	}
}

// others returns all calls of Reload that wait for a load to begin.
func (l *loader) others() (waiting []chan<- error) {
	for {
		select {
		case another := <-l.reloads:
			waiting = append(waiting, another)
		default:
			return waiting
		}
	}
}

// load calls the source, and puts its answer in force. If an earlier call has not returned yet, the
// source is called once it has.
func (l *loader) load() error {
	if l.late != nil {
		select {
		case a := <-l.late:
			l.putLate(a)
		case <-l.ctx.Done():
		case <-time.After(l.timeout):
			return fmt.Errorf(
				"rules: cannot load: the source has not answered an earlier load yet: %w",
				context.DeadlineExceeded,
			)
		}
	}
	if l.ctx.Err() != nil {
		return errClosed
	}
	within, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	answers := make(chan loadResult, 1)
	go func() { answers <- l.ask(within) }()
	select {
	case a := <-answers:
		return l.put(a)
	case <-within.Done():
		l.late = answers
	}
	if l.ctx.Err() != nil {
		return errClosed
	}
	return fmt.Errorf(
		"rules: cannot load: the source did not answer within %v: %w",
		l.timeout,
		context.DeadlineExceeded,
	)
}

// ask calls the source. It recovers from panics, because a panic in this goroutine
// would end the process.
func (l *loader) ask(ctx context.Context) (a loadResult) {
	defer func() {
		if p := recover(); p != nil {
			a.err = fmt.Errorf("the source panicked: %v", p)
		}
	}()
	a.rules, a.err = l.source.Load(ctx)
	return a
}

// putLate puts an answer that came after the timeout in force. An error of the source is dropped,
// because the load has been reported to have failed.
func (l *loader) putLate(a loadResult) {
	l.late = nil
	var bad BadRules
	if a.err == nil || errors.As(a.err, &bad) {
		l.finish(l.put(a), nil)
	}
}

// finish reports the error of a load, and then returns it to the callers that wait.
func (l *loader) finish(err error, waiting []chan<- error) {
	tell := func() {
		for _, result := range waiting {
			result <- err
		}
	}
	if err == nil || errors.Is(err, errClosed) {
		tell()
		return
	}
	l.mu.Lock()
	l.status.Err = err
	l.mu.Unlock()
	go func() {
		l.report(l.ctx, err)
		tell()
	}()
}

// put puts the source's answer in force, and returns an error for what is invalid.
func (s *Set) put(a loadResult) error {
	var bad BadRules
	if a.err != nil && !errors.As(a.err, &bad) {
		return fmt.Errorf("rules: cannot load: %w", a.err)
	}
	now := s.clk.Now()
	old := s.force.Load()
	var last *index
	if old != nil {
		last = old.index
	}
	t, bad := newIndex(a.rules, bad, last, now)
	if len(bad) > 0 && s.allOrNothing {
		return bad
	}
	dropped := t.dropped(last, bad)
	if dropped > 0 {
		go logSafely(context.Background(), slog.LevelWarn,
			"rules: a load no longer has some rules, which are not in force any more",
			"dropped", dropped, "rules", len(t.rules))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old.same(t) {
		same := *old.index // whose rules have handlers
		same.valid = t.valid
		t = &same
	} else {
		s.status.Version++
	}
	s.force.Store(&inForce{t, s.status.Version})
	s.status.Loaded, s.status.Rules, s.status.Dropped = now, len(t.rules), dropped
	s.status.Bad, s.status.Err = len(bad), bad.orNil()
	return bad.orNil()
}

// report logs the error of a load and passes it to WithOnError's function.
func (s *Set) report(ctx context.Context, err error) {
	var bad BadRules
	if errors.As(err, &bad) && !s.allOrNothing {
		logSafely(ctx, slog.LevelError,
			"rules: some rules are invalid; their last valid versions stay in force",
			"count", len(bad), "error", err)
	} else {
		logSafely(ctx, slog.LevelError,
			"rules: loading failed; the rules loaded before stay in force", "error", err)
	}
	if s.onError != nil {
		s.onError(err)
	}
}

// jittered returns the time until the next load.
func (s *Set) jittered() time.Duration {
	return max(1, time.Duration(float64(s.interval)*(0.9+0.2*rand.Float64())))
}
