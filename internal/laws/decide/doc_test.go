// Package decide_test has the laws of what is decided: takes, holds and what they settle, reservations and who cancels
// them, several keys at once, plans and limits that change, against a reference model, a definition, or a twin that is
// asked otherwise. Clocks stand still until a test moves them. Laws that hold for every store are in storetest; those of
// who waits, of full stores and of stores that fail are in the packages beside this one.
//
// Random histories, in CI and at night (RATELIMIT_NIGHTLY=1, as in make nightly): against the model 40 and 250 of each
// kind of algorithm, and 12 and 60 of each in which turns pass and reservations are cancelled; of five reservations, a
// tenth and all of the orders of cancelling; of limits that change, 40 to 75 and 200 to 300; of two limiters on one store,
// 100 and 400; of settling, 50 to 300 and 150 to 1500. What once found a bug always runs.
package decide_test

import "context"

var ctx = context.Background()
