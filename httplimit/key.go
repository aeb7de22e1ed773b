package httplimit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/ascii"
)

// A KeyFunc returns the key of a request. Requests with the same key share a limit.
// If it returns an error, the request is refused, see [WithKeyError].
type KeyFunc func(*http.Request) (string, error)

// ErrNoKey means that a request lacks the data that its key is made of.
var ErrNoKey = errors.New("httplimit: no key")

// Bounds in bytes on text that clients send, because limiters keep keys in memory and
// clients can send any number of them.
const (
	longestKey = 8192 // longer text is refused
	longestRaw = 256  // longer text is hashed
)

// keyOf returns the key for text that a client sent. what names it in errors.
func keyOf(text, what string) (string, error) {
	switch {
	case len(text) > longestKey:
		return "", fmt.Errorf("%w: %s is longer than %d bytes", ErrNoKey, what, longestKey)
	case len(text) <= longestRaw:
		return text, nil
	}
	// This is longer than any text that is used as it is, so the two cannot collide.
	return fmt.Sprintf("%s%x", text[:longestRaw-32], sha256.Sum256([]byte(text))), nil
}

// Header returns the value of a header field, such as X-API-Key, as the key, without the
// spaces and tabs around it, which HTTP/2 keeps and HTTP/1 does not. It
// fails with [ErrNoKey] if the field is missing, empty, longer than 8,192 bytes, or
// present more than once, because then it would not identify one client. For a value
// longer than 256 bytes, the key is its beginning followed by its SHA-256 hash.
// Header does not work for Host, which net/http keeps in [http.Request.Host]. If the name is not
// that of a header field, Header fails with an error that matches [ratelimit.ErrInvalid].
//
// Values that differ in case are different keys: alice and ALICE, Bearer t and bearer t. Where the
// service takes them for the same, a KeyFunc of the program folds them:
//
//	user := httplimit.Header("X-User")
//	folded := func(r *http.Request) (string, error) {
//		key, err := user(r)
//		return strings.ToLower(key), err
//	}
//
// A client may send any value. If nothing before the middleware verifies it, an attacker sends
// another one with each request, and is never limited, or those of others, and uses up their
// limits. Limit such requests by address as well, with [WithAlso].
func Header(name string) KeyFunc {
	if !isName(name) {
		return misusedKey{invalid("Header's name", fmt.Sprintf("%q", name), "must be the name of a header field, such as X-API-Key")}.key
	}
	return func(r *http.Request) (string, error) {
		switch values := r.Header.Values(name); {
		case len(values) > 1:
			return "", fmt.Errorf("%w: the header field %s is present %d times", ErrNoKey, name, len(values))
		case len(values) == 0 || strings.Trim(values[0], " \t") == "":
			return "", fmt.Errorf("%w: the header field %s is missing or empty", ErrNoKey, name)
		default:
			return keyOf(strings.Trim(values[0], " \t"), "the header field "+name)
		}
	}
}

// Everybody returns the same key for all requests: they share one limit.
func Everybody() KeyFunc {
	return func(*http.Request) (string, error) { return "everybody", nil }
}

// Cookie returns the value of a cookie, such as a session's, as the key. It fails with
// [ErrNoKey] if there is no such cookie, or more than one, or if it is empty or longer than
// 8,192 bytes; a value longer than 256 bytes is hashed as by [Header]. As there, an attacker can
// send any value, unless something before the middleware verifies it, and values that differ in case
// are different keys. If the name is not that of a cookie, Cookie fails with an error that matches [ratelimit.ErrInvalid].
func Cookie(name string) KeyFunc {
	if !isName(name) {
		return misusedKey{invalid("Cookie's name", fmt.Sprintf("%q", name), "must be the name of a cookie, such as session")}.key
	}
	return func(r *http.Request) (string, error) {
		switch cookies := r.CookiesNamed(name); {
		case len(cookies) == 0 || cookies[0].Value == "":
			return "", fmt.Errorf("%w: the cookie %s is missing, empty or malformed", ErrNoKey, name)
		case len(cookies) > 1:
			return "", fmt.Errorf("%w: the cookie %s is present %d times", ErrNoKey, name, len(cookies))
		default:
			return keyOf(cookies[0].Value, "the cookie "+name)
		}
	}
}

// BasicAuthUser returns the user name of HTTP's basic authentication as the key, whatever the
// password is: a limit of failed logins needs that (see [WithSettle]). It fails with [ErrNoKey]
// if there is no user name, or more than one Authorization field; a name longer than 256 bytes
// is hashed as by [Header]. As there, alice and ALICE are different keys unless a KeyFunc of the
// program folds them: otherwise, where they are one user, each way to write the name has a limit of
// its own. If nothing before the middleware verifies the password, an attacker can use up the limit of
// any user.
func BasicAuthUser() KeyFunc {
	return func(r *http.Request) (string, error) {
		if n := len(r.Header["Authorization"]); n > 1 {
			return "", fmt.Errorf("%w: the header field Authorization is present %d times", ErrNoKey, n)
		}
		user, _, _ := r.BasicAuth()
		if user == "" {
			return "", fmt.Errorf("%w: the request has no user name for basic authentication", ErrNoKey)
		}
		return keyOf(user, "the user name")
	}
}

// Pattern returns the route of a request as the key: the pattern that net/http's
// ServeMux matched, if the middleware wraps a handler of the mux. Otherwise it is the
// path, cleaned, in lower case, with # for each segment that is a number:
// /user/42/photos and /User//7/photos/ both become /user/#/photos. Clients can make
// up any number of such paths, so use Pattern behind a router, or in a [Join] with
// the client's key. A path of more than 8,192 bytes fails with [ErrNoKey], and one of
// more than 256 bytes is hashed as by [Header].
func Pattern() KeyFunc {
	return func(r *http.Request) (string, error) {
		if r.Pattern != "" {
			return r.Pattern, nil
		}
		p := r.URL.Path
		if len(p) <= longestKey {
			p = Normalize(p)
		}
		return keyOf(p, "the path")
	}
}

// Normalize returns the key that [Pattern] makes of a path without a route.
func Normalize(p string) string {
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

// Join combines several keys into one, such as the client's and the route's.
// Different parts make different keys, wherever they are cut: ("a", "bc") is not
// ("ab", "c"). Join fails if one of the keys fails or is empty. Without keys, or with a
// nil one, it fails with an error that matches [ratelimit.ErrInvalid].
func Join(keys ...KeyFunc) KeyFunc {
	if err := checkJoin(keys); err != nil {
		return misusedKey{err}.key
	}
	return func(r *http.Request) (string, error) {
		var joined []byte
		for i, key := range keys {
			part, err := key(r)
			if err != nil {
				return "", err
			}
			if part == "" {
				return "", fmt.Errorf("%w: part %d of Join is empty", ErrNoKey, i+1) // clients must not share a key by mistake
			}
			joined = strconv.AppendInt(joined, int64(len(part)), 10)
			joined = append(joined, ':')
			joined = append(joined, part...)
		}
		return string(joined), nil
	}
}

func checkJoin(keys []KeyFunc) error {
	if len(keys) == 0 {
		return invalid("Join's list of keys", keys, "must have some, such as ClientIP() and Pattern()")
	}
	for i, key := range keys {
		if key == nil {
			return invalid(fmt.Sprintf("key %d of Join", i+1), nil, "must be a KeyFunc, such as ClientIP()")
		}
		if err := misuseOf(key); err != nil {
			return err
		}
	}
	return nil
}

func costError(n int) error {
	return fmt.Errorf("httplimit: the cost of the request is %d: it must be at least 0", n)
}
