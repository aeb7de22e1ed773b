package redis_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// The tests of faults, of changed limits and of callers that leave run 0.5 ms away from the
// server in a process that is idle otherwise. At night, TestEverywhere runs them again at the other
// distances, and in a process whose handlers use all of its processors.

// The variables of the processes: the wire that withEach uses, and whether handlers are busy.
const (
	wireVariable = "REDISSTORE_WIRE"
	burnVariable = "REDISSTORE_BURN"
)

// usualWire returns the wire that withEach uses.
func usualWire() wire { return wires[cmp.Or(os.Getenv(wireVariable), "0.5 ms")] }

// burning reports whether this process was started with busy handlers.
func burning() bool { return os.Getenv(burnVariable) != "" }

// burnIfAsked starts handlers that keep two processors busy, if this process was started for
// that.
func burnIfAsked() {
	if !burning() {
		return
	}
	runtime.GOMAXPROCS(2)
	for range 8 {
		go burn(context.Background())
	}
}

func TestEverywhere(t *testing.T) {
	if os.Getenv(wireVariable) != "" {
		return
	}
	if !budget.Nightly() {
		t.Skip("it runs at night")
	}
	const short = "TestCrash|TestHang|TestSleep|TestCut|TestMixedContexts|TestReset"
	for name, again := range map[string]struct {
		tests string
		set   []string
	}{
		"0 ms": {short + "|TestManyCallersOfHang|TestScriptFlush|TestReadOnly", []string{wireVariable + "=0 ms"}},
		"2 ms": {short + "|TestManyCallersOfHang|TestScriptFlush|TestReadOnly", []string{wireVariable + "=2 ms"}},
		"busy": {"TestCrash|TestHang|TestMixedContexts|TestReset|TestLimitChange", []string{wireVariable + "=0.5 ms", burnVariable + "=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runAgain(t, again.tests, again.set...)
		})
	}
}

// runAgain runs tests, whose names are separated by "|", in another process with more variables.
func runAgain(t *testing.T, tests string, set ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.parallel=8", "-test.run=^("+tests+")$") // most of them wait
	cmd.Env = append(os.Environ(), set...)
	said, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", said)
}
