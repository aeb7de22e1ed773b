package kernel

import (
	"cmp"
	"fmt"
	"time"
)

// A TokenBucket that refills continuously is a [gcra] whose instant is that at which it is full
// again. A LeakyBucket is its mirror image, in leakybucket.go; a TokenBucket with RefillInterval
// counts its refills, in intervalbucket.go.

// NewTokenBucket returns the kernel of a TokenBucket that gains events tokens per span,
// continuously. Errors name rate as the Rate of field.
func NewTokenBucket(
	events int,
	per time.Duration,
	rate fmt.Stringer,
	burst int,
	enc Encoding,
	field string,
) (Kernel, error) {
	k, err := newGCRA(events, per, rate, burst, enc, field)
	if k.form == twoWords {
		k.last = latestSpent
	}
	return &k, cmp.Or(err, enc.Count(burst, field+".Burst"))
}
