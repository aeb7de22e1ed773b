package decide_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// TestReserveWithin asks for reservations with a longest wait in the middle of random
// schedules, and compares with the reference model.
func TestReserveWithin(t *testing.T) {
	t.Parallel()
	for i, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for seed := range budget.Seeds(t, budget.Histories(12, 60)) {
				s := newSchedule(t, &randomChoices{rand.New(rand.NewPCG(uint64(i)<<32+seed, 1))}, kind)
				s.log("seed %#x", uint64(i)<<32+seed)
				for s.run(5) == 0 && len(s.trace) < 100 {
					s.promiseWithin(pick(s.choices, s.keys...))
				}
			}
		})
	}
}

// promiseWithin reserves with a longest wait. If that is denied, it tries again one
// instant before RetryAfter has passed, and when it has.
func (s *schedule) promiseWithin(k *scheduleKey) {
	n := s.events(k)
	most := pick(s.choices, 0, 1, k.last.RetryAfter/2, s.choices.within(pick(s.choices, s.spans...)), ratelimit.Never)
	d := s.reserveWithin(k, n, most)
	if d.Allowed || d.RetryAfter > time.Duration(farthest-s.now) {
		return
	}
	if k.model.Close() { // floats need not agree any more
		return
	}
	due, asked := s.now+int64(d.RetryAfter), k.model
	if !s.surprises(k) {
		s.moveTo(due - 1)
		if k.model != asked { // it was reset, because a hold that has ended need not agree
			return
		}
		if d := s.reserveWithin(k, n, most); d.Allowed || d.RetryAfter != 1 {
			s.fail("refused until the next instant is right")
		}
	}
	s.moveTo(due)
	if d := s.reserveWithin(k, n, most); !d.Allowed {
		s.fail("reserved is right")
	}
}

func (s *schedule) reserveWithin(k *scheduleKey, n int, most time.Duration) ratelimit.Decision {
	s.notice(k)
	s.log("Reserve(%q, %d, Within(%d))", k.name, n, most)
	pending := &scheduleReservation{key: k.model, n: n}
	var refused error
	if s.flies {
		pending.due, pending.held, refused = k.model.HoldWithin(s.now, n, model.Terms{}, most)
	} else {
		pending.due, pending.model, refused = k.model.Reserve(s.now, n, most)
	}
	r, d, err := s.limiter.Reserve(context.Background(), k.name, n, ratelimit.Within(most))
	s.noError(err)
	if d.Allowed != (refused == nil) || d.Allowed != (r != nil) {
		s.fail("want %v\n got %+v", refused, d)
	}
	if errors.Is(refused, ratelimit.ErrNever) && d.RetryAfter != ratelimit.Never && !k.model.GivesBack() {
		s.fail("RetryAfter Never is right")
	}
	if d.Allowed {
		if d.Delay != r.Delay() {
			s.fail("want a delay until %d\n got %+v", pending.due, d)
		}
		s.keep(k, pending, r)
	}
	return d
}

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
		"no room in the store": {ratelimit.FixedWindow{Limit: 2, Window: time.Minute}, &ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}, 1, 1, ratelimit.ErrFull},
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
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(broken), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
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
