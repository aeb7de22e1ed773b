// Package goredis makes stores that keep limits in Redis through
// github.com/redis/go-redis/v9. Package redisstore describes them.
//
// By default a limiter fails open: while Redis is away, everything is allowed. See
// [ratelimit.WithFailurePolicy].
package goredis

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// New returns a store that sends its commands through client: a [redis.Client] (also with
// sentinels), a [redis.ClusterClient], a [redis.Ring] or a [redis.AutoPipeliner]. Any options
// of the client will do: calls return when their context ends, and no command is sent twice,
// regardless of ContextTimeoutEnabled and MaxRetries. The store does not close client.
//
// Each command in progress uses a connection of the client's pool. While there are as many
// as Options.PoolSize, a [redis.Client] sends further commands together, through the next
// connection that becomes free. In a cluster and a ring they wait for a connection each, so
// there PoolSize should be the number of concurrent commands. Do not use an AutoPipeliner
// with a cluster, because a node that hangs then delays commands to the other nodes.
//
// When a call's context ends, its command continues until the client's own timeouts, which
// by default are seconds.
//
// The store has a circuit breaker for each node of a cluster and each shard of a ring, or one
// for any other client. A breaker opens after [redisstore.BreakerFailures] consecutive
// failures, for [redisstore.BreakerCooldown]. [redisstore.WithBreaker] and
// [redisstore.WithBreakers] replace the breakers.
//
// If client is nil, the error matches [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. New sends nothing.
func New(client redis.UniversalClient, opts ...redisstore.Option) (*redisstore.Store, error) {
	if isNil(client) {
		return nil, fmt.Errorf("%w: client is %#v: it must be a client, such as redis.NewClient returns", ratelimit.ErrInvalid, client)
	}
	if i := slices.IndexFunc(opts, func(opt redisstore.Option) bool { return opt == nil }); i >= 0 { // here, so that the index does not count the breaker
		return nil, fmt.Errorf("%w: option %d of New is nil: it must be the result of a With function of redisstore", ratelimit.ErrInvalid, i)
	}
	return redisstore.New(newConn(client), append([]redisstore.Option{redisstore.WithBreakers(newBreaker)}, opts...)...)
}

// isNil reports whether client is nil or contains a nil pointer, such as a failed
// constructor returns.
func isNil(client redis.UniversalClient) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// A breaker tells the store its state.
type breaker struct {
	*gobreaker.TwoStepCircuitBreaker[struct{}]
}

// State returns "closed", "half-open" or "open".
func (b breaker) State() string { return b.TwoStepCircuitBreaker.State().String() }

func newBreaker() redisstore.Breaker {
	return breaker{gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "ratelimit",
		MaxRequests: 1,
		Timeout:     redisstore.BreakerCooldown,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= redisstore.BreakerFailures
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})}
}
