package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A noServer fails each command.
type noServer struct {
	plainConn
	commands atomic.Int64
}

func (s *noServer) Do(_ context.Context, commands []Command) []Reply {
	s.commands.Add(int64(len(commands)))
	return errorsOf(commands, errors.New("connection refused"))
}

// Keys without a limit, and blocked ones, send nothing to Redis, and do not need it.
func TestPlansNeedNoServer(t *testing.T) {
	for name, plan := range storetest.Plans() {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, own %v", name, own), func(t *testing.T) {
				conn := &noServer{}
				s, err := New(conn, WithLease(100, time.Second))
				require.NoError(t, err)
				opts := []ratelimit.Option{ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed())}
				alg := plan
				if own {
					alg = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
					opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return plan, nil }))
				}
				l, err := ratelimit.New(alg, opts...)
				require.NoError(t, err)
				ctx := t.Context()
				d, err := l.Take(ctx, "k", 1)
				require.NoError(t, err)
				assert.Contains(t, []int{0, math.MaxInt}, d.Limit)
				assert.Equal(t, d.Limit > 0, d.Allowed)
				assert.Equal(t, d.Allowed, l.AllowN("k", 7))
				ds, err := l.TakeEach(ctx, []string{"k", "l"}, 1, nil)
				require.NoError(t, err)
				assert.Equal(t, []ratelimit.Decision{d, d}, ds)
				r, held, err := l.Hold(ctx, "k", 3)
				require.NoError(t, err)
				assert.Equal(t, d, held)
				if r != nil {
					_, err = r.Settle(ctx, 1)
					require.NoError(t, err)
				}
				_, err = l.Charge(ctx, "k", 3)
				require.NoError(t, err)
				if err = l.Wait(ctx, "k"); d.Allowed {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ratelimit.ErrNever)
				}
				assert.Zero(t, conn.commands.Load())
			})
		}
	}
}

// TakeEach sends the requests on keys with a limit only.
func TestTakeEachWithPlans(t *testing.T) {
	bucket := ratelimit.FixedWindow{Limit: 5, Window: time.Hour}
	conn := &noServer{}
	s, err := New(conn)
	require.NoError(t, err)
	l, err := ratelimit.New(bucket, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
		ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			switch key {
			case "free":
				return ratelimit.Unlimited{}, nil
			case "suspended":
				return ratelimit.Blocked{}, nil
			case "unknown":
				return nil, errors.New("no such customer")
			}
			return bucket, nil
		}))
	require.NoError(t, err)
	ds, err := l.TakeEach(t.Context(), []string{"a", "free", "unknown", "suspended", "b", "free"}, 2, nil)
	require.ErrorContains(t, err, "keys[0]: ")
	for i, failed := range []bool{true, false, true, false, true, false} {
		assert.Equal(t, failed, ds[i].Degraded, "%d", i)
	}
	assert.True(t, ds[1].Allowed)
	assert.Equal(t, ratelimit.Decision{RetryAfter: ratelimit.Never}, ds[3])
	assert.Equal(t, math.MaxInt, ds[5].Remaining)
	assert.Equal(t, int64(3), conn.commands.Load(), "of a, unknown and b")
}

// TestPrioritiesTakeOneCommand: limits that differ only in how much they grant have one state, so
// each decision is one command, by whichever limit.
func TestPrioritiesTakeOneCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
		s, _ := f.store(t)
		limits := []ratelimit.Algorithm{
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 80},
			ratelimit.TokenBucket{Rate: ratelimit.PerHour(1), Burst: 100},
		}
		calls := 0
		l := ratelimit.Must(ratelimit.New(limits[1], ratelimit.WithStore(s), ratelimit.WithName("test priorities"),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return limits[calls%2], nil })))
		granted := [2]int{}
		for range 240 {
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			if d.Allowed {
				granted[calls%2]++
			}
			calls++
		}
		assert.Equal(t, [2]int{40, 60}, granted)
		assert.LessOrEqual(t, s.Stats().Calls, uint64(242), "at most one more for each script")
		assert.Positive(t, s.Stats().Calls)
	})
}

// TestLimiterTimeout: the timeout of a limiter is at most that of its store, which ends all calls.
func TestLimiterTimeout(t *testing.T) {
	f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	s, _ := f.store(t, WithTimeout(time.Second))
	for timeout, fits := range map[time.Duration]bool{time.Millisecond: true, time.Second: true, time.Second + 1: false} {
		_, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithStoreTimeout(timeout))
		if fits {
			require.NoError(t, err, timeout)
			continue
		}
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "WithStoreTimeout's duration is 1.000000001s: it must be at most the timeout of the store, 1s,")
	}
}
