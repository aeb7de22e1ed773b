// Package docs_test compares the documentation with the code: names, links and examples must exist.
// It also checks that each place that must know all algorithms knows them. It runs in the root of
// the module, and has no random histories.
package docs_test

import "testing"

// inRoot makes a test run in the root of the module. A test, and not TestMain, goes there, because
// the go command notes from then on which files are read: otherwise it would take the result of a
// former run after these have changed.
func inRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../../..")
}
