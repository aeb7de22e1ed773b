package budget

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
)

// seedsPerNight is how far apart the seeds of one night and of the next begin: more than any test
// tries, so that no night repeats what an earlier one has tried.
const seedsPerNight = 1_000_000

// A test is what seeds are for. They are in its log, which go test shows if it fails.
type test interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Seeds yields n seeds: from 0 in CI, so that a change that fails is at fault, and others each
// night.
func Seeds(t test, n uint64) iter.Seq[uint64] {
	t.Helper()
	first := firstSeed(t)
	return func(yield func(uint64) bool) {
		for i := range n {
			if !yield(first + i) {
				return
			}
		}
	}
}

// Rand returns the random numbers of a test that draws all it needs from one source: always the
// same in CI, and others each night.
func Rand(t test) *rand.Rand {
	t.Helper()
	seed := firstSeed(t)
	return rand.New(rand.NewPCG(seed, seed))
}

// firstSeed returns the seed that comes first in this run, and logs how to repeat it if it is a
// long one.
func firstSeed(t test) uint64 {
	t.Helper()
	value := os.Getenv(nightly)
	first, err := firstSeedOf(value)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if value != "" {
		t.Logf("seeds begin at %d; %s=%s repeats them", first, nightly, value)
	}
	return first
}

// firstSeedOf returns the first seed for a value of RATELIMIT_NIGHTLY.
func firstSeedOf(value string) (uint64, error) {
	if value == "" {
		return 0, nil
	}
	night, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return 0, fmt.Errorf(
			"%s=%q is no number of a night: set it to a date, such as 20260301, or to 1",
			nightly,
			value,
		)
	}
	return night * seedsPerNight, nil
}
