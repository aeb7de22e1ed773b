// Package goredis makes stores that keep limits in Redis through
// github.com/redis/go-redis/v9. Package redisstore describes them.
//
// By default a limiter fails open: while Redis is away, everything is allowed. See
// [ratelimit.WithFailurePolicy].
package goredis

import (
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// New returns a store that sends its commands through client: a [redis.Client] (which
// redis.NewFailoverClient returns for sentinels), a [redis.ClusterClient], a [redis.Ring] or a
// [redis.AutoPipeliner]. Calls return when their context ends, and no command is sent twice,
// whatever the client's options ContextTimeoutEnabled and MaxRetries are. The store does not
// close client.
//
// Commands that are ready at the same time are sent together, through one connection of the pool.
// So a few connections serve any number of callers: usually about eight for each server. An
// AutoPipeliner sends the commands together by itself. Do not use one with a cluster, because a
// node that hangs then delays commands to the other nodes.
//
// While nobody else sends a command, a caller sends its own itself, if client is a [redis.Client].
// The hooks of client then run in the goroutine of the caller, who waits for them. If you add hooks
// to client after New that see commands, commands take the way through another goroutine again. So
// they do if the ReadTimeout or WriteTimeout of client is -2, and for keys that the store may
// lease. On a connection that client made before New, the first such command takes at most the
// timeout of the store, in which time counts in full even while the process is busy. After that,
// client makes another connection.
//
// New adds hooks to client (in a cluster, to nodes that client has not used before). One of them
// remembers why the client cannot connect. If client has failed to connect as often as its pool has
// connections, it tries again once a second, and with the hook, while there are calls, every 50
// milliseconds. (With a DialerRetryBackoff, or a DialerRetryTimeout of half a second or more, the
// hook cannot tell these attempts from those that commands wait for, and leaves the pauses as they
// are.) The other one lets a caller who sends a command stop waiting for it.
//
// When a call's context ends, its command continues until the client's own timeouts, which
// by default are seconds. If the caller has sent it itself, it ends with the call, and client
// closes the connection.
//
// The store has a circuit breaker for each node of a cluster and each shard of a ring, or one for
// any other client: see [redisstore.WithBreaker].
//
// If client is nil, the error matches [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. New sends nothing.
func New(client redis.UniversalClient, opts ...redisstore.Option) (*redisstore.Store, error) {
	v := reflect.ValueOf(client)
	if client == nil || v.Kind() == reflect.Pointer && v.IsNil() { // as of a failed constructor
		return nil, fmt.Errorf("goredis: client is %#v: it must be a client, such as "+
			"redis.NewClient returns: %w", client, ratelimit.ErrInvalid)
	}
	return redisstore.New(newConn(client), opts...)
}
