package key_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// request returns a request with header fields given as names and values in turn.
func request(fields ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

func TestKeys(t *testing.T) {
	get := func(of key.Func, r *http.Request) string {
		t.Helper()
		k, err := of(r)
		require.NoError(t, err)
		return k
	}
	at := func(path string) *http.Request { return &http.Request{URL: &url.URL{Path: path}} }
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
		assert.Equal(t, want, get(key.Pattern(), at(path)), path)
	}
	// Different spellings of a path make the same key.
	for _, written := range []string{"/user/42", "/user/%34%32", "/%75ser/42", "/USER/42/", "//user/42", "/user/./42", "/a/../user/42", "/user/00042"} {
		r := httptest.NewRequest("GET", "http://h"+written, nil)
		assert.Equal(t, "/user/#", get(key.Pattern(), r), written)
	}

	mux := http.NewServeMux()
	var seen string
	mux.HandleFunc("GET /user/{id}/photos", func(w http.ResponseWriter, r *http.Request) { seen = get(key.Pattern(), r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/user/ann/photos", nil))
	assert.Equal(t, "GET /user/{id}/photos", seen)

	header := func(values ...string) *http.Request {
		r := request()
		r.Header["X-Api-Key"] = values
		return r
	}
	assert.Equal(t, "a", get(key.Header("x-api-key"), header("a")))
	for _, spaced := range []string{" a", "a ", "\ta \t"} { // as HTTP/2 passes them on
		assert.Equal(t, "a", get(key.Header("X-API-Key"), header(spaced)), "%q", spaced)
	}
	assert.NotEqual(t, get(key.Header("X-API-Key"), header("a")), get(key.Header("X-API-Key"), header("A")))
	for _, r := range []*http.Request{header(), header(""), header(" \t"), header("a", "b"), header("", "b")} {
		_, err := key.Header("X-API-Key")(r)
		assert.ErrorIs(t, err, key.ErrNone)
	}

	constant := func(s string) key.Func { return func(*http.Request) (string, error) { return s, nil } }
	joined := make(map[string][]string)
	for _, parts := range [][]string{{"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"1:a", "2:bc"}, {"1:a2:bc"}} {
		var keys []key.Func
		for _, p := range parts {
			keys = append(keys, constant(p))
		}
		k := get(key.Join(keys...), nil)
		assert.NotContains(t, joined, k, "%q and %q", parts, joined[k])
		joined[k] = parts
	}
	_, err := key.Join(constant("a"), key.Header("X-API-Key"))(header())
	assert.ErrorIs(t, err, key.ErrNone)
	_, err = key.Join(constant("a"), constant(""))(header())
	assert.ErrorIs(t, err, key.ErrNone, "an empty key is not a shared key")
}

// TestMistakesPanic checks that a function with invalid arguments panics when it is made, with an
// error that says what is wrong.
func TestMistakesPanic(t *testing.T) {
	for want, mistake := range map[string]func(){
		`key: Header's name is "": it must be`:     func() { key.Header("") },
		`key: Header's name is "API key": it must`: func() { key.Header("API key") },
		`key: Cookie's name is "": it must be the`: func() { key.Cookie("") },
		`Cookie's name is "a b"`:                   func() { key.Cookie("a b") },
		`Cookie's name is "a;b"`:                   func() { key.Cookie("a;b") },
		`Cookie's name is "ü"`:                     func() { key.Cookie("ü") },
		"key: Join's list of keys is []: it must":  func() { key.Join() },
		"key: key 2 of Join is nil: it must be":    func() { key.Join(key.Pattern(), nil) },
	} {
		err := panicOf(mistake)
		require.ErrorIs(t, err, param.ErrInvalid, want)
		assert.ErrorContains(t, err, want)
	}
}

// panicOf returns the error that f panics with.
func panicOf(f func()) (err error) {
	defer func() { err, _ = recover().(error) }()
	f()
	return nil
}

// TestLongKeys checks that keys have a bounded length, and that different long values
// have different keys.
func TestLongKeys(t *testing.T) {
	header := key.Header("X-API-Key")
	pattern := key.Pattern()
	long := strings.Repeat("a", 10_000)
	keyFor := func(of key.Func, value string) (string, error) {
		r := request("X-API-Key", value)
		r.URL.Path = "/" + value
		return of(r)
	}
	for name, of := range map[string]key.Func{"header": header, "path": pattern} {
		seen := make(map[string]int)
		for _, n := range []int{1, 223, 224, 225, 254, 255, 256, 257, 258, 287, 288, 289, 4096, 8190, 8191} {
			got, err := keyFor(of, long[:n])
			require.NoError(t, err, "%s of %d bytes", name, n)
			assert.LessOrEqual(t, len(got), 300)
			before, found := seen[got]
			require.False(t, found, "%s: %d and %d bytes", name, before, n)
			seen[got] = n
		}
		at, err := keyFor(of, long[:200])
		require.NoError(t, err)
		assert.Contains(t, []string{long[:200], "/" + long[:200]}, at, "what is short is the key itself")
		_, err = keyFor(of, long[:8193])
		assert.ErrorIs(t, err, key.ErrNone, name)
		a, err := keyFor(of, long[:8000]+"b")
		require.NoError(t, err)
		b, err := keyFor(of, long[:8000]+"c")
		require.NoError(t, err)
		assert.NotEqual(t, a, b, name)
	}
}

func TestCookie(t *testing.T) {
	session := key.Cookie("session")
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
		got, err := session(request("Cookie", cookies))
		assert.Equal(t, want, got, cookies)
		if want == "" {
			assert.ErrorIs(t, err, key.ErrNone, cookies)
			assert.ErrorContains(t, err, "session")
		} else {
			assert.NoError(t, err, cookies)
		}
	}
	_, err := session(request("Cookie", "session=a", "Cookie", "session=b"))
	assert.ErrorIs(t, err, key.ErrNone, "of two fields")
}

func TestBasicAuthUser(t *testing.T) {
	user := key.BasicAuthUser()
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
		got, err := user(request("Authorization", field))
		assert.Equal(t, want, got, field)
		if want == "" {
			assert.ErrorIs(t, err, key.ErrNone, field)
			assert.NotContains(t, err.Error(), "secret")
		} else {
			assert.NoError(t, err, field)
		}
	}
	for _, fields := range [][]string{nil, {"Authorization", basic("ann:x"), "Authorization", basic("bob:x")}} {
		_, err := user(request(fields...))
		assert.ErrorIs(t, err, key.ErrNone)
	}
}
