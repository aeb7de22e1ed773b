package httplimit_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

func TestKeys(t *testing.T) {
	get := func(key httplimit.KeyFunc, r *http.Request) string {
		t.Helper()
		k, err := key(r)
		require.NoError(t, err)
		return k
	}
	request := func(path string) *http.Request { return &http.Request{URL: &url.URL{Path: path}} }
	for path, want := range map[string]string{
		"/user/42/photos":     "/user/#/photos",
		"/user/7/photos/123":  "/user/#/photos/#",
		"/User//7/./photos/":  "/user/#/photos",
		"/x/../user/7/photos": "/user/#/photos",
		"/user/7a":            "/user/7a",
		"/user/\u0667":        "/user/\u0667", // a digit, but of another script
		"/":                   "/",
		"":                    "/",
		"*":                   "/*",
		"/v1/42":              "/v1/#",
		"/../../etc":          "/etc",
	} {
		assert.Equal(t, want, get(httplimit.Pattern(), request(path)), path)
	}
	// Different spellings of a path make the same key.
	for _, written := range []string{"/user/42", "/user/%34%32", "/%75ser/42", "/USER/42/", "//user/42", "/user/./42", "/a/../user/42", "/user/00042"} {
		r := httptest.NewRequest("GET", "http://h"+written, nil)
		assert.Equal(t, "/user/#", get(httplimit.Pattern(), r), written)
	}

	mux := http.NewServeMux()
	var seen string
	mux.HandleFunc("GET /user/{id}/photos", func(w http.ResponseWriter, r *http.Request) { seen = get(httplimit.Pattern(), r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/user/ann/photos", nil))
	assert.Equal(t, "GET /user/{id}/photos", seen)

	header := func(values ...string) *http.Request {
		r := from("192.0.2.1:1")
		r.Header["X-Api-Key"] = values
		return r
	}
	assert.Equal(t, "a", get(httplimit.Header("x-api-key"), header("a")))
	for _, spaced := range []string{" a", "a ", "\ta \t"} { // as HTTP/2 passes them on
		assert.Equal(t, "a", get(httplimit.Header("X-API-Key"), header(spaced)), "%q", spaced)
	}
	assert.NotEqual(t, get(httplimit.Header("X-API-Key"), header("a")), get(httplimit.Header("X-API-Key"), header("A")))
	for _, r := range []*http.Request{header(), header(""), header(" \t"), header("a", "b"), header("", "b")} {
		_, err := httplimit.Header("X-API-Key")(r)
		assert.ErrorIs(t, err, httplimit.ErrNoKey)
	}

	constant := func(s string) httplimit.KeyFunc { return func(*http.Request) (string, error) { return s, nil } }
	joined := make(map[string][]string)
	for _, parts := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"1:a", "2:bc"}, {"1:a2:bc"}} {
		var keys []httplimit.KeyFunc
		for _, p := range parts {
			keys = append(keys, constant(p))
		}
		k := get(httplimit.Join(keys...), nil)
		assert.NotContains(t, joined, k, "%q and %q", parts, joined[k])
		joined[k] = parts
	}
	_, err := httplimit.Join(constant("a"), httplimit.Header("X-API-Key"))(header())
	assert.ErrorIs(t, err, httplimit.ErrNoKey)
	_, err = httplimit.Join(constant("a"), constant(""))(header())
	assert.ErrorIs(t, err, httplimit.ErrNoKey, "an empty key is not a shared key")
	for _, key := range []httplimit.KeyFunc{httplimit.Join(), httplimit.Join(constant("a"), nil)} {
		_, err := key(nil)
		assert.ErrorContains(t, err, "Join")
	}
}

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

// TestLongKeys checks that keys have a bounded length, and that different long values
// have different keys.
func TestLongKeys(t *testing.T) {
	header := httplimit.Header("X-API-Key")
	pattern := httplimit.Pattern()
	long := strings.Repeat("a", 10_000)
	keyFor := func(key httplimit.KeyFunc, value string) (string, error) {
		r := from("192.0.2.1:1", "X-API-Key", value)
		r.URL.Path = "/" + value
		return key(r)
	}
	for name, key := range map[string]httplimit.KeyFunc{"header": header, "path": pattern} {
		seen := make(map[string]int)
		for _, n := range []int{1, 223, 224, 225, 254, 255, 256, 257, 258, 287, 288, 289, 4096, 8190, 8191} {
			got, err := keyFor(key, long[:n])
			require.NoError(t, err, "%s of %d bytes", name, n)
			assert.LessOrEqual(t, len(got), 300)
			before, found := seen[got]
			require.False(t, found, "%s: %d and %d bytes", name, before, n)
			seen[got] = n
		}
		at, err := keyFor(key, long[:200])
		require.NoError(t, err)
		assert.Contains(t, []string{long[:200], "/" + long[:200]}, at, "what is short is the key itself")
		_, err = keyFor(key, long[:8193])
		assert.ErrorIs(t, err, httplimit.ErrNoKey, name)
		a, err := keyFor(key, long[:8000]+"b")
		require.NoError(t, err)
		b, err := keyFor(key, long[:8000]+"c")
		require.NoError(t, err)
		assert.NotEqual(t, a, b, name)
	}
}

func TestEverybody(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	h := httplimit.Middleware(l, httplimit.WithKey(httplimit.Everybody()))(ok)
	for i, want := range []int{200, 200, 429} {
		assert.Equal(t, want, serve(h, from(fmt.Sprintf("192.0.2.%d:1", i))).StatusCode)
	}
	assert.Equal(t, 429, serve(h, from("@")).StatusCode, "a client without an address is one of them")
}

func TestCookie(t *testing.T) {
	key := httplimit.Cookie("session")
	for cookies, want := range map[string]string{
		"session=a":                            "a",
		"other=b; session=a; third=c":          "a",
		`session="a"`:                          "a", // quotes are not a part of the value
		"Session=b; session=a":                 "a", // names are case-sensitive
		"session=" + strings.Repeat("a", 256):  strings.Repeat("a", 256),
		"":                                     "",
		"session=":                             "",
		"other=b":                              "",
		"session=a; session=b":                 "",
		"session=a; session=a":                 "",
		"session=; session=a":                  "",
		`session=a\`:                           "", // not a value of a cookie
		"session=" + strings.Repeat("a", 8193): "",
	} {
		got, err := key(from("192.0.2.1:1", "Cookie", cookies))
		assert.Equal(t, want, got, cookies)
		if want == "" {
			assert.ErrorIs(t, err, httplimit.ErrNoKey, cookies)
			assert.ErrorContains(t, err, "session")
		} else {
			assert.NoError(t, err, cookies)
		}
	}
	_, err := key(from("192.0.2.1:1", "Cookie", "session=a", "Cookie", "session=b"))
	assert.ErrorIs(t, err, httplimit.ErrNoKey, "of two fields")
	for _, name := range []string{"", "a b", "a;b", "ü"} {
		_, err := httplimit.Cookie(name)(from("192.0.2.1:1"))
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, name)
	}
}

func TestBasicAuthUser(t *testing.T) {
	key := httplimit.BasicAuthUser()
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for field, want := range map[string]string{
		basic("ann:secret"):                     "ann",
		basic("ann:another"):                    "ann",
		basic("ann:"):                           "ann",
		basic("ann:a:b"):                        "ann",
		"bas" + basic("ann:")[3:]:               "ann", // the scheme is case-insensitive
		basic(":secret"):                        "",
		basic("ann"):                            "",
		"Basic ann":                             "",
		"Bearer x":                              "",
		"":                                      "",
		basic(strings.Repeat("a", 8193) + ":x"): "",
	} {
		got, err := key(from("192.0.2.1:1", "Authorization", field))
		assert.Equal(t, want, got, field)
		if want == "" {
			assert.ErrorIs(t, err, httplimit.ErrNoKey, field)
			assert.NotContains(t, err.Error(), "secret")
		} else {
			assert.NoError(t, err, field)
		}
	}
	for _, fields := range [][]string{nil, {"Authorization", basic("ann:x"), "Authorization", basic("bob:x")}} {
		_, err := key(from("192.0.2.1:1", fields...))
		assert.ErrorIs(t, err, httplimit.ErrNoKey)
	}
}
