package logvalve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What has panicked is written to the standard error, and the program goes on.
func TestSafely(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer file.Close()
	before := os.Stderr
	defer func() { os.Stderr = before }()
	os.Stderr = file
	called := false
	Safely("nothing", func() { called = true })
	assert.True(t, called)
	Safely("the end of a hold", func() { panic("odd") })
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Regexp(t, `^ratelimit: the end of a hold panicked: odd\ngoroutine `, string(text))
}
