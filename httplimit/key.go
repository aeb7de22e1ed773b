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

// A KeyFunc tells whose limit a request counts against. Requests of the same key
// share one. An error refuses the request, see [WithKeyError].
type KeyFunc func(*http.Request) (string, error)

// ErrNoKey says that a request does not have what its key is made of.
var ErrNoKey = errors.New("httplimit: no key")

// Bounds on what clients write, in bytes: limiters keep keys, and clients can make as
// many as they like.
const (
	longestKey = 8192 // more is refused
	longestRaw = 256  // more is hashed
)

// keyOf returns the key for a text that a client wrote.
func keyOf(text, what string) (string, error) {
	switch {
	case len(text) > longestKey:
		return "", fmt.Errorf("%w: %s is longer than %d bytes", ErrNoKey, what, longestKey)
	case len(text) <= longestRaw:
		return text, nil
	}
	// Still longer than any text that is a key itself, so that none is the same.
	return fmt.Sprintf("%s%x", text[:longestRaw-32], sha256.Sum256([]byte(text))), nil
}

// Header returns the value of a header field, such as X-API-Key, as the key. It
// fails with [ErrNoKey] if the field is missing, empty, or there more than once,
// because otherwise a caller could have several keys, or nobody's; and if it is
// longer than 8,192 bytes. Of a value of more than 256 bytes, the key is its
// beginning and its SHA-256 hash. Host is not such a field: net/http keeps it in
// [http.Request.Host].
func Header(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		switch values := r.Header.Values(name); {
		case len(values) == 0 || values[0] == "":
			return "", fmt.Errorf("%w: the header field %s is missing or empty", ErrNoKey, name)
		case len(values) > 1:
			return "", fmt.Errorf("%w: the header field %s is there %d times", ErrNoKey, name, len(values))
		default:
			return keyOf(values[0], "the header field "+name)
		}
	}
}

// Pattern returns what a request asks for, without what tells one such request
// from another, as the key: the pattern of the route that net/http's ServeMux
// found, if the middleware is behind it. Otherwise it is the path, cleaned, in
// lower case, and with # for each segment that is a number: /user/42/photos and
// /User//7/photos/ are both /user/#/photos. There are as many such paths as
// callers care to invent, so use it behind a router, or in a [Join] with who
// asks. A path of more than 8,192 bytes fails with [ErrNoKey], and a long one is
// hashed as by [Header].
func Pattern() KeyFunc {
	return func(r *http.Request) (string, error) {
		if r.Pattern != "" {
			return r.Pattern, nil
		}
		path := r.URL.Path
		if len(path) <= longestKey {
			path = Normalize(path)
		}
		return keyOf(path, "the path")
	}
}

// Normalize returns path as [Pattern] does without a route.
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

// Join makes one key of several: of who asks, and for what. Different parts make
// different keys, wherever they are cut: ("a", "bc") is not ("ab", "c"). It fails
// if one of them does, or is empty.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		if len(keys) == 0 {
			return "", errors.New("httplimit: Join of no keys: give some, such as ClientIP() and Pattern()")
		}
		var joined []byte
		for i, key := range keys {
			if key == nil {
				return "", fmt.Errorf("httplimit: Join: key %d is nil", i+1)
			}
			part, err := key(r)
			if err != nil {
				return "", err
			}
			if part == "" {
				return "", fmt.Errorf("%w: part %d of it is empty", ErrNoKey, i+1) // and must not be everybody's
			}
			joined = strconv.AppendInt(joined, int64(len(part)), 10)
			joined = append(joined, ':')
			joined = append(joined, part...)
		}
		return string(joined), nil
	}
}

func costError(n int) error {
	return fmt.Errorf("httplimit: the cost of the request is %d: it must be at least 0", n)
}
