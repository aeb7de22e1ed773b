package contenders

import "time"

// nothing answers without doing anything, to measure the harness.
func nothing() Contender {
	return Contender{
		Name:   "(no limiter)",
		Role:   Floor,
		Setup:  "answers without doing anything: the cost of the harness",
		Always: func(a Answer) Allow { return func(string) Answer { return a } },
	}
}

// TimeNow is the name of the contender that only reads the clock.
const TimeNow = "(time.Now)"

func timeNow() Contender {
	return Contender{
		Name:  TimeNow,
		Role:  Floor,
		Setup: "only reads the clock with `time.Now`",
		Always: func(a Answer) Allow {
			return func(string) Answer {
				if time.Now().IsZero() {
					return Failed
				}
				return a
			}
		},
	}
}
