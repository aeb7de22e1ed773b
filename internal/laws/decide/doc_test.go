// Package decide_test has the laws of decisions: takes, holds and their settlements, reservations
// and their cancellations, several keys at once, plans, and limits that change. The tests compare a
// limiter with a reference model, with a definition, or with a second limiter that gets the same
// requests in another way. Clocks stand still until a test moves them. What a store alone can break
// is in storetest. Laws of waiting, of full stores and of stores that fail are in the packages
// beside this one.
//
// At night (RATELIMIT_NIGHTLY=1, as in make nightly), the tests try more random histories than in
// CI:
//
//	histories                                                     in CI      at night
//	of each kind of algorithm, against the model                  40         250
//	of each, in which turns pass and reservations are cancelled   12         60
//	orders of cancelling five reservations                        a tenth    all
//	limits that change, on three stores                           300        3000
//	several keys decided on together, in memory and elsewhere     60         600
//	the most events in a span, with settlements                   25 to 150  400 to 1500
//
// A history that once found a bug always runs.
package decide_test

import "context"

var ctx = context.Background()
