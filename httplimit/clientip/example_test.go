package clientip_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// A service behind load balancers whose addresses begin with 10. The limit is of each client, and
// not of the load balancer.
func Example() {
	limiter := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)}))
	balancers := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	limited := httplimit.Middleware(limiter, httplimit.WithKey(clientip.Of(balancers)))
	handler := limited(http.NotFoundHandler())

	for _, client := range []string{"203.0.113.9", "203.0.113.9", "198.51.100.7"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.7:41234"
		r.Header.Set("X-Forwarded-For", client)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(client, w.Code)
	}
	// Output:
	// 203.0.113.9 404
	// 203.0.113.9 429
	// 198.51.100.7 404
}

// A service behind Cloudflare and a load balancer at 10.0.0.7 that drops CF-Connecting-IP from
// other requests.
func ExampleFromHeader() {
	client := clientip.Of(clientip.FromHeader("CF-Connecting-IP"),
		clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.7/32")))

	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("CF-Connecting-IP", "203.0.113.9")
	for _, peer := range []string{"10.0.0.7:41234", "198.51.100.7:41234"} { // the second one made it up
		r.RemoteAddr = peer
		fmt.Println(client(r))
	}
	// Output:
	// 203.0.113.9 <nil>
	// 198.51.100.7 <nil>
}
