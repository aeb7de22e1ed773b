package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// both returns the options of a middleware with a limit per user and one per organisation.
func both(orgs ratelimit.Limiter, more ...httplimit.Option) []httplimit.Option {
	return append([]httplimit.Option{
		httplimit.WithKey(key.Header("User")),
		httplimit.WithPolicyName("user"),
		httplimit.WithAlso(orgs, key.Header("Org"), "org"),
	}, more...)
}

// left returns how much of key is left.
func left(t *testing.T, l ratelimit.Limiter, key string) int {
	t.Helper()
	d, err := l.Peek(context.Background(), key)
	require.NoError(t, err)
	return d.Remaining
}

// TestAlso limits users and their organisation together, and reports both.
func TestAlso(t *testing.T) {
	users, clk := limiter(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute})
	orgs, err := ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	h := httplimit.Middleware(users, both(orgs)...)(ok)
	for i, step := range []struct {
		user    string
		status  int
		current string
		retry   string
		users   int
		orgs    int
	}{
		{"a", 200, `"user";r=2;t=60`, "", 2, 4},
		{"a", 200, `"user";r=1;t=60`, "", 1, 3},
		{"a", 200, `"user";r=0;t=60`, "", 0, 2},
		{"a", 429, `"user";r=0;t=60`, "60", 0, 2},
		{"b", 200, `"org";r=1;t=3600`, "", 2, 1},
		{"b", 200, `"org";r=0;t=3600`, "", 1, 0},
		{"b", 429, `"org";r=0;t=3600`, "3600", 1, 0},
		{"c", 429, `"org";r=0;t=3600`, "3600", 3, 0},
	} {
		resp := serve(h, from("192.0.2.1:1", "User", step.user, "Org", "o", "Accept", "application/problem+json"))
		assert.Equal(t, step.status, resp.StatusCode, i)
		assert.Equal(t, []string{`"user";q=3;w=60, "org";q=5;w=3600`}, resp.Header["Ratelimit-Policy"], i)
		assert.Equal(t, step.current, resp.Header.Get("RateLimit"), i)
		assert.Equal(t, step.retry, resp.Header.Get("Retry-After"), i)
		if step.status == 429 {
			assert.Contains(t, body(t, resp), `"violated-policies":[`+step.current[:len(`"org"`)], i)
		}
		assert.Equal(t, step.users, left(t, users, step.user), i)
		assert.Equal(t, step.orgs, left(t, orgs, "o"), i)
	}
	for _, missing := range []string{"User", "Org"} {
		r := from("192.0.2.1:1", "User", "c", "Org", "p")
		r.Header.Del(missing)
		assert.Equal(t, 400, serve(h, r).StatusCode)
		r.Header[missing] = []string{""}
		assert.Equal(t, 400, serve(h, r).StatusCode)
	}
	assert.Equal(t, 5, left(t, orgs, "p"))
}

// TestAlsoLegacy checks that the one set of fields has the least of what is left.
func TestAlsoLegacy(t *testing.T) {
	users, clk := limiter(t, ratelimit.FixedWindow{Limit: 30, Window: time.Minute})
	orgs, err := ratelimit.New(ratelimit.FixedWindow{Limit: 5, Window: time.Hour}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	h := httplimit.Middleware(users, both(orgs, httplimit.WithHeaders(httplimit.Legacy))...)(ok)
	resp := serve(h, from("192.0.2.1:1", "User", "a", "Org", "o"))
	assert.Equal(t, []string{"5"}, resp.Header["X-Ratelimit-Limit"])
	assert.Equal(t, []string{"4"}, resp.Header["X-Ratelimit-Remaining"])
	assert.Equal(t, []string{"1772370000"}, resp.Header["X-Ratelimit-Reset"], "in an hour")
}

// TestAlsoNumbersParts has limiters with several parts, and with limits of keys' own.
func TestAlsoNumbersParts(t *testing.T) {
	users, clk := limiter(t, ratelimit.All{ratelimit.FixedWindow{Limit: 9, Window: time.Second}, ratelimit.FixedWindow{Limit: 9, Window: time.Minute}})
	parts := ratelimit.All{ratelimit.FixedWindow{Limit: 8, Window: time.Minute}, ratelimit.FixedWindow{Limit: 2, Window: time.Hour}}
	fixed, err := ratelimit.New(parts, ratelimit.WithClock(clk))
	require.NoError(t, err)
	own, err := ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, ratelimit.WithClock(clk),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return parts, nil }))
	require.NoError(t, err)
	for i, orgs := range []ratelimit.Limiter{fixed, own} {
		var refused ratelimit.Decision
		denied := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, _ := httplimit.VerdictOf(r.Context())
			refused = a.Decision
		})
		require.NoError(t, users.Reset(t.Context(), "a"))
		h := httplimit.Middleware(users, both(orgs, httplimit.WithRefusal(denied))...)(ok)
		for _, current := range []string{`"org-2";r=1;t=3600`, `"org-2";r=0;t=3600`, `"org-2";r=0;t=3600`} {
			resp := serve(h, from("192.0.2.1:1", "User", "a", "Org", "o"))
			assert.Equal(t, `"user-1";q=9;w=1, "user-2";q=9;w=60, "org-1";q=8;w=60, "org-2";q=2;w=3600`, resp.Header.Get("RateLimit-Policy"), i)
			assert.Equal(t, current, resp.Header.Get("RateLimit"), i)
		}
		assert.Equal(t, ratelimit.Decision{Limit: 2, RetryAfter: time.Hour, ResetAfter: time.Hour, Part: 1}, refused)
	}
}

// TestAlsoSettles settles a request in all limiters.
func TestAlsoSettles(t *testing.T) {
	users, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	orgs, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
	h := httplimit.Middleware(users, both(orgs,
		httplimit.WithCost(func(*http.Request) int { return 10 }), httplimit.WithSettleAtEnd(httplimit.ByCost))...)(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { httplimit.Cost(r.Context(), 3) }))
	resp := serve(h, from("192.0.2.1:1", "User", "a", "Org", "o"))
	assert.Equal(t, `"user";r=90;t=360`, resp.Header.Get("RateLimit"))
	assert.Equal(t, 97, left(t, users, "a"))
	assert.Equal(t, 997, left(t, orgs, "o"))
}

// TestAlsoCostsOfItsOwn counts requests, tokens and cents: one decision, which spends nothing if
// one of them refuses, and a cost for each.
func TestAlsoCostsOfItsOwn(t *testing.T) {
	requests, clk := limiter(t, ratelimit.FixedWindow{Limit: 5, Window: time.Hour})
	window := func(limit int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, ratelimit.WithClock(clk)))
	}
	tokens, cents := window(1000), window(100)
	estimate := func(r *http.Request) int { return int(r.ContentLength) }
	also := httplimit.WithAlso(tokens, key.Header("User"), "tokens",
		httplimit.WithCost(estimate), httplimit.WithSettleAtEnd(httplimit.ByCost))
	h := httplimit.Middleware(requests,
		httplimit.WithKey(key.Header("User")),
		also,
		httplimit.WithAlso(cents, key.Header("User"), "cents",
			httplimit.WithCost(func(r *http.Request) int { return int(r.ContentLength) / 10 }),
			httplimit.WithSettleAtEnd(func(r *http.Request, _ int, _ int64) int {
				if sum, ok := httplimit.CostOf(r.Context()); ok {
					return sum / 10
				}
				return httplimit.ByCost(r, 0, 0)
			})))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if used := r.Header["Used"]; used != nil {
			n, err := strconv.Atoi(used[0])
			assert.NoError(t, err)
			httplimit.Cost(r.Context(), n)
		}
	}))
	for i, step := range []struct {
		estimate int64
		used     []string
		status   int
		current  string
		left     [3]int
	}{
		{400, []string{"250"}, 200, `"tokens";r=600;t=3600`, [3]int{4, 750, 75}},
		{400, nil, 200, `"tokens";r=350;t=3600`, [3]int{3, 350, 35}},
		{360, []string{"1"}, 429, `"cents";r=35;t=3600`, [3]int{3, 350, 35}},
		{0, nil, 200, `"default";r=2;t=3600`, [3]int{2, 350, 35}},
		{300, []string{"0"}, 200, `"tokens";r=50;t=3600`, [3]int{1, 350, 35}},
	} {
		r := from("192.0.2.1:1", "User", "a")
		r.ContentLength = step.estimate
		r.Header["Used"] = step.used
		if step.estimate == 360 {
			require.NoError(t, tokens.Reset(t.Context(), "a")) // so that only the cents refuse
		}
		resp := serve(h, r)
		if step.estimate == 360 {
			require.True(t, tokens.AllowN("a", 650))
		}
		assert.Equal(t, step.status, resp.StatusCode, i)
		assert.Equal(t, step.current, resp.Header.Get("RateLimit"), i)
		for k, l := range []ratelimit.Limiter{requests, tokens, cents} {
			assert.Equal(t, step.left[k], left(t, l, "a"), "step %d, limiter %d", i, k)
		}
	}
	r := from("192.0.2.1:1", "User", "b")
	r.ContentLength = -1
	assert.Equal(t, 400, serve(h, r).StatusCode, "a negative cost")
	assert.Equal(t, 5, left(t, requests, "b"))
}

// TestAlsoSharesCosts applies WithCost and WithSettleAtEnd of the middleware to the limiters that
// have neither, and asks none if all cost nothing.
func TestAlsoSharesCosts(t *testing.T) {
	users, clk := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	window := func() ratelimit.Limiter {
		return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 100, Window: time.Hour}, ratelimit.WithClock(clk)))
	}
	orgs, calls, own := window(), window(), 1
	cost, settled := 10, 3
	h := httplimit.Middleware(users, both(orgs,
		httplimit.WithCost(func(*http.Request) int { return cost }),
		httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return settled }),
		httplimit.WithAlso(calls, key.Header("User"), "calls", httplimit.WithCost(func(*http.Request) int { return own })))...)(ok)
	for i, step := range []struct{ cost, settled, own, users, calls int }{
		{10, 3, 1, 97, 99},
		{0, 4, 1, 93, 98}, // which is held for one of them
		{0, 5, 0, 93, 98},
		{10, -1, 2, 83, 96},
	} {
		quiet(t)
		cost, settled, own = step.cost, step.settled, step.own
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1", "User", "a", "Org", "o")).StatusCode)
		assert.Equal(t, [3]int{step.users, step.users, step.calls}, [3]int{left(t, users, "a"), left(t, orgs, "o"), left(t, calls, "a")}, i)
	}
}

// TestAlsoSettlesAsHeld: if the function of WithSettleAtEnd panics, each limit counts the events that are
// held in it.
func TestAlsoSettlesAsHeld(t *testing.T) {
	window := func() ratelimit.Limiter {
		l, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
		return l
	}
	users, orgs, calls := window(), window(), window()
	opts := both(orgs,
		httplimit.WithCost(func(*http.Request) int { return 10 }),
		httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { panic("a mistake") }),
		httplimit.WithAlso(calls, key.Header("User"), "calls", httplimit.WithCost(func(*http.Request) int { return 3 })))
	of, err := httplimit.NewGateOf(func(_ *http.Request, key string) ([]httplimit.Limit, error) {
		return []httplimit.Limit{{Name: "users", Limiter: users, Key: key}}, nil
	}, opts...)
	require.NoError(t, err)
	for i, h := range []http.Handler{httplimit.Middleware(users, opts...)(ok), of.Middleware(ok)} {
		assert.Panics(t, func() { serve(h, from("192.0.2.1:1", "User", "a", "Org", "o")) })
		assert.Equal(t, [3]int{90 - 10*i, 90 - 10*i, 97 - 3*i}, [3]int{left(t, users, "a"), left(t, orgs, "o"), left(t, calls, "a")}, i)
	}
}

// TestAlsoInShadow reports which limiter would have refused.
func TestAlsoInShadow(t *testing.T) {
	users, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	orgs, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	var refused []int
	h := httplimit.Middleware(users, both(orgs, httplimit.WithShadow(1,
		func(_ *http.Request, d ratelimit.Decision) { refused = append(refused, d.Part) }))...)(ok)
	for range 2 {
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1", "User", "a", "Org", "o")).StatusCode)
	}
	assert.Equal(t, []int{1}, refused)
	assert.Equal(t, 99, left(t, users, "a"))
}

// TestAlsoWhenAStoreFails lets the store of one limiter fail.
func TestAlsoWhenAStoreFails(t *testing.T) {
	for _, tt := range []struct {
		policy ratelimit.FailurePolicy
		status int
		left   int
	}{{ratelimit.FailOpen(), 200, 99}, {ratelimit.FailClosed(), 503, 100}} {
		quiet(t)
		for _, first := range []bool{true, false} {
			well, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
			failing, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
				ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
				ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			var reported error
			report := httplimit.WithStoreError(func(_ *http.Request, err error) { reported = err })
			users, orgs := well, failing
			if first {
				users, orgs = failing, well
			}
			resp := serve(httplimit.Middleware(users, both(orgs, report)...)(ok), from("192.0.2.1:1", "User", "k", "Org", "k"))
			assert.Equal(t, tt.status, resp.StatusCode)
			assert.ErrorContains(t, reported, "no route to the store")
			assert.Empty(t, resp.Header.Get("RateLimit"), "what is left is unknown")
			assert.Equal(t, tt.left, left(t, well, "k"))
		}
	}
}

// TestAlsoOfAClientThatLeft gives back what the first limiter has granted if the context ends
// before the second one has answered.
func TestAlsoOfAClientThatLeft(t *testing.T) {
	users, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	orgs, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	ctx, leave := context.WithCancel(t.Context())
	h := httplimit.Middleware(users, both(leaving{fakes.Hidden{Limiter: orgs}, leave})...)(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("handled") }))
	resp := serve(h, from("192.0.2.1:1", "User", "a", "Org", "o").WithContext(ctx))
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, 100, left(t, users, "a"))
	assert.Equal(t, 100, left(t, orgs, "o"))
}

// A leaving limiter lets the client leave before it answers.
type leaving struct {
	ratelimit.Limiter
	leave context.CancelFunc
}

func (l leaving) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	l.leave()
	return l.Limiter.Take(ctx, key, n)
}

// TestSettleErrorsOfSeveral checks that an error is reported, however the others went.
func TestSettleErrorsOfSeveral(t *testing.T) {
	logged := quiet(t)
	users, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)})
	failing, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)},
		ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithName("test"),
		ratelimit.WithFailureLog(nil))
	require.NoError(t, err)
	n := 3
	h := httplimit.Middleware(users, both(failing, httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return n }))...)(ok)
	ask := func() { serve(h, from("192.0.2.1:1", "User", "a", "Org", "o")) }
	ask()
	assert.Equal(t, 97, left(t, users, "a"))
	assert.Empty(t, logged.String(), "errors of the store are the limiter's to log")
	n = int(^uint(0) >> 1)
	ask()
	assert.Contains(t, logged.String(), ratelimit.ErrDebt.Error())
}
