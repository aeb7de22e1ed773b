//go:build !unix

package rules

import "os"

// openFile opens a file.
func openFile(path string) (*os.File, error) { return os.Open(path) }
