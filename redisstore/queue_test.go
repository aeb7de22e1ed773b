package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// Those who ask for a key while it is being asked for travel together, and are told
// what they would have been told one after the other.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.delay = 10 * time.Millisecond
		s, l := f.store(t)
		var mu sync.Mutex
		remaining := map[int]int{}
		allowed := 0
		for i := range 50 {
			if i == 1 {
				synctest.Wait() // the first is under way
			}
			go func() {
				d, err := l.Take(t.Context(), "k", 1)
				assert.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				if d.Allowed {
					allowed++
					remaining[d.Remaining]++
				}
			}()
		}
		time.Sleep(25 * time.Millisecond) // less than three calls take
		synctest.Wait()
		assert.Equal(t, []int{1, 49}, f.batch)
		assert.EqualValues(t, 48, s.Stats().Coalesced)
		assert.EqualValues(t, 2, s.Stats().Calls)
		assert.Equal(t, 30, allowed)
		assert.Len(t, remaining, 30, "each was told what remained after it")
		_, l = f.store(t)
		assert.False(t, l.Allow("k"))
	})
}

// Calls on other keys are commands of their own.
func TestNoCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.delay = 10 * time.Millisecond
		_, l := f.store(t)
		for i := range 50 {
			if i == 1 {
				synctest.Wait() // the first is under way
			}
			go l.Allow(fmt.Sprint(i))
		}
		settle()
		assert.Equal(t, 50, f.calls())
		assert.Equal(t, 2, f.trips, "what comes while one is under way shares a trip")
	})
}

// Takes of different sizes, peeks and reservations travel together, too.
func TestCoalescingMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)})
		f.delay = 10 * time.Millisecond
		_, l := f.store(t)
		ctx := t.Context()
		next := func(do func()) { // they queue up in this order
			go do()
			synctest.Wait()
		}
		var got [6]string
		note := func(i int, d ratelimit.Decision, err error) {
			got[i] = fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, err)
		}
		next(func() { d, err := l.Take(ctx, "k", 4); note(0, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 7); note(1, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 0); note(2, d, err) })
		next(func() { d, err := l.Take(ctx, "k", 5); note(3, d, err) })
		next(func() {
			r, err := l.Reserve(ctx, "k", 2)
			got[4] = fmt.Sprint(r.Delay().Round(time.Second), err)
		})
		next(func() { d, err := l.Peek(ctx, "k"); note(5, d, err) })
		time.Sleep(30 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, []int{1, 5}, f.batch)
		assert.Equal(t, "true 6 0s <nil>", got[0])
		assert.Contains(t, got[1], "false 6 5m59.9")
		assert.Equal(t, "true 6 0s <nil>", got[2])
		assert.Equal(t, "true 1 0s <nil>", got[3])
		assert.Equal(t, "6m0s <nil>", got[4])
		assert.Contains(t, got[5], "false 0 11m59.9")
	})
}

// One who gives up while others' call is under way is not sent; the others are not
// held up.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.delay = 10 * time.Millisecond
		_, l := f.store(t)
		go l.Allow("k")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		told := 0
		for i := range 10 {
			ctx := ctx
			if i%2 == 0 {
				ctx = t.Context()
			}
			go func() {
				d, err := l.Take(ctx, "k", 1)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && d.Allowed {
					told++
				} else {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}()
		}
		time.Sleep(30 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 5, told)
		assert.Equal(t, []int{1, 5}, f.batch)
	})
}

// Nobody waits for longer than the timeout, those that wait for others included, and
// nothing is left behind.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		require.True(t, l.Allow("k"))
		f.set(func() { f.hangs = true })
		begin := time.Now()
		var late atomic.Int64
		for i := range 20 {
			go func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				d, err := l.Take(t.Context(), "k", 1)
				assert.ErrorIs(t, err, ErrTimeout)
				assert.True(t, d.Degraded && !d.Allowed)
				if time.Since(asked) != 50*time.Millisecond {
					late.Add(1)
				}
			}()
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		assert.Zero(t, late.Load(), "waited for longer or shorter than the timeout")
		assert.Greater(t, time.Since(begin), 100*time.Millisecond)
		assert.EqualValues(t, 20, s.Stats().Timeouts)
		settle()
		assert.Empty(t, s.queue.waiting)
		assert.Zero(t, s.queue.couriers)
	})
}

// The caller's own context ends a call, too; that is no fault of the server's.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		b := &countingBreaker{}
		s, l := f.store(t, WithBreaker(b))
		f.hangs = true
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := l.Take(ctx, "k", 1)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, []error{context.Canceled}, b.told)
		settle()
		assert.Zero(t, s.Stats().Timeouts)
	})
}

// A caller whose own time is short says nothing about the server; one who waited for
// half of the timeout does.
func TestImpatientCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		b := &countingBreaker{}
		_, l := f.store(t, WithBreaker(b), WithTimeout(50*time.Millisecond))
		f.hangs = true
		for _, patience := range []time.Duration{time.Microsecond, 24 * time.Millisecond, 25 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := l.Take(ctx, "k", 1)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, ErrTimeout)
			cancel()
		}
		assert.Equal(t, []error{context.Canceled, context.Canceled, context.DeadlineExceeded}, b.told)
		settle()
	})
}

type countingBreaker struct {
	open error
	told []error
}

func (b *countingBreaker) Allow() (func(error), error) {
	return func(err error) { b.told = append(b.told, err) }, b.open
}

// The breaker is told how calls went, and what it keeps from the server is counted.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		b := &countingBreaker{}
		s, l := f.store(t, WithBreaker(b))
		require.True(t, l.Allow("k"))
		assert.Equal(t, []error{nil}, b.told)

		f.fail = errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.fail)
		assert.NoError(t, b.told[1], "that is one key's trouble")

		f.fail = errors.New("LOADING Redis is loading the dataset in memory")
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.fail)
		assert.Equal(t, f.fail, b.told[2])

		b.open = errors.New("too many failures")
		calls := f.calls()
		_, err = l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, ErrOpen)
		require.ErrorIs(t, err, b.open)
		require.ErrorIs(t, l.Reset(t.Context(), "k"), ErrOpen)
		assert.Equal(t, calls, f.calls())
		assert.EqualValues(t, 2, s.Stats().Refused)
		assert.EqualValues(t, 4, s.Stats().Failures)
	})
}

// A server that does not know a script is sent it in full, once.
func TestUnknownScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		_, l := f.store(t)
		for range 5 {
			require.True(t, l.Allow("k"))
		}
		assert.Zero(t, f.evals)
		clear(f.known)
		require.True(t, l.Allow("k"))
		require.True(t, l.Allow("k"))
		assert.Equal(t, 1, f.evals)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 23, d.Remaining, "none was done twice")
	})
}

// What a server answers that makes no sense is an error.
func TestNonsense(t *testing.T) {
	for _, answer := range []string{"", "x", "12345678", "12345678\x00", "12345678\x00123456789012", string(make([]byte, 17)) + "odd"} {
		s, err := New(nonsense(answer))
		require.NoError(t, err)
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, ratelimit.WithStore(s), ratelimit.WithFailurePolicy(ratelimit.FailClosed))
		require.NoError(t, err)
		d, err := l.Take(t.Context(), "k", 1)
		assert.Error(t, err, "%q", answer)
		assert.True(t, d.Degraded, "%q", answer)
	}
	// Nor is one that denies what the arithmetic grants.
	s, err := New(nonsense(make([]byte, 17)))
	require.NoError(t, err)
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7)}, ratelimit.WithStore(s))
	require.NoError(t, err)
	_, err = l.Take(t.Context(), "k", 1)
	assert.ErrorContains(t, err, "defect")
}

type nonsense string

func (n nonsense) Do(_ context.Context, commands []*Command) {
	for _, c := range commands {
		c.Reply = string(n)
	}
}

// What a client gave up to redirect is sent again, as nothing was done; and not for ever.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		_, l := f.store(t)
		f.fail = errors.New("MOVED 7 127.0.0.1:7001")
		f.failures = 2
		require.True(t, l.Allow("k"))
		assert.Equal(t, 3, f.trips)
		f.failures = 100
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.fail)
		assert.Equal(t, 3+1+resends, f.trips)
		settle()
	})
}

// A courier that is back is not replaced, however long its calls take to be answered.
func TestCouriersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, l := f.store(t)
		f.other, f.hanging = true, loadScript.sha
		for range 20 {
			for range 5 {
				go l.Allow("k")
			}
			settle()
		}
		assert.Zero(t, s.queue.couriers)
		f.set(func() { f.other, f.hanging = false, "" })
		assert.True(t, l.Allow("k"))
		settle()
		assert.Zero(t, s.queue.couriers)
	})
}

// What is put back here when nobody was faster is given up after the timeout.
func TestCancelIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		_, l := f.store(t, WithTimeout(50*time.Millisecond))
		require.True(t, l.Allow("k"))
		r, err := l.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		f.lose, f.delay = true, 7*time.Millisecond
		begin := time.Now()
		r.Cancel()
		assert.Equal(t, 50*time.Millisecond, time.Since(begin))
		settle()
	})
}
