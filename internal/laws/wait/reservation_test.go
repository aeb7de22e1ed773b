package wait_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A movingClock is a mock that moves on by itself whenever it is read.
type movingClock struct {
	clock.Clock
	mu  sync.Mutex // protects what follows
	now time.Time
	by  time.Duration
}

func (c *movingClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(c.by)
	return c.now
}

func (c *movingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// The due instant of a reservation is the one that was decided, even if the clock has
// moved on when the limiter gets the answer.
func TestDueInstantIsTheDecidedOne(t *testing.T) {
	for name, store := range map[string]ratelimit.Store{
		"tables": new(ratelimit.MemoryStore),
		"read": &fakes.Hooked{Store: new(ratelimit.MemoryStore), Before: func(req step.Request) step.Request {
			req, _ = req.Read() // which fixes its time to what the limiter's clock shows
			return req
		}},
	} {
		t.Run(name, func(t *testing.T) {
			clk := &movingClock{Clock: clock.NewMock(), now: time.Unix(1e9, 0)}
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithClock(clk),
				ratelimit.WithStore(store), ratelimit.WithName("test"))
			require.NoError(t, err)
			require.True(t, l.Allow("key"))
			begin := clk.Now()
			clk.by = 30 * time.Second
			r, _, err := l.Reserve(t.Context(), "key", 1)
			require.NoError(t, err)
			clk.by = 0
			assert.Equal(t, begin.Add(time.Hour), clk.Now().Add(r.Delay()))
		})
	}
}

// A waiter whose turn comes while it sets its timer returns.
func TestWaitSeesAClockThatMoved(t *testing.T) {
	t.Parallel()
	for range 500 {
		mock := clock.NewMock()
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}, ratelimit.WithClock(mock))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		done := make(chan error, 1)
		go func() { done <- l.Wait(t.Context(), "key") }()
		for { // until it is in line
			d, err := l.Peek(t.Context(), "key")
			require.NoError(t, err)
			if d.RetryAfter == 2*time.Minute {
				break
			}
			runtime.Gosched()
		}
		mock.Add(time.Hour)
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			require.Fail(t, "the waiter does not return")
		}
	}
}

// The same if the clock always moves between the reading and the timer.
func TestWaitLooksAgainAfterTheTimerIsSet(t *testing.T) {
	for _, steps := range [][]time.Duration{{time.Minute}, {time.Hour}, {30 * time.Second, 30 * time.Second}, {1, 2, time.Minute - 3}} {
		clk := &jumpyClock{Mock: clock.NewMock(), steps: steps}
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}, ratelimit.WithClock(clk))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		require.NoError(t, l.Wait(t.Context(), "key"), "%v", steps)
	}
}

// A jumpyClock moves when a timer is made, just before.
type jumpyClock struct {
	*clock.Mock
	steps []time.Duration
}

func (c *jumpyClock) Timer(d time.Duration) *clock.Timer {
	if len(c.steps) > 0 {
		c.Add(c.steps[0])
		c.steps = c.steps[1:]
	}
	return c.Mock.Timer(d)
}

// TestReservationWait waits until a reservation is due, and until the context ends.
func TestReservationWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		require.True(t, l.Allow("key"))
		begin := time.Now()
		r, _, err := l.Reserve(ctx, "key", 1, ratelimit.Within(time.Second))
		require.NoError(t, err)
		require.NoError(t, r.Wait(ctx))
		assert.Equal(t, time.Second, time.Since(begin))

		r, _, err = l.Reserve(ctx, "key", 1, ratelimit.Within(time.Second))
		require.NoError(t, err)
		leaving, leave := context.WithTimeout(ctx, time.Second/2)
		defer leave()
		assert.ErrorIs(t, r.Wait(leaving), context.DeadlineExceeded)
		d, err := l.Peek(ctx, "key")
		require.NoError(t, err)
		assert.Equal(t, time.Second/2, d.RetryAfter, "the events are given back")
	})
}

// The Reservation of a denial is nil: its methods do nothing, as those of the zero Reservation.
func TestNilReservation(t *testing.T) {
	for _, r := range []*ratelimit.Reservation{nil, {}} {
		assert.Zero(t, r.Delay())
		require.NoError(t, r.Wait(ctx))
		r.Cancel()
		if r != nil {
			r = new(ratelimit.Reservation) // which can be settled only once
		}
		d, err := r.Settle(ctx, 7)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true}, d)
	}
	var r *ratelimit.Reservation
	require.NoError(t, r.Release(ctx))
	_, err := r.Settle(ctx, -1)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	require.ErrorIs(t, r.Wait(nil), ratelimit.ErrInvalid) //nolint:staticcheck // a mistake that is reported
}
