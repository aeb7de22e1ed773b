package redisstore

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

var daily = ratelimit.FixedWindow{Limit: 10_000, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent}

// A charge, or a Settle for more events than were held, gives back the lease of the key first,
// even one that is still asked for, so that nothing is granted ahead of the debt.
func TestChargeEndsTheLease(t *testing.T) {
	two := func(n int) int { return 1 << n } // compiles where an int has 32 bits
	if strconv.IntSize == 32 {
		t.Skip("no debt is too great")
	}
	for _, delay := range []time.Duration{0, 10 * time.Millisecond} {
		for _, settles := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, daily)
				f.Delay = delay
				s, l := f.store(t, WithLease(100, time.Hour))
				taken := 1
				for s.Stats().Leased == 0 {
					require.True(t, l.Allow("k"))
					taken++
				}
				r, _, err := l.Hold(t.Context(), "k", 1)
				require.NoError(t, err)
				leased := s.Stats().Leased
				require.True(t, l.Allow("k"))
				taken++
				require.Equal(t, leased, s.Stats().Leased, "a Hold ends the lease")
				var d ratelimit.Decision
				if settles {
					d, err = r.Settle(t.Context(), 1+10_000)
				} else {
					d, err = l.Charge(t.Context(), "k", 10_000)
				}
				require.NoError(t, err)
				assert.Equal(t, 0, d.Remaining)
				assert.False(t, l.Allow("k"))
				settle()
				d, err = l.Charge(t.Context(), "k", two(51)-10_000-taken)
				require.NoError(t, err, "the events of the lease are not counted any more")
				assert.False(t, d.Allowed)
				d, err = l.Charge(t.Context(), "k", 1)
				require.ErrorIs(t, err, ratelimit.ErrDebt)
				require.ErrorContains(t, err, "1 more, and the state of the key can hold 0 more")
				assert.False(t, d.Allowed)
				require.NoError(t, s.Close(t.Context()))
				assert.Zero(t, s.Stats().Lost)
			})
		}
	}
}

// A lease that is asked for while events are charged is given back when it arrives.
func TestChargeWhileALeaseIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.Delay = 10 * time.Millisecond
		s, l := f.store(t, WithLease(100, time.Hour))
		for range 7 {
			require.True(t, l.Allow("k")) // the next command asks for a lease
		}
		var wg sync.WaitGroup
		wg.Go(func() { assert.True(t, l.Allow("k")) })
		synctest.Wait()
		_, err := l.Charge(t.Context(), "k", 1)
		require.NoError(t, err)
		wg.Wait()
		settle()
		assert.Equal(t, 2, f.Batches[7], "with the lease")
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 10_000-8-1, d.Remaining)
		assert.Zero(t, s.Stats().Leased)
	})
}

// Events are leased while a hold is open, too, and each settlement gives back what did not happen.
func TestLeaseWhileAHoldIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		s, l := f.store(t, WithLease(100, time.Hour))
		r, _, err := l.Hold(t.Context(), "k", 3)
		require.NoError(t, err)
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		leased := s.Stats().Leased
		assert.NotZero(t, leased)
		_, err = r.Settle(t.Context(), 1)
		require.NoError(t, err)
		for range 100 {
			require.True(t, l.Allow("k"))
		}
		assert.Greater(t, s.Stats().Leased, leased)
		conserved(t, f, s, 10_000, 201)
		assert.Zero(t, s.Stats().Lost)
	})
}

// A denial is repeated for Hold, and its for Take. A charge makes it last
// longer, and a settlement ends it.
func TestDenialCacheOfAccounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		for _, alg := range []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)},
			ratelimit.SlidingLog{Limit: 10, Window: time.Hour},
		} {
			f := newFakeServer(t, alg)
			_, l := f.store(t)
			d, err := l.Take(ctx, "k", 10)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			_, d, err = l.Hold(ctx, "k", 1)
			require.NoError(t, err)
			calls := f.Calls()
			again := func(want ratelimit.Decision) {
				t.Helper()
				r, d, err := l.Hold(ctx, "k", 1)
				require.NoError(t, err)
				assert.Nil(t, r)
				assert.Equal(t, want, d)
				d, err = l.Take(ctx, "k", 1)
				require.NoError(t, err)
				assert.Equal(t, want, d)
				assert.Equal(t, calls, f.Calls())
			}
			again(d)
			d, err = l.Charge(ctx, "k", 20)
			require.NoError(t, err)
			assert.False(t, d.Allowed)
			if _, ok := alg.(ratelimit.SlidingLog); ok {
				continue // its cached state has not enough of the log
			}
			calls = f.Calls()
			assert.Equal(t, 21*6*time.Minute, d.RetryAfter)
			again(d)
		}

		f := newFakeServer(t, daily)
		_, l := f.store(t)
		r, _, err := l.Hold(ctx, "k", 9_999)
		require.NoError(t, err)
		require.True(t, l.Allow("k"))
		require.False(t, l.Allow("k"))
		_, err = r.Settle(ctx, 9_000)
		require.NoError(t, err)
		assert.True(t, l.AllowN("k", 999))
	})
}

// Requests of all kinds share a command, in order.
func TestAccountingTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.Delay = 10 * time.Millisecond
		_, l := f.store(t)
		r, _, err := l.Hold(t.Context(), "k", 100)
		require.NoError(t, err)
		f.Batches = nil
		var wg sync.WaitGroup
		ask := func(f func() error) {
			wg.Go(func() { assert.NoError(t, f()) })
			synctest.Wait()
		}
		ask(func() error { _, err := l.Take(t.Context(), "k", 1); return err })
		ask(func() error { _, err := r.Settle(t.Context(), 60); return err })
		ask(func() error { _, err := l.Charge(t.Context(), "k", 5); return err })
		ask(func() error { _, _, err := l.Hold(t.Context(), "k", 11); return err })
		wg.Wait()
		assert.Equal(t, []int{1, 3}, f.Batches)
		d, err := l.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 10_000-1-60-5-11, d.Remaining)
	})
}

// Of commands without an answer, only the settlement of holds is repeated, and takes effect once.
// The policy decides, and the store counts that once.
func TestAccountingTakesEffectOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		s, l := f.store(t, WithBreaker(0, 0))
		r, _, err := l.Hold(t.Context(), "k", 10)
		require.NoError(t, err)
		more, _, err := l.Hold(t.Context(), "k", 10)
		require.NoError(t, err)
		f.Set(func() { f.Hangs = true })
		ctx := t.Context()
		for i, ask := range []func() (ratelimit.Decision, error){
			func() (ratelimit.Decision, error) { return r.Settle(ctx, 3) },
			func() (ratelimit.Decision, error) { return more.Settle(ctx, 13) },
			func() (ratelimit.Decision, error) { return l.Charge(ctx, "k", 1) },
			func() (ratelimit.Decision, error) { _, d, err := l.Hold(ctx, "k", 2); return d, err },
		} {
			d, err := ask()
			require.ErrorIs(t, err, ErrTimeout)
			assert.True(t, d.Degraded)
			settle()
			stats := s.Stats()
			assert.Equal(t, uint64(i+1), stats.Timeouts)
			assert.Equal(t, uint64(7), stats.Lost, "of the first settlement")
		}
		f.Set(func() { f.Hangs = false })
		settle()
		_, err = r.Settle(ctx, 3)
		require.ErrorIs(t, err, ratelimit.ErrEnded)
		d, err := l.Peek(ctx, "k")
		require.NoError(t, err)
		assert.Equal(t, daily.Limit-3-10, d.Remaining, "what exceeds a hold is not repeated")

		// A caller that leaves is not counted.
		f.Set(func() { f.Hangs = true })
		failures := s.Stats().Failures
		gone, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := l.Charge(gone, "k", 1)
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		assert.Equal(t, failures, s.Stats().Failures)
		settle()
	})
}

// Holds from before a Reset give nothing back.
func TestSettleAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, daily)
		f.Delay = 2 * time.Millisecond
		s, here := f.store(t)
		_, other := f.store(t)
		hold := func() *ratelimit.Reservation {
			r, _, err := here.Hold(t.Context(), "k", 10)
			require.NoError(t, err)
			return r
		}
		old := []*ratelimit.Reservation{hold(), hold(), hold()}
		require.NoError(t, other.Reset(t.Context(), "k"))
		require.True(t, other.AllowN("k", 100))
		late := []*ratelimit.Reservation{hold(), hold()}

		before := s.Stats().Calls
		blocker := make(chan struct{})
		go func() { defer close(blocker); here.Allow("k") }()
		synctest.Wait() // what follows is one command
		done := make(chan error)
		for _, r := range append(old, late...) {
			go func() {
				_, err := r.Settle(t.Context(), 4)
				done <- err
			}()
		}
		for range 5 {
			require.NoError(t, <-done)
		}
		<-blocker
		assert.Equal(t, before+2, s.Stats().Calls)
		d, err := other.Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 10_000-100-1-2*4, d.Remaining)
	})
}
