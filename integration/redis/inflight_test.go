package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A process is a limiter with a store of its own.
type process struct {
	ratelimit.Limiter
	store *redisstore.Store
}

func newProcess(t *testing.T, create maker, s *server, alg ratelimit.Algorithm, opts ...ratelimit.Option) process {
	return processOn(t, create(t, s.addr(), redisstore.WithTimeout(patient)), alg, opts...)
}

func processOn(t *testing.T, store *redisstore.Store, alg ratelimit.Algorithm, opts ...ratelimit.Option) process {
	return process{limiter(t, store, alg, append(opts, ratelimit.WithFailurePolicy(ratelimit.FailClosed()))...), store}
}

// hold holds n events of a key, which must be granted.
func (p process) hold(t *testing.T, n int) *ratelimit.Reservation {
	t.Helper()
	r, d, err := p.Hold(t.Context(), "k", n)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return r
}

// waits starts a WaitHold, and returns when it is blocked. The channel receives what it holds.
func (p process) waits(t *testing.T) <-chan *ratelimit.Reservation {
	t.Helper()
	got := make(chan *ratelimit.Reservation, 1)
	go func() {
		r, _, err := p.Hold(t.Context(), "k", 1, ratelimit.Waiting())
		assert.NoError(t, err)
		got <- r
	}()
	eventually(t, "it denies others without a call", func() bool {
		before := p.store.Stats().Calls
		return len(got) > 0 || !p.Allow("k") && p.store.Stats().Calls == before
	})
	return got
}

// A Wait that is blocked in one process notices, when the next request is made there, what another
// process has released.
func TestWaitNoticesAReleaseOfAnotherProcess(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		flight := ratelimit.InFlight{Limit: 2, Timeout: time.Hour}
		for _, alg := range []ratelimit.Algorithm{flight, ratelimit.All{hourly(100), flight}} {
			a, b := newProcess(t, create, s, alg), newProcess(t, create, s, alg)
			one, two := a.hold(t, 1), a.hold(t, 1)
			got := b.waits(t)
			require.NoError(t, one.Release(t.Context()))
			var r *ratelimit.Reservation
			eventually(t, "it is granted", func() bool {
				select {
				case r = <-got:
					return true
				default:
					assert.False(t, b.Allow("k"), "nobody overtakes it")
					return false
				}
			})
			_, d, err := a.Hold(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.NoError(t, two.Release(t.Context()))
			require.NoError(t, r.Release(t.Context()))
			d, err = a.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, 2, d.Remaining)
		}
	})
}

// If a process does not release its events, a Wait of another one gets them when they time out,
// and a late release does not take them from it.
func TestWaitNoticesATimeout(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		alg := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
		clk := clock.NewMock() // whose timers fire, however late the waiter sets one
		clk.Set(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
		var of []process
		for range 2 {
			store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLimiterClock())
			of = append(of, processOn(t, store, alg, ratelimit.WithClock(clk)))
		}
		crashed := of[0].hold(t, 1)
		got := of[1].waits(t)
		clk.Add(time.Hour)
		r := <-got
		require.NoError(t, crashed.Release(t.Context()))
		d, err := of[0].Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 0, d.Remaining)
		require.NoError(t, r.Release(t.Context()))
		d, err = of[0].Peek(t.Context(), "k")
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
	})
}

// Events in flight are released by the limit that applies by then. Its other parts take back what
// has not happened, and charge what came on top.
func TestReleaseAfterTheLimitChanged(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		of := func(limit int, timeout time.Duration) ratelimit.Algorithm {
			return ratelimit.All{hourly(42), ratelimit.InFlight{Limit: limit, Timeout: timeout}}
		}
		first, second := of(20, time.Hour), of(30, 2*time.Hour)
		var limit atomic.Pointer[ratelimit.Algorithm]
		limit.Store(&first)
		own := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return *limit.Load(), nil })
		a, b := newProcess(t, create, s, first, own), newProcess(t, create, s, first, own)
		less, more := a.hold(t, 5), a.hold(t, 5)
		limit.Store(&second)
		require.True(t, b.Allow("k"))
		for _, tt := range []struct {
			r            *ratelimit.Reservation
			n, remaining int
		}{
			{less, 1, 30 - 6}, // are in flight then
			{more, 9, 30 - 1},
		} {
			d, err := tt.r.Settle(t.Context(), tt.n)
			require.NoError(t, err)
			assert.Equal(t, tt.remaining, d.Remaining)
		}
	})
}

// A failing is a Conn that fails while it is told to.
type failing struct {
	redisstore.Conn
	fails atomic.Bool
}

func (f *failing) Do(ctx context.Context, commands []redisstore.Command) []redisstore.Reply {
	if !f.fails.Load() {
		return f.Conn.Do(ctx, commands)
	}
	return oneByOne(commands, func(redisstore.Command) (string, error) {
		return "", errors.New("no connection")
	})
}

// What the failure policy has let in is charged when it is settled, but is not in flight then.
func TestSettleWhatRedisDidNotCount(t *testing.T) {
	conn := &failing{Conn: connectors["rueidis"](t, startServer(t).addr())}
	store, err := redisstore.New(conn, redisstore.WithTimeout(patient))
	require.NoError(t, err)
	l := limiter(t, store, ratelimit.All{hourly(10), ratelimit.InFlight{Limit: 8, Timeout: time.Hour}})
	conn.fails.Store(true)
	r, d, err := l.Hold(t.Context(), "k", 3)
	require.Error(t, err)
	require.True(t, d.Allowed)
	conn.fails.Store(false)
	d, err = r.Settle(t.Context(), 4)
	require.NoError(t, err)
	assert.Equal(t, 6, d.Remaining)
}

// If the limit of an InFlight is raised, the events reserved under the one before keep their turn when another hold ends:
// the log, which has them by their end, does not tell the script when that is.
func TestInFlightHoldsThatEndKeepLaterTurns(t *testing.T) {
	conn := connectors["rueidis"](t, startServer(t).addr())
	for _, end := range []string{"by itself", "settled"} {
		tr := newTraceOf(t, conn, prefixes(), ratelimit.InFlight{Limit: 3, Timeout: time.Minute}, varying)
		both := []ratelimit.Limiter{tr.redis, tr.here}
		var long []*ratelimit.Reservation
		for _, l := range both {
			_, _, err := l.Hold(t.Context(), "k", 2, ratelimit.HoldFor(30*time.Second))
			require.NoError(t, err)
			r, _, err := l.Hold(t.Context(), "k", 1, ratelimit.HoldFor(40*time.Second))
			require.NoError(t, err)
			long = append(long, r)
			r, _, err = l.Reserve(t.Context(), "k", 2, ratelimit.HoldFor(20*time.Second))
			require.NoError(t, err)
			require.Equal(t, 30*time.Second, r.Delay())
		}
		*tr.of = ratelimit.InFlight{Limit: 9, Timeout: time.Minute}
		for _, l := range both { // from now on, the state is of this limit
			r, _, err := l.Reserve(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, 30*time.Second, r.Delay())
			r.Cancel()
		}
		for _, r := range long {
			if end == "settled" {
				require.NoError(t, r.Release(t.Context()))
			} else {
				require.NoError(t, r.Extend(t.Context(), 5*time.Second))
			}
		}
		tr.clk.Advance(5 * time.Second)
		tr.take(1)
		require.False(t, tr.last.Allowed, "%s: before the turn", end)
	}
}
