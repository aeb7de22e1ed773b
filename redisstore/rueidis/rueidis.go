// Package rueidis keeps limits in Redis through github.com/redis/rueidis.
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

// New returns a store that sends its commands through client, of one server, of
// sentinels or of a cluster. Commands at the same time share a pipeline. They return
// at their context's end, and are never sent twice, unless the client has a
// ConnLifetime: rueidis sends again what was under way on a connection that
// expired, without regard to whether it was carried out, so leave that unset. The
// store does not close client.
//
// What a call left behind when its context ended goes on until the client gives
// up: with the options' defaults, after seconds.
//
// The store has a breaker, which opens after [redisstore.BreakerFailures] commands in a
// row that failed, for [redisstore.BreakerCooldown]. It is one for all nodes of a cluster,
// because the client does not tell on which of them a key lives. Options come after it,
// so that [redisstore.WithBreaker] replaces it.
//
// A nil client is [ratelimit.ErrInvalid]. Other errors are those of
// [redisstore.New]. Nothing is sent.
func New(client rueidis.Client, opts ...redisstore.Option) (*redisstore.Store, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: client is nil: it must be one that rueidis.NewClient returned", ratelimit.ErrInvalid)
	}
	if i := slices.IndexFunc(opts, func(opt redisstore.Option) bool { return opt == nil }); i >= 0 { // counted without the breaker
		return nil, fmt.Errorf("%w: option %d of New is nil: it must be one of redisstore's With functions' results", ratelimit.ErrInvalid, i)
	}
	return redisstore.New(conn{client}, append([]redisstore.Option{redisstore.WithBreakers(newBreaker)}, opts...)...)
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
