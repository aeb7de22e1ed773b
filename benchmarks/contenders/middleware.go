package contenders

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/didip/tollbooth/v7"
	"github.com/go-chi/httprate"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// keyHeader is the header field of a request's key. Only httplimitHeader reads it.
const keyHeader = "X-Api-Key"

// throughMiddleware returns an Allow that sends one request repeatedly through a
// middleware, and reports whether the request reaches the wrapped handler.
func throughMiddleware(middleware func(http.Handler) http.Handler) Allow {
	reached := false
	handler := middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	request := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	request.RemoteAddr = "192.0.2.1:1234"
	response := silence{make(http.Header)}
	sent := []string{""}
	request.Header[keyHeader] = sent
	return func(key string) Answer {
		reached = false
		sent[0] = key
		clear(response.header)
		handler.ServeHTTP(response, request)
		return answer(reached)
	}
}

// silence is a ResponseWriter that discards the response.
type silence struct{ header http.Header }

func (s silence) Header() http.Header       { return s.header }
func (silence) Write(b []byte) (int, error) { return len(b), nil }
func (silence) WriteHeader(int)             {}

func httplimitMiddleware() Contender {
	return Contender{
		Name:   "httplimit",
		Role:   Main,
		HTTP:   true,
		Module: ModulePath,
		Setup:  "`Middleware` with its defaults and a `TokenBucket`",
		New: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(l.Every), Burst: l.Burst})
			if err != nil {
				return nil, err
			}
			return throughMiddleware(httplimit.Middleware(limiter)), nil
		},
	}
}

// HeaderKeys is the name of the middleware that limits by a header field.
const HeaderKeys = "httplimit, by a header field"

func httplimitHeader() Contender {
	return Contender{
		Name:   HeaderKeys,
		Role:   Variant,
		HTTP:   true,
		Module: ModulePath,
		Setup:  "`Middleware` with `WithKey` of a function that returns a header field, and a `TokenBucket`",
		New: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(bucketOf(l))
			if err != nil {
				return nil, err
			}
			key := func(r *http.Request) (string, error) { return r.Header.Get(keyHeader), nil }
			return throughMiddleware(httplimit.Middleware(limiter, httplimit.WithKey(key))), nil
		},
	}
}

func httprateMiddleware() Contender {
	return Contender{
		Name:   "httprate, middleware",
		Role:   Peer,
		HTTP:   true,
		Module: httprateModule,
		Setup:  "`LimitBy` the RemoteAddr without its port; a sliding window of 1000 h",
		New: func(l Limit) (Allow, error) {
			peer := func(r *http.Request) (string, error) {
				host, _, err := net.SplitHostPort(r.RemoteAddr)
				return httprate.CanonicalizeIP(host), err
			}
			return throughMiddleware(httprate.LimitBy(l.Burst, window, peer)), nil
		},
	}
}

func tollboothMiddleware() Contender {
	return Contender{
		Name:   "tollbooth, middleware",
		Role:   Peer,
		HTTP:   true,
		Module: "github.com/didip/tollbooth/v7",
		Setup:  "`HTTPMiddleware` by RemoteAddr",
		New: func(l Limit) (Allow, error) {
			limiter := tollbooth.NewLimiter(1/l.Every.Seconds(), nil).SetBurst(l.Burst).SetIPLookups([]string{"RemoteAddr"})
			return throughMiddleware(func(next http.Handler) http.Handler { return tollbooth.LimitHandler(limiter, next) }), nil
		},
	}
}

func ululeMiddleware() Contender {
	return Contender{
		Name:   "ulule/limiter, middleware",
		Role:   Peer,
		HTTP:   true,
		Module: "github.com/ulule/limiter/v3",
		Setup:  "`stdlib` middleware with the `memory` store",
		New: func(l Limit) (Allow, error) {
			store := memory.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix})
			lim := limiter.New(store, limiter.Rate{Period: window, Limit: int64(l.Burst)})
			return throughMiddleware(stdlib.NewMiddleware(lim).Handler), nil
		},
	}
}

func noMiddleware() Contender {
	return Contender{
		Name:  "(no middleware)",
		Role:  Floor,
		HTTP:  true,
		Setup: "an empty handler, called as through a middleware",
		Always: func(a Answer) Allow {
			through := throughMiddleware(func(next http.Handler) http.Handler { return next })
			return func(key string) Answer {
				if through(key) != Allowed {
					return Failed
				}
				return a
			}
		},
	}
}
