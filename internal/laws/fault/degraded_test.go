package fault_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

func TestFailurePolicies(t *testing.T) {
	errDown := errors.New("connection refused")
	limiter := func(opts ...ratelimit.Option) (ratelimit.Limiter, *fakes.Broken) {
		s := &fakes.Broken{}
		l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)}, append(opts, ratelimit.WithStore(s), ratelimit.WithName("api"))...)
		require.True(t, l.AllowN("key", 2))
		s.Err = errDown
		return l, s
	}

	l, s := limiter() // FailOpen
	assert.True(t, l.Allow("key"))
	d, err := l.Take(ctx, "key", 1)
	assert.ErrorIs(t, err, errDown)
	assert.ErrorContains(t, err, `"api"`)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, Degraded: true}, d)
	_, err = l.Peek(ctx, "key")
	assert.ErrorIs(t, err, errDown)
	assert.NoError(t, l.Wait(ctx, "key"))
	r, d, err := l.Reserve(ctx, "key", 1)
	require.ErrorIs(t, err, errDown)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, Degraded: true}, d)
	assert.Zero(t, r.Delay())
	r.Cancel()
	assert.ErrorIs(t, l.Reset(ctx, "key"), errDown)
	s.Err = nil
	assert.False(t, l.Allow("key"), "nothing was spent or gained meanwhile")

	l, _ = limiter(ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	assert.False(t, l.Allow("key"))
	d, err = l.Take(ctx, "key", 1)
	assert.ErrorIs(t, err, errDown)
	assert.Equal(t, ratelimit.Decision{Limit: 2, RetryAfter: time.Second, Degraded: true}, d)
	assert.ErrorIs(t, l.Wait(ctx, "key"), errDown)
	_, _, err = l.Reserve(ctx, "key", 1)
	assert.ErrorIs(t, err, errDown)

	local, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	l, _ = limiter(ratelimit.WithFailurePolicy(ratelimit.Fallback(local)))
	assert.True(t, l.Allow("key"))
	assert.False(t, l.Allow("key"))
	d, err = l.Take(ctx, "key", 1)
	assert.ErrorIs(t, err, errDown)
	assert.Equal(t, ratelimit.Decision{Limit: 1, RetryAfter: time.Second, ResetAfter: time.Second, Degraded: true, StandIn: true}, d)
	d, err = l.Peek(ctx, "other")
	assert.ErrorIs(t, err, errDown)
	assert.True(t, d.Allowed && d.Degraded)
	r, _, err = l.Reserve(ctx, "key", 1)
	assert.ErrorIs(t, err, errDown)
	assert.Equal(t, time.Second, r.Delay())
	near := laterContext{ctx, fakes.Midnight.Add(time.Second)}
	assert.ErrorIs(t, l.Wait(near, "key"), context.DeadlineExceeded, "at once")

	// A caller that has left is no failure of the store.
	l, s = limiter(ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	leaving, leave := context.WithCancel(ctx)
	s.Err = nil
	s.States = leavingStates{s.States, leave}
	_, err = l.Take(leaving, "key", 1)
	assert.Equal(t, context.Canceled, err)
}

// laterContext has a deadline by the clock of a test.
type laterContext struct {
	context.Context
	at time.Time
}

func (c laterContext) Deadline() (time.Time, bool) { return c.at, true }

// leavingStates fails because the caller leaves during the call.
type leavingStates struct {
	limit.States
	leave func()
}

func (s leavingStates) Apply(ctx context.Context, _ string, _ *limit.Limit, _ step.Request) (step.Answer, error) {
	s.leave()
	return step.Answer{}, ctx.Err()
}

// decidingCalls are the calls that return a Decision, for n events of a key.
var decidingCalls = map[string]func(l ratelimit.Limiter, n int) (ratelimit.Decision, error){
	"Take": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) { return l.Take(ctx, "key", n) },
	"TakeEach": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) {
		out, err := l.TakeEach(ctx, []string{"key"}, n, nil)
		if failed, ok := err.(interface{ Unwrap() []error }); ok {
			err = failed.Unwrap()[0]
		}
		return out[0], err
	},
	"Hold": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) {
		_, d, err := l.Hold(ctx, "key", n)
		return d, err
	},
	"Reserve": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) {
		_, d, err := l.Reserve(ctx, "key", n, ratelimit.Within(ratelimit.Never))
		return d, err
	},
	"TakeAll": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) {
		return ratelimit.TakeAll(ctx, n, ratelimit.For(l, "key"))
	},
	"HoldAll": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) {
		_, d, err := ratelimit.HoldAll(ctx, n, ratelimit.For(l, "key"))
		return d, err
	},
}

// singleCalls are those whose Decision is on one event, whatever n is.
var singleCalls = map[string]func(l ratelimit.Limiter, n int) (ratelimit.Decision, error){
	"Peek":   func(l ratelimit.Limiter, _ int) (ratelimit.Decision, error) { return l.Peek(ctx, "key") },
	"Charge": func(l ratelimit.Limiter, n int) (ratelimit.Decision, error) { return l.Charge(ctx, "key", n) },
}

// waitingCalls are the calls that return only an error if they fail.
var waitingCalls = map[string]func(l ratelimit.Limiter, n int) error{
	"WaitN": func(l ratelimit.Limiter, n int) error { return l.WaitN(ctx, "key", n) },
	"Hold": func(l ratelimit.Limiter, n int) error {
		_, _, err := l.Hold(ctx, "key", n, ratelimit.Waiting())
		return err
	},
}

// A downLimiter returns a limiter whose store fails, and the store.
func downLimiter(t *testing.T, alg ratelimit.Algorithm, policy ratelimit.FailurePolicy, opts ...ratelimit.Option) (ratelimit.Limiter, *fakes.Broken) {
	t.Helper()
	s := &fakes.Broken{Err: errors.New("connection refused")}
	l, _ := fakes.At(t, alg, append(opts, ratelimit.WithStore(s), ratelimit.WithName("api"),
		ratelimit.WithFailureLog(nil), ratelimit.WithFailurePolicy(policy))...)
	return l, s
}

// What only the fallback can never grant is answered as by FailClosed, because the store grants it
// later. What the limit never grants stays so.
func TestFallbackWithALowerLimit(t *testing.T) {
	limit := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20}
	flying := ratelimit.InFlight{Limit: 20, Timeout: time.Hour}
	own := func(alg ratelimit.Algorithm, err error) ratelimit.Option {
		return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, err })
	}
	for name, tt := range map[string]struct {
		limit ratelimit.Algorithm
		opts  []ratelimit.Option
		n     int
		never bool // whether the limit never grants n
	}{
		"within the limit":   {limit: limit, n: 20},
		"beyond the limit":   {limit: limit, n: 21, never: true},
		"in flight":          {limit: flying, n: 20},
		"too many in flight": {limit: flying, n: 21, never: true},
		"within a limit of its own": {limit: ratelimit.FixedWindow{Limit: 1, Window: time.Second},
			opts: []ratelimit.Option{own(limit, nil)}, n: 20},
		"beyond a limit of its own": {limit: ratelimit.FixedWindow{Limit: 100, Window: time.Second},
			opts: []ratelimit.Option{own(limit, nil)}, n: 21, never: true},
		"within the default limit":      {limit: limit, opts: []ratelimit.Option{own(nil, nil)}, n: 20},
		"the limit cannot be looked up": {limit: limit, opts: []ratelimit.Option{own(nil, errors.New("no route"))}, n: 21},
		"the limit is not valid":        {limit: limit, opts: []ratelimit.Option{own(ratelimit.TokenBucket{}, nil)}, n: 21},
	} {
		t.Run(name, func(t *testing.T) {
			share, _ := fakes.At(t, ratelimit.Share(tt.limit, 8))
			falls, s := downLimiter(t, tt.limit, ratelimit.Fallback(share), tt.opts...)
			closed, _ := downLimiter(t, tt.limit, ratelimit.FailClosed(), tt.opts...)
			for name, call := range decidingCalls {
				d, err := call(falls, tt.n)
				want, wantErr := call(closed, tt.n)
				require.EqualError(t, err, wantErr.Error(), name)
				assert.True(t, d.Degraded && !d.Allowed, name)
				if tt.never {
					want.RetryAfter = ratelimit.Never
				}
				assert.Equal(t, want.RetryAfter, d.RetryAfter, name)
			}
			for name, call := range waitingCalls {
				err, wantErr := call(falls, tt.n), call(closed, tt.n)
				if tt.never {
					require.ErrorIs(t, err, ratelimit.ErrNever, name)
				} else {
					require.EqualError(t, err, wantErr.Error(), name)
				}
			}
			s.Err = nil
			if tt.opts == nil {
				assert.Equal(t, !tt.never, falls.AllowN("key", tt.n), "when the store is back")
			}
		})
	}
}

// The same for calls whose Decision is on one event: only a plan never grants that.
func TestFallbackThatIsBlocked(t *testing.T) {
	blocked, _ := fakes.At(t, ratelimit.Blocked{})
	falls, _ := downLimiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.Fallback(blocked))
	for name, call := range singleCalls {
		for _, n := range []int{1, 2} {
			d, err := call(falls, n)
			require.ErrorContains(t, err, "connection refused", name)
			assert.Equal(t, ratelimit.Decision{RetryAfter: time.Second, Degraded: true}, d, name)
		}
	}
}

// A fallback's other denials and errors are returned as they are.
func TestFallbackThatDenies(t *testing.T) {
	share, _ := fakes.At(t, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1)})
	require.True(t, share.Allow("key"))
	falls, _ := downLimiter(t, ratelimit.LeakyBucket{Rate: ratelimit.PerHour(8), Capacity: 8}, ratelimit.Fallback(share))
	for name, call := range decidingCalls {
		d, _ := call(falls, 1)
		assert.Equal(t, time.Hour, d.RetryAfter, name)
	}
	for name, call := range waitingCalls {
		assert.ErrorIs(t, call(falls, 1), ratelimit.ErrQueueFull, name)
	}
}

// 0 events are reserved in a fallback as well, whatever the options.
func TestFallbackReservesNothing(t *testing.T) {
	share, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)})
	falls, _ := downLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)}, ratelimit.Fallback(share))
	r, d, err := falls.Reserve(t.Context(), "key", 0, ratelimit.Within(time.Second), ratelimit.GiveBack())
	require.ErrorContains(t, err, "connection refused")
	assert.NotErrorIs(t, err, ratelimit.ErrInvalid)
	assert.True(t, d.Allowed)
	assert.NotNil(t, r)
}

// If the store fails while a caller waits for a release, the caller does not get the ErrNever of
// the fallback.
func TestFallbackOfAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakes.Broken{}
		alone := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Second}))
		l := ratelimit.Must(ratelimit.New(fakes.Five, ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithFailureLog(nil), ratelimit.WithFailurePolicy(ratelimit.Fallback(alone))))
		r := fakes.Held(t, l, "k", 5)
		w := fakes.WaitFor(t, l, "k", 2)
		synctest.Wait()
		s.Err = errors.New("connection refused")
		_, err := r.Settle(t.Context(), 0)
		require.ErrorIs(t, err, s.Err)
		synctest.Wait() // a release that may have happened wakes it
		require.True(t, w.Done.Load())
		require.ErrorIs(t, w.Err, s.Err)
		require.NotErrorIs(t, w.Err, ratelimit.ErrNever)
	})
}

// Observers see the decision that the caller gets.
func TestObserverSeesAFallbackWithALowerLimit(t *testing.T) {
	share, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	w := &fakes.Witness{}
	falls, s := downLimiter(t, ratelimit.FixedWindow{Limit: 8, Window: time.Hour}, ratelimit.Fallback(share), ratelimit.WithObserver(w.Observe))
	for name, call := range decidingCalls {
		d, _ := call(falls, 8)
		o := w.One(t)
		assert.Equal(t, ratelimit.Failed, o.Outcome, name)
		assert.Equal(t, time.Second, o.Decision.RetryAfter, name)
		assert.Equal(t, d, o.Decision, name)
	}
	for name, call := range waitingCalls {
		err := call(falls, 8)
		o := w.One(t)
		assert.Equal(t, ratelimit.Failed, o.Outcome, name)
		require.ErrorIs(t, o.Err, s.Err, name)
		assert.Equal(t, o.Err, err, name)
	}
}

// reticent is a limiter that returns no Reservations.
type reticent struct{ ratelimit.Limiter }

func (l reticent) Hold(ctx context.Context, key string, n int, _ ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	d, err := l.Take(ctx, key, n)
	return nil, d, err
}

// A HoldAll has a Reservation of each key, even if a fallback returns none.
func TestHoldAllOfAFallbackWithoutReservations(t *testing.T) {
	local, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)})
	falls, _ := downLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)}, ratelimit.Fallback(reticent{local}))
	r, d, err := ratelimit.HoldAll(t.Context(), 1, ratelimit.For(falls, "a"), ratelimit.For(falls, "b"))
	require.ErrorContains(t, err, "connection refused")
	require.True(t, d.Allowed)
	require.NotContains(t, r.Parts(), (*ratelimit.Reservation)(nil))
	require.NoError(t, r.Extend(t.Context(), time.Second))
	_, err = r.Settle(t.Context(), 1, 2)
	require.NoError(t, err)
}
