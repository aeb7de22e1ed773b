package contenders

import (
	"context"

	"github.com/sethvargo/go-limiter/memorystore"
)

func sethvargoMemory() Contender {
	return Contender{
		Name:   sethvargo,
		Role:   Peer,
		Quick:  true,
		Module: "github.com/sethvargo/go-limiter",
		Setup:  "`memorystore`, `Take`; it refills all at once each Interval, which is 1000 h; its purge is off, because it would find nothing",
		New: func(l Limit) (Allow, error) {
			store, err := memorystore.New(&memorystore.Config{
				Tokens:       uint64(l.Burst),
				Interval:     l.window(),
				DisablePurge: true,
			})
			if err != nil {
				return nil, err
			}
			ctx := context.Background()
			return func(key string) Answer {
				_, _, _, ok, err := store.Take(ctx, key)
				if err != nil {
					return Failed
				}
				return answer(ok)
			}, nil
		},
	}
}
