// Package docs_test compares what the documentation shows and points at with what there is, and asks
// each place that must know an algorithm whether it knows all. It runs in the root of the module,
// and has no random histories.
package docs_test

import "testing"

// inRoot makes a test run in the root of the module. A test, and not TestMain, goes there, because the go command
// notes from then on which files are read: otherwise it would take the result of a former run after these have changed.
func inRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../../..")
}
