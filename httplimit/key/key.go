// Package key says whose requests share a limit: its functions return the key of an HTTP request.
//
//	limited := httplimit.Middleware(limiter, httplimit.WithKey(key.Header("X-API-Key")))
//
// [Header], [Cookie] and [BasicAuthUser] read what the client sends, [Pattern] returns the route,
// and [Everybody] one key for all. [Join] makes one key of several. Package [clientip] has the key
// that httplimit uses unless it is told another one: the client's address. A function of the
// program is as good.
//
// A function whose arguments are a mistake in the program panics, as regexp.MustCompile does. The
// value is an error that matches ratelimit.ErrInvalid.
//
// [clientip]: https://pkg.go.dev/github.com/ratelimit-go/ratelimit/httplimit/clientip
package key

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Func returns the key of a request. Requests with the same key share a limit. If it returns an
// error, httplimit refuses the request: see httplimit.WithRefusal.
type Func func(*http.Request) (string, error)

// ErrNone means that a request has no key: it lacks the data that its key is made of. The text of
// an error that matches ErrNone may be shown to clients.
var ErrNone = errors.New("no key")

// Bounds in bytes on text that clients send, because limiters keep keys in memory and clients can
// send any number of them.
const (
	longestKey = 8192 // longer text is refused
	longestRaw = 256  // longer text is hashed
)

// keyOf returns the key for text that a client sent. what names the text in errors.
func keyOf(text, what string) (string, error) {
	switch {
	case len(text) > longestKey:
		return "", fmt.Errorf("%w: %s is longer than %d bytes", ErrNone, what, longestKey)
	case len(text) <= longestRaw:
		return text, nil
	}
	// A key with a hash is longer than any text that is used as it is, so the two cannot collide.
	return fmt.Sprintf("%s%x", text[:longestRaw-32], sha256.Sum256([]byte(text))), nil
}

// Header returns the value of a header field, such as X-API-Key, as the key, without the spaces and
// tabs around it, which HTTP/2 keeps and HTTP/1 does not. It fails with [ErrNone] if the field is
// missing, empty, longer than 8,192 bytes, or present more than once, because then it would not
// identify one client. For a value longer than 256 bytes, the key is its beginning followed by its
// SHA-256 hash. Header does not work for Host, which net/http keeps in [http.Request.Host]. If the
// name is not that of a header field, Header panics.
//
// Values that differ in case are different keys: alice and ALICE, Bearer t and bearer t. Where the
// service takes them for the same, a function of the program folds them:
//
//	user := key.Header("X-User")
//	folded := func(r *http.Request) (string, error) {
//		name, err := user(r)
//		return strings.ToLower(name), err
//	}
//
// A client may send any value. If nothing before the middleware verifies it, an attacker sends
// another one with each request, and is never limited, or those of others, and uses up their
// limits. Limit such requests by address as well, with httplimit.WithAlso.
func Header(name string) Func {
	if !ascii.IsToken(name) {
		panic(invalid("Header's name", fmt.Sprintf("%q", name),
			"must be the name of a header field, such as X-API-Key"))
	}
	return func(r *http.Request) (string, error) {
		switch values := r.Header.Values(name); {
		case len(values) > 1:
			return "", fmt.Errorf("%w: the header field %s is present %d times",
				ErrNone, name, len(values))
		case len(values) == 0 || strings.Trim(values[0], " \t") == "":
			return "", fmt.Errorf("%w: the header field %s is missing or empty", ErrNone, name)
		default:
			return keyOf(strings.Trim(values[0], " \t"), "the header field "+name)
		}
	}
}

// Everybody returns the same key for all requests: they share one limit. It is "everybody", for
// Peek and Reset.
func Everybody() Func {
	return func(*http.Request) (string, error) { return "everybody", nil }
}

// Cookie returns the value of a cookie, such as a session's, as the key. It fails with [ErrNone] if
// there is no such cookie, or more than one, or if it is empty or longer than 8,192 bytes; a value
// longer than 256 bytes is hashed as by [Header]. As there, an attacker can send any value, unless
// something before the middleware verifies it, and values that differ in case are different keys.
// If the name is not that of a cookie, Cookie panics.
func Cookie(name string) Func {
	if !ascii.IsToken(name) {
		panic(invalid("Cookie's name", fmt.Sprintf("%q", name),
			"must be the name of a cookie, such as session"))
	}
	return func(r *http.Request) (string, error) {
		switch cookies := r.CookiesNamed(name); {
		case len(cookies) == 0 || cookies[0].Value == "":
			return "", fmt.Errorf("%w: the cookie %s is missing, empty or malformed", ErrNone, name)
		case len(cookies) > 1:
			return "", fmt.Errorf("%w: the cookie %s is present %d times",
				ErrNone, name, len(cookies))
		default:
			return keyOf(cookies[0].Value, "the cookie "+name)
		}
	}
}

// BasicAuthUser returns the user name of HTTP's basic authentication as the key, whatever the
// password is: a limit of failed logins needs that, see httplimit.WithSettle. It fails with
// [ErrNone] if there is no user name, or more than one Authorization field; a name longer than 256
// bytes is hashed as by [Header]. As there, alice and ALICE are different keys unless a function of
// the program folds them: otherwise, where they are one user, each way to write the name has a
// limit of its own. If nothing before the middleware verifies the password, an attacker can use up
// the limit of any user.
func BasicAuthUser() Func {
	return func(r *http.Request) (string, error) {
		if n := len(r.Header["Authorization"]); n > 1 {
			return "", fmt.Errorf("%w: the header field Authorization is present %d times",
				ErrNone, n)
		}
		user, _, _ := r.BasicAuth()
		if user == "" {
			return "", fmt.Errorf("%w: the request has no user name for basic authentication",
				ErrNone)
		}
		return keyOf(user, "the user name")
	}
}

// Pattern returns the route of a request as the key: the pattern that net/http's ServeMux matched,
// if the middleware wraps a handler of the mux, or that Gin or Echo matched, if the middleware is
// wrapped by module httplimit/routers. Otherwise it is the path, cleaned, in lower case, with # for
// each segment that is a number: /user/42/photos and /User//7/photos/ both become /user/#/photos.
// Clients can make up any number of such paths, so use Pattern behind a router, or in a [Join] with
// the client's key. A path of more than 8,192 bytes fails with [ErrNone], and one of more than 256
// bytes is hashed as by [Header].
func Pattern() Func {
	return func(r *http.Request) (string, error) {
		if r.Pattern != "" {
			return r.Pattern, nil
		}
		p := r.URL.Path
		if len(p) <= longestKey {
			p = normalize(p)
		}
		return keyOf(p, "the path")
	}
}

// normalize returns the key that [Pattern] makes of a path without a route.
func normalize(p string) string {
	p = strings.ToLower(path.Clean("/" + p))
	segments := strings.Split(p, "/")
	changed := false
	for i, s := range segments {
		if ascii.IsNumber(s) {
			segments[i], changed = "#", true
		}
	}
	if !changed {
		return p
	}
	return strings.Join(segments, "/")
}

// Join combines several keys into one, such as the client's and the route's. Different parts make
// different keys, wherever they are cut: ("a", "bc") is not ("ab", "c"). Join fails if one of the
// keys fails or is empty. Without keys, or with a nil one, Join panics.
func Join(keys ...Func) Func {
	if len(keys) == 0 {
		panic(invalid("Join's list of keys", keys,
			"must have some, such as clientip.Of() and Pattern()"))
	}
	for i, key := range keys {
		if key == nil {
			panic(invalid(fmt.Sprintf("key %d of Join", i+1), nil,
				"must be a function, such as clientip.Of() returns"))
		}
	}
	return func(r *http.Request) (string, error) {
		var joined []byte
		for i, key := range keys {
			part, err := key(r)
			if err != nil {
				return "", err
			}
			if part == "" { // clients must not share a key by mistake
				return "", fmt.Errorf("%w: part %d of Join is empty", ErrNone, i+1)
			}
			joined = strconv.AppendInt(joined, int64(len(part)), 10)
			joined = append(joined, ':')
			joined = append(joined, part...)
		}
		return string(joined), nil
	}
}

// invalid returns the error of an invalid argument.
func invalid(what string, value any, want string) error {
	return param.InvalidIn("key", what, value, want)
}
