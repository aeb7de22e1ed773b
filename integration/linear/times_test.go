package linear_test

import "github.com/ratelimit-go/ratelimit/storetest"

// A call is made at a reading of the clock during the call, and not before the change that
// left the state. That is less than if the clock were a part of the state: a caller that has
// read it may be overtaken by one that reads a later time, but finds the state of before.
// Only a lock around the clock could prevent that, and nobody could tell: the calls overlap,
// and each has an answer that was right during the call.

// times are the readings of a clock during a history, in order.
type times []int64

// now reads a clock.
func now(clk *storetest.Clock) int64 { return clk.Now().UnixNano() }

// A during is what the clock showed when a call began and when it returned.
type during struct{ from, to int64 }

// of returns the readings that a call may have been made at, if the state was changed last at
// the given one.
func (ts times) of(d during, changed int64) (readings []int64) {
	for _, t := range ts {
		if max(d.from, changed) <= t && t <= d.to {
			readings = append(readings, t)
		}
	}
	return readings
}
