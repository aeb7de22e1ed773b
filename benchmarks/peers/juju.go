package peers

import "github.com/juju/ratelimit"

func juju() Peer {
	return Peer{
		Name:    "juju",
		NotIdle: true,
		Memory: func(l Limit) (Allow, error) {
			buckets := &syncMap[*ratelimit.Bucket]{fresh: func() *ratelimit.Bucket {
				return ratelimit.NewBucket(l.Every, int64(l.Burst))
			}}
			return func(key string) (bool, error) { return buckets.get(key).TakeAvailable(1) == 1, nil }, nil
		},
	}
}
