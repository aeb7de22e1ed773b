// Package rueidis makes stores that keep limits in Redis through
// github.com/redis/rueidis. Package redisstore describes them.
//
// By default a limiter fails open: while Redis is away, everything is allowed. See
// [ratelimit.WithFailurePolicy].
package rueidis

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/rueidis"
	"github.com/sony/gobreaker/v2"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// New returns a store that sends its commands through client, which may be connected to one
// server, to sentinels or to a cluster. Concurrent commands are sent together. Calls return
// when their context ends, and no command is sent twice. The store does not close client.
//
// Leave the client's ConnLifetime unset: when a connection reaches that age, rueidis sends
// its commands in progress again, even if they were executed.
//
// When a call's context ends, its command continues until the client's own timeouts, which
// by default are seconds. A connection that has died without a sign is used until ConnWriteTimeout
// has passed, ten seconds by default: one second is better.
//
// The store has one circuit breaker, which opens after [redisstore.BreakerFailures]
// consecutive failures, for [redisstore.BreakerCooldown]. All nodes of a cluster share it,
// because the client does not report which node a key is on. [redisstore.WithBreaker] and
// [redisstore.WithBreakers] replace it.
//
// If client is nil, the error matches [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. New sends nothing.
func New(client rueidis.Client, opts ...redisstore.Option) (*redisstore.Store, error) {
	if client == nil {
		return nil, fmt.Errorf("rueidis: client is nil: it must be a client, such as rueidis.NewClient returns: %w", ratelimit.ErrInvalid)
	}
	if i := slices.IndexFunc(opts, func(opt redisstore.Option) bool { return opt == nil }); i >= 0 { // here, so that the index does not count the breaker
		return nil, fmt.Errorf("rueidis: option %d of New is nil: it must be the result of a With function of redisstore: %w", i, ratelimit.ErrInvalid)
	}
	return redisstore.New(NewConn(client), append([]redisstore.Option{redisstore.WithBreakers(newBreaker)}, opts...)...)
}

// A breaker tells the store its state. (Module goredis has the same. The modules share only
// package redisstore, whose module does not require gobreaker.)
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
