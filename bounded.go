package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// WithStoreTimeout bounds how long the limiter waits for one call of its store; the
// end of the caller's context bounds it as well, whatever the store does with it.
// Then the [FailurePolicy] decides, and the error matches
// [context.DeadlineExceeded]. This holds for each method, for
// [Reservation.Cancel], and for the call by which a Wait whose context has ended
// gives its place back. The default is a second, or what the store itself keeps to,
// if it is one of [BoundedStates]. It does not concern a [MemoryStore], which does not
// wait for anything.
//
// Time is the real one here, not that of [WithClock].
//
// What the store does after that is not known: if it grants the request late, the
// events are spent, although the caller was not told. The goroutine in which the store
// was called ends when the store's method returns. If 1,024 calls of a limiter
// have been left behind like this and have not returned, further ones fail at once.
func WithStoreTimeout(d time.Duration) Option {
	return func(c *config) { c.storeTimeout, c.storeTimeoutSet = d, true }
}

// defaultStoreTimeout is long for a store, and short for whoever waits for it.
const defaultStoreTimeout = time.Second

// BoundedStates are States that keep to deadlines by themselves. The limiter calls
// those of others in a goroutine of its own, which it can leave behind; that takes
// a few microseconds.
type BoundedStates interface {
	States

	// Bounded reports whether Apply and Reset return when their context ends, at
	// the latest, and soon if it does not: they do not wait for anything without
	// a timeout.
	Bounded() bool
}

// boundStates returns states whose methods return in time, and tell by an error of a
// state that could not be read.
func boundStates(states States, c *config) States {
	if _, ok := states.(*memoryStates); ok {
		return states // in memory
	}
	if b, ok := states.(BoundedStates); ok && b.Bounded() {
		trusted := &trusted{States: states}
		if c.storeTimeoutSet {
			trusted.timeout = c.storeTimeout
		}
		return trusted
	}
	return &bounded{states: states, timeout: c.storeTimeout}
}

// readable returns the error of Apply, or of the state that it could not read.
func readable(res Result, err error) (Result, error) {
	if err == nil {
		err = res.StateErr()
	}
	return res, err
}

// trusted are BoundedStates, perhaps with less time than they take by themselves.
type trusted struct {
	States
	timeout time.Duration // 0 if it is theirs
}

func (s *trusted) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	return readable(s.States.Apply(ctx, key, t, req))
}

func (s *trusted) Reset(ctx context.Context, key string) error {
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	return s.States.Reset(ctx, key)
}

// bounded are States that may not return.
type bounded struct {
	states  States
	timeout time.Duration
	behind  atomic.Int64 // calls that were left behind and have not returned
}

// mostBehind bounds the goroutines that a store which hangs can hold. Each has a stack
// of some kilobytes.
const mostBehind = 1024

func (b *bounded) Apply(ctx context.Context, key string, t *Transition, req Request) (res Result, err error) {
	return readable(b.call(ctx, func(ctx context.Context) (Result, error) { return b.states.Apply(ctx, key, t, req) }))
}

func (b *bounded) Reset(ctx context.Context, key string) error {
	_, err := b.call(ctx, func(ctx context.Context) (Result, error) { return Result{}, b.states.Reset(ctx, key) })
	return err
}

// An answer is what came of a call.
type answer struct {
	res      Result
	err      error
	panicked *storePanic
}

// call calls do in a goroutine of its own, and returns what it does, or that it takes
// too long.
func (b *bounded) call(ctx context.Context, do func(ctx context.Context) (Result, error)) (Result, error) {
	if n := b.behind.Load(); n >= mostBehind {
		return Result{}, fmt.Errorf("not asked, for %d calls have not returned", n)
	}
	// Not WithTimeout: a deadline that tells the time of a test's clock may be past.
	inner, cancel := context.WithCancel(ctx)
	defer cancel() // also tells a call that is left behind
	answers := make(chan answer, 1)
	var over atomic.Bool // whether the call has returned, or was left behind
	go func() {
		a := answer{err: errGoexit}
		defer func() {
			if v := recover(); v != nil {
				a = answer{panicked: &storePanic{v, debug.Stack()}}
			}
			answers <- a
			if over.Swap(true) {
				b.behind.Add(-1)
			}
		}()
		a.res, a.err = do(inner)
	}()
	timer := time.NewTimer(b.timeout)
	defer timer.Stop()
	var why error
	select {
	case a := <-answers:
		return a.result()
	case <-ctx.Done():
		why = ctx.Err()
	case <-timer.C:
		why = fmt.Errorf("no answer within %v: %w", b.timeout, context.DeadlineExceeded)
	}
	b.behind.Add(1)
	if over.Swap(true) { // just in time
		b.behind.Add(-1)
		a := <-answers
		return a.result()
	}
	return Result{}, why
}

// errGoexit is the answer of a call that called runtime.Goexit, as a test's Fatal does.
var errGoexit = errors.New("the goroutine of the call was ended")

func (a *answer) result() (Result, error) {
	if a.panicked != nil {
		panic(a.panicked)
	}
	return a.res, a.err
}

// A storePanic is what a store panicked with, in the goroutine of the caller. If that
// has left, the panic is dropped.
type storePanic struct {
	value any
	stack []byte
}

func (p *storePanic) Error() string {
	return fmt.Sprintf("the store panicked: %v\n\n%s", p.value, p.stack)
}

// Unwrap returns what the store panicked with, if that is an error.
func (p *storePanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}
