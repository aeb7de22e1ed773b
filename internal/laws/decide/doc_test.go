// Package decide_test has the laws of decisions: takes, holds and their settlements, reservations
// and their cancellations, several keys at once, plans, and limits that change. The tests compare a
// limiter with a reference model, with a definition, or with a second limiter that gets the same
// requests in another way. Clocks stand still until a test moves them. What a store alone can break
// is in storetest. Laws of waiting, of full stores and of stores that fail are in the packages
// beside this one.
//
// A history that once found a bug always runs.
package decide_test

import "context"

var ctx = context.Background()
