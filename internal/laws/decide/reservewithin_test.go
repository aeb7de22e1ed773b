package decide_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestReserveWithinNamesTheLatePart: Part is the part of an All that delays the request
// most.
func TestReserveWithinNamesTheLatePart(t *testing.T) {
	for name, tt := range map[string]struct {
		used, n int
		most    time.Duration
		part    int
		retry   time.Duration
	}{
		"a turn too late in the queue": {3, 1, time.Second, 1, 2 * time.Second},
		"no room in the queue":         {4, 1, time.Minute, 1, time.Second},
		"a late turn counts more":      {4, 1, time.Second, 1, 3 * time.Second},
		"the window":                   {5, 1, time.Minute, 2, time.Hour - time.Minute},
		"the window never":             {0, 6, time.Minute, 2, ratelimit.Never},
	} {
		l, clk := fakes.At(t, ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(100)},
			ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 4 + tt.n/6*4},
			ratelimit.FixedWindow{Limit: 5, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		})
		if tt.used == 5 {
			require.True(t, l.AllowN("key", 1))
			clk.Advance(time.Second)
			tt.retry -= time.Second
		}
		require.True(t, tt.used == 0 || l.AllowN("key", min(tt.used, 4)))
		r, d, err := l.Reserve(ctx, "key", tt.n, ratelimit.Within(tt.most))
		require.NoError(t, err)
		assert.Nil(t, r)
		assert.Equal(t, tt.part, d.Part, name)
		assert.Equal(t, tt.retry, d.RetryAfter, name)
	}
}

// TestReserveDeniesWhatWaitFails: where a Wait fails, Reserve denies, and that is not an error.
func TestReserveDeniesWhatWaitFails(t *testing.T) {
	for name, tt := range map[string]struct {
		limit ratelimit.Algorithm
		store *ratelimit.MemoryStore
		used  int // of another key
		n     int
		want  error
	}{
		"blocked":             {ratelimit.Blocked{}, new(ratelimit.MemoryStore), 0, 1, ratelimit.ErrNever},
		"more than the limit": {ratelimit.SlidingLog{Limit: 2, Window: time.Second}, new(ratelimit.MemoryStore), 0, 3, ratelimit.ErrNever},
		"no room in the queue of a part": {ratelimit.All{
			ratelimit.FixedWindow{Limit: 9, Window: time.Second},
			ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 2},
		}, new(ratelimit.MemoryStore), 0, 2, ratelimit.ErrQueueFull},
		"no room in the store": {ratelimit.FixedWindow{Limit: 2, Window: time.Minute},
			&ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}, 1, 1, ratelimit.ErrFull},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := fakes.At(t, tt.limit, ratelimit.WithStore(tt.store))
			l.AllowN("other", tt.used)
			l.Allow("key")
			require.ErrorIs(t, l.WaitN(ctx, "key", tt.n), tt.want)
			r, d, err := l.Reserve(ctx, "key", tt.n)
			require.NoError(t, err)
			assert.Nil(t, r)
			assert.False(t, d.Allowed)
			assert.Positive(t, d.RetryAfter)
		})
	}
}

func TestReserveWithinMisused(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	_, _, err := l.Reserve(ctx, "key", 1, ratelimit.Within(-1))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "maxWait is -1ns")
	_, _, err = l.Reserve(ctx, "key", -3, ratelimit.Within(0))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	r, d, err := l.Reserve(ended, "key", 1, ratelimit.Within(0))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Nil(t, r)
	assert.False(t, d.Allowed)
	assert.Equal(t, 2, fakes.Peek(t, l).Remaining)
}

// TestReserveWithinWhenTheStoreFails: the policy decides, as for Take.
func TestReserveWithinWhenTheStoreFails(t *testing.T) {
	broken := fakes.Down(errors.New("no connection"))
	spare, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	require.True(t, spare.Allow("key"))
	for name, tt := range map[string]struct {
		policy  ratelimit.FailurePolicy
		allowed bool
		delay   time.Duration
	}{
		"open":     {ratelimit.FailOpen(), true, 0},
		"closed":   {ratelimit.FailClosed(), false, 0},
		"fallback": {ratelimit.Fallback(spare), true, time.Hour},
	} {
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(broken),
			ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		r, d, err := l.Reserve(ctx, "key", 1, ratelimit.Within(time.Hour))
		assert.ErrorContains(t, err, "the store failed", name)
		assert.True(t, d.Degraded, name)
		assert.Equal(t, tt.allowed, d.Allowed, name)
		assert.Equal(t, tt.allowed, r != nil, name)
		if r != nil {
			assert.Equal(t, tt.delay, r.Delay(), name)
			r.Cancel()
		}
	}
	assert.Equal(t, time.Hour, fakes.Peek(t, spare).RetryAfter, "the fallback's place was given back")
}

// TestReserveWithinWhileTheClockIsBehind: returned durations include the gap.
func TestReserveWithinWhileTheClockIsBehind(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5})
	require.True(t, l.AllowN("key", 5))
	clk.Advance(-time.Minute)
	_, d, err := l.Reserve(ctx, "key", 1, ratelimit.Within(2*time.Second))
	require.NoError(t, err)
	require.Equal(t, time.Minute+3*time.Second, d.RetryAfter)
	clk.Advance(d.RetryAfter - 1)
	_, d, err = l.Reserve(ctx, "key", 1, ratelimit.Within(2*time.Second))
	require.NoError(t, err)
	require.Equal(t, time.Duration(1), d.RetryAfter)
	clk.Advance(1)
	_, d, err = l.Reserve(ctx, "key", 1, ratelimit.Within(2*time.Second))
	require.NoError(t, err)
	require.True(t, d.Allowed)
}
