// Package fault_test has the laws of stores that fail, hang, panic or answer late, of the policies
// that decide in their place, and of what is logged. It runs no random histories.
package fault_test

import "context"

var ctx = context.Background()
