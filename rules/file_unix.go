//go:build unix

package rules

import (
	"os"
	"syscall"
)

// openFile opens a file. It does not block if it is a named pipe without a writer.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
