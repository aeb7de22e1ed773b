// Package budget says how much of what is random a run of the tests tries, and with which seeds:
// little in CI, always the same, and much at night, when RATELIMIT_NIGHTLY is set, to a number on
// which the seeds depend. make nightly sets it to the date.
package budget

import "os"

// nightly is the environment variable with the number of the night.
const nightly = "RATELIMIT_NIGHTLY"

// Nightly reports whether this is a long run.
func Nightly() bool { return os.Getenv(nightly) != "" }

// Histories returns how many random histories a test runs: ci, or atNight if this is a long
// run. Under the race detector, where they take ten times as long, it is a tenth of them: for
// what runs in one goroutine, where there is no race to find.
func Histories(ci, atNight int) uint64 {
	n := ci
	if Nightly() {
		n = atNight
	}
	if race {
		n = (n + 9) / 10
	}
	return uint64(n)
}

// Alone skips a long test under the race detector if all of it runs in one goroutine.
func Alone(t interface{ Skip(args ...any) }) {
	if race {
		t.Skip("it runs in one goroutine, so there is no race to find")
	}
}
