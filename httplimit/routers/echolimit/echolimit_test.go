package echolimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/echolimit"
)

func perHour(n int) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: n, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}))
}

func get(e http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w
}

// responseOf returns Echo's own record of the response of c.
func responseOf(t *testing.T, c *echo.Context) *echo.Response {
	t.Helper()
	r, err := echo.UnwrapResponse(c.Response())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRefusalEndsTheRequest checks that no handler after the middleware is called for a refused
// request, and that those around it see the refusal.
func TestRefusalEndsTheRequest(t *testing.T) {
	var called []string
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			err := next(c)
			called = append(called, fmt.Sprintf("around: %d %v", responseOf(t, c).Status, err))
			return err
		}
	})
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(1), httplimit.WithVerdict())))
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			a, ok := httplimit.VerdictOf(c.Request().Context())
			called = append(called, fmt.Sprintf("after: %v %d", ok, a.Decision.Limit))
			return next(c)
		}
	})
	e.GET("/", func(c *echo.Context) error { called = append(called, "route"); return c.String(200, "ok") })
	first, second := get(e), get(e)
	if first.Code != 200 || first.Body.String() != "ok" || first.Header().Get("RateLimit") == "" {
		t.Errorf("first request: %d %q %v", first.Code, first.Body, first.Header())
	}
	if second.Code != 429 || second.Header().Get("Retry-After") == "" || strings.Contains(second.Body.String(), "ok") {
		t.Errorf("second request: %d %q %v", second.Code, second.Body, second.Header())
	}
	want := "[after: true 1 route around: 200 <nil> around: 429 <nil>]"
	if got := fmt.Sprint(called); got != want {
		t.Errorf("called %v, want %v", got, want)
	}
}

var errTeapot = errors.New("no coffee")

// TestErrorsPass checks that middleware around this one can answer the errors of handlers.
func TestErrorsPass(t *testing.T) {
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if err := next(c); !errors.Is(err, errTeapot) {
				t.Errorf("the error is %v", err)
			}
			return c.String(418, "tea")
		}
	})
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(1))))
	e.GET("/", func(c *echo.Context) error { return errTeapot })
	if w := get(e); w.Code != 418 || w.Body.String() != "tea" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestNoMiddleware checks that Wrap panics, as httplimit does with mistakes.
func TestNoMiddleware(t *testing.T) {
	defer func() {
		err, _ := recover().(error)
		if !errors.Is(err, ratelimit.ErrInvalid) || !strings.Contains(err.Error(), "Wrap's middleware is nil") {
			t.Errorf("Wrap panics with %v", err)
		}
	}()
	echolimit.Wrap(nil)
}

// TestSettle checks what httplimit.WithSettleAtEnd sees, and that the client, and Echo's own record of
// the response, get the same.
func TestSettle(t *testing.T) {
	const message = `{"message":"no"}` + "\n"
	const failed = `{"message":"Internal Server Error"}` + "\n"
	for name, tt := range map[string]struct {
		handler echo.HandlerFunc
		status  int
		written int
	}{
		"body":           {func(c *echo.Context) error { return c.String(418, "no") }, 418, 2},
		"JSON":           {func(c *echo.Context) error { return c.JSON(418, 1234) }, 418, 5},
		"stream":         {func(c *echo.Context) error { return c.Stream(418, "", strings.NewReader("no")) }, 418, 2},
		"no body":        {func(c *echo.Context) error { return c.NoContent(418) }, 418, 0},
		"nothing":        {func(c *echo.Context) error { return nil }, 200, 0},
		"HTTP error":     {func(c *echo.Context) error { return echo.NewHTTPError(418, "no") }, 418, len(message)},
		"other error":    {func(c *echo.Context) error { return errTeapot }, 500, len(failed)},
		"unfit for JSON": {func(c *echo.Context) error { return c.JSON(418, func() {}) }, 500, len(failed)},
		"panic":          {func(c *echo.Context) error { panic("no") }, 500, len(failed)},
		"panic, later":   {func(c *echo.Context) error { panic(c.String(418, "no")) }, 418, 2},
		"too late":       {func(c *echo.Context) error { c.Response().WriteHeader(418); return errTeapot }, 418, 0},
		"flush": {func(c *echo.Context) error {
			c.Response().WriteHeader(418)
			c.Response().(http.Flusher).Flush()
			return errTeapot
		}, 418, 0},
		"flush, ask":       {func(c *echo.Context) error { return http.NewResponseController(c.Response()).Flush() }, 200, 0},
		"of its writer":    {func(c *echo.Context) error { http.Error(c.Response(), "n", http.StatusTeapot); return nil }, 418, 2},
		"of Echo's record": {func(c *echo.Context) error { responseOf(t, c).WriteHeader(418); return nil }, 418, 0},
		"of its type":      {func(c *echo.Context) error { c.Response().(*echo.Response).WriteHeader(418); return nil }, 418, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var status int
			var written int64
			e := echo.New()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error {
					outer := c.Response()
					err := next(c)
					if c.Response() != outer {
						t.Error("the response is not restored")
					}
					if r := responseOf(t, c); r.Committed && (r.Status != tt.status || r.Size != int64(tt.written)) {
						t.Errorf("Echo's record is %d and %d bytes", r.Status, r.Size)
					}
					return err
				}
			})
			e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, s int, n int64) int {
				status, written = s, n
				return 0
			}))))
			e.Use(middleware.Recover())
			e.GET("/", tt.handler)
			w := get(e)
			if status != tt.status || written != int64(tt.written) {
				t.Errorf("WithSettleAtEnd sees %d and %d bytes, want %d and %d", status, written, tt.status, tt.written)
			}
			if w.Code != tt.status || w.Body.Len() != tt.written {
				t.Errorf("the client gets %d and %q, want %d and %d bytes", w.Code, w.Body, tt.status, tt.written)
			}
		})
	}
}

// TestWrapMiddleware checks what the documentation says of Echo's own adapter: WithSettleAtEnd does
// not see the answers to errors. If this test fails, Echo may need no adapter of this module.
func TestWrapMiddleware(t *testing.T) {
	var seen string
	e := echo.New()
	e.Use(echo.WrapMiddleware(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, s int, n int64) int {
		seen = fmt.Sprint(s, n)
		return 0
	}))))
	e.GET("/", func(*echo.Context) error { return echo.NewHTTPError(401, "no") })
	if w := get(e); w.Code != 401 || seen != "200 0" {
		t.Errorf("the client gets %d, WithSettleAtEnd sees %s", w.Code, seen)
	}
}

// TestSettleAfterPanic checks that the response is restored for middleware around this one that
// recovers from the panic of a handler.
func TestSettleAfterPanic(t *testing.T) {
	var status int
	var outer http.ResponseWriter
	e := echo.New()
	e.Use(middleware.Recover())
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			outer = c.Response()
			return next(c)
		}
	})
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, s int, _ int64) int {
		status = s
		return 0
	}))))
	e.HTTPErrorHandler = func(c *echo.Context, _ error) {
		if c.Response() != outer {
			t.Error("the response is not restored")
		}
		if err := c.NoContent(500); err != nil {
			t.Error(err)
		}
	}
	e.GET("/", func(*echo.Context) error { panic("no") })
	if w := get(e); w.Code != 500 || status != 500 {
		t.Errorf("WithSettleAtEnd sees %d, the client %d", status, w.Code)
	}
}

// TestStream checks that what a handler flushes is sent while it runs.
func TestStream(t *testing.T) {
	settled, proceed := make(chan int64, 1), make(chan struct{})
	e := echo.New()
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, _ int, written int64) int {
		settled <- written
		return 0
	}))))
	e.GET("/", func(c *echo.Context) error {
		io.WriteString(c.Response(), "first")
		err := http.NewResponseController(c.Response()).Flush()
		<-proceed
		io.WriteString(c.Response(), "second")
		return err
	})
	server := httptest.NewServer(e)
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len("first"))
	_, err = io.ReadFull(resp.Body, first)
	close(proceed)
	rest, restErr := io.ReadAll(resp.Body)
	if errors.Join(err, restErr) != nil || string(first) != "first" || string(rest) != "second" {
		t.Errorf("%q %v, then %q %v", first, err, rest, restErr)
	}
	if written := <-settled; written != int64(len("firstsecond")) {
		t.Errorf("WithSettleAtEnd sees %d bytes", written)
	}
}

// TestHijack checks that a handler can take over the connection.
func TestHijack(t *testing.T) {
	settled := make(chan int, 1)
	e := echo.New()
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, status int, _ int64) int {
		settled <- status
		return 0
	}))))
	e.GET("/", func(c *echo.Context) error {
		if err := http.NewResponseController(c.Response()).SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		conn, _, err := c.Response().(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return nil
		}
		io.WriteString(conn, "HTTP/1.1 418 \r\nContent-Length: 0\r\n\r\n")
		return conn.Close()
	})
	server := httptest.NewServer(e)
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-settled; got != 101 || resp.StatusCode != 418 {
		t.Errorf("WithSettleAtEnd sees %d, the client %d", got, resp.StatusCode)
	}
}

// A sliced writer cannot be compared.
type sliced struct {
	http.ResponseWriter
	_ []byte
}

// Unwrap is for [echo.UnwrapResponse].
func (w sliced) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestForeignWriter checks that other middleware may replace the writer, by any type.
func TestForeignWriter(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"plain":   nil,
		"settled": {httplimit.WithSettleAtEnd(httplimit.ByCost)},
	} {
		e := echo.New()
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
				c.SetResponse(sliced{ResponseWriter: c.Response()})
				return next(c)
			}
		})
		e.Use(echolimit.Wrap(httplimit.Middleware(perHour(1), opts...)))
		e.GET("/", func(c *echo.Context) error { return c.String(http.StatusTeapot, "no") })
		if w := get(e); w.Code != http.StatusTeapot || w.Body.String() != "no" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if w := get(e); w.Code != http.StatusTooManyRequests {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// TestForeignMiddleware checks that middleware may give the handler a writer that hides all others:
// Echo still knows that an answer has been sent.
func TestForeignMiddleware(t *testing.T) {
	e := echo.New()
	e.Use(echolimit.Wrap(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
		})
	}))
	e.GET("/", func(c *echo.Context) error { return errors.Join(c.String(418, "tea"), errTeapot) })
	if w := get(e); w.Code != 418 || w.Body.String() != "tea" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestRoute checks that keys see the route that Echo has found, and that the Pattern of a router
// around Echo stays if it has found none.
func TestRoute(t *testing.T) {
	var got string
	e := echo.New()
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithKey(func(r *http.Request) (string, error) {
		got = fmt.Sprintf("%s a=%s b=%s", r.Pattern, r.PathValue("a"), r.PathValue("b"))
		return got, nil
	}))))
	e.GET("/user/:a/photos/:b", func(c *echo.Context) error { return c.NoContent(200) })
	mux := http.NewServeMux()
	mux.Handle("/user/", e)
	for path, want := range map[string]string{
		"/user/1/photos/x": "/user/:a/photos/:b a=1 b=x",
		"/user/1":          "/user/ a= b=",
	} {
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
		if got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
