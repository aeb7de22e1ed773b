package ratelimit_test

import (
	"math/rand/v2"
	"testing"
)

// newRand returns a source that is the same in each run, and logs its seed if
// the test fails.
func newRand(t testing.TB) *rand.Rand {
	const seed = 20260301
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, seed))
}
