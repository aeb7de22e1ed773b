//go:build unix

package rules

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamedPipe checks that a load waits for a pipe without a writer, or whose writer is
// silent, until the context ends, and that it reads a pipe that is written.
func TestNamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	load := func() ([]Rule, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return File(path).Load(ctx)
	}
	_, err := load()
	require.ErrorIs(t, err, context.DeadlineExceeded, "no writer")

	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = load()
	require.ErrorIs(t, err, context.DeadlineExceeded, "a writer has it open")
	_, err = writer.WriteString("- {id: a, call: /x,")
	require.NoError(t, err)
	_, err = load()
	require.ErrorIs(t, err, context.DeadlineExceeded, "a writer has written a part")
	require.NoError(t, writer.Close())

	s, err := New(t.Context(), File(path), WithTimeout(50*time.Millisecond), WithInitial(limited("r", "/x", 1, "")), WithInterval(time.Millisecond))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Status().Err, context.DeadlineExceeded)

	written := make(chan error)
	go func() { written <- os.WriteFile(path, []byte("- {id: a, call: /x, limit: 1, seconds: 1}"), 0) }()
	got, err := File(path).Load(t.Context())
	require.NoError(t, err)
	assert.Len(t, got, 1)
	require.NoError(t, <-written)
}
