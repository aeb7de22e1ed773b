package key_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// The client's address and the route together make the key. The address comes from
// X-Forwarded-For, because requests come from trusted load balancers.
func ExampleJoin() {
	balancers := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	clientAndRoute := key.Join(clientip.Of(balancers), key.Pattern())

	r := httptest.NewRequest("GET", "/user/42/photos", nil)
	r.RemoteAddr = "10.0.0.7:41234"
	r.Header.Set("X-Forwarded-For", "1.1.1.1, 203.0.113.9") // the first one is made up
	fmt.Println(clientAndRoute(r))
	// Output: 11:203.0.113.914:/user/#/photos <nil>
}

// A service for which ann and ANN are the same user.
func ExampleHeader() {
	user := key.Header("X-User")
	folded := func(r *http.Request) (string, error) {
		name, err := user(r)
		return strings.ToLower(name), err
	}

	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-User", "ANN")
	fmt.Println(folded(r))
	// Output: ann <nil>
}
