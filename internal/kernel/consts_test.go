package kernel

import "time"

const second = uint64(time.Second)

// begun is an instant at which aligned windows of a second begin.
const begun = 1_800_000_000 * second
