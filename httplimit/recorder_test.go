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
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A response is what WithSettleAtEnd's function is called with.
type response struct {
	status  int
	written int64
}

// settled returns middleware that sends what each request is settled with.
func settled(t testing.TB, to chan<- response) func(http.Handler) http.Handler {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
	return httplimit.Middleware(l, httplimit.WithSettleAtEnd(func(_ *http.Request, status int, written int64) int {
		to <- response{status, written}
		return 1
	}))
}

// settledByStatus returns middleware that sends the status that each request is settled with.
func settledByStatus(t testing.TB, to chan<- int) func(http.Handler) http.Handler {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)})
	return httplimit.Middleware(l, httplimit.WithSettle(func(_ *http.Request, status int) int {
		to <- status
		return 1
	}))
}

// TestSettleSeesTheResponse sends requests over HTTP/1.1 and HTTP/2 to handlers that answer
// in every way, and checks what they are settled with, when they are done and before the header.
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
				got, status := make(chan response, 1), make(chan int, 1)
				server := serverOf(t, proto, settled(t, got)(settledByStatus(t, status)(tt.handler)))
				method := "GET"
				if name == "HEAD" {
					method = name
				}
				r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
				require.NoError(t, err)
				resp, err := server.Client().Do(r)
				assert.Equal(t, tt.want, <-got)
				assert.Equal(t, tt.want.status, <-status)
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

// TestStreamsAreNotBuffered checks that what a handler with WithSettleAtEnd flushes arrives before
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

// A plain writer is a ResponseWriter without optional methods. It notes what is called.
type plain struct{ called *[]string }

func (p plain) Header() http.Header { return http.Header{} }
func (p plain) WriteHeader(int)     {}
func (p plain) Write(b []byte) (int, error) {
	*p.called = append(*p.called, "Write "+string(b))
	return len(b), nil
}

// An able writer also has the optional methods of net/http's.
type able struct{ plain }

func (a able) Flush() { *a.called = append(*a.called, "Flush") }
func (a able) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	*a.called = append(*a.called, "Hijack")
	return nil, nil, errors.New("of the hijacker")
}
func (a able) ReadFrom(src io.Reader) (int64, error) {
	*a.called = append(*a.called, fmt.Sprintf("ReadFrom %T", src))
	return 7, errors.New("of the reader")
}

// An outer writer has no optional methods, but an able writer in it.
type outer struct {
	plain
	in able
}

func (o outer) Unwrap() http.ResponseWriter { return o.in }

// TestOptionalMethods calls the optional methods that the ResponseWriter of a handler with
// WithSettleAtEnd has, with ResponseWriters in it that have all, none, or those of another one.
func TestOptionalMethods(t *testing.T) {
	notSupported := http.ErrNotSupported.Error()
	for name, tt := range map[string]struct {
		w       func(plain) http.ResponseWriter
		flush   string // the errors
		hijack  string
		copied  string
		called  []string
		written int64
	}{
		"able": {
			func(p plain) http.ResponseWriter { return able{p} }, "", "of the hijacker", "of the reader",
			[]string{"Flush", "Flush", "Hijack", "Hijack", "ReadFrom httplimit_test.only"}, 7,
		},
		"plain": {
			func(p plain) http.ResponseWriter { return p }, notSupported, notSupported, "",
			[]string{"Write hello"}, 5,
		},
		"outer": {
			func(p plain) http.ResponseWriter { return outer{p, able{p}} }, "", "of the hijacker", "",
			[]string{"Flush", "Flush", "Hijack", "Hijack", "Write hello"}, 5, // what it does to bytes is not left out
		},
	} {
		t.Run(name, func(t *testing.T) {
			matches := func(err error, text string) {
				t.Helper()
				if text == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, text)
				}
				assert.Equal(t, text == notSupported, errors.Is(err, http.ErrNotSupported))
			}
			got, called := make(chan response, 1), new([]string)
			h := settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.(http.Flusher).Flush()
				matches(http.NewResponseController(w).Flush(), tt.flush)
				_, _, err := w.(http.Hijacker).Hijack()
				matches(err, tt.hijack)
				_, _, err = http.NewResponseController(w).Hijack()
				matches(err, tt.hijack)
				_, err = io.Copy(w, only{strings.NewReader("hello")})
				matches(err, tt.copied)
			}))
			h.ServeHTTP(tt.w(plain{called}), from("192.0.2.1:1"))
			assert.Equal(t, tt.called, *called)
			assert.Equal(t, response{200, tt.written}, <-got)
		})
	}
}

// TestPanicDuringACopy checks that what was sent before counts, also without a ReaderFrom.
func TestPanicDuringACopy(t *testing.T) {
	got := make(chan response, 1)
	h := settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, only{io.MultiReader(strings.NewReader("hello"), panicking{})})
	}))
	assert.Panics(t, func() { h.ServeHTTP(plain{new([]string)}, from("192.0.2.1:1")) })
	assert.Equal(t, response{200, 5}, <-got)
}

// A panicking reader panics.
type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("no") }

// A copying writer has the ReadFrom of net/http's, and notes whether the system can copy for it.
type copying struct {
	plain
	files *int
}

func (c copying) ReadFrom(src io.Reader) (int64, error) {
	limited, ok := src.(*io.LimitedReader)
	if ok {
		src = limited.R
	}
	if _, ok := src.(syscall.Conn); ok {
		*c.files++
	}
	return 0, nil
}

// TestSystemCopiesFiles checks that net/http's ResponseWriter gets files as they are, so that the
// operating system can copy them.
func TestSystemCopiesFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
	for name, handler := range map[string]http.HandlerFunc{
		"ServeFile": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) },
		"io.Copy": func(w http.ResponseWriter, _ *http.Request) {
			f, err := os.Open(path)
			if assert.NoError(t, err) {
				defer f.Close()
				_, _ = io.Copy(w, f)
			}
		},
	} {
		w := copying{plain{new([]string)}, new(int)}
		settled(t, make(chan response, 1))(handler).ServeHTTP(w, from("192.0.2.1:1"))
		assert.Equal(t, 1, *w.files, name)
		assert.Empty(t, *w.called, name)
	}
}

// TestHTTP2CannotHijack checks that a handler which tries can still answer, over HTTP/2 and through
// WithSettleAtEnd.
func TestHTTP2CannotHijack(t *testing.T) {
	got := make(chan response, 1)
	server := serverOf(t, "HTTP/2.0", settled(t, got)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, err := w.(http.Hijacker).Hijack()
		assert.ErrorIs(t, err, http.ErrNotSupported)
		_, pushes := w.(http.Pusher)
		assert.False(t, pushes)
		http.Error(w, r.Proto, http.StatusUpgradeRequired)
	})))
	resp, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 426, resp.StatusCode)
	assert.Equal(t, "HTTP/2.0\n", body(t, resp))
	assert.Equal(t, response{426, 9}, <-got)
}
