package redis_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/redisstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// oneKey is the key "k" for all requests.
func oneKey(*http.Request) (string, error) { return "k", nil }

// A crowd is a handler that counts the requests that it serves at once. Their paths say how
// they end.
type crowd struct{ now, most, served atomic.Int64 }

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.served.Add(1)
	defer c.now.Add(-1)
	n := c.now.Add(1)
	for most := c.most.Load(); n > most; most = c.most.Load() {
		if c.most.CompareAndSwap(most, n) {
			break
		}
	}
	text, _ := io.ReadAll(r.Body) // net/http notices only then that an HTTP/1.1 client leaves
	rc := http.NewResponseController(w)
	switch r.URL.Path {
	case "/answers":
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(text)
	case "/panics":
		panic(http.ErrAbortHandler)
	case "/hijacks", "/upgrades":
		conn, _, err := rc.Hijack()
		if err != nil { // HTTP/2
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		if r.URL.Path == "/hijacks" {
			conn.Close()
			return
		}
		go func() { // which the request does not wait for
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(conn, conn)
		}()
	case "/streams":
		for i := range 5 {
			fmt.Fprintln(w, i)
			_ = rc.Flush()
		}
	case "/breaks":
		io.WriteString(w, "half")
		_ = rc.Flush()
		panic(http.ErrAbortHandler)
	case "/stays":
		io.WriteString(w, "here\n")
		_ = rc.Flush()
		<-r.Context().Done()
	case "/waits":
		<-r.Context().Done()
	}
}

// ask sends a request that ends in one of the ways of a crowd. Those that would never end are
// given up, at any moment.
func ask(t *testing.T, client *http.Client, url, way string) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	if way == "waits" || way == "leaves" {
		time.AfterFunc(rand.N(4*time.Millisecond), leave)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/"+way, strings.NewReader("hello")) // which the client does not repeat
	if !assert.NoError(t, err) {
		return
	}
	if way == "upgrades" && strings.HasPrefix(url, "http:") { // HTTP/2 has no upgrades
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
	}
	resp, err := client.Do(r)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	switch way {
	case "stays": // it is read in part, or not at all
		_, _ = resp.Body.Read(make([]byte, rand.IntN(4)))
	case "upgrades":
	default:
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// httpServer returns a server on loopback, with its clients, that speaks proto.
func httpServer(t *testing.T, proto string, h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if proto == "HTTP/2.0" {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// TestInFlightOverHTTP sends 1,000 requests, which end in every way, to two servers that share
// a limit in Redis. There are never more of them at once than the limit, and none leaves a
// slot behind.
func TestInFlightOverHTTP(t *testing.T) {
	const limit = 10
	flight := ratelimit.InFlight{Limit: limit, Timeout: time.Hour}
	both := ratelimit.All{hourly(1_000_000), flight}
	ways := []string{"returns", "answers", "panics", "hijacks", "upgrades", "streams", "breaks", "stays", "waits", "leaves"}
	total := 1000
	if testing.Short() {
		total = 200
	}
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		for name, tt := range map[string]struct {
			alg  ratelimit.Algorithm
			opts []httplimit.Option
			own  bool // whether it is the limit of a key's own
			also bool // whether requests count under another key, too
		}{
			"alone":         {alg: flight},
			"with a rate":   {alg: both},
			"of keys' own":  {alg: both, opts: []httplimit.Option{httplimit.WithInFlight()}, own: true},
			"settled":       {alg: both, opts: []httplimit.Option{httplimit.WithSettleAtEnd(func(*http.Request, int, int64) int { return 3 })}},
			"shaped":        {alg: flight, opts: []httplimit.Option{httplimit.WithShaping(2 * time.Millisecond)}},
			"under another": {alg: flight, also: true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var inside crowd
				var clients []*http.Client
				var urls []string
				var ls []ratelimit.Limiter
				for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
					store := create(t, s.addr(), redisstore.WithTimeout(patient))
					opts := []ratelimit.Option{ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed())}
					if tt.own {
						opts = append(opts, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return tt.alg, nil }))
					}
					l := limiter(t, store, tt.alg, opts...)
					asks := append([]httplimit.Option{
						httplimit.WithKey(oneKey),
						httplimit.WithStoreError(func(_ *http.Request, err error) { assert.NoError(t, err) }),
					}, tt.opts...)
					if tt.also {
						all := limiter(t, store, hourly(1_000_000), ratelimit.WithName(name+", all"))
						asks = append(asks, httplimit.WithAlso(all, func(*http.Request) (string, error) { return "all", nil }, "all"))
					}
					server := httpServer(t, proto, httplimit.Middleware(l, asks...)(&inside))
					clients, urls, ls = append(clients, server.Client()), append(urls, server.URL), append(ls, l)
				}
				var next atomic.Int64
				var wg sync.WaitGroup
				for range 16 {
					wg.Go(func() {
						for i := int(next.Add(1)); i <= total; i = int(next.Add(1)) {
							ask(t, clients[i%2], urls[i%2], ways[i/2%len(ways)])
						}
					})
				}
				wg.Wait()
				for _, l := range ls {
					eventually(t, "all places are free", func() bool {
						d, err := l.Peek(t.Context(), "k")
						return assert.NoError(t, err) && d.Remaining == limit
					})
				}
				assert.LessOrEqual(t, inside.most.Load(), int64(limit))
				assert.Greater(t, inside.served.Load(), int64(total/10), "most requests are served")
			})
		}
	})
}

// TestSettleOverHTTP settles requests that end in every way, in two processes. In the end, the
// key has spent exactly what they cost.
func TestSettleOverHTTP(t *testing.T) {
	const limit, total = 1_000_000, 300
	ways := []string{"returns", "answers", "panics", "hijacks", "upgrades", "streams", "breaks", "stays"}
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		for name, alg := range map[string]ratelimit.Algorithm{
			"a rate":             hourly(limit),
			"a rate, in flight":  ratelimit.All{ratelimit.InFlight{Limit: limit, Timeout: time.Hour}, hourly(limit)},
			"a window of an All": ratelimit.All{hourly(2 * limit), ratelimit.SlidingWindow{Limit: limit, Window: 24 * time.Hour}},
		} {
			var inside crowd
			var spent, settled atomic.Int64
			var clients sync.WaitGroup
			var l ratelimit.Limiter
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				store := create(t, s.addr(), redisstore.WithTimeout(patient))
				l = limiter(t, store, alg, ratelimit.WithName(name), ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
				server := httpServer(t, proto, httplimit.Middleware(l,
					httplimit.WithKey(oneKey),
					httplimit.WithCost(func(*http.Request) int { return 10 }),
					httplimit.WithSettleAtEnd(func(_ *http.Request, status int, written int64) int {
						cost := status%7 + int(written)
						spent.Add(int64(cost))
						settled.Add(1)
						return cost
					}),
					httplimit.WithStoreError(func(_ *http.Request, err error) { assert.NoError(t, err) }),
				)(&inside))
				for i := range 8 {
					clients.Go(func() {
						for j := range total / 16 {
							ask(t, server.Client(), server.URL, ways[(i+j)%len(ways)])
						}
					})
				}
			}
			clients.Wait()
			eventually(t, "all requests are settled with their cost", func() bool {
				d, err := l.Peek(t.Context(), "k")
				return assert.NoError(t, err) && settled.Load() == inside.served.Load() && int64(limit-d.Remaining) == spent.Load()
			})
			assert.Equal(t, int64(total/16*16), inside.served.Load(), name)
		}
	})
}

// TestInFlightOverHTTPWithoutRedis takes the connection to Redis away before a request, while
// its handler runs, or both. What cannot be released then returns after the Timeout, and no
// slot is lost for longer.
func TestInFlightOverHTTPWithoutRedis(t *testing.T) {
	const limit = 3
	for name, connect := range connectors {
		for _, alg := range []ratelimit.Algorithm{
			ratelimit.InFlight{Limit: limit, Timeout: time.Minute},
			ratelimit.All{ratelimit.InFlight{Limit: limit, Timeout: time.Minute}, hourly(1000)},
		} {
			t.Run(fmt.Sprintf("%s/%T", name, alg), func(t *testing.T) {
				t.Parallel()
				clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC))
				conn := &failing{Conn: connect(t, startServer(t).addr())}
				store, err := redisstore.New(conn, redisstore.WithTimeout(patient), redisstore.WithLimiterClock(), redisstore.WithBreaker(0, 0))
				require.NoError(t, err)
				for _, tt := range []struct {
					name          string
					before, after bool // whether Redis is away before the handler, and at its end
					policy        ratelimit.FailurePolicy
					status        int
					left          int
					reported      int
				}{
					{"well", false, false, ratelimit.FailOpen(), 200, limit, 0},
					{"away at the end", false, true, ratelimit.FailOpen(), 200, limit - 1, 1},
					{"away at the end, closed", false, true, ratelimit.FailClosed(), 200, limit - 1, 1},
					{"away before", true, false, ratelimit.FailOpen(), 200, limit, 1},
					{"away", true, true, ratelimit.FailOpen(), 200, limit, 1},
					{"away, closed", true, true, ratelimit.FailClosed(), 503, limit, 1},
				} {
					l := limiter(t, store, alg, ratelimit.WithClock(clk), ratelimit.WithFailurePolicy(tt.policy), ratelimit.WithName(tt.name))
					free := func(want int) {
						d, err := l.Peek(t.Context(), "k")
						require.NoError(t, err)
						assert.Equal(t, want, d.Remaining, tt.name)
					}
					var reported atomic.Int64
					server := httpServer(t, "HTTP/1.1", httplimit.Middleware(l, httplimit.WithKey(oneKey),
						httplimit.WithStoreError(func(*http.Request, error) { reported.Add(1) }),
					)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { conn.fails.Store(tt.after) })))
					conn.fails.Store(tt.before)
					resp, err := server.Client().Get(server.URL)
					require.NoError(t, err)
					resp.Body.Close()
					assert.Equal(t, tt.status, resp.StatusCode, tt.name)
					server.Close() // when the middleware has ended
					assert.Equal(t, int64(tt.reported), reported.Load(), tt.name)
					conn.fails.Store(false)
					free(tt.left)
					clk.Advance(time.Minute)
					free(limit)
				}
			})
		}
	}
}

// TestTransportInFlightOverRedis has two processes call a server. It never gets more requests
// at once than they may send together, and their slots are free afterwards.
func TestTransportInFlightOverRedis(t *testing.T) {
	const limit = 4
	total := 200
	if testing.Short() {
		total = 60
	}
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		var inside crowd
		server := httpServer(t, "HTTP/1.1", &inside)
		base := server.Client().Transport
		var wg sync.WaitGroup
		var ls []ratelimit.Limiter
		for range 2 {
			p := newProcess(t, create, s, ratelimit.All{ratelimit.InFlight{Limit: limit, Timeout: time.Hour}, hourly(1_000_000)})
			ls = append(ls, p)
			c := &http.Client{Transport: &client.Transport{Limiter: p.Limiter, Key: oneKey, Base: base}}
			for i := range 8 {
				wg.Go(func() {
					for j := range total / 16 {
						ask(t, c, server.URL, []string{"returns", "answers", "panics", "streams", "breaks"}[(i+j)%5])
					}
				})
			}
		}
		done := inBackground(wg.Wait)
		eventually(t, "all requests end", func() bool {
			for _, l := range ls { // so that waiters look at what the other process has released
				_, err := l.Peek(t.Context(), "k")
				assert.NoError(t, err)
			}
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		assert.LessOrEqual(t, inside.most.Load(), int64(limit))
		for _, l := range ls {
			d, err := l.Peek(t.Context(), "k")
			require.NoError(t, err)
			assert.Equal(t, limit, d.Remaining)
		}
	})
}

// TestAttemptBehindAnotherProcess: an attempt that waits for what another process holds is let in
// soon after that process gives it back. So many right passwords at once are all let in, whichever
// processes check them.
func TestAttemptBehindAnotherProcess(t *testing.T) {
	s := startServer(t)
	logins := ratelimit.Lockout{Limit: 5, Window: time.Hour, First: time.Hour}
	other := limiter(t, makers["goredis"](t, s.addr()), logins)
	gate, err := httplimit.NewGate(limiter(t, makers["goredis"](t, s.addr()), logins),
		httplimit.WithKey(oneKey),
		httplimit.WithSettleAtEnd(httplimit.ByCost, ratelimit.HoldFor(2*time.Hour), ratelimit.GiveBack()),
		httplimit.WithShaping(time.Hour))
	require.NoError(t, err)
	attempts, d, err := other.Hold(t.Context(), "k", 5, ratelimit.HoldFor(2*time.Hour), ratelimit.GiveBack())
	require.NoError(t, err)
	require.True(t, d.Allowed)

	run := scriptsRun(t, s)
	passed := make(chan bool, 1)
	go func() {
		admission := gate.Admit(httptest.NewRequest(http.MethodPost, "/", http.NoBody))
		passed <- admission.Passed
	}()
	eventually(t, "the attempt is denied at first", func() bool { return scriptsRun(t, s) > run })
	attempts.Cancel()
	eventually(t, "the attempt is let in", func() bool { return len(passed) > 0 })
	assert.True(t, <-passed)
}
