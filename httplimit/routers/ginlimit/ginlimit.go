// Package ginlimit limits the requests of a [Gin] router.
//
//	e := gin.New()
//	e.Use(ginlimit.Wrap(httplimit.PerClient(ratelimit.PerMinute(60))))
//
// [Gin]: https://gin-gonic.com
package ginlimit

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/ratelimit-go/ratelimit"
)

// errNoMiddleware is what Wrap panics with.
var errNoMiddleware = fmt.Errorf("%w: ginlimit.Wrap's middleware is nil: "+
	"it must be a function such as httplimit.New returns",
	ratelimit.ErrInvalid)

// Wrap makes a Gin handler of net/http middleware, such as [httplimit.Middleware] returns. The
// handlers after it are what the middleware wraps. A refusal aborts the chain.
//
// [httplimit.WithSettle] sees the status and the length of what these handlers write.
//
// The pattern of the route is the Pattern of the request, for [key.Pattern], and the parameters of
// the path are its PathValues.
//
// Wrap panics if middleware is nil.
//
// [httplimit.Middleware]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#Middleware
// [httplimit.WithSettle]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#WithSettle
// [key.Pattern]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit/key#Pattern
func Wrap(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	if middleware == nil {
		panic(errNoMiddleware)
	}
	return func(c *gin.Context) {
		outer, passed := c.Writer, false
		middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Request = r
			if reflect.ValueOf(outer).Comparable() && w == http.ResponseWriter(outer) {
				c.Next()
				return
			}
			inner := &writer{ResponseWriter: outer, to: w}
			c.Writer = inner
			defer func() { c.Writer = outer }()
			c.Next()
			inner.begin() // Gin sends the status of a response without a body later
		})).ServeHTTP(outer, withRoute(c))
		if !passed {
			c.Abort()
		}
	}
}

// withRoute returns the request of c, and tells it the route that Gin found, if any.
func withRoute(c *gin.Context) *http.Request {
	r := c.Request
	if c.FullPath() == "" {
		return r
	}
	r.Pattern = c.FullPath()
	for _, p := range c.Params {
		r.SetPathValue(p.Key, p.Value)
	}
	return r
}

// A writer is a gin.ResponseWriter that passes what is sent through the ResponseWriter of the
// middleware, which passes it back to the first one.
type writer struct {
	gin.ResponseWriter
	to http.ResponseWriter
}

// begin tells the middleware the status, which Gin's handlers may change until it is sent.
func (w *writer) begin() {
	if !w.Written() {
		w.to.WriteHeader(w.Status())
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.begin()
	return w.to.Write(p)
}

func (w *writer) WriteString(s string) (int, error) {
	w.begin()
	return io.WriteString(w.to, s)
}

func (w *writer) WriteHeaderNow() {
	w.begin()
	w.ResponseWriter.WriteHeaderNow()
}

func (w *writer) Flush() {
	w.begin()
	w.ResponseWriter.Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.to).Hijack()
}

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.to }
