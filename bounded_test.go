package ratelimit

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

func (s *hangingStore) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = make(chan struct{})
}

func (s *hangingStore) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.stuck)
	s.stuck = nil
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

// No method waits longer for a store that hangs than the context and the store's
// timeout allow, whether the store heeds contexts or not.
func TestHungStore(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []Option
		ctx   time.Duration // 0: without a deadline
		heeds bool
		want  time.Duration
	}{
		"by default":                  {nil, 0, false, time.Second},
		"option":                      {[]Option{WithStoreTimeout(20 * time.Millisecond)}, 0, false, 20 * time.Millisecond},
		"deadline":                    {nil, 100 * time.Millisecond, false, 100 * time.Millisecond},
		"deadline after":              {nil, time.Minute, false, time.Second},
		"heeds":                       {nil, 0, true, time.Second},
		"heeds, deadline":             {nil, 100 * time.Millisecond, true, 100 * time.Millisecond},
		"heeds, deadline, FailClosed": {[]Option{WithFailurePolicy(FailClosed)}, 100 * time.Millisecond, true, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newHangingStore()
				s.heeds = tt.heeds
				l, err := New(TokenBucket{Rate: PerHour(10)}, append(tt.opts, WithStore(s), WithName("test"))...)
				require.NoError(t, err)
				open := l.(*limiter).policy.kind == failOpen
				require.True(t, l.AllowN("reserved", 10))
				r, err := l.Reserve(t.Context(), "reserved", 1)
				require.NoError(t, err)
				s.hang()
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
				within(tt.want, func(ctx context.Context) { _, _ = l.Reserve(ctx, "key", 1) })
				unbounded := time.Second
				if len(tt.opts) > 0 && open {
					unbounded = tt.want
				}
				within(unbounded, func(context.Context) { assert.Equal(t, open, l.Allow("key")) })
				within(unbounded, func(context.Context) { r.Cancel() })

				// A caller that leaves is let go at once.
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(time.Millisecond, cancel).Stop()
				begin := time.Now()
				_, err = l.Take(ctx, "key", 1)
				assert.Equal(t, context.Canceled, err)
				assert.Equal(t, time.Millisecond, time.Since(begin))

				s.release() // or the bubble would tell of goroutines that never end
			})
		})
	}
}

// A Wait whose context has ended waits for its cancelling no longer either.
func TestHungCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHangingStore()
		s.op = int(OpCancel)
		l, err := New(TokenBucket{Rate: PerHour(1)}, WithStore(s), WithName("test"))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		s.hang()
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(time.Minute, cancel).Stop()
		begin := time.Now()
		assert.ErrorIs(t, l.Wait(ctx, "key"), context.Canceled)
		assert.Equal(t, time.Minute+time.Second, time.Since(begin))
		s.release()
	})
}

// What a store grants late is spent.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHangingStore()
		l, err := New(FixedWindow{Limit: 2, Window: 24 * time.Hour}, WithStore(s), WithName("test"), WithFailurePolicy(FailClosed))
		require.NoError(t, err)
		s.hang()
		assert.False(t, l.Allow("key"))
		s.release()
		synctest.Wait()
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
	})
}

// The goroutines that a store which hangs can hold are bounded, and it is asked again
// once it has returned.
func TestManyHungCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHangingStore()
		l, err := New(TokenBucket{Rate: PerHour(1e6)}, WithStore(s), WithName("test"), WithStoreTimeout(time.Millisecond), WithFailurePolicy(FailClosed))
		require.NoError(t, err)
		s.hang()
		for range mostBehind + 10 {
			assert.False(t, l.Allow("key"))
		}
		assert.EqualValues(t, mostBehind, s.asked.Load())
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorContains(t, err, "1024 calls have not returned")
		s.release()
		synctest.Wait()
		assert.True(t, l.Allow("key"))
		assert.Zero(t, l.(*limiter).states.(*bounded).behind.Load())
	})
}

// strangeStates do what call does.
type strangeStates struct {
	States
	call func(ctx context.Context) error
}

func (s *strangeStates) Open(name string, t *Transition) (_ States, err error) {
	s.States, err = NewMemoryStore().Open(name, t)
	return s, err
}

func (s *strangeStates) Apply(ctx context.Context, key string, t *Transition, req Request) (Result, error) {
	if err := s.call(ctx); err != nil {
		return Result{}, err
	}
	return s.States.Apply(ctx, key, t, req)
}

// What a store does in a goroutine of its own, it does as if it were the caller's.
func TestStrangeStore(t *testing.T) {
	s := &strangeStates{call: func(context.Context) error { panic(io.ErrUnexpectedEOF) }}
	l, err := New(TokenBucket{Rate: PerHour(1)}, WithStore(s), WithName("test"))
	require.NoError(t, err)
	func() {
		defer func() {
			err, ok := recover().(error)
			require.True(t, ok)
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.ErrorContains(t, err, "TestStrangeStore", "the stack of the store")
		}()
		l.Allow("key")
	}()
	s.call = func(context.Context) error { panic("odd") }
	func() {
		defer func() {
			err, ok := recover().(error)
			require.True(t, ok)
			assert.ErrorContains(t, err, "the store panicked: odd")
			assert.NoError(t, errors.Unwrap(err))
		}()
		l.Allow("key")
	}()
	s.call = func(context.Context) error { runtime.Goexit(); return nil }
	_, err = l.Take(t.Context(), "key", 1)
	assert.ErrorIs(t, err, errGoexit)
	s.call = func(context.Context) error { return io.EOF }
	_, err = l.Take(t.Context(), "key", 1)
	assert.ErrorIs(t, err, io.EOF)
}

// A panic after the caller has left is dropped, and its goroutine ends.
func TestLatePanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &strangeStates{call: func(ctx context.Context) error {
			<-ctx.Done()
			panic("late")
		}}
		l, err := New(TokenBucket{Rate: PerHour(1)}, WithStore(s), WithName("test"))
		require.NoError(t, err)
		_, err = l.Take(t.Context(), "key", 1)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		assert.Zero(t, l.(*limiter).states.(*bounded).behind.Load())
	})
}

// boundedStates keep to deadlines.
type boundedStates struct{ *strangeStates }

func (s boundedStates) Bounded() bool { return true }

func (s boundedStates) Open(name string, t *Transition) (States, error) {
	_, err := s.strangeStates.Open(name, t)
	return s, err
}

// States that keep to deadlines are called by the caller itself, and so is the
// MemoryStore, whatever is said.
func TestBoundedStates(t *testing.T) {
	var deadline time.Duration
	s := boundedStates{&strangeStates{call: func(ctx context.Context) error {
		deadline = 0
		if at, ok := ctx.Deadline(); ok {
			deadline = time.Until(at)
		}
		return nil
	}}}
	synctest.Test(t, func(t *testing.T) {
		l, err := New(TokenBucket{Rate: PerHour(1)}, WithStore(s), WithName("test"))
		require.NoError(t, err)
		assert.IsType(t, &trusted{}, l.(*limiter).states)
		require.True(t, l.Allow("key"))
		assert.Zero(t, deadline)
		l, err = New(TokenBucket{Rate: PerHour(1)}, WithStore(s), WithName("test"), WithStoreTimeout(time.Minute))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		assert.Equal(t, time.Minute, deadline)
		require.NoError(t, l.Reset(t.Context(), "key"))
	})
	for _, alg := range []Algorithm{TokenBucket{Rate: PerHour(1)}, SlidingLog{Limit: 1, Window: time.Hour}} {
		l, err := New(alg, WithStoreTimeout(time.Minute))
		require.NoError(t, err)
		assert.IsType(t, &memoryStates{}, l.(*limiter).states)
	}
	for _, d := range []time.Duration{0, -1} {
		_, err := New(TokenBucket{Rate: PerHour(1)}, WithStoreTimeout(d))
		require.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "WithStoreTimeout's duration is "+d.String())
	}
}

func BenchmarkBounded(b *testing.B) {
	s := &strangeStates{call: func(context.Context) error { return nil }}
	for name, store := range map[string]Store{"goroutine": s, "bounded": boundedStates{s}} {
		b.Run(name, func(b *testing.B) {
			l := Must(New(TokenBucket{Rate: PerSecond(1e9)}, WithStore(store), WithName("test")))
			b.ReportAllocs()
			for b.Loop() {
				l.Allow("key")
			}
		})
	}
}
