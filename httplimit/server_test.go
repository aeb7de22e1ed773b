package httplimit_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// TestLoad sends requests of three clients over many connections to a server
// on loopback, and checks that exactly the limit of each client passes.
func TestLoad(t *testing.T) {
	total := int(max(10_000, budget.Histories(20_000, 100_000)))
	const limit, clients, connections = 1000, 3, 50
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(limit)})
	var served atomic.Int64
	server := httptest.NewServer(httplimit.Middleware(l, httplimit.WithKey(key.Header("X-API-Key")))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { served.Add(1) })))
	defer server.Close()

	var statuses [clients][600]atomic.Int64
	var wg sync.WaitGroup
	for c := range connections {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}} // a connection of its own
			defer client.CloseIdleConnections()
			for i := range total / connections {
				who := (c + i) % clients
				r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
				if !assert.NoError(t, err) {
					return
				}
				r.Header.Set("X-API-Key", fmt.Sprint(who))
				resp, err := client.Do(r)
				if !assert.NoError(t, err) {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				statuses[who][resp.StatusCode].Add(1)
			}
		})
	}
	wg.Wait()
	for who := range statuses {
		assert.EqualValues(t, limit, statuses[who][200].Load(), "client %d", who)
		assert.EqualValues(t, total/connections*connections,
			statuses[0][200].Load()+statuses[0][429].Load()+statuses[1][200].Load()+statuses[1][429].Load()+
				statuses[2][200].Load()+statuses[2][429].Load())
	}
	assert.EqualValues(t, clients*limit, served.Load())
}

// TestHandlersGoThroughUntouched has handlers that a wrapped ResponseWriter would
// break.
func TestHandlersGoThroughUntouched(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first\n")
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, "second\n")
		assert.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
	})
	mux.HandleFunc("/upgrade", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, err := rw.ReadString('\n')
		assert.NoError(t, err)
		io.WriteString(conn, "echo "+line)
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	server := httptest.NewUnstartedServer(httplimit.Middleware(l)(mux))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	get := func(method, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		require.NoError(t, err)
		return client.Do(r)
	}

	resp, err := get("GET", "/")
	require.NoError(t, err)
	assert.Equal(t, "HTTP/2.0", body(t, resp))
	assert.Equal(t, `"default";q=1000;w=3600`, resp.Header.Get("RateLimit-Policy"))

	resp, err = get("GET", "/stream")
	require.NoError(t, err)
	lines := bufio.NewReader(resp.Body)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "first\n", line, "before the handler has ended")
	close(release)
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "second\n", line)
	resp.Body.Close()

	resp, err = get("HEAD", "/")
	require.NoError(t, err)
	assert.Empty(t, body(t, resp))
	assert.NotEmpty(t, resp.Header.Get("RateLimit"))

	_, err = get("GET", "/panic")
	assert.Error(t, err, "the connection is cut, as without the middleware")

	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	require.NoError(t, err)
	defer conn.Close()
	io.WriteString(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	answer := bufio.NewReader(conn)
	upgraded, err := http.ReadResponse(answer, nil)
	require.NoError(t, err)
	assert.Equal(t, 101, upgraded.StatusCode)
	io.WriteString(conn, "hello\n")
	line, err = answer.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "echo hello\n", line)
}

// TestRefusedOverTheWire sends GET and HEAD over HTTP/1.1 to an exhausted limit.
func TestRefusedOverTheWire(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	server := httptest.NewServer(httplimit.Middleware(l)(ok))
	defer server.Close()
	for i, method := range []string{"GET", "GET", "HEAD", "POST"} {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		require.NoError(t, err)
		resp, err := server.Client().Do(r)
		require.NoError(t, err)
		text := body(t, resp)
		resp.Body.Close()
		if i == 0 {
			assert.Equal(t, "ok", text)
			continue
		}
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
		assert.Equal(t, method == "HEAD", text == "")
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	}
}

// TestReadTimeout has a client that announces a body, and sends it late or never.
func TestReadTimeout(t *testing.T) {
	const readTimeout, turn = 10 * time.Second, 20 * time.Second
	for name, tt := range map[string]struct {
		sent   string
		opts   []httplimit.Option
		status int
		after  time.Duration
		reads  error // what the handler gets from the body
	}{
		"refused":                    {"hello", nil, 429, 0, nil},
		"refused, and no body comes": {"", nil, 429, readTimeout, nil},
		"held for longer":            {"hello", []httplimit.Option{httplimit.WithShaping(time.Minute)}, 200, turn, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(turn)}))
				require.True(t, l.Allow("everybody"))
				limited := httplimit.Middleware(l, append(tt.opts, httplimit.WithKey(key.Everybody()))...)
				conns := make(oneConn, 1)
				server := &http.Server{ReadTimeout: readTimeout, Handler: limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, err := io.ReadAll(r.Body)
					assert.ErrorIs(t, err, tt.reads)
				}))}
				client, conn := net.Pipe()
				conns <- conn
				go func() { _ = server.Serve(conns) }()
				go func() {
					_, _ = io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
					_, _ = io.WriteString(client, tt.sent)
				}()
				begin := time.Now()
				resp, err := http.ReadResponse(bufio.NewReader(client), nil)
				require.NoError(t, err)
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, tt.after, time.Since(begin))
				client.Close()
				require.NoError(t, server.Close())
			})
		})
	}
}

// A oneConn is a listener that accepts one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error {
	close(l)
	return nil
}

func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestBehindAProxy sends requests with forged fields through real proxies on
// loopback.
func TestBehindAProxy(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	key := clientip.Of(clientip.TrustedHops(1))
	service := httptest.NewServer(httplimit.Middleware(l, httplimit.WithKey(key))(ok))
	defer service.Close()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := http.NewRequestWithContext(r.Context(), r.Method, service.URL, nil)
		if !assert.NoError(t, err) {
			return
		}
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		assert.NoError(t, err)
		out.Header["X-Forwarded-For"] = r.Header["X-Forwarded-For"]
		out.Header.Add("X-Forwarded-For", host)
		resp, err := http.DefaultClient.Do(out)
		if !assert.NoError(t, err) {
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
	}))
	defer proxy.Close()
	var got []int
	for i := range 4 {
		r, err := http.NewRequestWithContext(context.Background(), "GET", proxy.URL, nil)
		require.NoError(t, err)
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i))
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		got = append(got, resp.StatusCode)
	}
	assert.Equal(t, []int{200, 200, 429, 429}, got)
}
