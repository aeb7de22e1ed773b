package echolimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

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

// TestRefusalEndsTheRequest checks that no handler after the middleware is called for a refused
// request, and that those around it see the refusal.
func TestRefusalEndsTheRequest(t *testing.T) {
	var called []string
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			called = append(called, fmt.Sprintf("around: %d %v", c.Response().Status, err))
			return err
		}
	})
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(1), httplimit.WithAdmission())))
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			a, ok := httplimit.AdmissionOf(c.Request().Context())
			called = append(called, fmt.Sprintf("after: %v %d", ok, a.Decision.Limit))
			return next(c)
		}
	})
	e.GET("/", func(c echo.Context) error { called = append(called, "route"); return c.String(200, "ok") })
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
		return func(c echo.Context) error {
			if err := next(c); !errors.Is(err, errTeapot) {
				t.Errorf("the error is %v", err)
			}
			return c.String(418, "tea")
		}
	})
	e.Use(echolimit.Wrap(httplimit.Middleware(perHour(1))))
	e.GET("/", func(c echo.Context) error { return errTeapot })
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

// TestSettle checks what httplimit.WithSettle sees, and that the client gets the same.
func TestSettle(t *testing.T) {
	const message = `{"message":"no"}` + "\n"
	for name, tt := range map[string]struct {
		handler echo.HandlerFunc
		status  int
		written int
	}{
		"body":          {func(c echo.Context) error { return c.String(418, "no") }, 418, 2},
		"no body":       {func(c echo.Context) error { return c.NoContent(418) }, 418, 0},
		"nothing":       {func(c echo.Context) error { return nil }, 200, 0},
		"HTTP error":    {func(c echo.Context) error { return echo.NewHTTPError(418, "no") }, 418, len(message)},
		"other error":   {func(c echo.Context) error { return errTeapot }, 500, len(`{"message":"Internal Server Error"}`) + 1},
		"too late":      {func(c echo.Context) error { c.Response().WriteHeader(418); return errTeapot }, 418, 0},
		"flush":         {func(c echo.Context) error { c.Response().WriteHeader(418); c.Response().Flush(); return nil }, 418, 0},
		"of its writer": {func(c echo.Context) error { http.Error(c.Response(), "n", http.StatusTeapot); return nil }, 418, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var status int
			var written int64
			e := echo.New()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					outer := c.Response()
					err := next(c)
					if c.Response() != outer || outer.Committed && outer.Status != tt.status {
						t.Errorf("the response is not restored, or has status %d", outer.Status)
					}
					return err
				}
			})
			e.Use(echolimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettle(func(_ *http.Request, s int, n int64) int {
				status, written = s, n
				return 0
			}))))
			e.GET("/", tt.handler)
			w := get(e)
			if status != tt.status || written != int64(tt.written) {
				t.Errorf("WithSettle sees %d and %d bytes, want %d and %d", status, written, tt.status, tt.written)
			}
			if w.Code != tt.status || w.Body.Len() != tt.written {
				t.Errorf("the client gets %d and %q, want %d and %d bytes", w.Code, w.Body, tt.status, tt.written)
			}
		})
	}
}
