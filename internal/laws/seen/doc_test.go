// Package seen_test has the laws of what is told of decisions: to observers, to a log, and in lists
// of the keys that are denied most. TestTopDeniedBounds, at the root, is the one with random
// histories.
package seen_test

import "context"

var ctx = context.Background()
