package grpclimit

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A KeyFunc returns the key of a call that a [Client] makes. Calls with the same key share a limit.
// If it returns an error, the call fails. The functions of a [Server] are those of package
// httplimit.
type KeyFunc func(*Call) (string, error)

// Method returns the full name of the method as the key: /package.Service/Method.
func Method() KeyFunc { return func(c *Call) (string, error) { return c.Method, nil } }

// Target returns the target of the client's connection as the key, as it was given to
// [grpc.NewClient]. It is the default.
func Target() KeyFunc {
	return func(c *Call) (string, error) {
		if c.Target == "" {
			return "", fmt.Errorf("%w: the call has no target", key.ErrNone)
		}
		return c.Target, nil
	}
}
