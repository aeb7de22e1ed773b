package ratelimit

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// WithStoreTimeout bounds how long the limiter waits for one call of its store. The end
// of the caller's context bounds it as well, even if the store ignores the context.
// After the timeout, the [FailurePolicy] decides, and the error matches
// [context.DeadlineExceeded]. This holds for each method, for [Reservation.Cancel],
// and for the call by which a Wait whose context has ended gives its place back. The
// default is one second, or the store's own timeout if it has [BoundedStates]. The
// option has no effect with a [MemoryStore], which never waits.
//
// The timeout is in real time, not that of [WithClock].
//
// The limiter does not know what the store does after the timeout: if it grants the
// request late, the events are spent. The goroutine of the abandoned call ends when the
// store's method returns. While 1,024 abandoned calls of a limiter have not returned,
// further calls fail at once.
func WithStoreTimeout(d time.Duration) Option {
	return func(c *config) { c.storeTimeout, c.storeTimeoutSet = d, true }
}

// BoundedStates are States that keep deadlines by themselves. The limiter calls other
// States in a separate goroutine, which it can abandon; that costs a few microseconds.
type BoundedStates interface {
	States

	// Bounded reports whether Apply and Reset always return soon, and at the latest
	// when their context ends: they never wait without a timeout.
	Bounded() bool
}

// boundStates returns the states of a store that may fail: their methods return in time,
// and return an error if a state cannot be read.
func boundStates(states States, c *config) States {
	each, many := states.(EachStates)
	if b, ok := states.(BoundedStates); ok && b.Bounded() {
		trusted := &trusted{States: states}
		if c.storeTimeoutSet {
			trusted.timeout = c.storeTimeout
		}
		if many {
			return &trustedEach{trusted, each}
		}
		return trusted
	}
	bounded := &bounded{states: states, timeout: c.storeTimeout}
	if many {
		return &boundedEach{bounded, each}
	}
	return bounded
}

// readable returns the results of Apply, with the error of an unreadable state if err
// is nil.
func readable(res Result, err error) (Result, error) {
	if err == nil {
		err = res.StateErr()
	}
	return res, err
}

// trusted are BoundedStates, with the timeout of WithStoreTimeout if it was given.
type trusted struct {
	States
	timeout time.Duration // 0 means only their own
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
	behind  atomic.Int64 // abandoned calls that have not returned
}

// mostBehind bounds the goroutines that a hanging store can hold. Each has a stack of
// some kilobytes.
const mostBehind = 1024

func (b *bounded) Apply(ctx context.Context, key string, t *Transition, req Request) (res Result, err error) {
	return readable(b.call(ctx, func(ctx context.Context) (Result, error) { return b.states.Apply(ctx, key, t, req) }))
}

func (b *bounded) Reset(ctx context.Context, key string) error {
	_, err := b.call(ctx, func(ctx context.Context) (Result, error) { return Result{}, b.states.Reset(ctx, key) })
	return err
}

// An answer is the outcome of a call.
type answer struct {
	res      Result
	err      error
	panicked *storePanic
}

// call calls do in a separate goroutine, and returns its results, or an error if it
// takes too long.
func (b *bounded) call(ctx context.Context, do func(ctx context.Context) (Result, error)) (Result, error) {
	if n := b.behind.Load(); n >= mostBehind {
		return Result{}, fmt.Errorf("not asked, because %d calls have not returned", n)
	}
	// Not WithTimeout: with a mock clock, a deadline in real time may have passed.
	inner, cancel := context.WithCancel(ctx)
	defer cancel() // reaches an abandoned call as well
	answers := make(chan answer, 1)
	var over atomic.Bool // whether the call has returned or was abandoned
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

func (a *answer) result() (Result, error) {
	if a.panicked != nil {
		panic(a.panicked)
	}
	return a.res, a.err
}

// A storePanic carries a panic of the store to the caller's goroutine. The panic of an
// abandoned call is dropped.
type storePanic struct {
	value any
	stack []byte
}

func (p *storePanic) Error() string {
	return fmt.Sprintf("the store panicked: %v\n\n%s", p.value, p.stack)
}

// Unwrap returns the value of the panic if it is an error.
func (p *storePanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}
