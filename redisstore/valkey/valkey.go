// Package valkey makes stores that keep limits in Valkey or Redis through
// github.com/valkey-io/valkey-go. Package redisstore describes them. The client is rueidis with
// other names: what the documentation says about rueidis is true of this package.
//
// By default a limiter fails open: while the server is away, everything is allowed. See
// [ratelimit.WithFailurePolicy].
package valkey

import (
	"fmt"

	"github.com/valkey-io/valkey-go"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// New returns a store that sends its commands through client, which may be connected to one
// server, to sentinels or to a cluster. Concurrent commands are sent together. Calls return
// when their context ends, and no command is sent twice. The store does not close client.
//
// Leave the client's ConnLifetime unset: when a connection reaches that age, valkey-go sends
// its commands in progress again, even if they were executed.
//
// When a call's context ends, its command continues until the client's own timeouts, which
// by default are seconds. A connection that has died without a sign is used until ConnWriteTimeout
// has passed, ten seconds by default: one second is better.
//
// The store has one circuit breaker: see [redisstore.WithBreaker]. All nodes of a cluster share it,
// because the client does not report which node a key is on.
//
// If client is nil, the error matches [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. New sends nothing.
func New(client valkey.Client, opts ...redisstore.Option) (*redisstore.Store, error) {
	if client == nil {
		return nil, fmt.Errorf("valkey: client is nil: it must be a client, such as "+
			"valkey.NewClient returns: %w", ratelimit.ErrInvalid)
	}
	return redisstore.New(NewConn(client), opts...)
}
