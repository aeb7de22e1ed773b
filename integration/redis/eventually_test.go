package redis_test

import (
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// eventually waits until f returns true. Nothing else sleeps.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// long skips a test in short mode, in which the race detector runs: the concurrency of this
// process that it tests is also that of shorter tests.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}

// addHistories gives a fuzz target, which is a long test, the seeds of random histories.
func addHistories(f *testing.F, histories uint64) {
	f.Helper()
	long(f)
	for seed := range budget.Seeds(f, histories) {
		f.Add(seed)
	}
}
