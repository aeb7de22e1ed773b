package fault_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
)

// TestFailureLog: the first decision without the store is logged, and then one in ten
// seconds, which says how many there were.
func TestFailureLog(t *testing.T) {
	logger, logged := fakes.Log()
	s := &fakes.Broken{}
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
		ratelimit.WithName("api"), ratelimit.WithFailureLog(logger))
	line := func(decisions int) string {
		return fmt.Sprintf(`level=WARN msg="ratelimit: the store failed, and requests are allowed without it" limiter=api `+
			`error="no route" decisions=%d`+"\n", decisions)
	}
	require.True(t, l.Allow("key"))
	require.Empty(t, logged())
	s.Err = errors.New("no route")
	require.True(t, l.Allow("key"))
	require.Equal(t, line(1), logged())
	for range 99 {
		require.True(t, l.Allow("key"))
	}
	clk.Advance(10*time.Second - 1)
	require.True(t, l.Allow("key"))
	require.Empty(t, logged())
	clk.Advance(1)
	require.True(t, l.Allow("key"))
	require.Equal(t, line(101), logged())
	clk.Advance(time.Hour)
	require.True(t, l.Allow("key"))
	require.Equal(t, line(1), logged())
}

// TestFailureLogAndDeadlines: a deadline of a caller that passes is no failure, although the policy decides. The
// store is found out to be away all the same, when its timeout has passed.
func TestFailureLogAndDeadlines(t *testing.T) {
	for name, tt := range map[string]struct {
		away time.Duration
		want string // in the log
	}{
		"far":  {60 * time.Millisecond, ""},
		"away": {time.Hour, `limiter=api error="no answer within 1s: context deadline exceeded" decisions=1`},
	} {
		synctest.Test(t, func(t *testing.T) {
			logger, logged := fakes.Log()
			db := &fakes.Strange{MapDB: fakes.NewMapDB(), Call: func(ctx context.Context) error {
				select {
				case <-time.After(tt.away):
				case <-ctx.Done():
				}
				return ctx.Err()
			}}
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(db.Store()), ratelimit.WithName("api"),
				ratelimit.WithFailureLog(logger)))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			d, err := l.Take(ctx, "key", 1)
			assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, Degraded: true}, d, name)
			assert.EqualError(t, err, `ratelimit: limiter "api": the store did not answer by the deadline of the call: context deadline exceeded`)
			assert.Empty(t, logged(), name)
			time.Sleep(time.Minute)
			if tt.want == "" {
				assert.Empty(t, logged(), name)
			} else {
				assert.Contains(t, logged(), tt.want, name)
			}
		})
	}
}

// TestFailureLogTellsOfTheEnd: the last decisions of an outage are logged, even if no other
// follows, and also if only one was held back.
func TestFailureLogTellsOfTheEnd(t *testing.T) {
	for _, heldBack := range []int{1, 99} {
		synctest.Test(t, func(t *testing.T) {
			logger, logged := fakes.Log()
			s := &fakes.Broken{}
			l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
				ratelimit.WithName("api"), ratelimit.WithFailureLog(logger))
			require.NoError(t, err)
			s.Err = errors.New("no route")
			for range 1 + heldBack {
				l.Allow("key")
			}
			require.Contains(t, logged(), "decisions=1\n")
			s.Err = nil
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.Contains(t, logged(), fmt.Sprintf("error=\"no route\" decisions=%d\n", heldBack))
			time.Sleep(time.Hour)
			require.Empty(t, logged())
		})
	}
}

// TestFailureLogAnswersAgain: one line says that the store answers again, after how long, and how many
// decisions were made without it. It comes with the first decision a second after the latest failure
// or later, and at most every ten seconds.
func TestFailureLogAnswersAgain(t *testing.T) {
	const (
		fails = iota
		answers
	)
	failed := func(decisions int) string {
		return fmt.Sprintf(`level=WARN msg="ratelimit: the store failed, and requests are allowed without it" limiter=api `+
			`error="no route" decisions=%d`+"\n", decisions)
	}
	again := func(after string, decisions int) string {
		return fmt.Sprintf("level=WARN msg=\"ratelimit: the store answers again\" limiter=api after=%s decisions=%d\n", after, decisions)
	}
	logger, logged := fakes.Log()
	s := &fakes.Broken{}
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
		ratelimit.WithName("api"), ratelimit.WithFailureLog(logger))
	var now time.Duration
	for i, step := range []struct {
		at    time.Duration
		store int
		want  string
	}{
		{0, answers, ""},
		{time.Hour, fails, failed(1)},
		{time.Hour + 1500*time.Millisecond, fails, ""},
		{time.Hour + 1600*time.Millisecond, answers, ""}, // perhaps another server of a cluster
		{time.Hour + 1700*time.Millisecond, fails, ""},
		{time.Hour + 1800*time.Millisecond, answers, ""},
		{time.Hour + 2700*time.Millisecond - 1, answers, ""},
		{time.Hour + 2700*time.Millisecond, answers, again("1.8s", 3)},
		{time.Hour + 4*time.Second, answers, ""},
		{time.Hour + 5*time.Second, fails, ""}, // an outage soon after another one
		{time.Hour + 7*time.Second, answers, ""},
		{time.Hour + 8*time.Second, fails, ""},
		{time.Hour + 9*time.Second, answers, ""},
		{time.Hour + 12700*time.Millisecond, answers, again("4s", 2)},
		{2 * time.Hour, fails, failed(1)},
		{3 * time.Hour, answers, again("1h0m0s", 1)},
		{4 * time.Hour, answers, ""},
	} {
		clk.Advance(step.at - now)
		now = step.at
		s.Err = nil
		if step.store == fails {
			s.Err = errors.New("no route")
		}
		l.Allow("key")
		require.Equal(t, step.want, logged(), "step %d", i)
	}
}

// TestFailureLogAnswersOnce: of many decisions at once after an outage, one logs that it is over.
func TestFailureLogAnswersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, logged := fakes.Log()
		s := &fakes.Broken{}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
			ratelimit.WithName("api"), ratelimit.WithFailureLog(logger)))
		s.Err = errors.New("no route")
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() { l.Allow("key") })
		}
		all.Wait()
		s.Err = nil
		time.Sleep(time.Second)
		for range 64 {
			all.Go(func() { l.Allow("key") })
		}
		all.Wait()
		time.Sleep(time.Minute) // the line has told of what was held back
		text := logged()
		assert.Equal(t, 2, strings.Count(text, "\n"), text)
		assert.Contains(t, text, "answers again\" limiter=api after=1s decisions=64\n")
	})
}

// deciding are the calls that ask for a decision.
var deciding = map[string]func(l ratelimit.Limiter) error{
	"Allow":    func(l ratelimit.Limiter) error { l.Allow("key"); return nil },
	"Take":     func(l ratelimit.Limiter) error { _, err := l.Take(ctx, "key", 1); return err },
	"TakeUpTo": func(l ratelimit.Limiter) error { _, _, err := l.TakeUpTo(ctx, "key", 1); return err },
	"TakeEach": func(l ratelimit.Limiter) error { _, err := l.TakeEach(ctx, []string{"key"}, 1, nil); return err },
	"Wait":     func(l ratelimit.Limiter) error { return l.Wait(ctx, "key") },
	"Reserve":  func(l ratelimit.Limiter) error { _, _, err := l.Reserve(ctx, "key", 1); return err },
	"Reserve within": func(l ratelimit.Limiter) error {
		_, _, err := l.Reserve(ctx, "key", 1, ratelimit.Within(time.Hour))
		return err
	},
	"Hold":   func(l ratelimit.Limiter) error { _, _, err := l.Hold(ctx, "key", 1); return err },
	"Charge": func(l ratelimit.Limiter) error { _, err := l.Charge(ctx, "key", 1); return err },
	"Peek":   func(l ratelimit.Limiter) error { _, err := l.Peek(ctx, "key"); return err },
	"TakeAll": func(l ratelimit.Limiter) error {
		_, err := ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key"), ratelimit.For(l, "other"))
		return err
	},
}

// TestFailureLogAnswersOfMethods: a decision of any method shows that the store answers again.
func TestFailureLogAnswersOfMethods(t *testing.T) {
	for name, call := range deciding {
		logger, logged := fakes.Log()
		s := &fakes.Broken{}
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
			ratelimit.WithName("api"), ratelimit.WithFailureLog(logger))
		s.Err = errors.New("no route")
		l.Allow("key")
		clk.Advance(time.Second)
		s.Err = nil
		require.NoError(t, call(l), name)
		assert.Contains(t, logged(), "answers again", name)
	}
}

// TestFailureLogThatPanicsAsTheStoreAnswers: a handler that panics over the line that the store
// answers again does not spoil the decision that shows it.
func TestFailureLogThatPanicsAsTheStoreAnswers(t *testing.T) {
	for name, call := range deciding {
		lines := 0
		s := &fakes.Broken{}
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
			ratelimit.WithName("api"), ratelimit.WithFailureLog(slog.New(frailHandler{lines: &lines})))
		s.Err = errors.New("no route")
		require.Panics(t, func() { l.Allow("key") }, "of the line about the failure")
		clk.Advance(time.Second)
		s.Err = nil
		require.NoError(t, call(l), name)
		assert.Equal(t, 2, lines, name)
	}
}

// TestFailureLogOfMethods: each decision of a policy is logged, and nothing else is.
func TestFailureLogOfMethods(t *testing.T) {
	left, leave := context.WithCancel(ctx)
	leave()
	silent := map[string]func(l ratelimit.Limiter) error{
		"Reset": func(l ratelimit.Limiter) error { return l.Reset(ctx, "key") },
		"Take after the caller left": func(l ratelimit.Limiter) error {
			_, err := l.Take(left, "key", 1)
			return err
		},
		"Reserve after the caller left": func(l ratelimit.Limiter) error {
			_, _, err := l.Reserve(left, "key", 1)
			return err
		},
		"Take of less than nothing": func(l ratelimit.Limiter) error {
			_, err := l.Take(ctx, "key", -1)
			return err
		},
	}
	spare, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	for want, policy := range map[string]ratelimit.FailurePolicy{
		"requests are allowed": ratelimit.FailOpen(),
		"requests are denied":  ratelimit.FailClosed(),
		"the fallback decides": ratelimit.Fallback(spare),
	} {
		// linesOf returns what is logged when a call meets a store that fails.
		linesOf := func(call func(l ratelimit.Limiter) error) string {
			logger, logged := fakes.Log()
			s := &fakes.Broken{}
			l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
				ratelimit.WithName("test"), ratelimit.WithFailurePolicy(policy), ratelimit.WithFailureLog(logger))
			s.Err = errors.New("no route")
			_ = call(l) // which fails by some policies
			return logged()
		}
		for name, call := range deciding {
			got := linesOf(call)
			assert.Contains(t, got, want, name)
			assert.Equal(t, 1, strings.Count(got, "\n"), name)
		}
		for name, call := range silent {
			assert.Empty(t, linesOf(call), name)
		}
	}
}

// TestFailureLogDefault: it is slog's default logger, unless the option is nil.
func TestFailureLogDefault(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	logger, logged := fakes.Log()
	s := &fakes.Broken{}
	fails := func(opts ...ratelimit.Option) {
		s.Err = nil
		l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, append(opts, ratelimit.WithStore(s), ratelimit.WithName("test"))...)
		s.Err = errors.New("no route")
		slog.SetDefault(logger) // after New
		require.True(t, l.Allow("key"))
		slog.SetDefault(before)
	}
	fails()
	assert.Contains(t, logged(), "no route")
	fails(ratelimit.WithFailureLog(nil))
	assert.Empty(t, logged())
}

// An askingHandler asks the limiter while it handles a line.
type askingHandler struct {
	slog.Handler
	l     ratelimit.Limiter
	lines int
}

func (h *askingHandler) Handle(context.Context, slog.Record) error {
	h.lines++
	h.l.Allow("key")
	return nil
}

// TestFailureLogIsNotLocked: a handler may use the limiter, which does not log again.
func TestFailureLogIsNotLocked(t *testing.T) {
	h := &askingHandler{Handler: slog.Default().Handler()}
	s := &fakes.Broken{}
	h.l, _ = fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(s),
		ratelimit.WithName("test"), ratelimit.WithFailureLog(slog.New(h)))
	s.Err = errors.New("no route")
	require.True(t, h.l.Allow("key"))
	require.Equal(t, 1, h.lines)
}

// A frailHandler panics, and counts how often.
type frailHandler struct {
	slog.Handler
	lines *int
}

func (frailHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h frailHandler) Handle(context.Context, slog.Record) error {
	if h.lines != nil {
		*h.lines++
	}
	panic("a bug in a log handler")
}

// TestFailureLogThatPanics: a log handler that panics panics in the caller's goroutine, and does
// not end the process from that of a timer, where nobody could recover.
func TestFailureLogThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &fakes.OwnLimits{Err: errLookup}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
			ratelimit.WithFailureLog(slog.New(frailHandler{})), ratelimit.WithLimits(own.Lookup)))
		require.PanicsWithValue(t, "a bug in a log handler", func() { l.Allow("key") })
		for range 9 {
			l.Allow("key")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.PanicsWithValue(t, "a bug in a log handler", func() { l.Allow("key") })
	})
}

// TestFailureLogThatPanicsWhileTurnsAreGivenBack: a handler that panics does not end the process
// from a goroutine that gives turns back to a store either.
func TestFailureLogThatPanicsWhileTurnsAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakes.FailingCancel{MemoryStore: new(ratelimit.MemoryStore)}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5000), Burst: 1}, ratelimit.WithStore(s), ratelimit.WithName("api"),
			ratelimit.WithFailureLog(slog.New(frailHandler{}))))
		require.True(t, l.Allow("key"))
		var served atomic.Int64
		for range 8 {
			go func() {
				if l.Wait(t.Context(), "key") == nil {
					served.Add(1)
				}
			}()
		}
		synctest.Wait()
		s.Drops.Store(true)
		require.NoError(t, l.Reset(t.Context(), "key")) // so that the turns are made again
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, int64(8), served.Load())
	})
}

// TestLookupLog: failed lookups have lines of their own.
func TestLookupLog(t *testing.T) {
	logger, logged := fakes.Log()
	own := &fakes.OwnLimits{Err: errLookup}
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithName("api"),
		ratelimit.WithFailureLog(logger), ratelimit.WithLimits(own.Lookup))
	line := func(lookups int) string {
		return fmt.Sprintf(`level=WARN msg="ratelimit: a lookup failed, and the limit of New decides" limiter=api `+
			`error="ratelimit: the limit of key \"\"… (3 bytes): no route to the plans" lookups=%d`+"\n", lookups)
	}
	l.Allow("key")
	require.Equal(t, line(1), logged())
	for range 99 {
		l.Allow("key")
	}
	require.Empty(t, logged())
	clk.Advance(10 * time.Second)
	l.Allow("key")
	require.Equal(t, line(100), logged())
}

// TestLookupLogSucceedsAgain: the end of failing lookups is logged as that of an outage is, whatever
// way the decision takes.
func TestLookupLogSucceedsAgain(t *testing.T) {
	for name, call := range map[string]func(l ratelimit.Limiter){
		"Allow":   func(l ratelimit.Limiter) { l.Allow("key") },
		"Take":    func(l ratelimit.Limiter) { _, _ = l.Take(ctx, "key", 1) },
		"Wait":    func(l ratelimit.Limiter) { _ = l.Wait(ctx, "key") },
		"TakeAll": func(l ratelimit.Limiter) { _, _ = ratelimit.TakeAll(ctx, 1, ratelimit.For(l, "key")) },
	} {
		logger, logged := fakes.Log()
		own := new(fakes.OwnLimits)
		l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(9)}, ratelimit.WithName("api"),
			ratelimit.WithFailureLog(logger), ratelimit.WithLimits(own.Lookup))
		own.Set("key", ratelimit.TokenBucket{Rate: ratelimit.PerHour(5)})
		l.Allow("key") // its state has the limit
		own.Err = errLookup
		l.Allow("other")
		l.Allow("other")
		require.Contains(t, logged(), "a lookup failed", name)
		clk.Advance(90 * time.Second)
		logged()
		own.Err = nil
		call(l)
		require.Equal(t, "level=WARN msg=\"ratelimit: lookups succeed again\" limiter=api after=1m30s lookups=2\n", logged(), name)
		call(l)
		require.Empty(t, logged(), name)
	}
}

// TestNoSecretInErrors: neither the log nor the text of an error has a whole key, which may be an
// API key, even if a database quotes it.
func TestNoSecretInErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "sk_live_0123456789abcdef"
		logger, logged := fakes.Log()
		own := &fakes.OwnLimits{Err: fmt.Errorf("invalid input syntax for type uuid: %q: %w", secret, errLookup)}
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)},
			ratelimit.WithFailureLog(logger), ratelimit.WithLimits(own.Lookup), ratelimit.WithMaxWaiters(1)))
		ctx, leave := context.WithCancel(t.Context())
		r, first, failure := l.Hold(ctx, secret, 1, ratelimit.HoldFor(time.Hour))
		require.True(t, first.Allowed)
		require.ErrorIs(t, failure, errLookup)
		_, stranger := l.Resume(ctx, "another "+secret, r.Token())
		go func() { _ = l.Wait(ctx, secret) }()
		synctest.Wait()
		full := l.Wait(ctx, secret)
		require.ErrorIs(t, full, ratelimit.ErrQueueFull)
		server := &fakes.Broken{}
		onServer := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)},
			ratelimit.WithName("exports"), ratelimit.WithFailureLog(logger), ratelimit.WithStore(server)))
		r, _, err := onServer.Reserve(ctx, secret, 1)
		require.NoError(t, err)
		server.Err = fmt.Errorf("ERR unknown command, with args beginning with: 'rl:%s'", secret)
		_, down := onServer.Take(ctx, secret, 1)
		_, unsettled := r.Settle(ctx, 1)
		for _, err := range []error{failure, stranger, full, down, unsettled, onServer.Reset(ctx, secret)} {
			require.ErrorContains(t, err, "… (")
			assert.NotContains(t, err.Error(), secret)
		}
		line := logged()
		assert.Contains(t, line, "sk_liv")
		assert.NotContains(t, line, secret)
		leave()
	})
}
