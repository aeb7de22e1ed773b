package fakes

import "github.com/ratelimit-go/ratelimit"

// A Way is a way to make the limiters of keys that are decided on together in memory: the options
// of the i-th of them.
type Way func(i int, store *ratelimit.MemoryStore, alg ratelimit.Algorithm) []ratelimit.Option

// Ways are those that there are.
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
