package clientip_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// TestUntrustedProxyIsLogged checks that the first request with a field of a proxy is logged if
// nobody is trusted, with what to write, and that others are not.
func TestUntrustedProxyIsLogged(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  []clientip.Option
		peer  string
		field string
		want  string // what the line says to write
	}{
		"X-Forwarded-For":  {nil, "10.0.0.7:1", "X-Forwarded-For", `clientip.Of(clientip.TrustedProxies(netip.MustParsePrefix(\"10.0.0.7/32\"))))`},
		"Forwarded":        {nil, "10.0.0.7:1", "Forwarded", `(\"10.0.0.7/32\")), clientip.FromForwarded()))`},
		"X-Real-IP":        {nil, "10.0.0.7:1", "X-Real-IP", `(\"10.0.0.7/32\")), clientip.FromHeader(\"X-Real-Ip\")))`},
		"CF-Connecting-IP": {nil, "10.0.0.7:1", "CF-Connecting-IP", `clientip.FromHeader(\"Cf-Connecting-Ip\")`},
		"True-Client-IP":   {nil, "10.0.0.7:1", "True-Client-IP", `clientip.FromHeader(\"True-Client-Ip\")`},
		"Fly-Client-IP":    {nil, "10.0.0.7:1", "Fly-Client-IP", `clientip.FromHeader(\"Fly-Client-Ip\")`},
		"IPv6":             {nil, "[fd00::7%eth0]:1", "X-Forwarded-For", `(\"fd00::7/128\")`},
		"mapped":           {nil, "[::ffff:10.0.0.7]:1", "X-Forwarded-For", `(\"10.0.0.7/32\")`},
		"socket":           {nil, "@", "X-Forwarded-For", `clientip.Of(clientip.TrustedHops(1)))`},
		"other options":    {[]clientip.Option{clientip.IPv6Prefix(48), clientip.FromForwarded()}, "10.0.0.7:1", "Forwarded", `(\"10.0.0.7/32\")`},
		"no such field":    {nil, "10.0.0.7:1", "X-Forwarded-Proto", ""},
		"a trusted proxy":  {[]clientip.Option{proxies}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"past the proxies": {[]clientip.Option{proxies}, "203.0.113.9:1", "X-Forwarded-For", ""},
		"a hop":            {[]clientip.Option{clientip.TrustedHops(1)}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"no proxy":         {[]clientip.Option{clientip.TrustedProxies()}, "10.0.0.7:1", "X-Forwarded-For", ""},
		"no hop":           {[]clientip.Option{clientip.TrustedHops(0)}, "10.0.0.7:1", "X-Forwarded-For", ""},
	} {
		t.Run(name, func(t *testing.T) {
			logged := quiet(t)
			client := clientip.Of(tt.opts...)
			_, err := client(from("192.0.2.1:1"))
			require.NoError(t, err)
			assert.Empty(t, logged.String(), "it has no such field")
			for range 3 {
				_, _ = client(from(tt.peer, tt.field, "198.51.100.7\nlevel=ERROR msg=forged"))
			}
			if tt.want == "" {
				assert.Empty(t, logged.String())
				return
			}
			assert.Equal(t, 1, strings.Count(logged.String(), "a request has a header field"), logged.String())
			assert.Contains(t, logged.String(), "level=WARN")
			assert.Contains(t, logged.String(), tt.want)
			assert.NotContains(t, logged.String(), "forged", "what a client sends")
		})
	}
}

// quiet keeps the log out of the test's output.
func quiet(t *testing.T) *strings.Builder {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var logged strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	return &logged
}
