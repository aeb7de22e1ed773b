package ginlimit_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/routers/ginlimit"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	m.Run()
}

func perHour(n int) ratelimit.Limiter {
	return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: n, Window: time.Hour, Start: ratelimit.StartOnFirstEvent}))
}

func get(e http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w
}

// TestRefusalAborts checks that no handler after the middleware is called for a refused request,
// and that those around it see the refusal.
func TestRefusalAborts(t *testing.T) {
	var called []string
	e := gin.New()
	e.Use(func(c *gin.Context) {
		c.Next()
		called = append(called, fmt.Sprintf("around: %d, aborted %v", c.Writer.Status(), c.IsAborted()))
	})
	e.Use(ginlimit.Wrap(httplimit.Middleware(perHour(1), httplimit.WithVerdict())))
	e.Use(func(c *gin.Context) {
		a, ok := httplimit.VerdictOf(c.Request.Context())
		called = append(called, fmt.Sprintf("after: %v %d", ok, a.Decision.Limit))
	})
	e.GET("/", func(c *gin.Context) { called = append(called, "route"); c.String(200, "ok") })
	first, second := get(e), get(e)
	if first.Code != 200 || first.Body.String() != "ok" || first.Header().Get("RateLimit") == "" {
		t.Errorf("first request: %d %q %v", first.Code, first.Body, first.Header())
	}
	if second.Code != 429 || second.Header().Get("Retry-After") == "" || strings.Contains(second.Body.String(), "ok") {
		t.Errorf("second request: %d %q %v", second.Code, second.Body, second.Header())
	}
	want := "[after: true 1 route around: 200, aborted false around: 429, aborted true]"
	if got := fmt.Sprint(called); got != want {
		t.Errorf("called %v, want %v", got, want)
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
	ginlimit.Wrap(nil)
}

// TestSettle checks what httplimit.WithSettleAtEnd sees, and that the client gets the same.
func TestSettle(t *testing.T) {
	for name, tt := range map[string]struct {
		handler gin.HandlerFunc
		status  int
		written int64
	}{
		"body":          {func(c *gin.Context) { c.String(418, "no") }, 418, 2},
		"JSON":          {func(c *gin.Context) { c.JSON(418, 12345) }, 418, 5},
		"nothing":       {func(*gin.Context) {}, 200, 0},
		"status":        {func(c *gin.Context) { c.Status(418) }, 418, 0},
		"late":          {func(c *gin.Context) { c.Status(200); c.Status(418) }, 418, 0},
		"late, body":    {func(c *gin.Context) { c.Status(200); c.Status(418); io.WriteString(c.Writer, "no") }, 418, 2},
		"too late":      {func(c *gin.Context) { c.Status(418); c.Writer.WriteHeaderNow(); c.Status(200) }, 418, 0},
		"flush":         {func(c *gin.Context) { c.Status(418); c.Writer.Flush(); c.Status(200); c.Writer.Write([]byte("no")) }, 418, 2},
		"abort":         {func(c *gin.Context) { c.AbortWithStatus(418) }, 418, 0},
		"abort, JSON":   {func(c *gin.Context) { c.AbortWithStatusJSON(418, 1) }, 418, 1},
		"panic":         {func(*gin.Context) { panic("no") }, 500, 0},
		"panic, later":  {func(c *gin.Context) { c.String(418, "no"); panic("no") }, 418, 2},
		"several":       {func(c *gin.Context) { c.String(418, "n"); c.String(200, "o") }, 418, 2},
		"a file":        {func(c *gin.Context) { c.Data(418, "text/plain", make([]byte, 100_000)) }, 418, 100_000},
		"of its writer": {func(c *gin.Context) { http.Error(c.Writer, "n", http.StatusTeapot) }, 418, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var status int
			var written int64
			e := gin.New()
			e.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
			var outer gin.ResponseWriter
			e.Use(func(c *gin.Context) {
				outer = c.Writer
				defer func() {
					if c.Writer != outer {
						t.Error("the writer is not restored")
					}
				}()
				c.Next()
			})
			e.Use(ginlimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, s int, n int64) int {
				status, written = s, n
				return 0
			}))))
			e.GET("/", tt.handler)
			w := get(e)
			if status != tt.status || written != tt.written {
				t.Errorf("WithSettleAtEnd sees %d and %d bytes, want %d and %d", status, written, tt.status, tt.written)
			}
			if w.Code != tt.status || int64(w.Body.Len()) != tt.written {
				t.Errorf("the client gets %d and %d bytes, want %d and %d", w.Code, w.Body.Len(), tt.status, tt.written)
			}
		})
	}
}

// TestHijack checks that a handler can take over the connection.
func TestHijack(t *testing.T) {
	settled := make(chan int, 1)
	e := gin.New()
	e.Use(ginlimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithSettleAtEnd(func(_ *http.Request, status int, _ int64) int {
		settled <- status
		return 0
	}))))
	e.GET("/", func(c *gin.Context) {
		if err := http.NewResponseController(c.Writer).SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		conn, _, err := c.Writer.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 418 \r\nContent-Length: 0\r\n\r\n")
		conn.Close()
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
	gin.ResponseWriter
	_ []byte
}

// TestForeignWriter checks that other middleware may replace the writer, by any type.
func TestForeignWriter(t *testing.T) {
	for name, opts := range map[string][]httplimit.Option{
		"plain":   nil,
		"settled": {httplimit.WithSettleAtEnd(httplimit.ByCost)},
	} {
		e := gin.New()
		e.Use(func(c *gin.Context) { c.Writer = sliced{ResponseWriter: c.Writer} })
		e.Use(ginlimit.Wrap(httplimit.Middleware(perHour(1), opts...)))
		e.GET("/", func(c *gin.Context) { c.String(http.StatusTeapot, "no") })
		if w := get(e); w.Code != http.StatusTeapot || w.Body.String() != "no" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if w := get(e); w.Code != http.StatusTooManyRequests {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// TestRoute checks that keys see the route that Gin has found, and that the Pattern of a router
// around Gin stays if it has found none.
func TestRoute(t *testing.T) {
	var got string
	e := gin.New()
	e.Use(ginlimit.Wrap(httplimit.Middleware(perHour(9), httplimit.WithKey(func(r *http.Request) (string, error) {
		got = fmt.Sprintf("%s a=%s b=%s", r.Pattern, r.PathValue("a"), r.PathValue("b"))
		return got, nil
	}))))
	e.GET("/user/:a/photos/:b", func(c *gin.Context) {})
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
