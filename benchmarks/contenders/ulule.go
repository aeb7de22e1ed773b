package contenders

import (
	"context"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

func ululeMemory() Contender {
	return Contender{
		Name:   ulule,
		Role:   Peer,
		Module: "github.com/ulule/limiter/v3",
		Setup:  "`memory` store, `Get`; it counts in windows from a key's first event, here of 1000 h; its clean-up is off, because it would find nothing; a denial counts as an event too",
		New: func(l Limit) (Allow, error) {
			store := memory.NewStoreWithOptions(limiter.StoreOptions{Prefix: limiter.DefaultPrefix})
			return ululeOn(store, l), nil
		},
	}
}

// ululeOn returns the limiter of ulule on a store.
func ululeOn(store limiter.Store, l Limit) Allow {
	lim := limiter.New(store, limiter.Rate{Period: window, Limit: int64(l.Burst)})
	ctx := context.Background()
	return func(key string) Answer {
		state, err := lim.Get(ctx, key)
		if err != nil {
			return Failed
		}
		return answer(!state.Reached)
	}
}
