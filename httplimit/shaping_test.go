package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// TestShaping sends ten requests at once through a bucket that leaks one a second and
// holds six: those whose turn is within three seconds are served one a second, and
// the others are refused.
func TestShaping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 6}))
		h := httplimit.Middleware(l, httplimit.WithShaping(3*time.Second))(ok)
		start := time.Now()
		var mu sync.Mutex // protects served and refused
		served := make(map[time.Duration]int)
		refused := make(map[string]int)
		for range 10 {
			go func() {
				resp := serve(h, from("192.0.2.1:1"))
				mu.Lock()
				defer mu.Unlock()
				if resp.StatusCode == 200 {
					served[time.Since(start)]++
				} else {
					assert.Zero(t, time.Since(start), "a refusal does not wait")
					refused[resp.Header.Get("Retry-After")]++
				}
			}()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, map[time.Duration]int{0: 1, time.Second: 1, 2 * time.Second: 1, 3 * time.Second: 1}, served)
		assert.Equal(t, map[string]int{"1": 6}, refused, "in a second, the wait is within three again")
	})
}

// TestShapingGivesPlacesBack checks that a waiting client that disconnects gives its
// place back.
func TestShapingGivesPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 6}))
		reached := false
		h := httplimit.Middleware(l, httplimit.WithShaping(time.Minute))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached = true }))
		require.True(t, l.AllowN("192.0.2.1", 4))
		ctx, leave := context.WithCancel(t.Context())
		before, err := l.Peek(ctx, "192.0.2.1")
		require.NoError(t, err)
		done := make(chan int)
		go func() { done <- serve(h, from("192.0.2.1:1").WithContext(ctx)).StatusCode }()
		synctest.Wait()
		leave()
		assert.Equal(t, 429, <-done)
		assert.False(t, reached)
		after, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		assert.Equal(t, before, after)
	})
}

// TestShapingWithoutAQueue holds requests for the next token.
func TestShapingWithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
		h := httplimit.Middleware(l, httplimit.WithShaping(1500*time.Millisecond))(ok)
		start := time.Now()
		for i := range 3 {
			resp := serve(h, from("192.0.2.1:1"))
			assert.Equal(t, 200, resp.StatusCode)
			assert.Equal(t, time.Duration(i)*time.Second, time.Since(start))
			assert.Equal(t, `"default";r=0;t=1`, resp.Header.Get("RateLimit"))
		}
		require.NoError(t, l.Reset(t.Context(), "192.0.2.1"))
		_, _, err := l.Reserve(t.Context(), "192.0.2.1", 1)
		require.NoError(t, err)
		_, _, err = l.Reserve(t.Context(), "192.0.2.1", 1) // in a second
		require.NoError(t, err)
		resp := serve(h, from("192.0.2.1:1")) // in two
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("Retry-After"), "half a second, rounded up")

		two := httplimit.Middleware(l, httplimit.WithShaping(time.Hour), httplimit.WithCost(func(*http.Request) int { return 2 }))(ok)
		resp = serve(two, from("192.0.2.1:1"))
		assert.Equal(t, 429, resp.StatusCode, "two never come")
		assert.Empty(t, resp.Header.Get("Retry-After"))
	})
}

// TestShapingSaysWhatIsLeft compares the fields of requests that were held, by any algorithm, with
// what is left when they are served.
func TestShapingSaysWhatIsLeft(t *testing.T) {
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(alg))
				fresh, err := l.Peek(t.Context(), "192.0.2.1")
				require.NoError(t, err)
				served, cost := 0, max(1, fresh.Limit/5)
				h := httplimit.Middleware(l, httplimit.WithShaping(48*time.Hour), httplimit.WithVerdict(), httplimit.WithHeaders(httplimit.Legacy),
					httplimit.WithCost(func(*http.Request) int { return cost }))(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						now, err := l.Peek(t.Context(), "192.0.2.1")
						assert.NoError(t, err)
						now.Allowed, now.RetryAfter, now.Delay = true, 0, 0
						told, _ := httplimit.VerdictOf(r.Context())
						assert.Equal(t, now, told.Decision)
						assert.Equal(t, strconv.Itoa(now.Remaining), w.Header().Get("X-RateLimit-Remaining"))
						served++
					}))
				for range 12 {
					serve(h, from("192.0.2.1:1"))
				}
				assert.NotZero(t, served)
			})
		})
	}
}

// TestShapingRetryAfter checks that a client that retries after Retry-After passes,
// and not earlier, whatever the bucket is wrapped in.
func TestShapingRetryAfter(t *testing.T) {
	bucket := ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 5}
	other := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}
	own := func(alg ratelimit.Algorithm) ratelimit.Option {
		return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })
	}
	limiters := map[string]func() (ratelimit.Limiter, error){
		"LeakyBucket": func() (ratelimit.Limiter, error) { return ratelimit.New(bucket) },
		"All":         func() (ratelimit.Limiter, error) { return ratelimit.New(ratelimit.All{other, bucket}) },
		"WithLimits":  func() (ratelimit.Limiter, error) { return ratelimit.New(other, own(bucket)) },
		"WithLimits to an All": func() (ratelimit.Limiter, error) {
			return ratelimit.New(other, own(ratelimit.All{bucket, other}))
		},
		"wrapped": func() (ratelimit.Limiter, error) {
			l, err := ratelimit.New(bucket)
			return wrapped{l}, err
		},
	}
	for name, tt := range map[string]struct {
		cost, used int
		most, left time.Duration // that the middleware and the request's context allow
		want       string
	}{
		"no room, and then a turn in time": {1, 5, time.Hour, 0, "60"},
		"no room for so many":              {3, 5, time.Hour, 0, "180"},
		"room, but a turn too late":        {1, 5, time.Minute, 0, "240"},
		"a turn too late":                  {1, 4, time.Minute, 0, "180"},
		"the request's time is too short":  {1, 2, time.Hour, 30*time.Second + 1, "90"},
	} {
		for kind, limiter := range limiters {
			synctest.Test(t, func(t *testing.T) {
				l, err := limiter()
				require.NoError(t, err)
				require.True(t, l.AllowN("192.0.2.1", tt.used))
				h := httplimit.Middleware(l, httplimit.WithShaping(tt.most), httplimit.WithCost(func(*http.Request) int { return tt.cost }))(ok)
				ask := func() *http.Response {
					ctx := t.Context()
					if tt.left > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, tt.left)
						defer cancel()
					}
					return serve(h, from("192.0.2.1:1").WithContext(ctx))
				}
				resp := ask()
				assert.Equal(t, 429, resp.StatusCode, "%s, %s", kind, name)
				assert.Equal(t, tt.want, resp.Header.Get("Retry-After"), "%s, %s", kind, name)
				wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
				require.NoError(t, err)
				time.Sleep(time.Duration(wait)*time.Second - 2)
				assert.Equal(t, 429, ask().StatusCode, "%s, %s: before, it is refused", kind, name)
				time.Sleep(2 * time.Nanosecond)
				assert.Equal(t, 200, ask().StatusCode, "%s, %s", kind, name)
			})
		}
	}
}

// TestShapingInAFallback checks that a request is held no longer than maxDelay by a fallback
// either, and that one whose time the store has used up is still served if the fallback grants it.
func TestShapingInAFallback(t *testing.T) {
	const maxDelay = 20 * time.Second
	settles := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })
	for name, tt := range map[string]struct {
		wrap  func(l ratelimit.Limiter) ratelimit.Limiter // of the fallback
		opts  []httplimit.Option
		fails time.Duration // after which the store fails
	}{
		"waits":             {},
		"holds":             {opts: []httplimit.Option{settles}},
		"wrapped":           {wrap: func(l ratelimit.Limiter) ratelimit.Limiter { return wrapped{l} }},
		"wrapped, holds":    {wrap: func(l ratelimit.Limiter) ratelimit.Limiter { return wrapped{l} }, opts: []httplimit.Option{settles}},
		"fails late":        {fails: 2 * maxDelay},
		"fails late, holds": {fails: 2 * maxDelay, opts: []httplimit.Option{settles}},
	} {
		synctest.Test(t, func(t *testing.T) {
			alone := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(10 * time.Hour), Burst: 2}))
			fallback := alone
			if tt.wrap != nil {
				fallback = tt.wrap(alone)
			}
			db := &fakes.Strange{MapDB: fakes.NewMapDB(), Call: func(context.Context) error {
				time.Sleep(tt.fails)
				return errors.New("no route to the store")
			}}
			l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)}, ratelimit.WithStore(db.Store()), ratelimit.WithName("test"),
				ratelimit.WithStoreTimeout(time.Hour), ratelimit.WithFailurePolicy(ratelimit.Fallback(fallback)), ratelimit.WithFailureLog(nil)))
			opts := slices.Concat(tt.opts, []httplimit.Option{httplimit.WithShaping(maxDelay), httplimit.WithStoreError(func(*http.Request, error) {})})
			h := httplimit.Middleware(l, opts...)(ok)
			for i, served := range []bool{true, true, false} {
				begin := time.Now()
				resp := serve(h, from("192.0.2.1:1"))
				assert.Equal(t, served, resp.StatusCode == 200, "%s: request %d has status %d", name, i, resp.StatusCode)
				assert.LessOrEqual(t, time.Since(begin), max(maxDelay, 2*tt.fails), "%s: request %d", name, i)
			}
		})
	}
}

// A wrapped limiter is one that New has not made.
type wrapped struct{ ratelimit.Limiter }

// TestShapingFollowsTheLimitersClock checks that turns and waits use that clock.
func TestShapingFollowsTheLimitersClock(t *testing.T) {
	clk := clock.NewMock() // shows 1970
	l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 10}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	require.True(t, l.AllowN("192.0.2.1", 3))
	h := httplimit.Middleware(l, httplimit.WithShaping(2*time.Second))(ok)
	resp := serve(h, from("192.0.2.1:1"))
	require.Equal(t, 429, resp.StatusCode, "its turn is in three seconds")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))

	clk.Add(time.Second)
	served := make(chan int, 1)
	go func() { served <- serve(h, from("192.0.2.1:1")).StatusCode }()
	for inLine := false; !inLine; runtime.Gosched() {
		d, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		inLine = !d.Allowed
	}
	for {
		select {
		case status := <-served:
			assert.Equal(t, 200, status)
			assert.False(t, clk.Now().Before(time.Unix(3, 0)))
			return
		default:
			require.Less(t, clk.Now().Unix(), int64(1000), "it is held for ever")
			clk.Add(100 * time.Millisecond)
		}
	}
}

// TestShapingRefusalSpendsNothing lets room appear while the middleware asks.
func TestShapingRefusalSpendsNothing(t *testing.T) {
	clk := &passing{Clock: storetest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	require.True(t, l.AllowN("192.0.2.1", 5))
	start := clk.Now()
	clk.step = 200 * time.Millisecond
	h := httplimit.Middleware(l, httplimit.WithShaping(time.Second))(ok)
	for range 3 {
		require.Equal(t, 429, serve(h, from("192.0.2.1:1")).StatusCode)
	}
	clk.step = 0
	d, err := l.Peek(t.Context(), "192.0.2.1")
	require.NoError(t, err)
	assert.Equal(t, 5*time.Second, clk.Now().Sub(start)+d.ResetAfter, "five events leak out in five seconds")
}

// A passing clock advances each time it is read.
type passing struct {
	*storetest.Clock
	step time.Duration
}

func (c *passing) Since(t time.Time) time.Duration {
	c.Advance(c.step)
	return c.Clock.Since(t)
}

// TestShapingWithASlowStore checks that the bound on the delay does not apply to the
// store's answer.
func TestShapingWithASlowStore(t *testing.T) {
	for _, tt := range []struct {
		policy ratelimit.FailurePolicy
		want   int
	}{{ratelimit.FailOpen(), 200}, {ratelimit.FailClosed(), 503}} {
		synctest.Test(t, func(t *testing.T) {
			l, err := ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1)},
				ratelimit.WithStore(ratelimit.NewStore(slow{})), ratelimit.WithName("test"),
				ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			reported := 0
			report := httplimit.WithStoreError(func(*http.Request, error) { reported++ })
			resp := serve(httplimit.Middleware(l, httplimit.WithShaping(time.Second), report)(ok), from("192.0.2.1:1"))
			assert.Equal(t, tt.want, resp.StatusCode)
			assert.Equal(t, 1, reported)

			// A request whose deadline passes while the store is silent is over, whatever the
			// policy is.
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			resp = serve(httplimit.Middleware(l, httplimit.WithShaping(time.Second), report)(ok), from("192.0.2.1:1").WithContext(ctx))
			assert.Equal(t, 503, resp.StatusCode)
			assert.Empty(t, resp.Header.Get("Retry-After"))
			assert.Equal(t, 1, reported)
			time.Sleep(time.Minute) // until the store is not asked any more
		})
	}
}

// A slow database fails after two seconds, or when its caller gives up.
type slow struct{ ratelimit.Database }

func (slow) Get(ctx context.Context, _ string) ([]byte, error) {
	select {
	case <-time.After(2 * time.Second):
		return nil, errors.New("no connection")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestShapingWhileLocked: a client that is locked out does not wait for the end of the lock, and is
// told when the lock ends, and not when it might wait for that.
func TestShapingWhileLocked(t *testing.T) {
	lockout := ratelimit.Lockout{Limit: 2, Window: time.Minute, First: 8 * time.Second}
	hourly := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	settles := httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		opts []httplimit.Option
		wrap func(ratelimit.Limiter) ratelimit.Limiter

		deadline time.Duration // 0 for none
		settles  bool
	}{
		"alone":   {alg: lockout},
		"All":     {alg: ratelimit.All{hourly, lockout}},
		"settles": {alg: lockout, opts: []httplimit.Option{settles}, settles: true},
		"hurries": {alg: lockout, deadline: 5 * time.Second, wrap: func(ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.New(lockout, ratelimit.WithName("far"), ratelimit.WithStore(fakes.NewMapDB().Store())))
		}},
		"hidden": {alg: lockout, wrap: func(l ratelimit.Limiter) ratelimit.Limiter { return unwrapping{wrapped{l}, l} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(tt.alg))
				if tt.wrap != nil {
					l = tt.wrap(l)
				}
				h := httplimit.Middleware(l, append(tt.opts, httplimit.WithShaping(5*time.Second))...)(ok)
				ask := func() (status int, retryAfter string, took time.Duration) {
					begin, r := time.Now(), from("192.0.2.1:1")
					if tt.deadline > 0 {
						ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
						defer cancel()
						r = r.WithContext(ctx)
					}
					resp := serve(h, r)
					return resp.StatusCode, resp.Header.Get("Retry-After"), time.Since(begin)
				}
				for range 2 {
					status, _, _ := ask()
					require.Equal(t, 200, status)
				}
				status, retryAfter, took := ask()
				assert.Equal(t, 429, status)
				assert.Equal(t, "8", retryAfter)
				assert.Zero(t, took)
				time.Sleep(4 * time.Second)
				status, retryAfter, took = ask()
				if tt.settles { // nobody knows that no event will be taken back
					assert.Equal(t, 200, status)
					assert.Equal(t, 4*time.Second, took)
					return
				}
				assert.Equal(t, 429, status)
				assert.Equal(t, "4", retryAfter)
				assert.Zero(t, took)
				time.Sleep(4 * time.Second)
				status, _, took = ask()
				assert.Equal(t, 200, status)
				assert.Zero(t, took)
			})
		})
	}
}

// An unwrapping limiter shows what it wraps.
type unwrapping struct {
	wrapped
	inner ratelimit.Limiter
}

func (u unwrapping) Unwrap() ratelimit.Limiter { return u.inner }

// A failingLine is a limiter that New has not made, and that nobody can wait for.
type failingLine struct {
	wrapped
	why error
}

func (l failingLine) Hold(context.Context, string, int, ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	return nil, ratelimit.Decision{}, l.why
}

// TestShapingTellsWhatNeverPasses: a client whose request no wait helps is told so, and not when to
// retry, also if the limiter says that by its error alone.
func TestShapingTellsWhatNeverPasses(t *testing.T) {
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
	require.True(t, l.AllowN("192.0.2.1", 10))
	h := httplimit.Middleware(failingLine{wrapped{l}, ratelimit.ErrNever}, httplimit.WithShaping(time.Second),
		httplimit.WithCost(func(*http.Request) int { return 11 }))(ok)
	resp := serve(h, from("192.0.2.1:1"))
	assert.Equal(t, 429, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Retry-After"))
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Contains(t, string(body), "exceeds what the limit ever allows at once")
}

// TestShapingSettlesTurnsOfOtherLimiters: a request that gets its turn by a reservation, because
// the limiter cannot wait, is settled with WithSettleAtEnd like any other.
func TestShapingSettlesTurnsOfOtherLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour}))
		h := httplimit.Middleware(failingLine{wrapped{l}, ratelimit.ErrQueueFull}, httplimit.WithShaping(time.Second),
			httplimit.WithCost(func(*http.Request) int { return 4 }), httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 }))(ok)
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		d, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		assert.Equal(t, 9, d.Remaining)
	})
}
