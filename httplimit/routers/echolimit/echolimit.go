// Package echolimit limits the requests of an [Echo] router.
//
//	e := echo.New()
//	e.Use(echolimit.Wrap(httplimit.PerClient(ratelimit.PerMinute(60))))
//
// [Echo]: https://echo.labstack.com
package echolimit

import (
	"fmt"
	"net/http"
	"reflect"

	"github.com/labstack/echo/v5"

	"github.com/ratelimit-go/ratelimit"
)

// errNoMiddleware is what Wrap panics with.
var errNoMiddleware = fmt.Errorf("%w: echolimit.Wrap's middleware is nil: "+
	"it must be a function such as httplimit.New returns",
	ratelimit.ErrInvalid)

// Wrap makes Echo middleware of net/http middleware, such as [httplimit.Middleware] returns. A
// refusal ends the request: the next handler is not called.
//
// The error of the next handler is returned as it is. With [httplimit.WithSettle], which sees
// the status and the length of what is written, Wrap lets Echo answer the error before, so that
// middleware around it can no longer change the response. Echo's handler of errors is then called
// twice. One of your own must do nothing if [echo.Response] is Committed.
//
// The pattern of the route is the Pattern of the request, for [key.Pattern], and the parameters of
// the path are its PathValues.
//
// Wrap panics if middleware is nil.
//
// [httplimit.Middleware]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#Middleware
// [httplimit.WithSettle]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#WithSettle
// [key.Pattern]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit/key#Pattern
func Wrap(middleware func(http.Handler) http.Handler) echo.MiddlewareFunc {
	if middleware == nil {
		panic(errNoMiddleware)
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			outer := c.Response()
			middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				if isSame(w, outer) {
					err = next(c)
					return
				}
				// Handlers expect an echo.Response, and Echo asks it whether an answer is sent.
				c.SetResponse(echo.NewResponse(w, c.Logger()))
				defer c.SetResponse(outer)
				err = next(c)
				if err != nil {
					c.Echo().HTTPErrorHandler(c, err)
				}
			})).ServeHTTP(outer, withRoute(c))
			return err
		}
	}
}

// isSame reports whether a and b are the same. Writers that cannot be compared are not.
func isSame(a, b http.ResponseWriter) bool { return reflect.ValueOf(b).Comparable() && a == b }

// withRoute returns the request of c, and tells it the route that Echo found, if any.
func withRoute(c *echo.Context) *http.Request {
	r := c.Request()
	if c.Path() == "" {
		return r
	}
	r.Pattern = c.Path()
	for _, v := range c.PathValues() {
		r.SetPathValue(v.Name, v.Value)
	}
	return r
}
