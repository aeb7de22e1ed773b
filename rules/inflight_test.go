package rules

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// In every format, an in-flight rule has a limit and a timeout.
func TestInFlightRule(t *testing.T) {
	want := ratelimit.InFlight{Limit: 5, Timeout: 90 * time.Second}
	for source, read := range map[string]func() (Rule, error){
		"table": func() (Rule, error) {
			return inTable.rule(rowOf(t, map[string]any{"THROTTLE_ID": "r", "NORMALIZED_CALL": "/x", "MAX_CALLS": 5,
				"WINDOW_SECONDS": 90, "ALGORITHM": "in-flight"}))
		},
		"file": func() (Rule, error) {
			rules, err := writeFile(t, "- {id: r, call: /x, limit: 5, seconds: 90, algorithm: in-flight}").Load(t.Context())
			require.NoError(t, err)
			return rules[0], err
		},
	} {
		r, err := read()
		require.NoError(t, err, source)
		alg, err := r.algorithm()
		require.NoError(t, err, source)
		assert.Equal(t, want, alg, source)
	}
	r := limited("r", "/x", 5, "in-flight")
	r.Burst = 5
	_, err := r.algorithm()
	assert.ErrorContains(t, err, "Burst is 5")
}

// What a rule holds is released.
func TestInFlightRuleIsReleased(t *testing.T) {
	rule := limited("r", "/x", 2, "in-flight")
	s, _ := newSet(t, Static(rule))
	first, _, err := s.Hold(t.Context(), "ann", "GET", "/x", 2)
	require.NoError(t, err)
	assert.Zero(t, granted(t, s, "ann", "/x", 1))
	require.NoError(t, first.Release(t.Context()))
	r, _, err := s.Hold(t.Context(), "ann", "GET", "/x", 1, ratelimit.Waiting())
	require.NoError(t, err)
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 2))
	require.NoError(t, r.Release(t.Context()))
	assert.Equal(t, 1, granted(t, s, "ann", "/x", 2))
}

// Nobody waits for the limits of several rules.
func TestHold_WaitingForSeveralRules(t *testing.T) {
	s, _ := newSet(t, Static(flights, limited("more", "/a/b", 2, "in-flight")))
	r, _, err := s.Hold(t.Context(), "ann", "GET", "/a%2Fb", 1, ratelimit.Waiting())
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "the option Waiting of a call that several rules limit")
	assert.Nil(t, r)
	r, _, err = s.Hold(t.Context(), "ann", "GET", "/a%2Fb", 1, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.NotContains(t, err.Error(), "several rules")
	assert.Nil(t, r)
	assert.Equal(t, 2, granted(t, s, "ann", "/a%2Fb", 3))
}

// left returns what a rule has left for the client 192.0.2.1.
func left(t *testing.T, s *Set, r Rule) int {
	t.Helper()
	c, err := r.compile()
	require.NoError(t, err)
	d, err := s.limiter.Peek(t.Context(), c.keyOf("192.0.2.1"))
	require.NoError(t, err)
	return d.Remaining
}

// get sends a request of 192.0.2.1 to h.
func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, http.NoBody))
	return w
}

// getMoving is get while clk moves, so that a request that waits ends.
func getMoving(clk *clock.Mock, h http.Handler, path string) (w *httptest.ResponseRecorder) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w = get(h, path)
	}()
	for {
		select {
		case <-done:
			return w
		default:
			clk.Add(1)
		}
	}
}

// Two rules for the interpretations of /a%2Fb, and one for /a/b.
var (
	flights = limited("flights", "/a%2Fb", 2, "in-flight")
	rate    = limited("rate", "/a/b", 100, "")
)

// A request counts while its handler runs, whatever other rules it counts against.
func TestMiddlewareInFlight(t *testing.T) {
	for name, tt := range map[string]struct {
		rules []Rule
		path  string
		opts  []httplimit.Option
	}{
		"one rule":      {[]Rule{limited("flights", "/a/b", 2, "in-flight")}, "/a/b", nil},
		"two rules":     {[]Rule{flights, rate}, "/a%2Fb", nil},
		"two, in turn":  {[]Rule{limited("flights", "/a/b", 2, "in-flight"), limited("rate", "/a%2Fb", 100, "")}, "/a%2Fb", nil},
		"two flights":   {[]Rule{flights, limited("more", "/a/b", 3, "in-flight")}, "/a%2Fb", nil},
		"a plan":        {[]Rule{flights, limited("plan", "/a/b", 0, "unlimited")}, "/a%2Fb", nil},
		"settled":       {[]Rule{flights, rate}, "/a%2Fb", []httplimit.Option{httplimit.WithSettleAtEnd(httplimit.ByCost)}},
		"shaped to few": {[]Rule{flights, rate}, "/a%2Fb", []httplimit.Option{httplimit.WithShaping(time.Nanosecond)}},
	} {
		t.Run(name, func(t *testing.T) {
			s, clk := newSet(t, Static(tt.rules...))
			var inside func() // the handler
			h := s.Middleware(tt.opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside() }))
			bug := errors.New("a bug")
			for _, panics := range []bool{false, true} {
				depth := 0
				inside = func() {
					if depth++; depth < 3 {
						want, send := 200, get
						if depth == 2 {
							want, send = 429, func(h http.Handler, path string) *httptest.ResponseRecorder { return getMoving(clk, h, path) }
						}
						resp := send(h, tt.path)
						assert.Equal(t, want, resp.Code)
						assert.Contains(t, strings.Join(resp.Header().Values("RateLimit-Policy"), ", "), "concurrent-requests")
						if depth == 2 && panics {
							panic(bug)
						}
					}
				}
				if panics {
					assert.PanicsWithValue(t, bug, func() { get(h, tt.path) })
				} else {
					assert.Equal(t, 200, get(h, tt.path).Code)
				}
				assert.Equal(t, 2, depth, "the third request did not pass")
				assert.Equal(t, 2, left(t, s, tt.rules[0]))
				if len(tt.rules) > 1 && tt.rules[1].ID == "rate" && tt.opts == nil {
					assert.Equal(t, map[bool]int{false: 98, true: 96}[panics], left(t, s, tt.rules[1]))
				}
			}
		})
	}
}

// A request that a rule or another limiter refuses is not in flight, and costs nothing.
func TestMiddlewareInFlightGivesBack(t *testing.T) {
	for _, calls := range [][]string{{"/a/b", "/a%2Fb"}, {"/a%2Fb", "/a/b"}} { // in either order
		one, flights := limited("one", calls[0], 1, ""), limited("flights", calls[1], 2, "in-flight")
		s, _ := newSet(t, Static(flights, one))
		h := s.Middleware()(http.NotFoundHandler())
		for _, want := range []int{404, 429, 429, 429} {
			assert.Equal(t, want, get(h, "/a%2Fb").Code, calls)
			assert.Equal(t, 2, left(t, s, flights), calls)
		}
	}
	s, _ := newSet(t, Static(flights, rate))
	other := ratelimit.Must(ratelimit.New(ratelimit.Blocked{}))
	h := s.Middleware(httplimit.WithAlso(other, clientip.Of(), "also"))(http.NotFoundHandler())
	for range 4 {
		assert.Equal(t, 429, get(h, "/a%2Fb").Code)
		assert.Equal(t, 2, left(t, s, flights))
		assert.Equal(t, 100, left(t, s, rate))
	}
}

// A shadow is in flight while its handler runs, if it does not refuse.
func TestMiddlewareInFlightInShadow(t *testing.T) {
	for _, path := range []string{"/a%2Fb", "/only"} {
		refused := 0
		rules := []Rule{limited("a", "/a%2Fb", 1, "in-flight"), rate, limited("b", "/only", 1, "in-flight")}
		rules[0].Shadow, rules[2].Shadow = true, true
		s, _ := newSet(t, Static(rules...), WithOnShadow(func(a Answer) { refused++ }))
		var h http.Handler
		depth := 0
		h = s.Middleware()(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if depth++; depth < 3 {
				assert.Equal(t, 200, get(h, path).Code)
			}
		}))
		assert.Equal(t, 200, get(h, path).Code)
		assert.Equal(t, 2, refused)
		assert.Equal(t, 1, left(t, s, rules[0]))
		assert.Equal(t, 1, left(t, s, rules[2]))
	}
}

func TestHold(t *testing.T) {
	ctx := context.Background()
	few := limited("few", "/a/b", 5, "")
	s, clk := newSet(t, Static(flights, few, limited("plan", "/plan", 0, "unlimited"), limited("none", "/none", 0, "blocked")))
	hold := func(path string, n int) (*Hold, Answer) {
		h, a, err := s.Hold(ctx, "192.0.2.1", "GET", path, n)
		require.NoError(t, err)
		return h, a
	}
	first, a := hold("/a%2Fb", 1)
	require.NotNil(t, first)
	assert.Equal(t, "flights", a.Rule.ID)
	assert.Equal(t, 1, a.Remaining)
	second, _ := hold("/a%2Fb", 1)
	none, a := hold("/a%2Fb", 1)
	assert.Nil(t, none)
	assert.True(t, a.Refused)
	assert.Equal(t, "flights", a.Rule.ID)
	assert.Equal(t, 3, left(t, s, few), "the refusal cost nothing")

	require.NoError(t, first.Release(ctx))
	require.ErrorIs(t, first.Release(ctx), ratelimit.ErrEnded)
	require.NoError(t, second.Settle(ctx, 0))
	assert.Equal(t, 2, left(t, s, flights))

	// Without a Hold, nobody can release.
	assert.Equal(t, 2, granted(t, s, "192.0.2.1", "/a%2Fb", 9))
	clk.Add(time.Minute)
	assert.Equal(t, 2, left(t, s, flights))

	for _, path := range []string{"/other", "/plan"} {
		h, a := hold(path, 7)
		require.NotNil(t, h)
		assert.True(t, a.Allowed)
		assert.Equal(t, path == "/other", a.Rule == nil)
		require.NoError(t, h.Release(ctx))
	}
	none, a = hold("/none", 1)
	assert.Nil(t, none)
	assert.Equal(t, ratelimit.Never, a.RetryAfter)
}

// A Hold of one rule or several ends by itself as its options say. An in-flight rule's ends at that time
// as well.
func TestHold_EndsByItself(t *testing.T) {
	ctx := t.Context()
	few, alone := limited("few", "/a/b", 5, ""), limited("alone", "/c", 5, "")
	s, clk := newSet(t, Static(flights, few, alone))
	hold := func(path string, opts ...ratelimit.HoldOption) *Hold {
		h, _, err := s.Hold(ctx, "192.0.2.1", "GET", path, 1, opts...)
		require.NoError(t, err)
		require.NotNil(t, h)
		return h
	}
	hold("/a%2Fb", ratelimit.HoldFor(time.Second), ratelimit.GiveBack())
	hold("/c", ratelimit.HoldFor(time.Second), ratelimit.GiveBack())
	longer := hold("/c", ratelimit.HoldFor(time.Second), ratelimit.GiveBack())
	require.NoError(t, longer.Extend(ctx, 2*time.Second))
	assert.Equal(t, []int{1, 4, 3}, []int{left(t, s, flights), left(t, s, few), left(t, s, alone)})
	clk.Add(time.Second)
	assert.Equal(t, []int{2, 5, 4}, []int{left(t, s, flights), left(t, s, few), left(t, s, alone)})
	clk.Add(time.Second)
	assert.Equal(t, 5, left(t, s, alone))
	require.ErrorIs(t, longer.Extend(ctx, time.Second), ratelimit.ErrEnded)

	for _, path := range []string{"/a%2Fb", "/c"} {
		h, _, err := s.Hold(ctx, "192.0.2.1", "GET", path, 1, ratelimit.HoldFor(0))
		assert.Nil(t, h)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
	assert.Equal(t, []int{2, 5, 5}, []int{left(t, s, flights), left(t, s, few), left(t, s, alone)})
}

// So does what the middleware holds, of each rule of a request.
func TestMiddleware_HoldsEndByThemselves(t *testing.T) {
	few, more := limited("few", "/a/b", 5, ""), limited("more", "/**", 9, "")
	s, clk := newSet(t, Static(few, more))
	h := s.Middleware(httplimit.WithSettleAtEnd(httplimit.ByCost, ratelimit.HoldFor(time.Second), ratelimit.GiveBack()))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { clk.Add(time.Second) }))
	assert.Equal(t, 200, get(h, "/a%2Fb").Code)
	assert.Equal(t, []int{5, 9}, []int{left(t, s, few), left(t, s, more)})
}

// The methods of what a refusal holds do nothing.
func TestHold_Nil(t *testing.T) {
	var none *Hold
	require.NoError(t, none.Release(t.Context()))
	require.NoError(t, none.Settle(t.Context(), 1))
	require.NoError(t, none.Extend(t.Context(), time.Hour))
}

// What settles a request need not know its rule.
func TestSettleFindsTheRule(t *testing.T) {
	s, _ := newSet(t, Static(limited("a", "/a", 5, ""), limited("b:1", "/b", 6, "in-flight")))
	for key, want := range map[string]int{"3:anna": 5, "3:annb:1": 6, "0:a": 5, "5:1:b:1b:1": 6} {
		alg, err := s.limitOf(t.Context(), key)
		require.NoError(t, err)
		d, err := ratelimit.Must(ratelimit.New(alg)).Peek(t.Context(), "")
		require.NoError(t, err)
		assert.Equal(t, want, d.Limit, key)
	}
	for _, key := range []string{"", "a", ":a", "3:ann", "3:annc", "9:anna", "-1:a", "x:a"} {
		_, err := s.limitOf(t.Context(), key)
		assert.ErrorContains(t, err, "is in force", key)
	}
}

// A watched store calls a function after each request.
type watched struct {
	limit.States
	after func(key string, op step.Op)
}

func (s *watched) Open(name string, t *limit.Limit, timeout time.Duration) (_ limit.States, err error) {
	s.States, err = new(ratelimit.MemoryStore).Open(name, t, timeout)
	return s, err
}

func (s *watched) Apply(ctx context.Context, key string, t *limit.Limit, req step.Request) (step.Answer, error) {
	res, err := s.States.Apply(ctx, key, t, req)
	if s.after != nil {
		s.after(key, req.Op)
	}
	return res, err
}

// If a rule refuses because of another call that came between, what the rules before it have granted
// is given back, in a store that decides on one key at a time.
func TestInFlightRivals(t *testing.T) {
	const subject = "192.0.2.1"
	for _, calls := range [][]string{{"/a/b", "/a%2Fb"}, {"/a%2Fb", "/a/b"}} { // in either order
		few, flights := limited("few", calls[0], 1, ""), limited("flights", calls[1], 1, "in-flight")
		for name, ask := range map[string]func(*Set) bool{
			"Middleware": func(s *Set) bool { return get(s.Middleware()(http.NotFoundHandler()), "/a%2Fb").Code == 404 },
			"Take": func(s *Set) bool {
				a, err := s.Take(t.Context(), subject, "GET", "/a%2Fb", 1)
				require.NoError(t, err)
				return a.Allowed
			},
			"Hold": func(s *Set) bool {
				h, a, err := s.Hold(t.Context(), subject, "GET", "/a%2Fb", 1)
				require.NoError(t, err)
				assert.Equal(t, a.Allowed, h != nil)
				return a.Allowed
			},
		} {
			store := &watched{}
			s, _ := newSet(t, Static(few, flights), WithLimiter(ratelimit.WithStore(store)))
			keys := map[string]string{}
			for _, r := range []Rule{few, flights} {
				c, err := r.compile()
				require.NoError(t, err)
				keys[r.ID] = c.keyOf(subject)
			}
			granted := ""
			store.after = func(key string, op step.Op) {
				if granted != "" || op == step.OpPeek {
					return
				}
				granted = ruleOf(key)
				other := map[string]string{"few": "flights", "flights": "few"}[granted]
				assert.True(t, s.limiter.Allow(keys[other]))
			}
			assert.False(t, ask(s), "%s, %s", name, calls)
			require.NotEmpty(t, granted)
			first := map[string]Rule{"few": few, "flights": flights}[granted]
			assert.Equal(t, 1, left(t, s, first), "%s, %s", name, calls)
		}
	}
}

// If the context ends between two shadows, nothing is held once the store has answered.
func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := []Rule{limited("a", "/a%2Fb", 2, "in-flight"), limited("z", "/a/b", 2, "in-flight")}
		rules[0].Shadow, rules[1].Shadow = true, true
		store := &watched{}
		s, _ := newSet(t, Static(rules...), WithLimiter(ratelimit.WithStore(store)))
		ctx, leave := context.WithCancel(t.Context())
		store.after = func(string, step.Op) { leave() }
		h, _, err := s.Hold(ctx, "192.0.2.1", "GET", "/a%2Fb", 1)
		require.ErrorIs(t, err, context.Canceled)
		assert.Nil(t, h)
		synctest.Wait() // Hold did not wait for the store: what it grants later is released
		for _, r := range rules {
			assert.Equal(t, 2, left(t, s, r))
		}
	})
}

// While the store fails, releasing and settling report its error, and no other. What is in flight is
// released after it could not be settled.
func TestReleaseWhenTheStoreFails(t *testing.T) {
	for algorithm, want := range map[string]int{"in-flight": 3, "fixed-window": 2} {
		s, _ := newSet(t, Static(limited("a", "/a", 5, algorithm)),
			WithLimiter(ratelimit.WithStore(fakes.Down(errors.New("no route to the store"))), ratelimit.WithFailureLog(nil)))
		reported := 0
		h := s.Middleware(httplimit.WithSettleAtEnd(httplimit.ByCost), httplimit.WithStoreError(func(_ *http.Request, err error) {
			assert.ErrorContains(t, err, "no route to the store", algorithm)
			reported++
		}))(http.NotFoundHandler())
		assert.Equal(t, 404, get(h, "/a").Code)
		assert.Equal(t, want, reported, algorithm)
	}
}
