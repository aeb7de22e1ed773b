package httplimit_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestUntrustedProxyIsLogged checks that the first request with a field of a proxy is logged if
// nobody is trusted, with what to write, and that others are not.
func TestUntrustedProxyIsLogged(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []httplimit.IPOption
		peer  string
		field string
		want  string // what the line says to write
	}{
		"X-Forwarded-For":  {nil, "10.0.0.7:1", "X-Forwarded-For", `ClientIP(httplimit.TrustedProxies(netip.MustParsePrefix(\"10.0.0.7/32\"))))`},
		"Forwarded":        {nil, "10.0.0.7:1", "Forwarded", `(\"10.0.0.7/32\")), httplimit.FromForwarded()))`},
		"X-Real-IP":        {nil, "10.0.0.7:1", "X-Real-IP", `(\"10.0.0.7/32\")), httplimit.FromHeader(\"X-Real-Ip\")))`},
		"CF-Connecting-IP": {nil, "10.0.0.7:1", "CF-Connecting-IP", `httplimit.FromHeader(\"Cf-Connecting-Ip\")`},
		"True-Client-IP":   {nil, "10.0.0.7:1", "True-Client-IP", `httplimit.FromHeader(\"True-Client-Ip\")`},
		"Fly-Client-IP":    {nil, "10.0.0.7:1", "Fly-Client-IP", `httplimit.FromHeader(\"Fly-Client-Ip\")`},
		"IPv6":             {nil, "[fd00::7%eth0]:1", "X-Forwarded-For", `(\"fd00::7/128\")`},
		"mapped":           {nil, "[::ffff:10.0.0.7]:1", "X-Forwarded-For", `(\"10.0.0.7/32\")`},
		"socket":           {nil, "@", "X-Forwarded-For", `ClientIP(httplimit.TrustedHops(1)))`},
		"other options":    {[]httplimit.IPOption{httplimit.IPv6Prefix(48), httplimit.FromForwarded()}, "10.0.0.7:1", "Forwarded", `(\"10.0.0.7/32\")`},
		"no such field":    {nil, "10.0.0.7:1", "X-Forwarded-Proto", ""},
		"a trusted proxy":  {[]httplimit.IPOption{proxies}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"past the proxies": {[]httplimit.IPOption{proxies}, "203.0.113.9:1", "X-Forwarded-For", ""},
		"a hop":            {[]httplimit.IPOption{httplimit.TrustedHops(1)}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"no proxy":         {[]httplimit.IPOption{httplimit.TrustedProxies()}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"no hop":           {[]httplimit.IPOption{httplimit.TrustedHops(0)}, "10.0.0.7:1", "X-Forwarded-For", ""},
	} {
		t.Run(name, func(t *testing.T) {
			logged := quiet(t)
			key := httplimit.ClientIP(tt.opts...)
			_, err := key(from("192.0.2.1:1"))
			require.NoError(t, err)
			assert.Empty(t, logged.String(), "it has no such field")
			for range 3 {
				_, _ = key(from(tt.peer, tt.field, "198.51.100.7\nlevel=ERROR msg=forged"))
			}
			if tt.want == "" {
				assert.Empty(t, logged.String())
				return
			}
			assert.Equal(t, 1, strings.Count(logged.String(), "a request has a header field"), logged.String()) // a timer of another test may log as well
			assert.Contains(t, logged.String(), "level=WARN")
			assert.Contains(t, logged.String(), tt.want)
			assert.NotContains(t, logged.String(), "forged", "what a client sends")
		})
	}
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
