package step

import "time"

const (
	second = uint64(time.Second)
	ms     = uint64(time.Millisecond)
)

// begun is an instant at which aligned windows of a second begin.
const begun = 1_800_000_000 * second
