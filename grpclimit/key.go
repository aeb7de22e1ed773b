package grpclimit

import (
	"fmt"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A KeyFunc returns the key of a call. Calls with the same key share a limit. If it returns an
// error, the call is refused, see [WithKeyError].
type KeyFunc func(*Call) (string, error)

// ErrNoKey means that a call lacks the data that its key is made of.
var ErrNoKey = key.ErrNone

// PeerIP returns the client's IP address as the key, as [clientip.Of] does: the address of the
// connection's peer or, if the options trust that peer as a proxy, the one that it reports in
// the metadata x-forwarded-for (with [clientip.FromForwarded], in forwarded). Nothing that a
// client writes into its metadata can change its key. If a line in the log says what to give to
// clientip.Of, give it to PeerIP.
//
// If an option is invalid, PeerIP panics. The KeyFunc fails with [ErrNoKey] if the peer has no IP address, such as that of a Unix socket or of
// package bufconn, and no trusted proxy names one. It is for servers.
func PeerIP(opts ...clientip.Option) KeyFunc { return HTTP(clientip.Of(opts...)) }

// Metadata returns the value of a metadata field that the client sends, such as x-api-key, as the
// key. It fails with [ErrNoKey] if the field is missing, empty, longer than 8,192 bytes, or
// present more than once. For a value longer than 256 bytes, the key is its beginning followed by
// its SHA-256 hash. Upper and lower case of the name are the same. If the name is not that of a
// field, Metadata panics with an error that matches [ratelimit.ErrInvalid]. It is for servers.
//
// A client can make up any number of values. Use Metadata only for fields that an earlier
// interceptor or a proxy has verified.
func Metadata(name string) KeyFunc { return HTTP(key.Header(name)) }

// Method returns the full name of the method as the key: /package.Service/Method. Clients can
// call methods that do not exist only through a server's [grpc.UnknownServiceHandler].
func Method() KeyFunc { return func(c *Call) (string, error) { return c.Method, nil } }

// Target returns the target of the client's connection as the key, as it was given to
// [grpc.NewClient]. It is the default of a [Client], and fails on servers.
func Target() KeyFunc {
	return func(c *Call) (string, error) {
		if c.Target == "" {
			return "", fmt.Errorf("%w: the call has no target", ErrNoKey)
		}
		return c.Target, nil
	}
}

// Join combines several keys into one, such as the client's and the method's, as [key.Join] does:
// different parts make different keys. The result fails if one of the keys fails or is empty.
// Without keys, or with a nil one, Join panics with an error that matches [ratelimit.ErrInvalid].
func Join(keys ...KeyFunc) KeyFunc {
	parts := make([]key.Func, len(keys))
	for i, key := range keys {
		if key != nil {
			parts[i] = func(r *http.Request) (string, error) { return key(callOf(r)) }
		}
	}
	return HTTP(key.Join(parts...))
}

// HTTP returns a KeyFunc that calls a function such as those of package [key] with the call as an
// HTTP request: its path is the method, its header the metadata of an incoming call, its RemoteAddr
// the peer, and its context that of the call. It has no body. If key is nil, HTTP panics with an
// error that matches [ratelimit.ErrInvalid].
func HTTP(key key.Func) KeyFunc {
	if key == nil {
		panic(invalid("HTTP's function", nil, "must be one such as clientip.Of() returns"))
	}
	return func(c *Call) (string, error) { return key(c.asRequest()) }
}

// invalid returns an error that matches [ratelimit.ErrInvalid].
func invalid(what string, value any, want string) error {
	if value == nil {
		value = "nil" // which is how users write it
	}
	return &invalidError{fmt.Sprintf("grpclimit: %s is %v: it %s", what, value, want)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == ratelimit.ErrInvalid }
