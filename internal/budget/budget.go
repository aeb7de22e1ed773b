// Package budget says how many random histories a run of the tests tries, and with which seeds. In
// CI, a run tries few histories, and always the same ones. At night, when the environment variable
// RATELIMIT_NIGHTLY is set, a run tries many, and the seeds depend on the number in the variable.
// make nightly sets the variable to the date.
package budget

import (
	"os"
	"strconv"
)

// nightly is the environment variable with the number of the night.
const nightly = "RATELIMIT_NIGHTLY"

// Nightly reports whether this is a long run.
func Nightly() bool { return os.Getenv(nightly) != "" }

// Histories returns how many random histories a test runs: ci, or atNight if this is a long
// run. Under the race detector it is a tenth of them, because they take ten times as long and run
// in one goroutine, where there is no race to find. On a 32-bit machine a long run tries a tenth,
// or as many as ci, because arithmetic in 128 bits is slow there, and a long run of a 64-bit
// machine tries all.
func Histories(ci, atNight int) uint64 {
	n := ci
	if Nightly() {
		n = atNight
		if strconv.IntSize == 32 {
			n = max(ci, n/10)
		}
	}
	if race {
		n = (n + 9) / 10
	}
	return uint64(n)
}

// UnderRace reports whether the race detector watches, so that goroutines run at a tenth of their
// speed.
func UnderRace() bool { return race }

// Alone skips a long test under the race detector if all of it runs in one goroutine.
func Alone(t interface{ Skip(args ...any) }) {
	if race {
		t.Skip("it runs in one goroutine, so there is no race to find")
	}
}
