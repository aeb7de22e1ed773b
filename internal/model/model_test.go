package model

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

const (
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

func fresh(alg ratelimit.Algorithm) *Key { return New(alg, 1) }

// A step asks for n events at an instant, and has the expected decision.
type step struct {
	at         int64
	n          int
	allowed    bool
	remaining  int
	retryAfter time.Duration
	resetAfter time.Duration
	delay      time.Duration
}

func TestSteps(t *testing.T) {
	const s = time.Second
	for name, tc := range map[string]struct {
		alg   ratelimit.Algorithm
		limit int
		steps []step
	}{
		"TokenBucket": {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 3}, 3, []step{
			{at: 0, n: 0, allowed: true, remaining: 3},
			{at: 0, n: 2, allowed: true, remaining: 1, resetAfter: s},
			{at: 250 * ms, n: 2, remaining: 1, retryAfter: s / 4, resetAfter: 3 * s / 4},
			{at: 500*ms - 1, n: 2, remaining: 1, retryAfter: 1, resetAfter: s/2 + 1},
			{at: 500 * ms, n: 2, allowed: true, remaining: 0, resetAfter: 3 * s / 2},
			{at: 500 * ms, n: 4, remaining: 0, retryAfter: ratelimit.Never, resetAfter: 3 * s / 2},
			{at: 9 * sec, n: 3, allowed: true, remaining: 0, resetAfter: 3 * s / 2},
		}},
		"TokenBucket rounds up": {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 1}, 1, []step{
			{at: 0, n: 1, allowed: true, remaining: 0, resetAfter: 333333334},
			{at: 0, n: 1, remaining: 0, retryAfter: 333333334, resetAfter: 333333334},
			{at: 333333333, n: 1, remaining: 0, retryAfter: 1, resetAfter: 1},
			{at: 333333334, n: 1, allowed: true, remaining: 0, resetAfter: 333333334},
		}},
		"TokenBucket by interval": {ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60), Refill: ratelimit.RefillInterval}, 60, []step{
			{at: 7 * sec, n: 10, allowed: true, remaining: 50, resetAfter: 60 * s},
			{at: 30 * sec, n: 50, allowed: true, remaining: 0, resetAfter: 37 * s},
			{at: 67*sec - 1, n: 1, remaining: 0, retryAfter: 1, resetAfter: 1},
			{at: 67 * sec, n: 0, allowed: true, remaining: 60},
			{at: 100 * sec, n: 60, allowed: true, remaining: 0, resetAfter: 60 * s},
		}},
		"TokenBucket by interval, small refills": {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 5, Refill: ratelimit.RefillInterval}, 5, []step{
			{at: 0, n: 5, allowed: true, remaining: 0, resetAfter: 3 * s},
			{at: 1500 * ms, n: 2, allowed: true, remaining: 0, resetAfter: 5 * s / 2},
			{at: 1500 * ms, n: 3, remaining: 0, retryAfter: 3 * s / 2, resetAfter: 5 * s / 2},
			{at: 3999 * ms, n: 0, allowed: true, remaining: 4, resetAfter: s / 1000},
		}},
		"LeakyBucket paces": {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3)}, 1, []step{
			{at: 0, n: 1, allowed: true, remaining: 0, resetAfter: 333333334},
			{at: 0, n: 1, remaining: 0, retryAfter: 333333334, resetAfter: 333333334},
			{at: 333333334, n: 1, allowed: true, remaining: 0, resetAfter: 333333334},
		}},
		"LeakyBucket queues": {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 3}, 3, []step{
			{at: 0, n: 1, allowed: true, remaining: 2, resetAfter: 333333334},
			{at: 0, n: 1, allowed: true, remaining: 1, resetAfter: 666666667, delay: 333333334},
			{at: 0, n: 1, allowed: true, remaining: 0, resetAfter: s, delay: 666666667},
			{at: 0, n: 2, remaining: 0, retryAfter: 666666667, resetAfter: s},
			{at: 500 * ms, n: 1, allowed: true, remaining: 0, resetAfter: 833333334, delay: s / 2},
		}},
		"FixedWindow": {ratelimit.FixedWindow{Limit: 2, Window: s}, 2, []step{
			{at: 700 * ms, n: 2, allowed: true, remaining: 0, resetAfter: 300 * s / 1000},
			{at: 999 * ms, n: 1, remaining: 0, retryAfter: s / 1000, resetAfter: s / 1000},
			{at: sec, n: 2, allowed: true, remaining: 0, resetAfter: s},
		}},
		"FixedWindow on first event": {ratelimit.FixedWindow{Limit: 2, Window: s, Start: ratelimit.StartOnFirstEvent}, 2, []step{
			{at: 700 * ms, n: 1, allowed: true, remaining: 1, resetAfter: s},
			{at: 1200 * ms, n: 2, remaining: 1, retryAfter: s / 2, resetAfter: s / 2},
			{at: 1700*ms - 1, n: 1, allowed: true, remaining: 0, resetAfter: 1},
			{at: 1800 * ms, n: 1, allowed: true, remaining: 1, resetAfter: s},
		}},
		"SlidingWindow": {ratelimit.SlidingWindow{Limit: 10, Window: s}, 10, []step{
			{at: 0, n: 9, allowed: true, remaining: 1, resetAfter: 2 * s},
			{at: 1250 * ms, n: 4, remaining: 3, retryAfter: 83333334, resetAfter: 3 * s / 4},
			{at: 1333333333, n: 4, remaining: 3, retryAfter: 1, resetAfter: 666666667},
			{at: 1333333334, n: 4, allowed: true, remaining: 0, resetAfter: 1666666666},
		}},
		"SlidingWindow in two segments": {ratelimit.SlidingWindow{Limit: 4, Window: 2 * s, Segments: 2}, 4, []step{
			{at: 0, n: 2, allowed: true, remaining: 2, resetAfter: 3 * s},
			{at: 1500 * ms, n: 2, allowed: true, remaining: 0, resetAfter: 5 * s / 2},
			{at: 2 * sec, n: 1, remaining: 0, retryAfter: s / 2, resetAfter: 2 * s},
			{at: 2500 * ms, n: 1, allowed: true, remaining: 0, resetAfter: 5 * s / 2},
		}},
		"SlidingLog": {ratelimit.SlidingLog{Limit: 2, Window: s}, 2, []step{
			{at: 0, n: 1, allowed: true, remaining: 1, resetAfter: s},
			{at: 400 * ms, n: 1, allowed: true, remaining: 0, resetAfter: s},
			{at: sec - 1, n: 1, remaining: 0, retryAfter: 1, resetAfter: 400*s/1000 + 1},
			{at: sec, n: 2, remaining: 1, retryAfter: 400 * s / 1000, resetAfter: 400 * s / 1000},
			{at: sec, n: 1, allowed: true, remaining: 0, resetAfter: s},
		}},
		"SlidingLog with refused events": {ratelimit.SlidingLog{Limit: 2, Window: s, CountDenied: true}, 2, []step{
			{at: 0, n: 2, allowed: true, remaining: 0, resetAfter: s},
			{at: 500 * ms, n: 1, remaining: 0, retryAfter: s / 2, resetAfter: s},
			{at: 500 * ms, n: 3, remaining: 0, retryAfter: ratelimit.Never, resetAfter: s},
			{at: 600 * ms, n: 1, remaining: 0, retryAfter: 900 * s / 1000, resetAfter: s},
			{at: 1500 * ms, n: 1, allowed: true, remaining: 0, resetAfter: s},
		}},
		"RollingWindow": {ratelimit.RollingWindow{Quota: 10, Window: 3 * s, Period: s, PeriodLimit: 6}, 6, []step{
			{at: 100 * ms, n: 6, allowed: true, remaining: 0, resetAfter: 2900 * s / 1000},
			{at: 100 * ms, n: 1, remaining: 0, retryAfter: 900 * s / 1000, resetAfter: 2900 * s / 1000},
			{at: sec, n: 3, allowed: true, remaining: 1, resetAfter: 3 * s},
			{at: 2 * sec, n: 2, remaining: 1, retryAfter: s, resetAfter: 2 * s},
			{at: 3 * sec, n: 6, allowed: true, remaining: 0, resetAfter: 3 * s},
			{at: 4 * sec, n: 5, remaining: 4, retryAfter: 2 * s, resetAfter: 2 * s},
		}},
		"All": {ratelimit.All{
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 4},
			ratelimit.FixedWindow{Limit: 3, Window: 10 * s},
		}, 3, []step{
			{at: 0, n: 2, allowed: true, remaining: 1, resetAfter: 10 * s},
			{at: 0, n: 2, remaining: 1, retryAfter: 10 * s, resetAfter: 10 * s},
			{at: 0, n: 1, allowed: true, remaining: 0, resetAfter: 10 * s, delay: 2 * s},
			{at: 0, n: 2, remaining: 0, retryAfter: 10 * s, resetAfter: 10 * s},
		}},
		"waits over 292 years": {ratelimit.TokenBucket{Rate: ratelimit.Every(100 * 365 * 24 * time.Hour), Burst: 3}, 3, []step{
			{at: 1 << 60, n: 3, allowed: true, remaining: 0, resetAfter: ratelimit.Never},
			{at: 1 << 60, n: 3, remaining: 0, retryAfter: ratelimit.Never, resetAfter: ratelimit.Never},
			{at: 1 << 60, n: 2, remaining: 0, retryAfter: 200 * 365 * 24 * time.Hour, resetAfter: ratelimit.Never},
		}},
		"the greatest limit": {ratelimit.SlidingLog{Limit: math.MaxInt, Window: s, CountDenied: true}, math.MaxInt, []step{
			{at: 0, n: math.MaxInt, allowed: true, remaining: 0, resetAfter: s},
			{at: 1, n: math.MaxInt, remaining: 0, retryAfter: s, resetAfter: s},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := fresh(tc.alg)
			for i, s := range tc.steps {
				got := k.Take(s.at, s.n)
				want := ratelimit.Decision{
					Allowed:    s.allowed,
					Limit:      tc.limit,
					Remaining:  s.remaining,
					RetryAfter: s.retryAfter,
					ResetAfter: s.resetAfter,
					Delay:      s.delay,
					Part:       got.Part,
				}
				require.Equal(t, want, got, "step %d: %+v", i, s)
			}
		})
	}
}

// A quarter into the window, 9 events in the previous one and 5 in this one are estimated
// as 11.75. The limit is 10.
func TestSlidingWindowWeighsThePreviousWindow(t *testing.T) {
	w := newSlidingWindow(ratelimit.SlidingWindow{Limit: 10, Window: time.Second})
	w.charge(0, 9)
	w.charge(instant(sec), 5)
	got, _ := w.estimate(instant(1250 * ms)).Float64()
	assert.Equal(t, 11.75, got)
	assert.False(t, w.grantable(instant(1250*ms), 1))
}

func TestWarmingUp(t *testing.T) {
	k := fresh(ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: time.Second})
	var got []bool
	for i := range int64(10) {
		got = append(got, k.Take(i*250*ms, 1).Allowed)
	}
	assert.Equal(t, []bool{true, false, false, false, false, false, true, false, false, false}, got)

	k = fresh(ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second})
	for range 150 {
		k.parts[0].charge(k.parts[0].(*warmingUp).last().nextFree, 1)
	}
	assert.Equal(t, instant(3*sec), k.parts[0].(*warmingUp).last().nextFree)
	for range 150 {
		k.parts[0].charge(k.parts[0].(*warmingUp).last().nextFree, 1)
	}
	assert.Equal(t, instant(4500*ms), k.parts[0].(*warmingUp).last().nextFree)

	k = fresh(ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second})
	d := k.Take(0, 150)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 300, ResetAfter: 4500 * time.Millisecond}, d)
	d = k.Take(3*sec, 150)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 300, ResetAfter: 4500 * time.Millisecond}, d)
	assert.Equal(t, ratelimit.Never, k.Take(3*sec, 301).RetryAfter)
	assert.Equal(t, 300, k.Take(4500*ms, 0).Remaining)
	assert.False(t, k.Close())
}

func TestPartOfAll(t *testing.T) {
	k := fresh(ratelimit.All{
		ratelimit.FixedWindow{Limit: 3, Window: time.Second},
		ratelimit.All{
			ratelimit.FixedWindow{Limit: 2, Window: time.Second},
			ratelimit.FixedWindow{Limit: 3, Window: 2 * time.Second},
		},
		ratelimit.FixedWindow{Limit: 2, Window: time.Second},
	})
	assert.Equal(t, 1, k.Take(0, 0).Part, "the least Remaining, the first of equals")
	assert.Equal(t, 1, k.Peek(0).Part)
	assert.Equal(t, 1, k.Take(0, 2).Part)
	assert.Equal(t, 2, k.Take(0, 2).Part, "the greatest RetryAfter")
	assert.Equal(t, 1, k.Take(0, 3).Part, "Never, the first of equals")
	assert.Equal(t, 0, k.Take(0, 4).Part, "Never, the first of equals")
}

func TestPeekSpendsNothing(t *testing.T) {
	k := fresh(ratelimit.SlidingLog{Limit: 1, Window: time.Second, CountDenied: true})
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 1, Remaining: 1}, k.Peek(0))
	require.True(t, k.Take(0, 1).Allowed)
	want := ratelimit.Decision{Limit: 1, RetryAfter: time.Second, ResetAfter: time.Second}
	assert.Equal(t, want, k.Peek(sec/2))
	assert.True(t, k.Take(sec, 1).Allowed, "the refusal that Peek spoke of was not counted")
}

func TestReserve(t *testing.T) {
	k := fresh(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2})
	reserve := func(now int64, n int, due int64) *Reservation {
		t.Helper()
		got, r, err := k.Reserve(now, n, ratelimit.Never)
		require.NoError(t, err)
		require.EqualValues(t, due, got)
		return r
	}
	reserve(0, 2, 0)
	r1 := reserve(0, 1, sec)
	_, _, err := k.Reserve(0, 1, 2*time.Second-1)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = k.Reserve(0, 3, ratelimit.Never)
	assert.ErrorIs(t, err, ratelimit.ErrNever)
	r2 := reserve(0, 2, 3*sec)
	reserve(0, 0, 0)
	assert.Equal(t, ratelimit.Decision{Limit: 2, RetryAfter: 4 * time.Second, ResetAfter: 5 * time.Second}, k.Take(0, 1))

	k.Cancel(0, r2)
	k.Cancel(0, r2)
	assert.Equal(t, 2*time.Second, k.Take(0, 1).RetryAfter)
	k.Cancel(sec-1, r1)
	assert.True(t, k.Take(sec, 1).Allowed)

	r := reserve(sec, 1, 2*sec)
	k.Cancel(2*sec, r)
	assert.Equal(t, time.Second, k.Take(2*sec, 1).RetryAfter, "too late to cancel")
}

func TestReserveLeakyBucket(t *testing.T) {
	bucket := ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 2}
	k := fresh(bucket)
	for _, want := range []int64{0, sec} {
		due, _, err := k.Reserve(0, 1, ratelimit.Never)
		require.NoError(t, err)
		assert.EqualValues(t, want, due)
	}
	_, _, err := k.Reserve(0, 1, ratelimit.Never)
	assert.ErrorIs(t, err, ratelimit.ErrQueueFull)
	_, _, err = k.Reserve(sec, 1, time.Second-1)
	assert.ErrorIs(t, err, context.DeadlineExceeded)

	k = fresh(ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 2, Window: 10 * time.Second}})
	for i, want := range []int64{0, sec, 10 * sec, 11 * sec, 20 * sec} {
		due, _, err := k.Reserve(0, 1, ratelimit.Never)
		require.NoError(t, err)
		assert.EqualValues(t, want, due, "reservation %d: the bucket has leaked out when the window opens", i)
	}

	k = fresh(ratelimit.All{bucket, ratelimit.FixedWindow{Limit: 2, Window: time.Second}})
	for _, want := range []int64{0, sec, 2 * sec} {
		due, _, err := k.Reserve(0, 1, ratelimit.Never)
		require.NoError(t, err)
		assert.EqualValues(t, want, due)
	}
	_, _, err = k.Reserve(0, 1, ratelimit.Never)
	assert.ErrorIs(t, err, ratelimit.ErrQueueFull, "when the window opens, one leaks out and one comes in")
}

func TestCancelAmongOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		alg ratelimit.Algorithm
		// remaining is the number of events left at 11 s in a window of 10 s with limit
		// 5, if 3 events and 1 event are reserved for 10 s and the 3 are cancelled.
		remaining int
	}{
		"FixedWindow":    {ratelimit.FixedWindow{Limit: 5, Window: 10 * time.Second}, 4},
		"on first event": {ratelimit.FixedWindow{Limit: 5, Window: 10 * time.Second, Start: ratelimit.StartOnFirstEvent}, 4},
		"SlidingLog":     {ratelimit.SlidingLog{Limit: 5, Window: 10 * time.Second}, 4},
		"RollingWindow":  {ratelimit.RollingWindow{Quota: 5, Window: 10 * time.Second, Period: 10 * time.Second}, 4},
		"TokenBucket":    {ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 10 * time.Second}, Refill: ratelimit.RefillInterval}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			k := fresh(tc.alg)
			require.True(t, k.Take(0, 5).Allowed)
			_, r, err := k.Reserve(0, 3, ratelimit.Never)
			require.NoError(t, err)
			due, _, err := k.Reserve(0, 1, ratelimit.Never)
			require.NoError(t, err)
			require.EqualValues(t, 10*sec, due)
			k.Cancel(0, r)
			assert.Equal(t, 10*time.Second, k.Take(0, 1).RetryAfter, "the frontier stays")
			assert.Equal(t, tc.remaining, k.Take(11*sec, 0).Remaining)
		})
	}
}

func TestFirst(t *testing.T) {
	for _, want := range []instant{5, 6, 7, 99, 100} {
		got, ok := first(5, 100, func(t instant) bool { return t >= want })
		assert.True(t, ok)
		assert.Equal(t, want, got)
	}
	_, ok := first(5, 100, func(instant) bool { return false })
	assert.False(t, ok)
}
