package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// newDelayedServer returns a server that is 10 ms away, with a limit of 9 an hour.
func newDelayedServer(t *testing.T) *fakeServer {
	f := newFakeServer(t, ratelimit.FixedWindow{Limit: 9, Window: time.Hour})
	f.Delay = 10 * time.Millisecond
	return f
}

func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i)
	}
	return keys
}

// bothWays calls test for a Conn that says which server has the keys, and for one that does not.
func bothWays(t *testing.T, test func(t *testing.T, known bool)) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("known=%v", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, known) })
		})
	}
}

func storeOn(t *testing.T, f *fakeServer, known bool, opts ...Option) (*Store, ratelimit.Limiter) {
	if known {
		return f.store(t, opts...)
	}
	return f.storeThrough(t, unknownServer{f}, opts...)
}

// The commands of all keys are sent at once, and the requests on one key share a command.
func TestEachAtOnce(t *testing.T) {
	const most = 512 // as docs/redis.md says
	bothWays(t, func(t *testing.T, known bool) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := storeOn(t, f, known)
		keys := append(manyKeys(most-3), "key 0", "key 1", "key 0")
		begin := time.Now()
		out, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.NoError(t, err)
		assert.Equal(t, 10*time.Millisecond, time.Since(begin))
		assert.Equal(t, most-3, f.Calls())
		assert.Equal(t, uint64(3), s.Stats().Coalesced)
		for i, d := range out {
			want := 1
			if i > most-4 {
				want = 0
			}
			assert.Equal(t, want, d.Remaining, "keys[%d]", i)
			assert.Equal(t, i < most-1, d.Allowed, "keys[%d]", i)
		}

		// More keys than that do not wait for each other until their time is over.
		begin = time.Now()
		_, err = l.TakeEach(t.Context(), append(keys[3:], manyKeys(most)...), 1, out[:0])
		require.NoError(t, err)
		assert.Equal(t, 20*time.Millisecond, time.Since(begin))
		settle()
		requireIdle(t, s)
	})
}

// Leases and cached denials answer without a call, as for single requests.
func TestEachWithoutCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
		s, l := f.store(t, WithLease(100, time.Minute))
		for range 50 {
			l.Allow("leased")
		}
		require.True(t, l.AllowN("exhausted", 1000))
		require.False(t, l.Allow("exhausted"))
		before, calls := s.Stats(), f.Calls()
		out, err := l.TakeEach(t.Context(), []string{"exhausted", "leased", "new", "exhausted"}, 1, nil)
		require.NoError(t, err)
		var allowed []bool
		for _, d := range out {
			allowed = append(allowed, d.Allowed)
		}
		assert.Equal(t, []bool{false, true, true, false}, allowed)
		assert.Equal(t, calls+1, f.Calls())
		assert.Equal(t, before.Leased+1, s.Stats().Leased)
		assert.Equal(t, before.Cached+2, s.Stats().Cached)
		require.NoError(t, s.Close(t.Context()))
	})
}

// Each key fails as it would alone.
func TestEachFails(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(f *fakeServer, s *Store)
		want   error
		failed int // of five keys
		took   time.Duration
		count  func(s Stats) uint64
	}{
		"timeout":      {func(f *fakeServer, _ *Store) { f.Hangs = true }, ErrTimeout, 5, 50 * time.Millisecond, func(s Stats) uint64 { return s.Timeouts }},
		"breaker open": {func(_ *fakeServer, s *Store) { trip(s) }, ErrOpen, 5, 0, func(s Stats) uint64 { return s.BreakerOpen }},
		"two replies": {func(f *fakeServer, _ *Store) { f.Fail, f.Failures = errOOM, 2 }, errOOM, 2, 10 * time.Millisecond,
			func(s Stats) uint64 { return s.ErrorReplies }},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, known bool) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 9, Window: time.Hour})
				f.Delay = 10 * time.Millisecond
				s, l := storeOn(t, f, known, WithTimeout(50*time.Millisecond))
				tt.change(f, s)
				begin := time.Now()
				out, err := l.TakeEach(t.Context(), manyKeys(5), 1, nil)
				require.ErrorIs(t, err, tt.want)
				failed, ok := errors.AsType[interface {
					error
					Unwrap() []error
				}](err)
				require.True(t, ok)
				assert.Len(t, failed.Unwrap(), tt.failed)
				assert.Equal(t, tt.took, time.Since(begin))
				degraded := 0
				for _, d := range out {
					assert.Equal(t, !d.Degraded, d.Allowed, "FailClosed")
					if d.Degraded {
						degraded++
					}
				}
				assert.Equal(t, tt.failed, degraded)
				assert.Equal(t, uint64(tt.failed), tt.count(s.Stats()))
				assert.Equal(t, uint64(tt.failed), s.Stats().Failures)
				settle()
				requireIdle(t, s)
			})
		})
	}
}

var errOOM = errors.New("OOM command not allowed when used memory > 'maxmemory'")

// When the caller leaves, TakeEach returns at once.
func TestEachCallerLeaves(t *testing.T) {
	bothWays(t, func(t *testing.T, known bool) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 9, Window: time.Hour})
		f.Delay = 10 * time.Millisecond
		s, l := storeOn(t, f, known)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		begin := time.Now()
		out, err := l.TakeEach(ctx, manyKeys(2000), 1, nil)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, make([]ratelimit.Decision, 2000), out)
		assert.Equal(t, time.Millisecond, time.Since(begin))
		assert.Zero(t, s.Stats().Failures)
		settle()
		requireIdle(t, s)
		assert.LessOrEqual(t, f.Calls(), 512, "keys that were not sent are not")
	})
}

// Commands that the server could not execute without the script are sent again together.
// Those that were redirected, and states that the script cannot read, are handled one by one.
func TestEachTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.store(t, WithTimeout(100*time.Millisecond))
		keys := append(manyKeys(5), "key 0")
		remaining := func() (all []int) {
			out, err := l.TakeEach(t.Context(), keys, 1, nil)
			require.NoError(t, err)
			for _, d := range out {
				all = append(all, d.Remaining)
			}
			return all
		}
		assert.Equal(t, []int{8, 8, 8, 8, 8, 7}, remaining())
		assert.Equal(t, []int{5}, f.Together)

		f.Flush()
		assert.Equal(t, []int{6, 7, 7, 7, 7, 5}, remaining())
		assert.Equal(t, []int{5, 5, 5}, f.Together, "again, with the script")
		assert.Equal(t, 1, f.Evals, "which the server learns from the first")

		trips := f.Trips
		f.Fail, f.Failures = errors.New("MOVED 7 127.0.0.1:7001"), 2
		assert.Equal(t, []int{4, 6, 6, 6, 6, 3}, remaining())
		assert.Equal(t, []int{5, 5, 5, 5, 1, 1}, f.Together)
		assert.Equal(t, trips+7, f.Trips, "the client follows two redirections, one by one")

		f.Damage()
		assert.Equal(t, uint64(0), s.Stats().Failures)
		_, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.ErrorIs(t, err, ratelimit.ErrState)
		out, err := l.TakeEach(t.Context(), keys, 1, nil)
		require.NoError(t, err, "the keys have begun afresh")
		for _, d := range out {
			assert.True(t, d.Allowed)
		}
		settle()
		requireIdle(t, s)
	})
}

// Calls that arrive on a key while the commands of TakeEach are in progress are sent next.
func TestEachMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.store(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(5 * time.Millisecond)
			for range 3 {
				wg.Go(func() { assert.True(t, l.Allow("key 1")) })
			}
		})
		_, err := l.TakeEach(t.Context(), manyKeys(5), 1, nil)
		require.NoError(t, err)
		wg.Wait()
		assert.Equal(t, []int{1, 1, 1, 1, 1, 3}, f.Batches)
		settle()
		requireIdle(t, s)
	})
}

// The commands to a server that does not answer are abandoned in time, and calls behind them
// are sent. The late answers change nothing.
func TestEachAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		f.Hangs, f.Stuck = true, make(chan struct{})
		s, l := f.store(t, WithTimeout(50*time.Millisecond))
		begin := time.Now()
		out, err := l.TakeEach(t.Context(), manyKeys(5), 1, nil)
		require.ErrorIs(t, err, ErrTimeout)
		assert.Equal(t, 50*time.Millisecond, time.Since(begin))
		f.Set(func() { f.Hangs = false })
		assert.True(t, l.Allow("key 1"))
		close(f.Stuck)
		settle()
		requireIdle(t, s)
		assert.True(t, out[0].Degraded)
		assert.Empty(t, s.Stats().Outages, "the late error is that of a batch before")
	})
}

// A server that hangs does not delay the keys of others.
func TestEachServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.storeThrough(t, twoServers{f})
		keys := []string{"al", "ah", "bh", "bl", "cl"}
		for range 9 { // servers are asked in any order
			settle()
			out, err := l.TakeEach(t.Context(), keys, 1, nil)
			require.ErrorIs(t, err, ErrTimeout)
			for i, d := range out {
				assert.Equal(t, keys[i][1] == 'l', d.Allowed, keys[i])
			}
		}
		assert.NotContains(t, f.Together, 5)
		settle()
		requireIdle(t, s)
	})
}

// A movingServer redirects the first of several commands to a server that does not answer.
type movingServer struct{ *fakeServer }

func (m movingServer) Do(ctx context.Context, commands []Command) []Reply {
	if len(commands) == 1 {
		<-ctx.Done()
		return errorsOf(commands, ctx.Err())
	}
	moved := Reply{Err: errors.New("MOVED 7 127.0.0.1:7001")}
	return append([]Reply{moved}, m.fakeServer.Do(ctx, commands[1:])...)
}

// A redirection to a server that hangs delays no other keys.
func TestEachMovedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDelayedServer(t)
		s, l := f.storeThrough(t, movingServer{f})
		out, err := l.TakeEach(t.Context(), manyKeys(5), 1, nil)
		require.ErrorIs(t, err, ErrTimeout)
		for i, d := range out {
			assert.Equal(t, i > 0, d.Allowed, "keys[%d]", i)
		}
		settle()
		requireIdle(t, s)
	})
}
