package contenders

import (
	"github.com/juju/ratelimit"
)

func jujuSyncMap() Contender {
	return Contender{
		Name:   "juju in a sync.Map",
		Role:   Peer,
		Module: "github.com/juju/ratelimit",
		Setup:  "`sync.Map` of `*ratelimit.Bucket`, `TakeAvailable(1)`",
		New: func(l Limit) (Allow, error) {
			buckets := newSyncMap(func() *ratelimit.Bucket {
				return ratelimit.NewBucket(l.Every, int64(l.Burst))
			})
			return func(key string) Answer {
				return answer(buckets.get(key).TakeAvailable(1) == 1)
			}, nil
		},
	}
}
