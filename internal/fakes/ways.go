package fakes

import "github.com/ratelimit-go/ratelimit"

// A Way is a way to make limiters whose keys are decided on together in memory. It returns the
// options of the i-th limiter.
type Way func(i int, store *ratelimit.MemoryStore, alg ratelimit.Algorithm) []ratelimit.Option

// Ways are all ways, by name.
var Ways = map[string]Way{
	"one store": func(_ int, store *ratelimit.MemoryStore, _ ratelimit.Algorithm) []ratelimit.Option {
		return []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test")}
	},
	"a store each": func(int, *ratelimit.MemoryStore, ratelimit.Algorithm) []ratelimit.Option { return nil },
	"own limits": func(_ int, store *ratelimit.MemoryStore, alg ratelimit.Algorithm) []ratelimit.Option {
		return []ratelimit.Option{
			ratelimit.WithStore(store),
			ratelimit.WithName("test"),
			OwnLimit(alg),
		}
	},
	"first own": func(i int, store *ratelimit.MemoryStore, alg ratelimit.Algorithm) []ratelimit.Option {
		if i > 0 {
			return []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test")}
		}
		return []ratelimit.Option{
			ratelimit.WithStore(store),
			ratelimit.WithName("test"),
			OwnLimit(alg),
		}
	},
}
