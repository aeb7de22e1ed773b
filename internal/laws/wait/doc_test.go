// Package wait_test has the laws of those who wait: who is served when, who leaves, and what a line, a queue or an
// InFlight owes them. Most run in a bubble of testing/synctest, so that minutes of waiting take none.
//
// Of random schedules, TestWait_AtTheInstantOfAGrant tries 100 in CI and 10,000 at night (RATELIMIT_NIGHTLY=1); of the
// crowds of TestWait_WhoLeavesCostsNothing, CI has two of the five.
package wait_test

import "context"

var ctx = context.Background()
