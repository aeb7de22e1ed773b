package contenders

import "time"

// nothing answers without looking: what is measured of it is the harness.
func nothing() Contender {
	return Contender{
		Name:   "(no limiter)",
		Role:   Floor,
		Setup:  "answers without looking: what the harness itself costs",
		Always: func(a Answer) Allow { return func(string) Answer { return a } },
	}
}

// TimeNow is the name of the contender that only reads the clock.
const TimeNow = "(time.Now)"

func timeNow() Contender {
	return Contender{
		Name:  TimeNow,
		Role:  Floor,
		Setup: "reads the clock with `time.Now`, and answers without looking",
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
