package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// TestRetryAfterIsTrue checks that a client that retries after Retry-After is served,
// and one that retries a second earlier is not.
func TestRetryAfterIsTrue(t *testing.T) {
	for _, alg := range []ratelimit.Algorithm{
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(7), Burst: 3},
		ratelimit.FixedWindow{Limit: 3, Window: time.Minute},
		ratelimit.SlidingWindow{Limit: 3, Window: time.Minute},
		ratelimit.SlidingLog{Limit: 3, Window: 90 * time.Millisecond},
	} {
		l, clk := limiter(t, alg)
		clk.Add(1234567 * time.Microsecond)
		h := httplimit.Middleware(l)(ok)
		for range 3 {
			require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		}
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		wait, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
		require.NoError(t, err)
		d, err := l.Peek(t.Context(), "192.0.2.1")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, wait, d.RetryAfter, "%T", alg)
		assert.Less(t, wait-d.RetryAfter, time.Second, "%T", alg)
		clk.Add(wait)
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, "%T", alg)
	}
}

// greatestLimit is the greatest limit that New accepts.
const greatestLimit = math.MaxInt/2 + 1

func TestHeaders(t *testing.T) {
	hour := ratelimit.FixedWindow{Limit: 100, Window: time.Hour}
	for name, tt := range map[string]struct {
		alg             ratelimit.Algorithm
		opts            []httplimit.Option
		policy, current string
	}{
		"bucket": {ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 25}, nil, `"default";q=25;w=3`, `"default";r=24;t=1`},
		"leaky":  {ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 5}, nil, `"default";q=5;w=5`, `"default";r=4;t=1`},
		"window": {hour, nil, `"default";q=100;w=3600`, `"default";r=99;t=3600`},
		"log":    {ratelimit.SlidingLog{Limit: 3, Window: 1500 * time.Millisecond}, nil, `"default";q=3;w=2`, `"default";r=2;t=2`},
		"rolling": {
			ratelimit.RollingWindow{Quota: 9, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 4}, nil,
			`"default";q=9;w=86400, "default-period";q=4;w=3600`, `"default";r=3`,
		},
		"sub-second": {ratelimit.FixedWindow{Limit: 3, Window: 100 * time.Millisecond}, nil, `"default";q=3`, `"default";r=2;t=1`},
		"warming up": {
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: time.Second},
			[]httplimit.Option{httplimit.WithPolicyName("w")}, `"w";q=5;w=3`, "",
		},
		"all": {
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}, hour}, nil,
			`"default-1";q=10;w=1, "default-2";q=100;w=3600`, `"default-1";r=9;t=1`,
		},
		"all, slow": {
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerHour(12)}, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 7}, hour},
			nil, `"default-1";q=12;w=3600, "default-2";q=7;w=420, "default-3";q=100;w=3600`,
			`"default-2";r=6;t=60`,
		},
		"all, rounded": {
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 3*time.Second + 1}}, hour},
			nil, `"default-1";q=3;w=4, "default-2";q=100;w=3600`, `"default-1";r=2;t=2`,
		},
		"name": {
			hour, []httplimit.Option{httplimit.WithPolicyName(`per "hour" \ day`)},
			`"per \"hour\" \\ day";q=100;w=3600`, `"per \"hour\" \\ day";r=99;t=3600`,
		},
		"none":   {hour, []httplimit.Option{httplimit.WithHeaders(httplimit.None)}, "", ""},
		"legacy": {hour, []httplimit.Option{httplimit.WithHeaders(httplimit.Legacy)}, "", ""},
		"greatest limit": {
			ratelimit.FixedWindow{Limit: greatestLimit, Window: time.Hour}, nil,
			fmt.Sprintf(`"default";q=%d;w=3600`, min(int64(greatestLimit), 999999999999999)),
			fmt.Sprintf(`"default";r=%d;t=3600`, min(int64(greatestLimit)-1, 999999999999999)),
		},
	} {
		l, clk := limiter(t, tt.alg)
		h := serve(httplimit.Middleware(l, tt.opts...)(ok), from("192.0.2.1:1")).Header
		assert.Equal(t, tt.policy, h.Get("RateLimit-Policy"), name)
		if name != "warming up" { // which is in floating point
			assert.Equal(t, tt.current, h.Get("RateLimit"), name)
		}
		if name == "legacy" {
			assert.Equal(t, "100", h.Get("X-RateLimit-Limit"))
			assert.Equal(t, "99", h.Get("X-RateLimit-Remaining"))
			assert.Equal(t, fmt.Sprint(clk.Now().Add(time.Hour+time.Second-1).Unix()), h.Get("X-RateLimit-Reset"))
		} else {
			assert.Empty(t, h.Get("X-RateLimit-Limit")+h.Get("X-RateLimit-Remaining")+h.Get("X-RateLimit-Reset"), name)
		}
	}
}

// TestRetryAfterInAnyCase checks that Retry-After is sent with every choice of header
// fields, unless no wait helps.
func TestRetryAfterInAnyCase(t *testing.T) {
	for _, headers := range []httplimit.Headers{httplimit.Standard, httplimit.Legacy, httplimit.None, httplimit.Draft7} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		cost := 1
		h := httplimit.Middleware(l, httplimit.WithHeaders(headers), httplimit.WithCost(func(*http.Request) int { return cost }))(ok)
		require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
		cost = 2
		resp = serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		assert.Empty(t, resp.Header.Values("Retry-After"))
	}
}

// TestNested puts one limit before another: the response reports both.
func TestNested(t *testing.T) {
	outer, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	inner, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Minute})
	h := httplimit.Middleware(outer, httplimit.WithPolicyName("all"))(httplimit.Middleware(inner, httplimit.WithPolicyName("this"))(ok))
	for left := 2; left >= 1; left-- {
		got := serve(h, from("192.0.2.1:1")).Header
		assert.Equal(t, []string{`"all";q=3;w=3600`, `"this";q=100;w=60`}, got.Values("RateLimit-Policy"))
		assert.Equal(t, []string{fmt.Sprintf(`"all";r=%d;t=3600`, left), fmt.Sprintf(`"this";r=%d;t=60`, 97+left)}, got.Values("RateLimit"))
	}
}

// TestBlockedInside has a key that an inner middleware blocks: nothing says that it has quota left,
// or when that is back.
func TestBlockedInside(t *testing.T) {
	outer, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	inner, _ := limiter(t, ratelimit.Blocked{})
	for headers, want := range map[httplimit.Headers]map[string]string{
		httplimit.Draft7: {"RateLimit": "", "RateLimit-Policy": "3;w=3600"},
		httplimit.Legacy: {"X-RateLimit-Limit": "0", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": ""},
	} {
		h := httplimit.Middleware(outer, httplimit.WithHeaders(headers))(httplimit.Middleware(inner, httplimit.WithHeaders(headers))(ok))
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 429, resp.StatusCode)
		for name, value := range want {
			assert.Equal(t, value, resp.Header.Get(name), name)
		}
	}
}

// A key without a limit gets no header fields, and a blocked one no Retry-After, whether the
// limit is that of all keys or of the key.
func TestPlans(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)}
	for name, tt := range map[string]struct {
		alg             ratelimit.Algorithm
		status          int
		policy, current string
		legacy          string
	}{
		"unlimited":      {ratelimit.Unlimited{}, 200, "", "", ""},
		"all unlimited":  {ratelimit.All{ratelimit.Unlimited{}, ratelimit.Unlimited{}}, 200, "", "", ""},
		"unlimited part": {ratelimit.All{ratelimit.Unlimited{}, bucket}, 200, `"default-2";q=10;w=1`, `"default-2";r=9;t=1`, "10 9"},
		"blocked":        {ratelimit.Blocked{}, 429, `"default";q=0`, `"default";r=0`, "0 0"},
		"blocked part":   {ratelimit.All{bucket, ratelimit.Blocked{}}, 429, `"default-1";q=10;w=1, "default-2";q=0`, `"default-2";r=0`, "0 0"},
	} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, own %v", name, own), func(t *testing.T) {
				l, _ := limiter(t, tt.alg)
				if own {
					l = ratelimit.Must(ratelimit.New(bucket,
						ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return tt.alg, nil })))
				}
				resp := serve(httplimit.Middleware(l)(ok), from("192.0.2.1:1"))
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, tt.policy, resp.Header.Get("RateLimit-Policy"))
				assert.Equal(t, tt.current, resp.Header.Get("RateLimit"))
				assert.Empty(t, resp.Header.Values("Retry-After"))
				if tt.status == 429 {
					assert.Contains(t, body(t, resp), "No requests are allowed.")
				}

				resp = serve(httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Legacy))(ok), from("192.0.2.2:1"))
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, tt.legacy, strings.TrimSpace(resp.Header.Get("X-RateLimit-Limit")+" "+resp.Header.Get("X-RateLimit-Remaining")))
				assert.Equal(t, tt.legacy == "" || tt.status == 429, resp.Header.Get("X-RateLimit-Reset") == "", "nothing is ever back for a blocked key")

				shaped := serve(httplimit.Middleware(l, httplimit.WithShaping(time.Minute))(ok), from("192.0.2.3:1"))
				assert.Equal(t, tt.status, shaped.StatusCode)
				assert.Empty(t, shaped.Header.Values("Retry-After"))
			})
		}
	}
}

// TestPoliciesOfKeys: each client is told of the limit of its own key, again when it comes back.
func TestPoliciesOfKeys(t *testing.T) {
	limits := map[string]ratelimit.Algorithm{
		"a": ratelimit.FixedWindow{Limit: 10, Window: time.Minute},
		"b": ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		"c": ratelimit.All{ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, ratelimit.FixedWindow{Limit: 9, Window: time.Hour}},
	}
	l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
		return limits[key], nil
	})))
	h := httplimit.Middleware(l, httplimit.WithKey(key.Header("User")))(ok)
	for range 2 {
		for user, want := range map[string]string{
			"a": `"default";q=10;w=60`,
			"b": `"default";q=5;w=3600`,
			"c": `"default-1";q=3;w=60, "default-2";q=9;w=3600`,
		} {
			assert.Equal(t, want, serve(h, from("192.0.2.1:1", "User", user)).Header.Get("RateLimit-Policy"), user)
		}
	}
}

// TestDraft7 follows limits through a refusal, with the fields of an earlier draft.
func TestDraft7(t *testing.T) {
	hour := ratelimit.FixedWindow{Limit: 2, Window: time.Hour}
	for name, tt := range map[string]struct {
		alg    ratelimit.Algorithm
		policy string
		fields []string // RateLimit of each request
	}{
		"window": {hour, "2;w=3600", []string{"limit=2, remaining=1, reset=3600", "limit=2, remaining=0, reset=3600", "limit=2, remaining=0, reset=3600"}},
		"bucket": {
			ratelimit.TokenBucket{Rate: ratelimit.PerMinute(2)}, "2;w=60",
			[]string{"limit=2, remaining=1, reset=30", "limit=2, remaining=0, reset=60", "limit=2, remaining=0, reset=30"},
		},
		"sub-second": {
			ratelimit.FixedWindow{Limit: 1, Window: time.Second / 2}, "",
			[]string{"limit=1, remaining=0, reset=1", "limit=1, remaining=0, reset=1"},
		},
		"all": {ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Minute}, hour}, "9;w=60, 2;w=3600",
			[]string{"limit=2, remaining=1, reset=3600", "limit=2, remaining=0, reset=3600", "limit=2, remaining=0, reset=3600"}},
		"short part": {ratelimit.All{ratelimit.FixedWindow{Limit: 1, Window: time.Minute}, hour}, "1;w=60, 2;w=3600",
			[]string{"limit=1, remaining=0, reset=60", "limit=1, remaining=0, reset=60"}},
		"same limit": {ratelimit.All{hour, ratelimit.FixedWindow{Limit: 2, Window: time.Minute}}, "2;w=3600", []string{"limit=2, remaining=1, reset=3600"}},
		"rolling":    {ratelimit.RollingWindow{Quota: 9, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 4}, "9;w=86400, 4;w=3600", nil},
		"in flight":  {ratelimit.InFlight{Limit: 1, Timeout: time.Minute}, "", []string{"limit=1, remaining=0, reset=60", "limit=1, remaining=0, reset=60"}},
		"greatest": {
			ratelimit.FixedWindow{Limit: greatestLimit, Window: time.Hour},
			fmt.Sprintf("%d;w=3600", min(int64(greatestLimit), 999999999999999)), nil,
		},
		"unlimited": {ratelimit.Unlimited{}, "", []string{""}},
		"blocked":   {ratelimit.Blocked{}, "", []string{""}},
	} {
		l, _ := limiter(t, tt.alg)
		h := httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Draft7))(ok)
		for i, want := range tt.fields {
			got := serve(h, from("192.0.2.1:1")).Header
			assert.Equal(t, want, got.Get("RateLimit"), "%s: request %d", name, i)
		}
		assert.Equal(t, tt.policy, serve(h, from("192.0.2.2:1")).Header.Get("RateLimit-Policy"), name)
	}
}

// TestDraft7Exceeding has a request that costs more than the limit: it is never granted, but the
// quota is back when reset says.
func TestDraft7Exceeding(t *testing.T) {
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
	cost := 1
	h := httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Draft7), httplimit.WithCost(func(*http.Request) int { return cost }))(ok)
	require.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
	cost = 3
	resp := serve(h, from("192.0.2.1:1"))
	assert.Equal(t, 429, resp.StatusCode)
	assert.Empty(t, resp.Header.Values("Retry-After"))
	assert.Equal(t, "limit=2, remaining=1, reset=3600", resp.Header.Get("RateLimit"))
}

// TestDraft7OfSeveral checks the fields of several limiters of a middleware, and of nested
// middlewares.
func TestDraft7OfSeveral(t *testing.T) {
	users, _ := limiter(t, ratelimit.FixedWindow{Limit: 9, Window: time.Minute})
	orgs, _ := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Hour})
	draft7 := httplimit.WithHeaders(httplimit.Draft7)
	got := serve(httplimit.Middleware(users, draft7, httplimit.WithAlso(orgs, key.Everybody(), "org"))(ok), from("192.0.2.1:1")).Header
	assert.Equal(t, []string{"9;w=60, 3;w=3600"}, got.Values("RateLimit-Policy"))
	assert.Equal(t, []string{"limit=3, remaining=2, reset=3600"}, got.Values("RateLimit"))
	got = serve(httplimit.Middleware(users, draft7)(httplimit.Middleware(orgs, draft7)(ok)), from("192.0.2.1:1")).Header
	assert.Equal(t, []string{"9;w=60", "3;w=3600"}, got.Values("RateLimit-Policy"))
	assert.Equal(t, []string{"limit=3, remaining=2, reset=3600"}, got.Values("RateLimit"), "a dictionary has each key once")
}

// TestJitter checks that clients are told to retry later, never earlier, and at different
// times, and that the decision stays exact.
func TestJitter(t *testing.T) {
	for _, headers := range []httplimit.Headers{httplimit.Standard, httplimit.Draft7, httplimit.Legacy, httplimit.None} {
		l, _ := limiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour, Start: ratelimit.StartOnFirstEvent})
		denied := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, _ := httplimit.VerdictOf(r.Context())
			assert.Equal(t, time.Hour, a.Decision.RetryAfter)
			w.WriteHeader(429)
		})
		h := httplimit.Middleware(l, httplimit.WithJitter(90*time.Second), httplimit.WithHeaders(headers), httplimit.WithRefusal(denied))(ok)
		resp := serve(h, from("192.0.2.1:1"))
		require.Equal(t, 200, resp.StatusCode)
		reset := resp.Header.Get("X-RateLimit-Reset")
		seen := make(map[int]bool)
		for range 500 {
			resp := serve(h, from("192.0.2.1:1"))
			after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, after, 3600)
			require.LessOrEqual(t, after, 3690)
			seen[after] = true
			switch headers {
			case httplimit.Standard:
				require.Equal(t, fmt.Sprintf(`"default";r=0;t=%d`, after), resp.Header.Get("RateLimit"))
			case httplimit.Draft7:
				require.Equal(t, fmt.Sprintf("limit=1, remaining=0, reset=%d", after), resp.Header.Get("RateLimit"))
			}
			require.Equal(t, reset, resp.Header.Get("X-RateLimit-Reset"), "that is when the quota is back")
		}
		assert.Greater(t, len(seen), 10)
	}

	for most, want := range map[time.Duration]float64{0: 3600, 1: 3601, math.MaxInt64: math.Inf(1)} {
		l, _ := limiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
		h := httplimit.Middleware(l, httplimit.WithJitter(most))(ok)
		serve(h, from("192.0.2.1:1"))
		seen := make(map[string]bool)
		for range 10 {
			resp := serve(h, from("192.0.2.1:1"))
			after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			require.NoError(t, err)
			assert.GreaterOrEqual(t, after, 3600)
			assert.LessOrEqual(t, float64(after), want)
			seen[resp.Header.Get("Retry-After")] = true
		}
		assert.Equal(t, most > 1, len(seen) > 2, "the longest jitter is one, too")
	}
	blocked, _ := limiter(t, ratelimit.Blocked{})
	resp := serve(httplimit.Middleware(blocked, httplimit.WithJitter(time.Hour))(ok), from("192.0.2.1:1"))
	assert.Empty(t, resp.Header.Values("Retry-After"), "no wait helps")
}

// TestJitterOfFailure checks that a jitter shorter than a second does not shorten the second that
// clients are told to wait if the store has failed.
func TestJitterOfFailure(t *testing.T) {
	for _, most := range []time.Duration{0, time.Millisecond, time.Minute} {
		var waits []time.Duration
		denied := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			a, _ := httplimit.VerdictOf(r.Context())
			waits = append(waits, a.RetryAfter)
		})
		l, err := ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
			ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
			ratelimit.WithFailurePolicy(ratelimit.FailClosed()), ratelimit.WithFailureLog(nil))
		require.NoError(t, err)
		h := httplimit.Middleware(l, httplimit.WithJitter(most), httplimit.WithRefusal(denied))(ok)
		gate, err := httplimit.NewGate(l, httplimit.WithJitter(most))
		require.NoError(t, err)
		for range 20 {
			resp := serve(h, from("192.0.2.1:1"))
			after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			require.NoError(t, err)
			assert.Equal(t, time.Duration(after)*time.Second,
				(waits[len(waits)-1] + time.Second - 1).Truncate(time.Second), "the header field and the Admission")
			a := gate.Admit(from("192.0.2.1:1"))
			waits = append(waits, a.RetryAfter)
		}
		for _, wait := range waits {
			assert.GreaterOrEqual(t, wait, time.Second)
			assert.LessOrEqual(t, wait, time.Second+most)
		}
	}
}

// A slowClock moves on with each reading.
type slowClock struct {
	*clock.Mock
	step time.Duration
}

func (c *slowClock) Now() time.Time {
	c.Add(c.step)
	return c.Mock.Now()
}

// TestLegacyResetOfWindows checks that X-RateLimit-Reset is the end of the window, although time
// goes by before and after the decision. Other times are rounded up.
func TestLegacyResetOfWindows(t *testing.T) {
	begin := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		alg  ratelimit.Algorithm
		step time.Duration
		want time.Time
	}{
		"hour":         {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, 7 * time.Microsecond, begin.Add(time.Hour)},
		"month":        {ratelimit.CalendarWindow{Limit: 10, Every: ratelimit.Month}, 7 * time.Microsecond, begin.AddDate(0, 1, 0).Truncate(24 * time.Hour)},
		"bucket":       {ratelimit.TokenBucket{Rate: ratelimit.Every(time.Minute + time.Second/2)}, 7 * time.Microsecond, begin.Add(time.Minute + time.Second)},
		"a slow store": {ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, 2 * time.Second, begin.Add(time.Hour + 2*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			clk := &slowClock{clock.NewMock(), tt.step}
			clk.Set(begin)
			l := ratelimit.Must(ratelimit.New(tt.alg, ratelimit.WithClock(clk)))
			resp := serve(httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Legacy))(ok), from("192.0.2.1:1"))
			assert.Equal(t, strconv.FormatInt(tt.want.Unix(), 10), resp.Header.Get("X-RateLimit-Reset"))
		})
	}
}

// TestLegacyOfParts checks that the three fields of Legacy are of one part: the one that decided.
func TestLegacyOfParts(t *testing.T) {
	const start = 1772366400
	year := ratelimit.SlidingLog{Limit: 1000, Window: 300 * 24 * time.Hour}
	minute := ratelimit.FixedWindow{Limit: 5, Window: time.Minute}
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		costs []int
		want  []string // limit, remaining and reset after the start
	}{
		"one":         {minute, []int{1}, []string{"5 4 60"}},
		"the shorter": {ratelimit.All{minute, year}, []int{1, 4, 1}, []string{"5 4 60", "5 0 60", "5 0 60"}},
		"the longer": {
			ratelimit.All{minute, ratelimit.SlidingLog{Limit: 4, Window: time.Hour}}, []int{1, 3, 1},
			[]string{"4 3 3600", "4 0 3600", "4 0 3600"},
		},
		"a bucket": {
			ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 10}, year},
			[]int{1, 9, 1}, []string{"10 9 1", "10 0 10", "10 0 10"},
		},
		"in flight": {
			ratelimit.All{ratelimit.InFlight{Limit: 5, Timeout: time.Hour}, year}, []int{2, 5, 1},
			[]string{"5 3 3600", "5 0 3600", "5 4 3600"},
		},
		"with a period": {
			ratelimit.All{ratelimit.RollingWindow{Quota: 50, Window: time.Hour, Period: time.Minute, PeriodLimit: 5}, year},
			[]int{2}, []string{"5 3 3600"},
		},
		"an unlimited":    {ratelimit.All{ratelimit.Unlimited{}, minute}, []int{1}, []string{"5 4 60"}},
		"more than it is": {ratelimit.All{minute, year}, []int{6}, []string{"5 5 0"}},
	} {
		single, clk := limiter(t, tt.alg)
		own, err := ratelimit.New(minute, ratelimit.WithClock(clk),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return tt.alg, nil }))
		require.NoError(t, err)
		users, err := ratelimit.New(year, ratelimit.WithClock(clk))
		require.NoError(t, err)
		also, err := ratelimit.New(tt.alg, ratelimit.WithClock(clk))
		require.NoError(t, err)
		cost := 0
		opts := []httplimit.Option{
			httplimit.WithHeaders(httplimit.Legacy),
			httplimit.WithInFlight(),
			httplimit.WithCost(func(*http.Request) int { return cost }),
		}
		for kind, h := range map[string]http.Handler{
			"alone":   httplimit.Middleware(single, opts...)(ok),
			"own":     httplimit.Middleware(own, opts...)(ok),
			"another": httplimit.Middleware(users, append(opts, httplimit.WithAlso(also, key.Everybody(), "also"))...)(ok),
		} {
			for i, want := range tt.want {
				cost = tt.costs[i]
				header := serve(h, from("192.0.2.1:1")).Header
				reset, err := strconv.Atoi(header.Get("X-RateLimit-Reset"))
				require.NoError(t, err)
				assert.Equal(t, want, fmt.Sprint(header.Get("X-RateLimit-Limit"), " ",
					header.Get("X-RateLimit-Remaining"), " ", reset-start), "%s, %s: %d", name, kind, i)
			}
		}
	}
}
