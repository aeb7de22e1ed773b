package peers

import (
	"context"

	"github.com/sethvargo/go-limiter/memorystore"
)

// sethvargo refills all at once each Interval. Its purge is off, because it would find nothing.
func sethvargo() Peer {
	return Peer{
		Name: "sethvargo",
		Memory: func(l Limit) (Allow, error) {
			store, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.Burst), Interval: l.Window, DisablePurge: true})
			if err != nil {
				return nil, err
			}
			return func(key string) (bool, error) {
				_, _, _, ok, err := store.Take(context.Background(), key)
				return ok, err
			}, nil
		},
	}
}
