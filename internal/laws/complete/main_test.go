package complete_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain lets the walks, which make much garbage and keep little, collect it less often.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
