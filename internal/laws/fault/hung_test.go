package fault_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestHungStore: no method waits longer for a store that hangs than the context and the store's
// timeout allow, even if the store ignores contexts.
func TestHungStore(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []ratelimit.Option
		ctx   time.Duration // 0: without a deadline
		heeds bool
		want  time.Duration

		closed bool // whether the policy is FailClosed
	}{
		"by default": {nil, 0, false, time.Second, false},
		"option": {[]ratelimit.Option{ratelimit.WithStoreTimeout(20 * time.Millisecond)}, 0, false,
			20 * time.Millisecond, false},
		"deadline":        {nil, 100 * time.Millisecond, false, 100 * time.Millisecond, false},
		"deadline after":  {nil, time.Minute, false, time.Second, false},
		"heeds":           {nil, 0, true, time.Second, false},
		"heeds, deadline": {nil, 100 * time.Millisecond, true, 100 * time.Millisecond, false},
		"heeds, deadline, FailClosed": {[]ratelimit.Option{ratelimit.WithFailurePolicy(ratelimit.FailClosed())},
			100 * time.Millisecond, true, 100 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := fakes.NewHanging()
				s.Heeds = tt.heeds
				l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
					append(tt.opts, ratelimit.WithStore(s.Store()), ratelimit.WithName("test"))...)
				require.NoError(t, err)
				open := !tt.closed
				require.True(t, l.AllowN("reserved", 10))
				r, _, err := l.Reserve(t.Context(), "reserved", 1)
				require.NoError(t, err)
				s.Hang()
				within := func(want time.Duration, call func(ctx context.Context)) {
					t.Helper()
					ctx := t.Context()
					if tt.ctx > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, tt.ctx)
						defer cancel()
					}
					begin := time.Now()
					call(ctx)
					assert.Equal(t, want, time.Since(begin))
				}
				within(tt.want, func(ctx context.Context) {
					d, err := l.Take(ctx, "key", 1)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.True(t, d.Degraded)
					assert.Equal(t, open, d.Allowed)
				})
				within(tt.want, func(ctx context.Context) {
					d, err := l.Peek(ctx, "key")
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					assert.Equal(t, open, d.Allowed)
				})
				within(tt.want, func(ctx context.Context) {
					assert.ErrorIs(t, l.Reset(ctx, "key"), context.DeadlineExceeded)
				})
				within(tt.want, func(ctx context.Context) { _ = l.Wait(ctx, "key") })
				within(tt.want, func(ctx context.Context) { _, _, _ = l.Reserve(ctx, "key", 1) })
				unbounded := time.Second
				if len(tt.opts) > 0 && open {
					unbounded = tt.want
				}
				within(unbounded, func(context.Context) { assert.Equal(t, open, l.Allow("key")) })
				within(unbounded, func(context.Context) { r.Cancel() })

				// A caller whose context is cancelled returns at once.
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(time.Millisecond, cancel).Stop()
				begin := time.Now()
				_, err = l.Take(ctx, "key", 1)
				assert.Equal(t, context.Canceled, err)
				assert.Equal(t, time.Millisecond, time.Since(begin))

				s.Release() // otherwise, the bubble would report goroutines that never end
			})
		})
	}
}

// TestHungCancel: the context of a Wait ends, and the store hangs when the turn of the Wait is
// cancelled. The Wait returns after the timeout of the store.
func TestHungCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakes.NewHanging()
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(s.Store()), ratelimit.WithName("test"))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(time.Minute, func() {
			s.Hang()
			cancel()
		}).Stop()
		begin := time.Now()
		assert.ErrorIs(t, l.Wait(ctx, "key"), context.Canceled)
		assert.Equal(t, time.Minute+time.Second, time.Since(begin))
		s.Release()
	})
}

// TestLateAnswer: events that a store grants after the caller has left are spent.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakes.NewHanging()
		s.Late = true
		l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour},
			ratelimit.WithStore(s.Store()), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.NoError(t, err)
		s.Hang()
		assert.False(t, l.Allow("key"))
		s.Release()
		synctest.Wait()
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
	})
}

// mostBehind is the number of keys in WithStoreTimeout's documentation.
const mostBehind = 1024

// TestManyHungCalls: a store that hangs holds a bounded number of goroutines. Once its calls have
// returned, the store is asked again.
func TestManyHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakes.NewHanging()
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1e6)}, ratelimit.WithStore(s.Store()),
			ratelimit.WithName("test"), ratelimit.WithStoreTimeout(time.Millisecond),
			ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
		require.NoError(t, err)
		s.Hang()
		for i := range mostBehind + 10 {
			assert.False(t, l.Allow(fmt.Sprint(i)))
			assert.False(t, l.Allow(fmt.Sprint(i%3)), "they share a goroutine")
		}
		assert.EqualValues(t, mostBehind, s.Asked.Load())
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorContains(t, err, "the calls on 1024 keys have not returned")
		s.Release()
		synctest.Wait()
		assert.True(t, l.Allow("key"))

		// Calls that have returned no longer count towards the bound.
		s.Hang()
		before := s.Asked.Load()
		for i := range mostBehind + 10 {
			assert.False(t, l.Allow(fmt.Sprint(i)))
		}
		assert.EqualValues(t, mostBehind, s.Asked.Load()-before)
		s.Release()
	})
}

// TestStrangeStore: if a store panics, ends its goroutine or fails, the caller gets an error that
// says so. The error of a panic also has the stack.
func TestStrangeStore(t *testing.T) {
	s := &fakes.Strange{MapDB: fakes.NewMapDB()}
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(s.Store()), ratelimit.WithName("test"))
	require.NoError(t, err)
	s.Call = func(context.Context) error { panic("odd") }
	_, err = l.Take(t.Context(), "key", 1)
	assert.ErrorContains(t, err, "the store panicked: odd")
	assert.ErrorContains(t, err, "TestStrangeStore", "the stack of the store")
	s.Call = func(context.Context) error { runtime.Goexit(); return nil }
	_, err = l.Take(t.Context(), "key", 1)
	assert.ErrorContains(t, err, "the database has ended the goroutine of the call")
	s.Call = func(context.Context) error { return io.EOF }
	_, err = l.Take(t.Context(), "key", 1)
	assert.ErrorIs(t, err, io.EOF)
}

// If a store panics after the caller has left, the panic is dropped, and the goroutine of the call
// ends.
func TestLatePanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		s := &fakes.Strange{MapDB: fakes.NewMapDB(), Call: func(ctx context.Context) error {
			asked++
			<-ctx.Done()
			panic("late")
		}}
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(s.Store()), ratelimit.WithName("test"))
		require.NoError(t, err)
		const calls = mostBehind + 10
		for range calls { // each call asks the store, so no earlier call counts as one that has not returned
			_, err = l.Take(t.Context(), "key", 1)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			synctest.Wait()
		}
		assert.Equal(t, calls, asked)
	})
}

// A MemoryStore never waits, whatever its timeout is.
func TestStoreTimeoutInMemory(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.SlidingLog{Limit: 1, Window: time.Hour}} {
		l, err := ratelimit.New(alg, ratelimit.WithStoreTimeout(time.Minute))
		require.NoError(t, err)
		assert.Less(t, testing.AllocsPerRun(10, func() { l.Allow("key") }), 1.0, "a goroutine would allocate")
	}
	for _, d := range []time.Duration{0, -1} {
		_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStoreTimeout(d))
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "WithStoreTimeout's duration is "+d.String())
	}
}
