// Package wait_test has the laws of waiting: when a waiter is served, what happens when one leaves,
// and what a line, the queue of a LeakyBucket or an InFlight owes to its waiters. Most tests run in
// a bubble of testing/synctest, so that minutes of waiting take no time.
//
// TestWait_AtTheInstantOfAGrant tries 100 random schedules in CI, and 10,000 at night
// (RATELIMIT_NIGHTLY=1). TestWait_WhoLeavesCostsNothing tries two of its five crowds in CI.
package wait_test

import "context"

var ctx = context.Background()
