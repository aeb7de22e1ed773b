package httplimit_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestMisusedKeys checks that New finds a KeyFunc that was made with invalid arguments.
func TestMisusedKeys(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	for want, key := range map[string]func() httplimit.KeyFunc{
		"option 0 of ClientIP is nil":            func() httplimit.KeyFunc { return httplimit.ClientIP(nil) },
		"TrustedProxies's prefix is invalid Pre": func() httplimit.KeyFunc { return httplimit.ClientIP(httplimit.TrustedProxies(netip.Prefix{})) },
		"TrustedHops's number is -1":             func() httplimit.KeyFunc { return httplimit.ClientIP(httplimit.TrustedHops(-1)) },
		"Join's list of keys is []":              func() httplimit.KeyFunc { return httplimit.Join() },
		"key 2 of Join is nil":                   func() httplimit.KeyFunc { return httplimit.Join(httplimit.Header("Host"), nil) },
		`Header's name is "API key"`:             func() httplimit.KeyFunc { return httplimit.Join(httplimit.Header("API key")) },
		`Cookie's name is ""`:                    func() httplimit.KeyFunc { return httplimit.Cookie("") },
	} {
		_, err := httplimit.New(l, httplimit.WithKey(key()))
		assert.ErrorContains(t, err, want)
		_, err = httplimit.New(l, httplimit.WithAlso(l, key(), "x"))
		assert.ErrorContains(t, err, want)
		assertPanics(t, err.Error(), func() { httplimit.Middleware(l, httplimit.WithKey(key())) })
	}
}
