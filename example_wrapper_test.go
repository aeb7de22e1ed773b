package ratelimit_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A counted limiter counts the denials that Take returns.
type counted struct {
	ratelimit.Limiter
	denials atomic.Int64
}

func (c *counted) Take(ctx context.Context, key string, n int) (ratelimit.Decision, error) {
	d, err := c.Limiter.Take(ctx, key, n)
	if !d.Allowed {
		c.denials.Add(1)
	}
	return d, err
}

// Unwrap lets AlgorithmOf, AlgorithmFor, ClockOf, NameOf and StoreOf, and so httplimit, see the
// limiter inside.
func (c *counted) Unwrap() ratelimit.Limiter { return c.Limiter }

// A limiter of one's own embeds another, because the interface may gain methods.
func ExampleAlgorithmOf() {
	limiter := &counted{Limiter: ratelimit.Must(ratelimit.New(
		ratelimit.FixedWindow{Limit: 2, Window: 24 * time.Hour, Start: ratelimit.StartOnFirstEvent},
	))}
	for range 5 {
		if _, err := limiter.Take(context.Background(), "alice", 1); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("denials:", limiter.denials.Load())
	fmt.Printf("algorithm: %T\n", ratelimit.AlgorithmOf(limiter))
	// Output:
	// denials: 3
	// algorithm: ratelimit.FixedWindow
}
