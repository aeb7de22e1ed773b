package ratelimit_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// An answering is a store that calls a function before it returns an answer.
type answering struct {
	ratelimit.Store
	answered func(ratelimit.Request, ratelimit.Result)
}

func (s *answering) Open(name string, t *ratelimit.Transition) (ratelimit.States, error) {
	states, err := s.Store.Open(name, t)
	return &answeredStates{states, s}, err
}

type answeredStates struct {
	ratelimit.States
	store *answering
}

func (s *answeredStates) Apply(ctx context.Context, key string, t *ratelimit.Transition, req ratelimit.Request) (ratelimit.Result, error) {
	res, err := s.States.Apply(ctx, key, t, req)
	s.store.answered(req, res)
	return res, err
}

// What is given back while a Wait is being denied, before it stands in line, does not escape it.
func TestWait_RoomBeforeItStandsInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &answering{newMapDB().store(), func(ratelimit.Request, ratelimit.Result) {}}
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 24 * time.Hour}, ratelimit.WithStore(s), ratelimit.WithName("test")))
		h := held(t, l, "key", 1)
		s.answered = func(req ratelimit.Request, res ratelimit.Result) {
			if req.Op == ratelimit.OpReserve && !res.Decision.Allowed {
				h.Cancel()
			}
		}
		w := waitFor(t, l, "key", 1)
		synctest.Wait()
		assert.True(t, w.done.Load())
	})
}

// A reset of a key makes room for those who wait, also where the first one has a turn.
func TestWait_AfterReset(t *testing.T) {
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 5}, opts()...))
				require.True(t, l.AllowN("key", 5))
				first := waitFor(t, l, "key", 2)
				synctest.Wait()
				second := waitFor(t, l, "key", 1)
				synctest.Wait()
				require.NoError(t, l.Reset(t.Context(), "key"))
				synctest.Wait()
				assert.True(t, first.done.Load() && second.done.Load())
				d, err := l.Take(t.Context(), "key", 2)
				require.NoError(t, err)
				assert.True(t, d.Allowed, "%+v", d)
				assert.Zero(t, d.Remaining)
			})
		})
	}
}

// When a key has got another limit, the next request for it makes those who wait ask by that.
func TestWait_AfterANewLimit(t *testing.T) {
	slow := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 10}
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		for name, to := range map[string]ratelimit.Algorithm{
			"faster":     ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 10},
			"other kind": ratelimit.FixedWindow{Limit: 1000, Window: time.Second},
			"InFlight":   ratelimit.InFlight{Limit: 100, Timeout: time.Hour},
			"Unlimited":  ratelimit.Unlimited{},
		} {
			t.Run(kept+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlanned(slow)
					l := ratelimit.Must(ratelimit.New(slow, append(opts(), ratelimit.WithLimits(p.lookup))...))
					require.True(t, l.AllowN("key", 10))
					first := waitFor(t, l, "key", 2)
					synctest.Wait()
					second := waitFor(t, l, "key", 1)
					synctest.Wait()
					p.set(to)
					l.Allow("key")
					time.Sleep(time.Second)
					synctest.Wait()
					assert.True(t, first.done.Load() && second.done.Load())
					assert.True(t, l.Allow("key"))
				})
			})
		}
	}
}

// In memory, RetryAfter behind a line is exact: then, if nobody else comes, the line is through and there is room, also
// after others have left and events were charged. In a LeakyBucket, these may push out those who wait, or not.
func TestWait_RetryAfterBehindTheLine(t *testing.T) {
	for name, alg := range tenPerSecond {
		t.Run(name, func(t *testing.T) {
			rnd := newRand(t)
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					retryBehind(t, rnd, ratelimit.Must(ratelimit.New(alg)), !strings.HasPrefix(name, "LeakyBucket"))
				})
			}
		})
	}
}

func retryBehind(t *testing.T, rnd *rand.Rand, l ratelimit.Limiter, charges bool) {
	size := func() int {
		if p, err := l.Peek(t.Context(), "other"); err != nil || p.Limit < 3 {
			return 1
		}
		return 1 + rnd.IntN(3)
	}
	for l.Allow("key") {
	}
	time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
	var leave []context.CancelFunc
	for range 1 + rnd.IntN(12) {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		n := size()
		go func() { _ = l.WaitN(ctx, "key", n) }()
		synctest.Wait()
	}
	for _, cancel := range leave {
		defer cancel()
		if rnd.IntN(3) == 0 {
			cancel()
			synctest.Wait()
		}
	}
	n := size()
	take := func() ratelimit.Decision {
		d, err := l.Take(t.Context(), "key", n)
		require.NoError(t, err)
		return d
	}
	d := take()
	if charges && !d.Allowed && rnd.IntN(2) == 0 {
		_, err := l.Charge(t.Context(), "key", rnd.IntN(20))
		require.NoError(t, err)
		d = take()
	}
	if d.Allowed {
		return
	}
	time.Sleep(d.RetryAfter)
	synctest.Wait()
	again := take()
	require.True(t, again.Allowed, "after %v: %+v", d.RetryAfter, again)
}

// A waiter whose clock panics leaves no place behind.
func TestWait_ClockThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &panicking{Mock: clock.NewMock()}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		ctx, cancel := context.WithCancel(t.Context())
		var panicked any
		go func() {
			defer func() { panicked = recover() }()
			_ = l.Wait(ctx, "key")
		}()
		synctest.Wait()
		clk.panics.Store(true)
		cancel()
		synctest.Wait()
		require.Equal(t, "no time", panicked)
		clk.panics.Store(false)
		clk.Add(time.Second)
		assert.True(t, l.Allow("key"))
	})
}

type panicking struct {
	*clock.Mock
	panics atomic.Bool
}

func (c *panicking) Now() time.Time {
	if c.panics.Load() {
		panic("no time")
	}
	return c.Mock.Now()
}

func (c *panicking) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Where a middleware bounds the wait, the delay of a queue beside an InFlight is a part of it.
func TestWaitFor_QueueOfAnInFlight(t *testing.T) {
	alg := ratelimit.All{ratelimit.InFlight{Limit: 10, Timeout: time.Hour}, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 5}}
	for kept, opts := range map[string]func() []ratelimit.Option{"memory": inMemory, "bytes": inBytes} {
		t.Run(kept, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(alg, opts()...))
				held(t, l, "key", 1)
				until, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				_, _, err := l.(interface {
					WaitFor(ctx, until context.Context, key string, n int, holds bool, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error)
				}).WaitFor(t.Context(), until, "key", 1, true)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, time.Second, time.Since(begin))
			})
		})
	}
}
