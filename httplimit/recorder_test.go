package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A response is what WithSettle's function is called with.
type response struct {
	status  int
	written int64
}

// settled returns middleware that sends what each request is settled with.
func settled(t testing.TB, to chan<- response) func(http.Handler) http.Handler {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
	return httplimit.Middleware(l, httplimit.WithSettle(func(_ *http.Request, status int, written int64) int {
		to <- response{status, written}
		return 1
	}))
}

// TestSettleSeesTheResponse sends requests over HTTP/1.1 and HTTP/2 to handlers that answer
// in every way, and checks what they are settled with.
func TestSettleSeesTheResponse(t *testing.T) {
	long := strings.Repeat("0123456789", 10_000)
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    response
		status  int // that the client gets; 0 if it gets no response
	}{
		"nothing":       {func(w http.ResponseWriter, _ *http.Request) {}, response{200, 0}, 200},
		"a body":        {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello")); w.Write([]byte("!")) }, response{200, 6}, 200},
		"a string":      {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }, response{200, 5}, 200},
		"no bytes":      {func(w http.ResponseWriter, _ *http.Request) { w.Write(nil); w.WriteHeader(500) }, response{200, 0}, 200},
		"a long body":   {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) }, response{200, 100_000}, 200},
		"a copied body": {func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, only{strings.NewReader(long)}) }, response{200, 100_000}, 200},
		"an empty copy": {func(w http.ResponseWriter, _ *http.Request) {
			io.Copy(w, only{strings.NewReader("")})
			w.WriteHeader(404)
		}, response{404, 0}, 404},
		"a status":     {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) }, response{404, 3}, 404},
		"two statuses": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202); w.WriteHeader(500) }, response{202, 0}, 202},
		"early hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(103)
			w.WriteHeader(201)
		}, response{201, 0}, 201},
		"hints only":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103) }, response{200, 0}, 200},
		"no content":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); w.Write([]byte("dropped")) }, response{204, 0}, 204},
		"not modified": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, response{304, 0}, 304},
		"HEAD":         {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "dropped") }, response{200, 0}, 200},
		"a flush":      {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.WriteHeader(500) }, response{200, 0}, 200},
		"flush by rc": {func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Flush()
			w.WriteHeader(500)
		}, response{200, 0}, 200},
		"a panic":        {func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, response{500, 0}, 0},
		"a wrong status": {func(w http.ResponseWriter, _ *http.Request) { defer abort(); w.WriteHeader(42) }, response{500, 0}, 0},
		"a late panic":   {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hel"); panic(http.ErrAbortHandler) }, response{200, 3}, 0},
		"flush, panic": {func(w http.ResponseWriter, _ *http.Request) {
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, response{200, 0}, 200},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+"/"+proto, func(t *testing.T) {
				got := make(chan response, 1)
				server := serverOf(t, proto, settled(t, got)(tt.handler))
				method := "GET"
				if name == "HEAD" {
					method = name
				}
				r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
				require.NoError(t, err)
				resp, err := server.Client().Do(r)
				assert.Equal(t, tt.want, <-got)
				if tt.status == 0 {
					assert.Error(t, err)
					return
				}
				require.NoError(t, err)
				defer resp.Body.Close()
				assert.Equal(t, tt.status, resp.StatusCode)
				assert.Equal(t, proto, resp.Proto)
			})
		}
	}
}

// abort stops the panic of net/http and panics without a log.
func abort() {
	_ = recover()
	panic(http.ErrAbortHandler)
}

// only hides the other methods of a Reader, so that io.Copy uses those of the Writer.
type only struct{ io.Reader }

// serverOf returns a server on loopback that speaks proto.
func serverOf(t *testing.T, proto string, h http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of calls of WriteHeader that come too late
	if proto == "HTTP/2.0" {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// TestSettleAfterHijack upgrades connections, with and without a status sent before.
func TestSettleAfterHijack(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(http.ResponseWriter)
		want   response
	}{
		"by hand":       {func(http.ResponseWriter) {}, response{101, 0}},
		"after a 101":   {func(w http.ResponseWriter) { w.WriteHeader(101) }, response{101, 0}},
		"after a 200":   {func(w http.ResponseWriter) { w.WriteHeader(200) }, response{200, 0}},
		"after a hint":  {func(w http.ResponseWriter) { w.WriteHeader(103) }, response{101, 0}},
		"with a panic!": {func(http.ResponseWriter) {}, response{101, 0}},
	} {
		for _, controller := range []bool{false, true} {
			t.Run(fmt.Sprint(name, controller), func(t *testing.T) {
				got := make(chan response, 1)
				server := serverOf(t, "HTTP/1.1", settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					tt.before(w)
					hijack := http.NewResponseController(w).Hijack
					if !controller {
						hijack = w.(http.Hijacker).Hijack
					}
					conn, rw, err := hijack()
					if !assert.NoError(t, err) {
						return
					}
					defer conn.Close()
					line, err := rw.ReadString('\n')
					assert.NoError(t, err)
					io.WriteString(conn, "echo "+line)
					_, err = w.Write([]byte("x"))
					assert.ErrorIs(t, err, http.ErrHijacked)
					if strings.HasSuffix(name, "!") {
						panic(http.ErrAbortHandler)
					}
				})))
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				require.NoError(t, err)
				defer conn.Close()
				io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
				all, err := io.ReadAll(conn)
				require.NoError(t, err)
				assert.True(t, strings.HasSuffix(string(all), "echo hello\n"), "%q", all)
				assert.Equal(t, tt.want, <-got)
			})
		}
	}
}

// TestStreamsAreNotBuffered checks that what a handler with WithSettle flushes arrives before
// it returns, and that it learns that its client has left.
func TestStreamsAreNotBuffered(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			got := make(chan response, 1)
			server := serverOf(t, proto, settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(time.Minute)))
				assert.NoError(t, rc.SetReadDeadline(time.Now().Add(time.Minute)))
				assert.NoError(t, rc.EnableFullDuplex())
				io.WriteString(w, "first\n")
				assert.NoError(t, rc.Flush())
				<-r.Context().Done()
			})))
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
			require.NoError(t, err)
			resp, err := server.Client().Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			line, err := bufio.NewReader(resp.Body).ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, "first\n", line)
			leave()
			assert.Equal(t, response{200, 6}, <-got)
		})
	}
}

// These have one optional interface each. They note what is called.
type (
	basic   struct{ called *[]string }
	canFl   struct{ called *[]string }
	canRead struct{ called *[]string }
	canHi   struct{ called *[]string }
	canPush struct{ called *[]string }
)

func (b basic) Header() http.Header { return http.Header{} }
func (b basic) Write(p []byte) (int, error) {
	*b.called = append(*b.called, "Write")
	return len(p), nil
}
func (b basic) WriteHeader(status int) {}

func (c canFl) Flush() { *c.called = append(*c.called, "Flush") }
func (c canRead) ReadFrom(io.Reader) (int64, error) {
	*c.called = append(*c.called, "ReadFrom")
	return 7, errors.New("of the reader")
}
func (c canHi) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	*c.called = append(*c.called, "Hijack")
	return nil, nil, errors.New("of the hijacker")
}
func (c canPush) Push(target string, _ *http.PushOptions) error {
	*c.called = append(*c.called, "Push")
	return errors.New("of the pusher")
}

// TestOptionalInterfaces checks for each combination of optional interfaces that a handler
// with WithSettle finds those that the ResponseWriter has, and no others.
func TestOptionalInterfaces(t *testing.T) {
	called := new([]string)
	b, f, rd, hi, pu := basic{called}, canFl{called}, canRead{called}, canHi{called}, canPush{called}
	for i, w := range []http.ResponseWriter{ // bits of i: flush, read, hijack, push
		b,
		struct {
			basic
			canFl
		}{b, f},
		struct {
			basic
			canRead
		}{b, rd},
		struct {
			basic
			canFl
			canRead
		}{b, f, rd},
		struct {
			basic
			canHi
		}{b, hi},
		struct {
			basic
			canFl
			canHi
		}{b, f, hi},
		struct {
			basic
			canRead
			canHi
		}{b, rd, hi},
		struct {
			basic
			canFl
			canRead
			canHi
		}{b, f, rd, hi},
		struct {
			basic
			canPush
		}{b, pu},
		struct {
			basic
			canFl
			canPush
		}{b, f, pu},
		struct {
			basic
			canRead
			canPush
		}{b, rd, pu},
		struct {
			basic
			canFl
			canRead
			canPush
		}{b, f, rd, pu},
		struct {
			basic
			canHi
			canPush
		}{b, hi, pu},
		struct {
			basic
			canFl
			canHi
			canPush
		}{b, f, hi, pu},
		struct {
			basic
			canRead
			canHi
			canPush
		}{b, rd, hi, pu},
		struct {
			basic
			canFl
			canRead
			canHi
			canPush
		}{b, f, rd, hi, pu},
	} {
		*called = nil
		got := make(chan response, 1)
		var want []string
		h := settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, deprecated := w.(interface{ CloseNotify() <-chan bool })
			assert.False(t, deprecated)
			flush, ok := w.(http.Flusher)
			if assert.Equal(t, i&1 != 0, ok, "%d: Flusher", i); ok {
				flush.Flush()
				assert.NoError(t, http.NewResponseController(w).Flush())
				want = append(want, "Flush", "Flush")
			} else {
				assert.ErrorIs(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
			}
			from, ok := w.(io.ReaderFrom)
			if assert.Equal(t, i&2 != 0, ok, "%d: ReaderFrom", i); ok {
				n, err := from.ReadFrom(nil)
				assert.Equal(t, int64(7), n)
				assert.EqualError(t, err, "of the reader")
				want = append(want, "ReadFrom")
			}
			hijack, ok := w.(http.Hijacker)
			if assert.Equal(t, i&4 != 0, ok, "%d: Hijacker", i); ok {
				_, _, err := hijack.Hijack()
				assert.EqualError(t, err, "of the hijacker")
				_, _, err = http.NewResponseController(w).Hijack()
				assert.EqualError(t, err, "of the hijacker")
				want = append(want, "Hijack", "Hijack")
			} else {
				_, _, err := http.NewResponseController(w).Hijack()
				assert.ErrorIs(t, err, http.ErrNotSupported)
			}
			push, ok := w.(http.Pusher)
			if assert.Equal(t, i&8 != 0, ok, "%d: Pusher", i); ok {
				assert.EqualError(t, push.Push("/x", nil), "of the pusher")
				want = append(want, "Push")
			}
			io.WriteString(w, "hello")
			want = append(want, "Write")
		}))
		h.ServeHTTP(w, from("192.0.2.1:1"))
		assert.Equal(t, want, *called, i)
		assert.Equal(t, response{200, 5 + 7*int64(i>>1&1)}, <-got, i)
	}
}

// TestHTTP2StillPushes checks that a handler finds the Pusher of HTTP/2 and not that of
// HTTP/1.1, and the other way around for a Hijacker.
func TestHTTP2StillPushes(t *testing.T) {
	for proto, second := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		server := serverOf(t, proto, settled(t, make(chan response, 1))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, pushes := w.(http.Pusher)
			_, hijacks := w.(http.Hijacker)
			_, reads := w.(io.ReaderFrom)
			_, flushes := w.(http.Flusher)
			fmt.Fprint(w, r.Proto, pushes, hijacks, reads, flushes)
		})))
		resp, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(proto, second, !second, !second, true), body(t, resp))
		resp.Body.Close()
	}
}
