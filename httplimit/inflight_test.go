package httplimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// A stage is a handler whose requests stay until they are told how to end.
type stage struct {
	entered chan struct{}
	end     chan func(http.ResponseWriter, *http.Request)
	left    chan struct{} // after the middleware
}

func newStage() *stage {
	return &stage{make(chan struct{}), make(chan func(http.ResponseWriter, *http.Request)), make(chan struct{}, 100)}
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.entered <- struct{}{}
	(<-s.end)(w, r)
}

// watched reports on left that a request is over for h.
func (s *stage) watched(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { s.left <- struct{}{} }()
		h.ServeHTTP(w, r)
	})
}

func returns(http.ResponseWriter, *http.Request) {}

// endings are the ways in which a request ends.
var endings = map[string]func(http.ResponseWriter, *http.Request){
	"returns": returns,
	"answers": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) },
	"panics":  func(http.ResponseWriter, *http.Request) { panic("a bug") },
	"aborts":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"hijacks": func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil { // HTTP/1.1
			conn.Close()
		}
	},
}

// A crowd is the clients of a handler on a real server.
type crowd struct {
	*testing.T
	*stage
	server  *httptest.Server
	clients sync.WaitGroup
}

func (c *crowd) get(ctx context.Context) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", c.server.URL, nil) // which the client does not repeat
	require.NoError(c, err)
	resp, err := c.server.Client().Do(r)
	if err == nil {
		resp.Body.Close()
	}
	return resp, err
}

// begin begins n requests.
func (c *crowd) begin(ctx context.Context, n int) {
	for range n {
		c.clients.Go(func() { _, _ = c.get(ctx) })
		<-c.entered
	}
}

// finish ends n requests in some way.
func (c *crowd) finish(n int, way func(http.ResponseWriter, *http.Request)) {
	for range n {
		c.end <- way
		<-c.left
	}
}

// isRefused checks that one more request is refused.
func (c *crowd) isRefused(when string) {
	c.Helper()
	resp, err := c.get(c.Context())
	require.NoError(c, err, when)
	assert.Equal(c, 429, resp.StatusCode, when)
	assert.NotEmpty(c, resp.Header.Get("Retry-After"))
	<-c.left
}

// hasFiveAtOnce checks that five requests run at once, and a sixth when one of them has ended.
func (c *crowd) hasFiveAtOnce() {
	c.begin(c.Context(), 5)
	c.isRefused("five at once")
	for name, way := range endings {
		c.finish(1, way)
		c.begin(c.Context(), 1) // in its place
		c.isRefused(name)
	}

	c.finish(1, returns)
	ctx, leave := context.WithCancel(c.Context())
	c.begin(ctx, 1)
	leave()
	c.isRefused("its handler has not returned")
	c.finish(5, returns)
	c.clients.Wait()

	c.begin(c.Context(), 5)
	c.isRefused("all places are free again, and no more")
	c.finish(5, returns)
	c.clients.Wait()
}

// TestInFlight has five requests at once on a real server. A sixth is refused until one of
// them has ended, in whatever way.
func TestInFlight(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 5, Timeout: time.Hour}
	many := ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}
	also := func(alg ratelimit.Algorithm) []httplimit.Option {
		return []httplimit.Option{httplimit.WithAlso(ratelimit.Must(ratelimit.New(alg)), clientip.Of(), "also")}
	}
	ofKeys := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return flight, nil })
	for name, tt := range map[string]struct {
		alg   ratelimit.Algorithm
		limit []ratelimit.Option
		opts  []httplimit.Option
	}{
		"alone":         {flight, nil, nil},
		"with a rate":   {ratelimit.All{many, flight}, nil, nil},
		"settled":       {flight, nil, []httplimit.Option{httplimit.WithSettleAtEnd(httplimit.ByCost)}},
		"of keys' own":  {ratelimit.FixedWindow{Limit: 1, Window: time.Hour}, []ratelimit.Option{ofKeys}, []httplimit.Option{httplimit.WithInFlight()}},
		"with others":   {flight, nil, also(many)},
		"among others":  {many, nil, also(flight)},
		"shaped to few": {flight, nil, []httplimit.Option{httplimit.WithShaping(time.Nanosecond)}},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+"/"+proto, func(t *testing.T) {
				l, err := ratelimit.New(tt.alg, tt.limit...)
				require.NoError(t, err)
				s := newStage()
				server := serverOf(t, proto, s.watched(httplimit.Middleware(l, tt.opts...)(s)))
				c := &crowd{T: t, stage: s, server: server}
				c.hasFiveAtOnce()
			})
		}
	}
}

// TestInFlightTimesOut checks that a request that runs for too long is not counted, and that
// its end takes nothing from others.
func TestInFlightTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Minute}))
		slow, next := newStage(), newStage()
		for _, s := range []*stage{slow, next} {
			go serve(httplimit.Middleware(l)(s), from("192.0.2.1:1"))
			<-s.entered
			time.Sleep(time.Minute)
		}
		third := newStage()
		go serve(httplimit.Middleware(l)(third), from("192.0.2.1:1"))
		<-third.entered
		for _, s := range []*stage{slow, next} {
			s.end <- returns
			synctest.Wait()
			assert.Zero(t, remaining(t, l), "the third is in flight")
		}
		third.end <- returns
		synctest.Wait()
		assert.Equal(t, 1, remaining(t, l))
	})
}

// TestInFlight_StalledStore: a store that stalls while requests begin or end, and carries out later
// what it was asked, takes no places of requests that are over or were never handled.
func TestInFlight_StalledStore(t *testing.T) {
	const places, answer = 5, 200 * time.Millisecond
	for name, during := range map[string]func(ctx context.Context, gate *httplimit.Gate, db *fakes.Hanging){
		"begins": func(ctx context.Context, gate *httplimit.Gate, db *fakes.Hanging) {
			db.Hang()
			a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
			a.Done(200, 0)
		},
		"client leaves": func(ctx context.Context, gate *httplimit.Gate, db *fakes.Hanging) {
			db.Hang()
			ctx, leave := context.WithCancel(ctx)
			time.AfterFunc(time.Millisecond, leave)
			a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
			assert.False(t, a.Passed)
			a.Done(503, 0)
		},
		"client has a deadline": func(ctx context.Context, gate *httplimit.Gate, db *fakes.Hanging) {
			db.Hang()
			ctx, leave := context.WithTimeout(ctx, time.Millisecond)
			defer leave()
			a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
			assert.False(t, a.Passed)
			a.Done(503, 0)
		},
		"ends": func(ctx context.Context, gate *httplimit.Gate, db *fakes.Hanging) {
			a := gate.Admit(from("192.0.2.1:1").WithContext(ctx))
			assert.NoError(t, a.Err)
			db.Heeds = true // it does not carry this out, whatever happens later
			db.Hang()
			a.Done(200, 0)
		},
	} {
		for kind, opts := range map[string]func() []httplimit.Option{
			"alone": func() []httplimit.Option { return nil },
			"settles": func() []httplimit.Option {
				return []httplimit.Option{httplimit.WithSettleAtEnd(httplimit.ByCost)}
			},
			"also": func() []httplimit.Option {
				second := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 99, Window: time.Hour}))
				return []httplimit.Option{httplimit.WithAlso(second, key.Everybody(), "also")}
			},
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					db := fakes.NewHanging()
					db.Late, db.Repeats = true, true // it has decided, and writes that later
					l, err := ratelimit.New(ratelimit.InFlight{Limit: places, Timeout: 10 * time.Hour},
						ratelimit.WithStore(db.Store()), ratelimit.WithName("stalls"),
						ratelimit.WithStoreTimeout(answer/4), ratelimit.WithFailureLog(slog.New(slog.DiscardHandler)))
					require.NoError(t, err)
					gate := gateOf(t, l, opts()...)
					for range places {
						during(t.Context(), gate, db)
						time.Sleep(answer)
						db.Release()
						time.Sleep(2 * time.Second)
						synctest.Wait()
						assert.Equal(t, places, remaining(t, l))
					}
				})
			})
		}
	}
}

// TestInFlightKeepsTheRate checks that only the places are released, in an All.
func TestInFlightKeepsTheRate(t *testing.T) {
	for want, opts := range map[int][]httplimit.Option{
		7: nil,
		3: {httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 7 })},
		9: {httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 1 })},
	} {
		l, _ := limiter(t, ratelimit.All{ratelimit.InFlight{Limit: 20, Timeout: time.Hour}, ratelimit.FixedWindow{Limit: 10, Window: time.Hour}})
		opts = append(opts, httplimit.WithCost(func(*http.Request) int { return 3 }))
		assert.Equal(t, 200, serve(httplimit.Middleware(l, opts...)(ok), from("192.0.2.1:1")).StatusCode)
		assert.Equal(t, want, remaining(t, l))
	}
}

// TestInFlightGivesBack checks that a request that another limiter refuses is not in flight.
func TestInFlightGivesBack(t *testing.T) {
	flights, _ := limiter(t, ratelimit.InFlight{Limit: 2, Timeout: time.Hour})
	rate, _ := limiter(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	for i, ls := range [][]ratelimit.Limiter{{flights, rate}, {rate, flights}, {wrapped{flights}, rate}} {
		require.NoError(t, rate.Reset(t.Context(), "192.0.2.1"))
		h := httplimit.Middleware(ls[0], httplimit.WithInFlight(), httplimit.WithAlso(ls[1], clientip.Of(), "other"))(ok)
		for _, want := range []int{200, 429, 429, 429} {
			assert.Equal(t, want, serve(h, from("192.0.2.1:1")).StatusCode, i)
			assert.Equal(t, 2, remaining(t, flights), i)
		}
	}
}

// TestInFlightInShadow counts the requests that would have passed, while they run, and no
// others.
func TestInFlightInShadow(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	refused := 0
	h := httplimit.Middleware(l, httplimit.WithShadow(1, func(_ *http.Request, d ratelimit.Decision) { refused++ }))
	inner := h(ok)
	outer := h(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { inner.ServeHTTP(w, r) }))
	for i := range 3 {
		assert.Equal(t, 200, serve(outer, from("192.0.2.1:1")).StatusCode)
		assert.Equal(t, i+1, refused)
		assert.Equal(t, 1, remaining(t, l))
	}
}

// TestInFlightAfterPanics checks that panics of the middleware's functions release a request,
// and go on as they were.
func TestInFlightAfterPanics(t *testing.T) {
	l, _ := limiter(t, ratelimit.All{ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}})
	bug := errors.New("a bug")
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(bug) })
	for name, h := range map[string]http.Handler{
		"the handler":                httplimit.Middleware(l)(panics),
		"the handler, settled":       httplimit.Middleware(l, httplimit.WithSettleAtEnd(httplimit.ByCost))(panics),
		"WithSettleAtEnd's function": httplimit.Middleware(l, httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { panic(bug) }))(ok),
	} {
		assert.PanicsWithValue(t, bug, func() { serve(h, from("192.0.2.1:1")) }, name)
		assert.Equal(t, 1, remaining(t, l), name)
	}
}

// TestInFlightAfterTooGreatADebt releases a request that cannot be settled.
func TestInFlightAfterTooGreatADebt(t *testing.T) {
	for _, more := range [][]httplimit.Option{nil, {httplimit.WithAlso(ratelimit.Must(ratelimit.New(ratelimit.Unlimited{})), clientip.Of(), "also")}} {
		l, _ := limiter(t, ratelimit.All{ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, ratelimit.TokenBucket{Rate: ratelimit.PerHour(100)}})
		var reported []error
		h := httplimit.Middleware(l, append(more,
			httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return math.MaxInt }),
			httplimit.WithStoreError(func(_ *http.Request, err error) { reported = append(reported, err) }))...)(ok)
		serve(h, from("192.0.2.1:1"))
		require.Len(t, reported, 1)
		assert.ErrorIs(t, reported[0], ratelimit.ErrDebt)
		assert.Equal(t, 1, remaining(t, l))
	}
}

// TestInFlightWhenTheStoreFails lets the store fail before or after the handler.
func TestInFlightWhenTheStoreFails(t *testing.T) {
	for _, tt := range []struct {
		name     string
		down, up bool // whether the store is down before, and up afterwards
		policy   ratelimit.FailurePolicy
		status   int
		left     int
		reported int
	}{
		{"well", false, true, ratelimit.FailOpen(), 200, 2, 0},
		{"fails afterwards", false, false, ratelimit.FailOpen(), 200, 1, 1},
		{"failed before", true, true, ratelimit.FailOpen(), 200, 2, 1},
		{"fails", true, false, ratelimit.FailOpen(), 200, 2, 1},
		{"failed before, closed", true, true, ratelimit.FailClosed(), 503, 2, 1},
	} {
		for _, shaped := range []time.Duration{0, time.Second} {
			logged := quiet(t)
			store := new(flaky)
			store.down.Store(tt.down)
			l, err := ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Hour}, ratelimit.WithStore(store),
				ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
			require.NoError(t, err)
			reported := 0
			h := httplimit.Middleware(l, httplimit.WithShaping(shaped), httplimit.WithStoreError(func(_ *http.Request, err error) {
				assert.ErrorContains(t, err, "no route to the store", tt.name)
				reported++
			}))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { store.down.Store(!tt.up) }))
			resp := serve(h, from("192.0.2.1:1"))
			assert.Equal(t, tt.status, resp.StatusCode, tt.name)
			store.down.Store(false)
			assert.Equal(t, tt.left, remaining(t, l), tt.name)
			assert.Equal(t, tt.reported, reported, tt.name)
			assert.NotContains(t, logged.String(), "httplimit", "the limiter logs it")
		}
	}
}

// TestInFlightHijacked checks that a connection that outlives its handler is not counted.
func TestInFlightHijacked(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour}))
	conns := make(chan net.Conn, 1)
	s := newStage()
	server := serverOf(t, "HTTP/1.1", s.watched(httplimit.Middleware(l, httplimit.WithKey(func(*http.Request) (string, error) { return "192.0.2.1", nil }))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				conns <- conn
			}
		}))))
	client, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	conn := <-conns
	defer conn.Close()
	<-s.left
	assert.Equal(t, 1, remaining(t, l))
	io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\nstill here")
}

// TestInFlightHandlersGoThroughUntouched checks that no ResponseWriter is wrapped.
func TestInFlightHandlersGoThroughUntouched(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	w, r, handled := httptest.NewRecorder(), from("192.0.2.1:1"), false
	httplimit.Middleware(l)(http.HandlerFunc(func(inner http.ResponseWriter, request *http.Request) {
		handled = true
		assert.Same(t, w, inner)
		assert.Same(t, r, request)
		assert.Zero(t, remaining(t, l))
	})).ServeHTTP(w, r)
	assert.True(t, handled)
}

// TestInFlightHeaders checks that an InFlight has no window.
func TestInFlightHeaders(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Minute}
	for _, tt := range []struct {
		alg                              ratelimit.Algorithm
		policy, allowed, refused, legacy string
	}{
		{flight, `"default";q=1;qu="concurrent-requests"`, `"default";r=0`, `"default";r=0;t=1`, "1772366460"},
		{
			ratelimit.All{flight, ratelimit.FixedWindow{Limit: 100, Window: time.Hour}},
			`"default-1";q=1;qu="concurrent-requests", "default-2";q=100;w=3600`, `"default-1";r=0`, `"default-1";r=0;t=1`, "1772366460",
		},
	} {
		l, _ := limiter(t, tt.alg)
		inner := httplimit.Middleware(l)(ok)
		var refused *http.Response
		outer := httplimit.Middleware(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { refused = serve(inner, from("192.0.2.1:1")) }))
		resp := serve(outer, from("192.0.2.1:1"))
		assert.Equal(t, tt.policy, resp.Header.Get("RateLimit-Policy"))
		assert.Equal(t, tt.allowed, resp.Header.Get("RateLimit"))
		assert.Equal(t, 429, refused.StatusCode)
		assert.Equal(t, tt.policy, refused.Header.Get("RateLimit-Policy"))
		assert.Equal(t, tt.refused, refused.Header.Get("RateLimit"))
		assert.Equal(t, "1", refused.Header.Get("Retry-After"))
		legacy := serve(httplimit.Middleware(l, httplimit.WithHeaders(httplimit.Legacy))(ok), from("192.0.2.1:1"))
		assert.Equal(t, tt.legacy, legacy.Header.Get("X-RateLimit-Reset"))
	}
}

// TestInFlightRetry checks that clients are told to wait for a second at most if an InFlight
// refuses.
func TestInFlightRetry(t *testing.T) {
	for i, tt := range []struct {
		alg   ratelimit.Algorithm
		costs int
		want  string
	}{
		{ratelimit.InFlight{Limit: 1, Timeout: 10 * time.Minute}, 1, "1"},
		{ratelimit.InFlight{Limit: 1, Timeout: 3 * time.Second}, 1, "1"},
		{ratelimit.InFlight{Limit: 1, Timeout: 10 * time.Minute}, 2, ""},
		{ratelimit.All{ratelimit.InFlight{Limit: 1, Timeout: 10 * time.Minute}, ratelimit.FixedWindow{Limit: 9, Window: time.Minute}}, 1, "1"},
		{ratelimit.All{ratelimit.InFlight{Limit: 9, Timeout: 10 * time.Minute}, ratelimit.FixedWindow{Limit: 1, Window: time.Minute}}, 1, "60"},
		{nil, 1, "1"},
	} {
		var l ratelimit.Limiter
		if tt.alg != nil {
			l, _ = limiter(t, tt.alg)
		} else { // of a key's own
			l = ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
					return ratelimit.InFlight{Limit: 1, Timeout: 10 * time.Minute}, nil
				})))
		}
		costs := 1
		opts := []httplimit.Option{httplimit.WithInFlight(), httplimit.WithCost(func(*http.Request) int { return costs })}
		var h http.Handler
		h = httplimit.Middleware(l, opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			costs = tt.costs
			refused := serve(h, from("192.0.2.1:1"))
			assert.Equal(t, 429, refused.StatusCode, i)
			assert.Equal(t, tt.want, refused.Header.Get("Retry-After"), i)
		}))
		assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode, i)
	}
}

// TestWithoutInFlight checks what the documentation says of a limiter whose algorithm is not
// known.
func TestWithoutInFlight(t *testing.T) {
	known, clk := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Minute})
	h := httplimit.Middleware(fakes.Hidden{Limiter: known})(ok)
	assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
	assert.Equal(t, 429, serve(h, from("192.0.2.1:1")).StatusCode)
	clk.Add(time.Minute)
	assert.Equal(t, 200, serve(h, from("192.0.2.1:1")).StatusCode)
}
