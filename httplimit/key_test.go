package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// TestEmptyKeyIsNobodys checks that an empty key is refused, not shared by all clients,
// and that the client does not see internal errors.
func TestEmptyKeyIsNobodys(t *testing.T) {
	logged := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	empty := func(r *http.Request) (string, error) { return r.Header.Get("X-API-Key"), nil }
	assert.Equal(t, 400, serve(httplimit.Middleware(l, httplimit.WithKey(empty))(ok), from("192.0.2.1:1")).StatusCode)
	fails := func(r *http.Request) (string, error) { return "", errors.New("password of the database: x") }
	resp := serve(httplimit.Middleware(l, httplimit.WithKey(fails))(ok), from("192.0.2.1:1"))
	assert.Equal(t, 400, resp.StatusCode)
	assert.NotContains(t, body(t, resp), "password")
	assert.Contains(t, logged.String(), "password")
}

func TestEverybody(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	h := httplimit.Middleware(l, httplimit.WithKey(key.Everybody()))(ok)
	for i, want := range []int{200, 200, 429} {
		assert.Equal(t, want, serve(h, from(fmt.Sprintf("192.0.2.%d:1", i))).StatusCode)
	}
	assert.Equal(t, 429, serve(h, from("@")).StatusCode, "a client without an address is one of them")
}

// TestUntrustedProxyIsLoggedOnce sends many requests at once through the default key.
func TestUntrustedProxyIsLoggedOnce(t *testing.T) {
	logged := quiet(t)
	limited := httplimit.PerClient(ratelimit.PerHour(1))
	var wg sync.WaitGroup
	for range 8 {
		h := limited(ok)
		wg.Go(func() {
			for range 100 {
				serve(h, from("10.0.0.7:1", "X-Forwarded-For", "198.51.100.7"))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 1, strings.Count(logged.String(), "a request has a header field"), logged.String()) // a timer of another test may log as well
}
