package httplimit_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// The tests in this file attack real servers.

var proxies = clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))

// serveBoth starts a server for HTTP/1.1 and HTTP/2 without TLS.
func serveBoth(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return listener.Addr().String()
}

// clients returns a client for each version of HTTP.
func clients(t *testing.T) map[string]*http.Client {
	made := make(map[string]*http.Client)
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		protocols := new(http.Protocols)
		set(protocols)
		tr := &http.Transport{Protocols: protocols}
		t.Cleanup(tr.CloseIdleConnections)
		made[name] = &http.Client{Transport: tr}
	}
	return made
}

// TestHostileHeaders checks that a client gets exactly its limit, whatever it sends.
func TestHostileHeaders(t *testing.T) {
	quiet(t)
	addr := make(map[string]string)
	const limit = 1
	for kind, opts := range map[string][]clientip.Option{
		"direct":    nil,
		"no prefix": {clientip.TrustedProxies(), clientip.TrustedHops(1)},
		"Forwarded": {proxies, clientip.FromForwarded()},
		"X-Real-IP": {proxies, clientip.FromHeader("X-Real-IP")},
	} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(limit)})
		byHeader := func(r *http.Request) (string, error) {
			key, err := clientip.Of(opts...)(r)
			return r.URL.Path + key, err // a limit for each test
		}
		addr[kind] = serveBoth(t, httplimit.Middleware(l, httplimit.WithKey(byHeader))(ok))
	}
	for version, client := range clients(t) {
		for name, set := range hostile {
			for kind, addr := range addr {
				allowed := 0
				for range limit + 1 {
					r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/"+strings.ReplaceAll(version+name, " ", ""), nil)
					require.NoError(t, err)
					set(r.Header)
					resp, err := client.Do(r)
					if err != nil && strings.Contains(err.Error(), "larger than peer's advertised limit") {
						allowed = limit // as net/http would
						continue
					}
					require.NoError(t, err, "%s: %s", version, name)
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode == http.StatusRequestHeaderFieldsTooLarge {
						allowed = limit // net/http has refused it
						continue
					}
					if resp.StatusCode == 200 {
						allowed++
					}
				}
				assert.Equal(t, limit, allowed, "%s, %s: %s", version, kind, name)
			}
		}
	}
}

// TestHostileHosts sends hosts through a proxy that copies them into Forwarded.
func TestHostileHosts(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	var mu sync.Mutex // protects keys
	keys := make(map[string]int)
	key := clientip.Of(clientip.TrustedProxies(netip.MustParsePrefix("127.0.0.0/8")), clientip.FromForwarded())
	service := serveBoth(t, httplimit.Middleware(l, httplimit.WithKey(func(r *http.Request) (string, error) {
		k, err := key(r)
		mu.Lock()
		defer mu.Unlock()
		keys[k]++
		return k, err
	}))(ok))
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	proxy := serveBoth(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := http.NewRequestWithContext(r.Context(), "GET", "http://"+service, nil)
		if !assert.NoError(t, err) {
			return
		}
		element := `for=203.0.113.66;host="` + escape.Replace(r.Host) + `"`
		out.Header["Forwarded"] = []string{strings.Join(append(r.Header["Forwarded"], element), ", ")}
		resp, err := http.DefaultClient.Do(out)
		if !assert.NoError(t, err) {
			return
		}
		resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
	}))
	sent := 0
	for _, host := range []string{"x", ",", strings.Repeat(",", 9), strings.Repeat(",", 5000), "a,for=1.1.1.1",
		";for=1.1.1.1", "a;for=1.1.1.1,b", "(,),for=1.1.1.1;a=b"} {
		for _, forwarded := range []string{"", "for=1.1.1.1", `for=1.1.1.1;x="`, `for=1.1.1.1;x="\`, strings.Repeat(`x=",`, 5000), `"`, `,`, `for="[::1`} {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", proxy)
			require.NoError(t, err)
			fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nForwarded: %s\r\nConnection: close\r\n\r\n", host, forwarded)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			resp.Body.Close()
			conn.Close()
			if resp.StatusCode != http.StatusBadRequest { // net/http has refused the host
				sent++
			}
		}
	}
	assert.Greater(t, sent, 30)
	assert.Equal(t, map[string]int{"203.0.113.66": sent}, keys)
}

// TestForgedRealIP sends fields with a client's address, written in many ways, through a proxy
// that sets X-Real-IP, and past it.
func TestForgedRealIP(t *testing.T) {
	var mu sync.Mutex // protects keys
	keys := make(map[string]int)
	l, _ := limiter(t, ratelimit.Unlimited{})
	key := clientip.Of(clientip.TrustedProxies(netip.MustParsePrefix("127.0.0.1/32")), clientip.FromHeader("X-Real-IP"))
	service := serveBoth(t, httplimit.Middleware(l, httplimit.WithKey(func(r *http.Request) (string, error) {
		if r.Header.Get("Past") != "" {
			r.RemoteAddr = "198.51.100.7:1" // a client's, whose peer is the service
		}
		k, err := key(r)
		mu.Lock()
		defer mu.Unlock()
		keys[k]++
		return k, err
	}))(ok))
	proxy := serveBoth(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: service})
		r.Out.Header.Set("X-Real-IP", "203.0.113.66")
	}})
	sent := 0
	for _, name := range []string{"X-Real-IP", "x-real-ip", "X-REAL-IP", "X_Real_IP", "X-Forwarded-For", "CF-Connecting-IP"} {
		for _, value := range []string{"1.1.1.1", "203.0.113.66, 1.1.1.1", "1.1.1.1, 203.0.113.66", "::ffff:1.1.1.1",
			"[::1]:1", "fe80::1%eth0", "127.0.0.1", "", "x", strings.Repeat("1", 5000)} {
			for _, more := range []string{"", name + ": 2.2.2.2\r\n", "Connection: X-Real-IP\r\n", "Trailer: X-Real-IP\r\n"} {
				sent++
				for addr, past := range map[string]string{proxy: "", service: "Past: 1\r\n"} {
					conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
					require.NoError(t, err)
					fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n%s: %s\r\n%s%sConnection: close\r\n\r\n", name, value, more, past)
					resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
					require.NoError(t, err)
					assert.Equal(t, 200, resp.StatusCode)
					resp.Body.Close()
					conn.Close()
				}
			}
		}
	}
	assert.Equal(t, map[string]int{"203.0.113.66": sent, "198.51.100.7": sent}, keys)
}

// TestClientsThatLeave has clients wait for their turn and disconnect, the last one
// first, over HTTP/1.1 and HTTP/2.
func TestClientsThatLeave(t *testing.T) {
	for version, client := range clients(t) {
		t.Run(version, func(t *testing.T) {
			l, clk := limiter(t, ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(1), Capacity: 6})
			reached, refused := make(chan struct{}, 10), make(chan struct{}, 10)
			limited := httplimit.Middleware(l, httplimit.WithShaping(time.Hour))(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
			addr := serveBoth(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				limited.ServeHTTP(w, r)
				refused <- struct{}{}
			}))
			level := func() int {
				d, err := l.Peek(t.Context(), "127.0.0.1")
				require.NoError(t, err)
				return int(d.ResetAfter / time.Minute) // with those in line
			}
			until := func(want int) {
				for level() != want {
					runtime.Gosched()
				}
			}
			require.True(t, l.Allow("127.0.0.1"))
			var leave []context.CancelFunc
			for i := range 5 {
				ctx, cancel := context.WithCancel(t.Context())
				leave = append(leave, cancel)
				r, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr, nil)
				require.NoError(t, err)
				go func() {
					if resp, err := client.Do(r); err == nil {
						resp.Body.Close()
					}
				}()
				until(2 + i)
			}
			for i := range 5 {
				leave[(i+3)%5]() // from anywhere
				until(5 - i)
				<-refused
			}
			clk.Add(time.Minute)
			assert.Zero(t, level())
			assert.Empty(t, reached)
		})
	}
}
