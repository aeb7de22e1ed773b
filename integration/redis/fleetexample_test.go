package redis_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The fleet of the example keeps its bound at any distance from Redis.
func TestFleetExample(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "fleet")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../examples/fleet"
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, w := range distances() {
		s := startServer(t)
		fleet := exec.CommandContext(t.Context(), program, "-redis", startWire(t, s.addr(), w).addr(), "-seconds", "0.5", "-processes", "3")
		out, err := fleet.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
		assert.Contains(t, string(out), "The bound held: 3 processes", name)
	}
}
