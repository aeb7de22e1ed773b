package kernel

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// leaky is a gcra seen as a queue that drains.
type leaky struct{ gcra }

// NewLeakyBucket returns the kernel of a LeakyBucket with a rate of so many events per
// span. Errors tell the rate, and name field.
func NewLeakyBucket(events int, per time.Duration, rate fmt.Stringer, capacity int, f Form, field string) (Kernel, error) {
	k, err := newGCRA(events, per, rate, capacity, f, field)
	return &leaky{k}, err
}

// hold returns the time that the level at an instant needs to leak out.
func (k *leaky) hold(st []uint64, at Instant) uint64 {
	return k.load(st).Sub(uint128.Mul(at, k.unit)).DivCeil(k.unit)
}

func (k *leaky) giveBack(st []uint64, _, _ Instant, _ int) []uint64 { return st }

func (k *leaky) full(st []uint64, now Instant, n int) bool {
	return k.Ready(st, now, n) > now
}
