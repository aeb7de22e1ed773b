// Package goredis keeps limits in Redis through github.com/redis/go-redis/v9.
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

// New returns a store that sends its commands through client, which may be a
// [redis.Client] (one with sentinels too), a [redis.ClusterClient], a
// [redis.Ring] or a [redis.AutoPipeliner], with its options as they are: calls
// return at their context's end and are never sent twice, whatever
// ContextTimeoutEnabled and MaxRetries say. The store does not close client.
//
// Each command under way takes a connection of the client's pool. For more commands at
// once than Options.PoolSize, raise that or pass the client's AutoPipeline, which sends
// them together.
//
// Give it the client of a cluster as it is: an AutoPipeliner of one lets a node that
// hangs hold up the others.
//
// What a call left behind when its context ended goes on until the client gives
// up: with the options' defaults, seconds.
//
// The store has a breaker for each node of a cluster and for each shard of a ring, one
// otherwise. It opens after [redisstore.BreakerFailures] commands in a row that failed,
// for [redisstore.BreakerCooldown]. Options come after it, so that
// [redisstore.WithBreaker] replaces it.
//
// A nil client is [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. Nothing is sent.
func New(client redis.UniversalClient, opts ...redisstore.Option) (*redisstore.Store, error) {
	if isNil(client) {
		return nil, fmt.Errorf("%w: client is %#v: it must be a client that redis.NewClient or the like returned", ratelimit.ErrInvalid, client)
	}
	if i := slices.IndexFunc(opts, func(opt redisstore.Option) bool { return opt == nil }); i >= 0 { // counted without the breaker
		return nil, fmt.Errorf("%w: option %d of New is nil: it must be one of redisstore's With functions' results", ratelimit.ErrInvalid, i)
	}
	return redisstore.New(conn{client}, append([]redisstore.Option{redisstore.WithBreakers(newBreaker)}, opts...)...)
}

// isNil also finds the nil pointer that a failed constructor left in a variable.
func isNil(client redis.UniversalClient) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func newBreaker() redisstore.Breaker {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "ratelimit",
		MaxRequests: 1,
		Timeout:     redisstore.BreakerCooldown,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= redisstore.BreakerFailures
		},
		IsExcluded: func(err error) bool { return errors.Is(err, context.Canceled) },
	})
}
