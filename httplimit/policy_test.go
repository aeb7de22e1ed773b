package httplimit_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// Random histories of these tests, in CI and at night (RATELIMIT_NIGHTLY=1): clients that pause 50
// times and 200 times, and that send 500 and 2000 requests; 1000 and 3000 with costs.

// TestPolicy compares policies with ones computed by hand.
func TestPolicy(t *testing.T) {
	minute := ratelimit.PerMinute(10)
	for i, tt := range []struct {
		alg  ratelimit.Algorithm
		want string
	}{
		{ratelimit.TokenBucket{Rate: minute}, "q=10;w=60"},
		{ratelimit.TokenBucket{Rate: minute, Burst: 3}, "q=3;w=18"},
		{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 25}, "q=25;w=3"},
		{ratelimit.TokenBucket{Rate: minute, Refill: ratelimit.RefillInterval}, "q=10;w=60"},
		{ratelimit.TokenBucket{Rate: minute, Burst: 3, Refill: ratelimit.RefillInterval}, "q=3;w=60"},
		{ratelimit.TokenBucket{Rate: minute, Burst: 25, Refill: ratelimit.RefillInterval}, "q=25;w=180"},
		{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)}, "q=1"},
		{ratelimit.LeakyBucket{Rate: minute}, "q=1;w=6"},
		{ratelimit.LeakyBucket{Rate: minute, Capacity: 1}, "q=1;w=6"},
		{ratelimit.LeakyBucket{Rate: minute, Capacity: 5}, "q=5;w=30"},
		{ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, "q=5;w=60"},
		{ratelimit.FixedWindow{Limit: 5, Window: time.Minute, Start: ratelimit.StartOnFirstEvent}, "q=5;w=60"},
		{ratelimit.SlidingLog{Limit: 5, Window: 1500 * time.Millisecond}, "q=5;w=2"},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, "q=5;w=120"},
		{ratelimit.InFlight{Limit: 5, Timeout: time.Minute}, `q=5;qu="concurrent-requests"`},
		{ratelimit.InFlight{Limit: math.MaxInt32, Timeout: time.Minute}, `q=2147483647;qu="concurrent-requests"`},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 6}, "q=5;w=70"},
		{ratelimit.RollingWindow{Quota: 9, Window: 24 * time.Hour, Period: time.Hour}, "q=9;w=86400"},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second}, "q=300;w=8"}, // 4.5 s to pay, and 3 s to cool down
		{ratelimit.TokenBucket{Rate: ratelimit.Every(200 * 365 * 24 * time.Hour), Burst: 1 << 30}, "q=1073741824"},
		{ratelimit.FixedWindow{Limit: greatestLimit, Window: time.Minute}, fmt.Sprintf("q=%d;w=60", min(int64(greatestLimit), 999_999_999_999_999))},
	} {
		l, _ := limiter(t, tt.alg)
		h := serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1")).Header
		assert.Equal(t, `"default";`+tt.want, h.Get("RateLimit-Policy"), "%d: %+v", i, tt.alg)
	}
}

// TestPolicyOfUnknownLimits checks that there is no policy for a limiter whose
// algorithm is unknown, and that RateLimit has only what is true of several limits.
func TestPolicyOfUnknownLimits(t *testing.T) {
	both := ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.FixedWindow{Limit: 5, Window: time.Hour}}
	known, err := ratelimit.New(both, ratelimit.WithClock(storetest.NewClock(time.Unix(0, 0))))
	require.NoError(t, err)
	l := fakes.Hidden{Limiter: known}
	resp := serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
	assert.Equal(t, 200, resp.StatusCode)
	assert.Empty(t, resp.Header.Values("RateLimit-Policy"))
	assert.Equal(t, `"default";r=0`, resp.Header.Get("RateLimit"), "the time until all of it is back is not that of one limit")
	resp = serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, `"default";r=0;t=1`, resp.Header.Get("RateLimit"))
}

// TestPolicyOfKeysLimits: the policy is that of the key, as it is now. If the lookup fails
// in between, there is none.
func TestPolicyOfKeysLimits(t *testing.T) {
	var failing bool
	limits := map[string]ratelimit.Algorithm{
		"192.0.2.1": ratelimit.FixedWindow{Limit: 1, Window: time.Minute},
		"192.0.2.2": ratelimit.All{ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.FixedWindow{Limit: 9, Window: 24 * time.Hour}},
		"192.0.2.3": fiveWindows(5),
		"192.0.2.4": fiveWindows(7), // the same but for its last part
	}
	l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)},
		ratelimit.WithClock(storetest.NewClock(time.Unix(0, 0))),
		ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
			if failing {
				return nil, assert.AnError
			}
			return limits[key], nil
		}))
	require.NoError(t, err)
	h := httplimit.Middleware(l)(ok)
	get := func(ip string) *http.Response { return serve(h, from(ip+":1")) }
	for range 2 { // the second time from the cache
		assert.Equal(t, `"default";q=10;w=60`, get("192.0.2.9").Header.Get("RateLimit-Policy"))
		assert.Equal(t, `"default-1";q=5;w=3600, "default-2";q=9;w=86400`, get("192.0.2.2").Header.Get("RateLimit-Policy"))
		assert.Contains(t, get("192.0.2.3").Header.Get("RateLimit-Policy"), `"default-5";q=5;w=18000`)
		assert.Contains(t, get("192.0.2.4").Header.Get("RateLimit-Policy"), `"default-5";q=7;w=18000`)
	}
	resp := get("192.0.2.1")
	assert.Equal(t, `"default";q=1;w=60`, resp.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"default";r=0;t=60`, resp.Header.Get("RateLimit"))
	limits["192.0.2.1"] = ratelimit.FixedWindow{Limit: 2, Window: time.Minute}
	assert.Equal(t, `"default";q=2;w=60`, get("192.0.2.1").Header.Get("RateLimit-Policy"))
	assert.Equal(t, 429, get("192.0.2.1").StatusCode)

	refused := from("192.0.2.3:1")
	refused.Header.Set("Accept", "application/problem+json")
	resp = serve(h, refused)
	assert.Equal(t, 429, resp.StatusCode)
	assert.Contains(t, body(t, resp), `"violated-policies":["default-1"]`)

	for i := range 3000 { // more than are cached
		limits["192.0.2.1"] = ratelimit.FixedWindow{Limit: 10 + i, Window: time.Minute}
		assert.Equal(t, fmt.Sprintf(`"default";q=%d;w=60`, 10+i), get("192.0.2.1").Header.Get("RateLimit-Policy"))
	}
	failing = true
	assert.Empty(t, get("192.0.2.1").Header.Get("RateLimit-Policy"))
}

// fiveWindows returns an All of five parts, more than a key of the cache of policies has.
func fiveWindows(last int) ratelimit.All {
	var all ratelimit.All
	for i, limit := range []int{1, 2, 3, 4, last} {
		all = append(all, ratelimit.FixedWindow{Limit: limit, Window: time.Duration(i+1) * time.Hour})
	}
	return all
}

// A nestedLimit is a limiter of another package, which returns an All as it was written.
type nestedLimit struct{ ratelimit.Limiter }

func (nestedLimit) Describe() ratelimit.Info {
	return ratelimit.Info{Lookup: func(context.Context, string) (ratelimit.Algorithm, error) {
		return ratelimit.All{ratelimit.All{ratelimit.FixedWindow{Limit: 5, Window: time.Hour}}}, nil
	}}
}

// TestPolicyOfCalendar: w is the length of the longest window. The next leap year is three years
// away.
func TestPolicyOfCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)))
		for _, tt := range []struct {
			alg  ratelimit.CalendarWindow
			want time.Duration
		}{
			{ratelimit.CalendarWindow{Every: ratelimit.Day}, 24 * time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Day, Zone: "Europe/London"}, 25 * time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Week, Start: 7}, 7 * 24 * time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Month}, 31 * 24 * time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Month, Zone: "Europe/London"}, 31*24*time.Hour + time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Quarter}, 92 * 24 * time.Hour},
			{ratelimit.CalendarWindow{Every: ratelimit.Year, Start: 406}, 366 * 24 * time.Hour},
		} {
			tt.alg.Limit = 5
			l, err := ratelimit.New(tt.alg)
			require.NoError(t, err)
			resp := serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
			want := fmt.Sprintf(`"default";q=5;w=%d`, int(tt.want.Seconds()))
			assert.Equal(t, want, resp.Header.Get("RateLimit-Policy"), "%v", tt.alg)
		}
	})
}

// TestPolicyDoesNotWait checks that nothing waits while a limit is described: the first request of
// a customer with a calendar of its own would wait as well.
func TestPolicyDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.New(ratelimit.CalendarWindow{Limit: 5, Every: ratelimit.Day})
		require.NoError(t, err)
		begin := time.Now()
		serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
		assert.Zero(t, time.Since(begin))
	})
}

// TestPolicyOfNestedLimits: an algorithm that cannot be a key of the cache is described, too.
func TestPolicyOfNestedLimits(t *testing.T) {
	l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	require.NoError(t, err)
	resp := serve(httplimit.Middleware(nestedLimit{l})(ok), from("192.0.2.1:1"))
	assert.Equal(t, `"default";q=5;w=3600`, resp.Header.Get("RateLimit-Policy"))
}

// A client of a limit, and the header fields that it receives.
type client struct {
	t    *testing.T
	name string
	h    http.Handler
	clk  *storetest.Clock
	cost int
	now  time.Duration // since the start

	quotas []quota
}

// A quota is an item of RateLimit-Policy: q events in w seconds.
type quota struct {
	events int
	window time.Duration // a second at least
}

func newClient(t *testing.T, name string, alg ratelimit.Algorithm) *client {
	c := &client{t: t, name: name, cost: 1, clk: storetest.NewClock(time.Unix(0, 0))}
	l, err := ratelimit.New(alg, ratelimit.WithClock(c.clk))
	require.NoError(t, err)
	c.h = httplimit.Middleware(l, httplimit.WithCost(func(*http.Request) int { return c.cost }))(ok)
	r := serve(c.h, from("203.0.113.1:1")) // another client's
	for _, item := range regexp.MustCompile(`;q=(\d+)(;w=(\d+))?`).FindAllStringSubmatch(r.Header.Get("RateLimit-Policy"), -1) {
		q, _ := strconv.Atoi(item[1])
		w, _ := strconv.Atoi(item[3])
		c.quotas = append(c.quotas, quota{q, time.Duration(max(w, 1)) * time.Second})
	}
	require.NotEmpty(t, c.quotas, name)
	return c
}

func (c *client) after(d time.Duration) {
	c.now += d
	c.clk.Advance(d)
}

// ask asks for n events and checks the header fields of the response.
func (c *client) ask(n int) (allowed bool) {
	c.cost = n
	resp := serve(c.h, from("192.0.2.1:1"))
	found := regexp.MustCompile(`;r=(\d+)(;t=(\d+))?$`).FindStringSubmatch(resp.Header.Get("RateLimit"))
	require.NotNil(c.t, found, "%s: %v", c.name, resp.Header)
	r, _ := strconv.Atoi(found[1])
	seconds, _ := strconv.Atoi(found[3])
	least, longest := c.quotas[0].events, c.quotas[0].window
	for _, q := range c.quotas {
		least, longest = min(least, q.events), max(longest, q.window)
	}
	require.LessOrEqual(c.t, r, least, "%s: r is more than q", c.name)
	require.LessOrEqual(c.t, time.Duration(seconds)*time.Second, longest, "%s: t is longer than w", c.name)
	return resp.StatusCode == 200
}

// lockForLongest locks the client for the longest time, by events that are spread as far as they
// can be. The first of them is now.
func (c *client) lockForLongest(of ratelimit.Lockout) {
	for lasts := of.First; lasts < of.Longest; lasts *= 2 {
		require.True(c.t, c.ask(of.Limit))
		c.after(lasts)
	}
	c.now = 0
	require.True(c.t, c.ask(1))
	c.after(of.Window - 1)
	require.True(c.t, c.ask(of.Limit-1))
}

// TestPolicyIsTrue compares the policy of a limit with its behaviour.
func TestPolicyIsTrue(t *testing.T) {
	algorithms := storetest.Algorithms()
	algorithms["burst below its refill"] = ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10), Burst: 3, Refill: ratelimit.RefillInterval}
	algorithms["burst above its refill"] = ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10), Burst: 25, Refill: ratelimit.RefillInterval}
	algorithms["slow drip"] = ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(7)}
	algorithms["refills and a log"] = ratelimit.All{algorithms["burst above its refill"], ratelimit.SlidingLog{Limit: 30, Window: 7 * time.Minute}}
	for name, alg := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := budget.Rand(t)
			_, warms := alg.(ratelimit.WarmingUp)

			// After a client was idle for w, it is granted q at once, whatever it did before.
			c := newClient(t, name, alg)
			least, longest := c.quotas[0].events, time.Duration(0)
			for _, q := range c.quotas {
				least, longest = min(least, q.events), max(longest, q.window)
			}
			for range budget.Histories(50, 200) {
				for range rnd.IntN(20) {
					c.ask(1 + rnd.IntN(least))
					c.after(time.Duration(rnd.Int64N(int64(longest / 4))))
				}
				c.after(longest)
				require.True(t, c.ask(least), "after %v at %v", longest, c.now)
			}

			// At some instant, a second less than w is not enough.
			_, dated := alg.(ratelimit.CalendarWindow) // whose windows have several lengths
			if longest > time.Second && len(c.quotas) == 1 && !warms && !dated {
				c = newClient(t, name, alg)
				if lock, ok := alg.(ratelimit.Lockout); ok {
					c.lockForLongest(lock)
				} else {
					require.True(t, c.ask(least))
				}
				c.after(longest - time.Second - c.now)
				require.False(t, c.ask(least))
			}

			// A client that sends no more than q in any w is never refused.
			if warms {
				return // it spaces events out
			}
			c = newClient(t, name, alg)
			type sent struct {
				at time.Duration
				n  int
			}
			var allowed []sent
			asks := budget.Histories(500, 2000)
			for i := range asks {
				if i%5 == 0 && len(allowed) > 0 { // as soon as something has left the window
					q := c.quotas[rnd.IntN(len(c.quotas))]
					past := allowed[max(0, len(allowed)-1-rnd.IntN(10))].at + q.window
					c.after(max(0, past-c.now))
				} else {
					c.after(time.Duration(rnd.Int64N(int64(longest / 8))))
				}
				may := math.MaxInt
				for _, q := range c.quotas {
					left := q.events
					for j := len(allowed) - 1; j >= 0 && allowed[j].at > c.now-q.window; j-- {
						left -= allowed[j].n
					}
					may = min(may, left)
				}
				if may == 0 {
					continue
				}
				n := may
				if rnd.IntN(3) > 0 {
					n = 1 + rnd.IntN(may)
				}
				require.True(t, c.ask(n), "%d at %v after %v", n, c.now, allowed[max(0, len(allowed)-20):])
				allowed = append(allowed, sent{c.now, n})
			}
			assert.Greater(t, len(allowed), int(asks)/50)
		})
	}
}
