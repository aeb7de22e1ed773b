package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// oneKey is the key of [remaining], for all requests.
func oneKey(*http.Request) (string, error) { return "192.0.2.1", nil }

// clientOf returns a client of a server, with requests limited by l.
func clientOf(server *httptest.Server, l ratelimit.Limiter) *http.Client {
	c := *server.Client()
	c.Transport = &client.Transport{Limiter: l, Key: oneKey, Base: c.Transport}
	return &c
}

// endings is a server whose paths are the ways in which a response ends.
func endings() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/ok", ok)
	mux.HandleFunc("/empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/nothing", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/refuses", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTooManyRequests) })
	mux.HandleFunc("/aborts", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/breaks", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/streams", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	mux.HandleFunc("/again", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	return mux
}

// TestTransportInFlight ends requests to a real server in every way. Each holds its slot until
// then, and no longer.
func TestTransportInFlight(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	reads := func(t *testing.T, resp *http.Response) { assert.NotEmpty(t, body(t, resp)) }
	for name, tt := range map[string]struct {
		method, path string
		status       int // 0 if there is no response
		over         bool
		end          func(t *testing.T, resp *http.Response) // nil: nothing more is done
	}{
		"is read":           {"GET", "/ok", 200, false, reads},
		"is closed":         {"GET", "/ok", 200, false, func(t *testing.T, resp *http.Response) { assert.NoError(t, resp.Body.Close()) }},
		"is refused":        {"GET", "/refuses", 429, false, reads},
		"has no body":       {"GET", "/empty", 204, true, nil},
		"has an empty body": {"GET", "/nothing", 200, true, nil},
		"is a HEAD":         {"HEAD", "/ok", 200, true, nil},
		"fails":             {"POST", "/aborts", 0, true, nil},
		"fails while it is read": {
			"GET", "/breaks", 200, false,
			func(t *testing.T, resp *http.Response) { _, err := io.ReadAll(resp.Body); assert.Error(t, err) },
		},
		"is closed early": {"GET", "/streams", 200, false, func(t *testing.T, resp *http.Response) { assert.NoError(t, resp.Body.Close()) }},
		"is redirected":   {"GET", "/moved", 200, false, reads},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, alg := range []ratelimit.Algorithm{flight, ratelimit.All{ratelimit.FixedWindow{Limit: 100, Window: time.Hour}, flight}} {
				t.Run(fmt.Sprintf("%s/%s/%T", name, proto, alg), func(t *testing.T) {
					l := ratelimit.Must(ratelimit.New(alg))
					server := serverOf(t, proto, endings())
					r, err := http.NewRequestWithContext(t.Context(), tt.method, server.URL+tt.path, nil)
					require.NoError(t, err)
					resp, err := clientOf(server, l).Do(r)
					if tt.status == 0 {
						require.Error(t, err)
					} else {
						require.NoError(t, err)
						defer resp.Body.Close()
						assert.Equal(t, tt.status, resp.StatusCode)
					}
					if !tt.over {
						assert.Zero(t, remaining(t, l), "it is in flight")
						tt.end(t, resp)
					}
					assert.Equal(t, 1, remaining(t, l))
				})
			}
		}
	}
}

// TestTransportInFlightLeaves checks that the end of a request's context ends it, even if
// nobody reads or closes the response.
func TestTransportInFlightLeaves(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour}))
			server := serverOf(t, proto, endings())
			c := clientOf(server, l)
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/streams", nil)
			require.NoError(t, err)
			resp, err := c.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			assert.Zero(t, remaining(t, l))

			waits, leaveEarly := context.WithCancel(t.Context()) // for its turn
			r, err = http.NewRequestWithContext(waits, "GET", server.URL+"/ok", nil)
			require.NoError(t, err)
			time.AfterFunc(time.Millisecond, leaveEarly)
			_, err = c.Do(r)
			require.ErrorIs(t, err, context.Canceled)

			leave()
			next, _, err := l.Hold(t.Context(), "192.0.2.1", 1, ratelimit.Waiting())
			require.NoError(t, err)
			require.NoError(t, next.Release(t.Context()))
			assert.Equal(t, 1, remaining(t, l))
		})
	}
}

// TestTransportInFlightAtOnce checks that a server never sees more requests at once than the
// limit, and that none of them leaves a slot behind.
func TestTransportInFlightAtOnce(t *testing.T) {
	const limit = 3
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: limit, Timeout: time.Hour}))
	var now, most atomic.Int64
	server := serverOf(t, "HTTP/1.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer now.Add(-1)
		n := now.Add(1)
		for seen := most.Load(); n > seen; seen = most.Load() {
			if most.CompareAndSwap(seen, n) {
				break
			}
		}
		endings().ServeHTTP(w, r)
	}))
	c := clientOf(server, l)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 20 {
				path := []string{"/ok", "/empty", "/moved", "/aborts", "/breaks"}[(i+j)%5]
				r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+path, strings.NewReader("x"))
				if !assert.NoError(t, err) {
					return
				}
				if resp, err := c.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
	assert.Positive(t, most.Load())
	assert.LessOrEqual(t, most.Load(), int64(limit))
	assert.Equal(t, limit, remaining(t, l))
}

// TestTransportInFlightOfKeysOwn checks when requests are released if the algorithm is not
// known.
func TestTransportInFlightOfKeysOwn(t *testing.T) {
	flight := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	for _, release := range []bool{false, true} {
		for name, l := range map[string]ratelimit.Limiter{
			"WithLimits": ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: time.Hour},
				ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return flight, nil }))),
			"a wrapper": fakes.Hidden{Limiter: ratelimit.Must(ratelimit.New(flight))},
		} {
			tr := &client.Transport{Limiter: l, Key: oneKey, Base: &scripted{}, InFlight: release}
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			require.NoError(t, err)
			want := 0
			if release {
				want = 1
			}
			assert.Equal(t, want, remaining(t, l), name)
		}
	}
}

// TestTransportInFlightKeepsTheRate checks that only places are released, and that a key
// without an InFlight stays as spent.
func TestTransportInFlightKeepsTheRate(t *testing.T) {
	rate := ratelimit.FixedWindow{Limit: 10, Window: time.Hour}
	for _, alg := range []ratelimit.Algorithm{rate, ratelimit.All{ratelimit.InFlight{Limit: 20, Timeout: time.Hour}, rate}} {
		l := ratelimit.Must(ratelimit.New(alg))
		tr := &client.Transport{Limiter: l, Key: oneKey, Base: &scripted{}, InFlight: true}
		for range 3 {
			_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
			require.NoError(t, err)
		}
		assert.Equal(t, 7, remaining(t, l))
	}
}

// TestTransportInFlightRests checks that a request whose turn comes after the server has sent
// Retry-After is not in flight while it waits for that.
func TestTransportInFlightRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour}))
		server := &scripted{answers: []*http.Response{answered(429, "60")}, start: time.Now()}
		slow := &closing{Reader: strings.NewReader("busy")}
		tr := &client.Transport{Limiter: l, Key: oneKey, Base: roundTripper(func(r *http.Request) *http.Response {
			resp, _ := server.RoundTrip(r)
			if resp.StatusCode == 429 {
				resp.Body = slow
			}
			return resp
		})}
		resp, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
		require.NoError(t, err)
		var others sync.WaitGroup
		for range 2 {
			others.Go(func() {
				_, err := tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		assert.Zero(t, remaining(t, l))
		require.NoError(t, resp.Body.Close())
		assert.True(t, slow.closed)
		synctest.Wait()
		assert.Equal(t, 1, remaining(t, l))
		others.Wait()
		assert.Equal(t, []time.Duration{0, time.Minute, time.Minute}, server.asked)
		assert.Equal(t, 1, remaining(t, l))
	})
}

// TestTransportInFlightAfterPanics checks that a Base that panics leaves no slot behind.
func TestTransportInFlightAfterPanics(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour}))
	tr := &client.Transport{Limiter: l, Key: oneKey, Base: roundTripper(func(*http.Request) *http.Response { panic("a bug") })}
	assert.PanicsWithValue(t, "a bug", func() { _, _ = tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil)) })
	assert.Equal(t, 1, remaining(t, l))
}

// TestTransportInFlightWhenTheStoreFails lets the store fail before or after a request.
func TestTransportInFlightWhenTheStoreFails(t *testing.T) {
	for _, tt := range []struct {
		name       string
		before, at bool // whether the store is down before the request, and at its end
		policy     ratelimit.FailurePolicy
		sent       bool
		left       int
	}{
		{"well", false, false, ratelimit.FailOpen(), true, 2},
		{"fails at the end", false, true, ratelimit.FailOpen(), true, 1},
		{"failed before", true, false, ratelimit.FailOpen(), true, 2},
		{"fails", true, true, ratelimit.FailOpen(), true, 2},
		{"failed before, closed", true, false, ratelimit.FailClosed(), false, 2},
	} {
		store := &flaky{down: tt.before}
		l, err := ratelimit.New(ratelimit.InFlight{Limit: 2, Timeout: time.Hour},
			ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy), ratelimit.WithFailureLog(nil))
		require.NoError(t, err)
		sent := false
		tr := &client.Transport{Limiter: l, Key: oneKey, Base: roundTripper(func(*http.Request) *http.Response {
			sent, store.down = true, tt.at
			return answered(200, "")
		})}
		_, err = tr.RoundTrip(httptest.NewRequest("GET", "http://example.com", nil))
		assert.Equal(t, tt.sent, err == nil, tt.name)
		assert.Equal(t, tt.sent, sent, tt.name)
		store.down = false
		assert.Equal(t, tt.left, remaining(t, l), tt.name)
	}
}

// TestTransportUpgrades has a proxy upgrade connections through a Transport. A connection is in
// flight until it is closed, even if the other end has sent its last byte.
func TestTransportUpgrades(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.InFlight{Limit: 1, Timeout: time.Hour}))
	backend := serverOf(t, "HTTP/1.1", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, err := rw.ReadString('\n')
		assert.NoError(t, err)
		io.WriteString(conn, "echo "+line)
		assert.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
		_, _ = io.Copy(io.Discard, rw) // until the client has closed its half
	}))
	upgrade := func(c *http.Client, to string) io.ReadWriteCloser {
		r, err := http.NewRequestWithContext(t.Context(), "GET", to, nil)
		require.NoError(t, err)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		resp, err := c.Do(r)
		require.NoError(t, err)
		require.Equal(t, 101, resp.StatusCode)
		conn, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok)
		return conn
	}
	talk := func(conn io.ReadWriteCloser) {
		io.WriteString(conn, "hello\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "echo hello\n", line)
	}

	conn := upgrade(clientOf(backend, l), backend.URL)
	talk(conn)
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Zero(t, remaining(t, l))
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	assert.Zero(t, remaining(t, l))
	require.NoError(t, conn.Close())
	assert.Equal(t, 1, remaining(t, l))

	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &client.Transport{Limiter: l, Key: oneKey, Base: backend.Client().Transport},
	}
	front := serverOf(t, "HTTP/1.1", proxy)
	conn = upgrade(front.Client(), front.URL)
	talk(conn)
	assert.Zero(t, remaining(t, l))
	require.NoError(t, conn.Close())
	next, _, err := l.Hold(t.Context(), "192.0.2.1", 1, ratelimit.Waiting()) // when the proxy has closed its connection
	require.NoError(t, err)
	require.NoError(t, next.Release(t.Context()))
	assert.Equal(t, 1, remaining(t, l))
}
