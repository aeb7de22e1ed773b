package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// TestFailures: Failures counts the requests that the policy decides because Redis fails, which are those
// that the limiter logs. That a caller's deadline passes is no failure. Its command fails later, and counts and is
// logged then.
func TestFailures(t *testing.T) {
	within := func(f func(context.Context, ratelimit.Limiter),
		end func(ctx context.Context) (context.Context, context.CancelFunc)) func(context.Context, ratelimit.Limiter) {
		return func(ctx context.Context, l ratelimit.Limiter) {
			ctx, cancel := end(ctx)
			defer cancel()
			f(ctx, l)
		}
	}
	deadline := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Millisecond)
	}
	leaving := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Millisecond, cancel)
		return ctx, cancel
	}
	take := func(ctx context.Context, l ratelimit.Limiter) { _, _ = l.Take(ctx, "k", 1) }
	peek := func(ctx context.Context, l ratelimit.Limiter) { _, _ = l.Peek(ctx, "k") }
	wait := func(ctx context.Context, l ratelimit.Limiter) { _ = l.Wait(ctx, "k") }
	reset := func(ctx context.Context, l ratelimit.Limiter) { _ = l.Reset(ctx, "k") }
	reserve := func(ctx context.Context, l ratelimit.Limiter) { _, _, _ = l.Reserve(ctx, "k", 1) }
	for name, tt := range map[string]struct {
		call   func(context.Context, ratelimit.Limiter)
		counts bool // at once
		late   bool // when the command fails
	}{
		"Allow":                       {func(_ context.Context, l ratelimit.Limiter) { l.Allow("k") }, true, false},
		"Take":                        {take, true, false},
		"Take, with a deadline":       {within(take, deadline), false, true},
		"Take, cancelled":             {within(take, leaving), false, false},
		"Peek":                        {peek, true, false},
		"Peek, with a deadline":       {within(peek, deadline), false, true},
		"Peek, cancelled":             {within(peek, leaving), false, false},
		"Wait":                        {wait, true, false},
		"Wait, with a deadline":       {within(wait, deadline), false, true},
		"Wait, cancelled":             {within(wait, leaving), false, false},
		"Reserve":                     {reserve, true, false},
		"Reserve, with a deadline":    {within(reserve, deadline), false, true},
		"Reserve, cancelled":          {within(reserve, leaving), false, false},
		"Reset":                       {reset, false, false},
		"Reset, with a deadline":      {within(reset, deadline), false, false},
		"Take of more than the limit": {func(ctx context.Context, l ratelimit.Limiter) { _, _ = l.Take(ctx, "k", 100) }, true, false},
		"Take of nothing":             {func(ctx context.Context, l ratelimit.Limiter) { _, _ = l.Take(ctx, "k", 0) }, true, false},
		"Take, with a context in vain": {within(take, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Hour)
		}), true, false},
	} {
		test := func(t *testing.T, opts ...ratelimit.Option) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
				s, _ := f.store(t)
				logger, logged := fakes.Log()
				opts := append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"), ratelimit.WithFailureLog(logger))
				l, err := ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), opts...)
				require.NoError(t, err)
				f.Hangs = true
				tt.call(t.Context(), l)
				stats := s.Stats()
				assert.Equal(t, tt.counts, stats.Failures == 1, "%+v", stats)
				assert.Equal(t, stats.Failures, stats.Timeouts)
				text := logged()
				assert.Equal(t, tt.counts, text != "", "the limiter says so")
				settle()
				requireIdle(t, s)
				synctest.Wait()
				assert.Equal(t, tt.counts || tt.late, s.Stats().Timeouts == 1, "%+v", s.Stats())
				text += logged()
				assert.Equal(t, tt.counts || tt.late, strings.Count(text, "the store failed") == 1, "%s", text)
			})
		}
		t.Run(name, func(t *testing.T) { test(t) })
		t.Run(name+", limiter's timeout", func(t *testing.T) { test(t, ratelimit.WithStoreTimeout(10*time.Millisecond)) })
	}
}

// A store that is well is not to blame for deadlines below a round trip, and one that is away is found out
// although every deadline passes before the timeout.
func TestDeadlinesBelowARoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		f.Delay = 20 * time.Millisecond
		s, _ := f.store(t, WithBreaker(5, time.Hour))
		logger, logged := fakes.Log()
		l := ratelimit.Must(ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(logger)))
		const key = "sk_live_0123456789"
		take := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			d, err := l.Take(ctx, key, 1)
			assert.True(t, d.Degraded && !d.Allowed, "the policy decides")
			time.Sleep(s.timeout)
			return err
		}
		for range 10 {
			assert.ErrorContains(t, take(), "the store did not answer by the deadline of the call")
		}
		assert.Zero(t, s.Stats().Failures)
		assert.Empty(t, s.Stats().Outages)
		assert.Empty(t, logged())

		f.Fail = fmt.Errorf("no reply about rl:test@f4:%s: %w", key, io.EOF)
		assert.ErrorIs(t, take(), context.DeadlineExceeded)
		synctest.Wait()
		assert.EqualValues(t, 1, s.Stats().OtherErrors)
		text := logged()
		assert.Equal(t, 1, strings.Count(text, "\n"), "%s", text)
		assert.Regexp(t, `the store failed, and requests are denied" limiter=test error=.*EOF.* decisions=1`, text)
		assert.NotContains(t, text, key, "it may be a secret")
		time.Sleep(time.Minute) // until the next failure has a line of its own
		f.Fail = nil
		require.True(t, l.Allow(key))
		assert.Contains(t, logged(), `the store answers again" limiter=test after=1m0.1s decisions=1`)

		f.Hangs = true
		for range 5 {
			assert.ErrorIs(t, take(), context.DeadlineExceeded)
		}
		assert.EqualValues(t, 5, s.Stats().Timeouts)
		assert.Equal(t, "open", s.Stats().Breakers[""])
		synctest.Wait()
		text = logged()
		assert.Equal(t, 1, strings.Count(text, "\n"), "the next four are in the next line")
		assert.Contains(t, text, "redisstore: no answer in time: 50ms passed")
		assert.ErrorIs(t, take(), ErrOpen)
		time.Sleep(time.Minute)
		assert.Contains(t, logged(), "decisions=5", "four that were late, and one that was not asked")
	})
}

// A decision on several keys, whose deadline has passed before the store fails, is logged.
func TestLateFailureOfTakeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, _ := f.store(t)
		logger, logged := fakes.Log()
		l := ratelimit.Must(ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithFailureLog(logger)))
		f.Hangs = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Empty(t, logged())
		settle()
		synctest.Wait()
		text := logged()
		assert.Equal(t, 1, strings.Count(text, "the store failed"), "%s", text)
	})
}

// A log that takes long, of failures after the deadlines of callers, keeps nobody waiting.
func TestLateFailureInASlowLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour})
		s, _ := f.store(t)
		l := ratelimit.Must(ratelimit.New(f.prog.Limit.Known.(ratelimit.Algorithm), ratelimit.WithStore(s), ratelimit.WithName("test"),
			ratelimit.WithFailureLog(slog.New(slog.NewTextHandler(slowWriter{}, nil)))))
		f.Hangs = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := l.Take(ctx, "k", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(2 * s.timeout)
		began := time.Now()
		assert.True(t, l.Allow("k"), "the policy decides")
		assert.Less(t, time.Since(began), 2*s.timeout)
		time.Sleep(time.Minute)
	})
}

// A slowWriter takes five seconds for each line.
type slowWriter struct{}

func (slowWriter) Write(line []byte) (int, error) {
	time.Sleep(5 * time.Second)
	return len(line), nil
}

// No policy decides on an extension, whose failure counts nowhere, even if it comes after a deadline.
func TestFailuresOfExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		s, l := f.store(t)
		r, _, err := l.Hold(t.Context(), "k", 1)
		require.NoError(t, err)
		f.Hangs = true
		for _, deadline := range []time.Duration{time.Millisecond, time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			assert.Error(t, r.Extend(ctx, time.Minute))
			cancel()
			settle()
		}
		assert.Zero(t, s.Stats().Failures)
	})
}

// TestFailuresOfCancel: a cancellation that fails counts as any settlement does.
func TestFailuresOfCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		s, l := f.store(t)
		require.True(t, l.Allow("k"))
		r, _, err := l.Reserve(t.Context(), "k", 1)
		require.NoError(t, err)
		f.Hangs = true
		r.Cancel()
		assert.EqualValues(t, 1, s.Stats().Failures)
		settle()
	})
}

// TestFailuresByKind checks that each failure is of one kind, and which commands were
// answered.
func TestFailuresByKind(t *testing.T) {
	for text, tt := range map[string]struct {
		err      error
		kind     func(Stats) uint64
		answered bool
	}{
		"OOM":          {errors.New("OOM command not allowed when used memory > 'maxmemory'."), func(s Stats) uint64 { return s.ErrorReplies }, true},
		"NOPERM":       {errors.New("NOPERM this user has no permissions"), func(s Stats) uint64 { return s.ErrorReplies }, true},
		"lost":         {io.EOF, func(s Stats) uint64 { return s.OtherErrors }, false},
		"refused":      {errors.New("dial tcp 127.0.0.1:1: connect: connection refused"), func(s Stats) uint64 { return s.OtherErrors }, false},
		"i/o timeout":  {context.DeadlineExceeded, func(s Stats) uint64 { return s.Timeouts }, false},
		"breaker open": {ErrOpen, func(s Stats) uint64 { return s.BreakerOpen }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
			s, l := f.store(t)
			f.Fail = tt.err
			if errors.Is(tt.err, ErrOpen) {
				trip(s)
			}
			_, err := l.Take(t.Context(), "k", 1)
			require.ErrorIs(t, err, tt.err)
			stats := s.Stats()
			assert.EqualValues(t, 1, stats.Failures, text)
			assert.EqualValues(t, 1, tt.kind(stats), text)
			assert.Equal(t, tt.answered, stats.Latency[0] == 1, text)
			settle()
		})
	}
}

// TestNoPermission: a lack of permission does not open a breaker, which would hide it.
func TestNoPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		s, l := f.store(t)
		f.Fail = errors.New("NOPERM this user has no permissions")
		_, err := l.Take(t.Context(), "k", 1)
		require.ErrorIs(t, err, f.Fail)
		synctest.Wait()
		assert.Zero(t, incidents(s))
	})
}

// TestLatency puts commands into the buckets of their round-trip times.
func TestLatency(t *testing.T) {
	bounds := LatencyBounds()
	require.Len(t, bounds, len(Stats{}.Latency)-1)
	bounds[0] = 0
	bounds = LatencyBounds()
	require.Equal(t, 250*time.Microsecond, bounds[0], "it was a copy")
	require.Equal(t, 100*time.Millisecond, bounds[len(bounds)-1])
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		s, l := f.store(t, WithTimeout(time.Minute))
		var want [len(Stats{}.Latency)]uint64
		for i := range want {
			for _, d := range []time.Duration{0, 2} { // at the bound before this bucket, and after it
				bucket := i
				if i > 0 {
					f.Delay = bounds[i-1] + d
					if d == 0 {
						bucket--
					}
				}
				require.True(t, l.Allow("k"))
				want[bucket]++
				require.Equal(t, want, s.Stats().Latency)
			}
		}
		f.Hangs = true
		l.Allow("k")
		assert.Equal(t, want, s.Stats().Latency, "there was no reply")
		settle()
	})
}

// Stats has the states of the breakers by the names of the servers.
func TestBreakerStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		ask := func(opts ...Option) map[string]string {
			s, l := f.storeThrough(t, twoServers{f}, opts...)
			assert.True(t, l.Allow("well"))
			assert.False(t, l.Allow("ah"))
			synctest.Wait()
			defer settle()
			return s.Stats().Breakers
		}
		assert.Equal(t, map[string]string{"l": "closed", "h": "closed"}, ask())
		assert.Equal(t, map[string]string{"l": "closed", "h": "open"}, ask(WithBreaker(1, time.Second)))
		assert.Empty(t, ask(WithBreaker(0, 0)))
	})
}

// A server that is not used any more, while others are, is forgotten.
func TestServersThatAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.FixedWindow{Limit: 1000, Window: time.Hour})
		s, l := f.storeThrough(t, twoServers{f}, WithBreaker(1, time.Second))
		assert.True(t, l.Allow("well"))
		assert.False(t, l.Allow("ah"))
		time.Sleep(2 * unusedAge)
		assert.Equal(t, map[string]string{"l": "closed", "h": "half-open"}, s.Stats().Breakers)
		assert.True(t, l.Allow("well"))
		assert.Equal(t, map[string]string{"l": "closed"}, s.Stats().Breakers)
		assert.Empty(t, s.Stats().Outages)
		assert.False(t, l.Allow("ah"), "it is asked again")
		assert.Len(t, s.Stats().Breakers, 2)
		settle()
	})
}
