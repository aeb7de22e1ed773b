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

	"github.com/labstack/echo/v4"

	"github.com/ratelimit-go/ratelimit"
)

// errNoMiddleware is what Wrap panics with.
var errNoMiddleware = fmt.Errorf("%w: echolimit.Wrap's middleware is nil: it must be a function such as httplimit.New returns",
	ratelimit.ErrInvalid)

// Wrap makes Echo middleware of net/http middleware, such as [httplimit.Middleware] returns. A
// refusal ends the request: the next handler is not called.
//
// The error of the next handler is returned as it is. With [httplimit.WithSettle], which sees
// the status and the length of what is written, Wrap lets Echo answer the error before, so that
// middleware around it can no longer change the response.
//
// Wrap panics if middleware is nil.
//
// [httplimit.Middleware]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#Middleware
// [httplimit.WithSettle]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit#WithSettle
func Wrap(middleware func(http.Handler) http.Handler) echo.MiddlewareFunc {
	if middleware == nil {
		panic(errNoMiddleware)
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			outer := c.Response()
			middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				if w == http.ResponseWriter(outer) {
					err = next(c)
					return
				}
				c.SetResponse(echo.NewResponse(w, c.Echo()))
				defer c.SetResponse(outer)
				if err = next(c); err != nil {
					c.Error(err)
				}
			})).ServeHTTP(outer, c.Request())
			return err
		}
	}
}
