package ratelimit_test

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
)

// ownLimits gives each key alg as a limit of its own.
func ownLimits(alg ratelimit.Algorithm) ratelimit.Option {
	return ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })
}
