package observe_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/observe"
)

var (
	denied = ratelimit.Observation{Limiter: "api", Key: "alice", Call: ratelimit.CallTake, N: 3,
		Outcome: ratelimit.Denied, Decision: ratelimit.Decision{RetryAfter: 90 * time.Second}}
	failed = ratelimit.Observation{Limiter: "api", Key: "alice", Call: ratelimit.CallAllow, N: 1,
		Outcome: ratelimit.Failed, Decision: ratelimit.Decision{Allowed: true}, Err: errors.New("no route")}
)

const (
	deniedLine = "level=INFO msg=\"ratelimit: denied\" limiter=api call=take n=3 retry_after=1m30s"
	failedLine = "level=WARN msg=\"ratelimit: failed\" limiter=api call=allow n=1 allowed=true error=\"no route\""
)

// TestSlog: one line in each duration, for each limiter and outcome.
func TestSlog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := fakes.Log()
		s := observe.Slog(logger, time.Second)
		observe := func(o ratelimit.Observation) { s(t.Context(), o) }
		for i, outcome := range []ratelimit.Outcome{ratelimit.Granted, ratelimit.Delayed, ratelimit.Withheld, ratelimit.Abandoned, ratelimit.Counted} {
			observe(ratelimit.Observation{Outcome: outcome})
			assert.Empty(t, logged(), i)
		}
		observe(denied)
		assert.Equal(t, deniedLine+"\n", logged())
		for range 99 {
			observe(denied)
		}
		assert.Empty(t, logged())
		observe(failed)
		assert.Equal(t, failedLine+"\n", logged(), "another outcome")
		other := denied
		other.Limiter = "login"
		observe(other)
		assert.Equal(t, strings.Replace(deniedLine, "api", "login", 1)+"\n", logged(), "another limiter")

		time.Sleep(time.Second - 1)
		observe(denied)
		assert.Empty(t, logged())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, deniedLine+" left_out=99\n", logged(), "the first that was left out, and the others")
		time.Sleep(time.Second / 2)
		observe(denied)
		time.Sleep(time.Second / 2)
		observe(denied)
		assert.Equal(t, deniedLine+" left_out=1\n", logged(), "the first that may be logged")
		time.Sleep(time.Hour)
		assert.Empty(t, logged(), "all were told of")
	})
}

// TestSlogTellsOfTheEnd: whenever denials come, each has been told of when the duration has
// passed, in no more lines than one in each duration.
func TestSlogTellsOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := fakes.Log()
		s := observe.Slog(logger, time.Second)
		r := fakes.Rand(t)
		for round := range 100 {
			n, begin := 1+r.IntN(20), time.Now()
			for range n {
				s(t.Context(), denied)
				time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
			}
			most := int(time.Since(begin)/time.Second) + 2
			time.Sleep(time.Second)
			synctest.Wait()
			lines := logged()
			told := strings.Count(lines, "\n")
			require.LessOrEqual(t, told, most, "round %d", round)
			for _, leftOut := range regexp.MustCompile(`left_out=(\d+)`).FindAllStringSubmatch(lines, -1) {
				more, _ := strconv.Atoi(leftOut[1])
				told += more
			}
			require.Equal(t, n, told, "round %d: %s", round, lines)
			time.Sleep(time.Second)
		}
	})
}

func TestSlogAttributes(t *testing.T) {
	logger, logged := fakes.Log()
	line := func(o ratelimit.Observation, opts ...observe.SlogOption) string {
		s := observe.Slog(logger, 0, opts...)
		s(t.Context(), o)
		s(t.Context(), o)
		text := logged()
		first, rest, _ := strings.Cut(text, "\n")
		assert.Equal(t, first+"\n", rest, "nothing is omitted")
		return first
	}
	show := func(key string) string { return "<" + key + ">" }
	assert.Equal(t, strings.Replace(deniedLine, " retry", " key=<alice> retry", 1), line(denied, observe.WithLoggedKeys(show)))
	assert.Equal(t, strings.Replace(failedLine, " allowed", " key=<alice> allowed", 1), line(failed, observe.WithLoggedKeys(show)))
	assert.Equal(t, deniedLine, line(denied, observe.WithLoggedKeys(nil), nil))
	long := denied
	long.Key = strings.Repeat("x", 1<<20)
	assert.Contains(t, line(long, observe.WithLoggedKeys(show)), "key=<"+strings.Repeat("x", 127)+" ")

	wait := denied
	wait.Decision.RetryAfter, wait.Err = 0, ratelimit.ErrQueueFull
	assert.Equal(t, "level=INFO msg=\"ratelimit: denied\" limiter=api call=take n=3 error=\"ratelimit: queue full\"", line(wait))
	never := denied
	never.Decision.RetryAfter = ratelimit.Never
	assert.Equal(t, "level=INFO msg=\"ratelimit: denied\" limiter=api call=take n=3 never=true", line(never))
	full := failed
	full.Err, full.Decision.Allowed = nil, false
	assert.Equal(t, "level=WARN msg=\"ratelimit: failed\" limiter=api call=allow n=1 allowed=false error=\"ratelimit: the store is full\"", line(full))
}

// TestSlogLevels: lines that the logger would drop are not counted as omitted, and cost
// nothing.
func TestSlogLevels(t *testing.T) {
	var text strings.Builder
	var level slog.LevelVar
	level.Set(slog.LevelWarn)
	s := observe.Slog(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: &level})), time.Hour)
	s(t.Context(), denied)
	s(t.Context(), denied)
	assert.Empty(t, text.String())
	s(t.Context(), failed)
	assert.Contains(t, text.String(), failedLine)
	level.Set(slog.LevelInfo)
	text.Reset()
	s(t.Context(), denied)
	assert.Contains(t, text.String(), deniedLine+"\n")
}

// TestSlogDefault: without a logger, it is the default one at the time of a line.
func TestSlogDefault(t *testing.T) {
	s := observe.Slog(nil, time.Second)
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	logger, logged := fakes.Log()
	slog.SetDefault(logger)
	s(t.Context(), denied)
	assert.Equal(t, deniedLine+"\n", logged())
}

// TestSlogOfALimiter: what a limiter tells it.
func TestSlogOfALimiter(t *testing.T) {
	logger, logged := fakes.Log()
	store := &fakes.Broken{}
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
		ratelimit.WithStore(store), ratelimit.WithName("api"),
		ratelimit.WithFailureLog(nil), ratelimit.WithObserver(observe.Slog(logger, time.Hour)))
	require.True(t, l.AllowN("key", 2))
	require.Empty(t, logged())
	require.False(t, l.Allow("key"))
	assert.Equal(t, "level=INFO msg=\"ratelimit: denied\" limiter=api call=allow n=1 retry_after=1h0m0s\n", logged())
	_, err := l.Take(t.Context(), "key", 3)
	require.NoError(t, err)
	require.Empty(t, logged())
	store.Err = errors.New("no route")
	require.True(t, l.Allow("key"))
	assert.Regexp(t, `^level=WARN msg="ratelimit: failed" limiter=api call=allow n=1 allowed=true error=.*no route.* checked=false\n$`, logged())
}

// TestSlogOfAStandIn: a failure says whether a limit was checked in place of that of the key.
func TestSlogOfAStandIn(t *testing.T) {
	logger, logged := fakes.Log()
	own := &fakes.OwnLimits{Err: errors.New("no route to the plans")}
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, ratelimit.WithName("api"), ratelimit.WithLimits(own.Lookup),
		ratelimit.WithFailureLog(nil), ratelimit.WithObserver(observe.Slog(logger, time.Hour)))
	require.True(t, l.Allow("key"))
	assert.Regexp(t, `^level=WARN msg="ratelimit: failed" limiter=api call=allow n=1 allowed=true error=.*no route to the plans.* checked=true\n$`, logged())
}

// TestSlogCountsEach: of denials at once, one is logged, and the others are counted. A
// flood of names takes no more memory than a thousand.
func TestSlogCountsEach(t *testing.T) {
	const goroutines, each = 8, 1000
	synctest.Test(t, func(t *testing.T) {
		var lines, leftOut atomic.Int64
		s := observe.Slog(slog.New(slogFunc(func(r slog.Record) {
			lines.Add(1)
			r.Attrs(func(a slog.Attr) bool {
				if a.Key == "left_out" {
					leftOut.Add(a.Value.Int64())
				}
				return true
			})
		})), time.Second)
		flood := func(n int, name func(i int) string) {
			var all sync.WaitGroup
			for range goroutines {
				all.Go(func() {
					for i := range n {
						s(t.Context(), ratelimit.Observation{Limiter: name(i), Outcome: ratelimit.Denied})
					}
				})
			}
			all.Wait()
		}
		flood(each, func(int) string { return "api" })
		assert.Equal(t, int64(1), lines.Load())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, int64(2), lines.Load())
		assert.Equal(t, int64(goroutines*each-2), leftOut.Load())
		lines.Store(0)
		flood(3000, func(i int) string { return fmt.Sprint(i) })
		assert.Equal(t, int64(1000), lines.Load(), "999 more names, and the others together")
	})
}

// A slogFunc is a handler that calls itself for each line.
type slogFunc func(r slog.Record)

func (f slogFunc) Enabled(context.Context, slog.Level) bool { return true }
func (f slogFunc) Handle(_ context.Context, r slog.Record) error {
	f(r)
	return nil
}
func (f slogFunc) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f slogFunc) WithGroup(string) slog.Handler      { return f }

func TestSlogAllocatesNothing(t *testing.T) {
	s := observe.Slog(slog.New(slogFunc(func(slog.Record) {})), 1000*time.Hour)
	s(t.Context(), denied)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { s(t.Context(), denied) }), "for a line that is omitted")
}

// A frailHandler panics.
type frailHandler struct{ slog.Handler }

func (frailHandler) Enabled(context.Context, slog.Level) bool { return true }

func (frailHandler) Handle(context.Context, slog.Record) error { panic("a bug in a log handler") }

// TestSlogThatPanics: a log handler that panics does not end the process from the goroutine of a timer.
func TestSlogThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := observe.Slog(slog.New(frailHandler{}), time.Second)
		denied := ratelimit.Observation{Outcome: ratelimit.Denied}
		require.Panics(t, func() { o(t.Context(), denied) })
		o(t.Context(), denied)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Panics(t, func() { o(t.Context(), denied) })
	})
}
