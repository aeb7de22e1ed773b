package complete_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// encodings are the forms of states: in memory, of limits that vary, and in Redis.
var encodings = map[string]kernel.Encoding{
	"in memory":   kernel.InMemory,
	"limits vary": kernel.InMemory.Varying(),
	"portable":    {Tick: 1, Portable: true, Varies: true},
}

func upTo(most int, yield func(i int)) {
	for i := 1; i <= most; i++ {
		yield(i)
	}
}

// An algorithm has small limits.
type algorithm struct {
	forms  bool // whether its states have different forms in different encodings
	limits func(enc kernel.Encoding, yield func(small, error))
}

var algorithms = map[string]algorithm{
	"TokenBucket": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(6, func(events int) {
			upTo(8, func(per int) {
				upTo(6, func(burst int) {
					rate := time.Duration(per)
					k, err := kernel.NewTokenBucket(events, rate, rate, burst, enc, "")
					yield(small{Kernel: k, definition: tokenBucket{events: events, per: per, burst: burst}, unit: events / gcd(events, per)}, err)
				})
			})
		})
	}},
	"LeakyBucket": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(6, func(events int) {
			upTo(8, func(per int) {
				upTo(4, func(capacity int) {
					rate := time.Duration(per)
					k, err := kernel.NewLeakyBucket(events, rate, rate, capacity, enc, "")
					yield(small{Kernel: k, definition: leakyBucket{tokenBucket{events: events, per: per,
						burst: capacity}}, unit: events / gcd(events, per)}, err)
				})
			})
		})
	}},
	"TokenBucket, RefillInterval": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(4, func(events int) {
			upTo(5, func(per int) {
				upTo(5, func(burst int) {
					k := kernel.NewIntervalBucket(burst, events, uint64(per))
					yield(small{Kernel: k, definition: intervalBucket{events: events, per: per, burst: burst, tokens: burst}, memory: 10 * per}, nil)
				})
			})
		})
	}},
	"FixedWindow": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(6, func(most int) {
			upTo(7, func(window int) {
				k := kernel.NewFixedWindow(most, uint64(window), true, enc)
				yield(small{Kernel: k, definition: fixedWindow{limit: most, window: window}, grid: window, memory: window}, nil)
			})
		})
	}},
	"FixedWindow, StartOnFirstEvent": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(6, func(most int) {
			upTo(7, func(window int) {
				k := kernel.NewFixedWindow(most, uint64(window), false, enc)
				yield(small{Kernel: k, definition: eventWindow{limit: most, window: window}, memory: window}, nil)
			})
		})
	}},
	"CalendarWindow": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(4, func(most int) {
			for every, lasts := range map[calendar.Unit]time.Duration{calendar.Day: 8 * time.Hour, calendar.Week: 24 * time.Hour} {
				rule := calendar.Rule{Every: every, Start: every.FirstDay()}
				k := kernel.NewCalendarWindow(most, calendar.New(rule, time.UTC), enc)
				window := 3 // days in eight hours
				if every == calendar.Week {
					window = 7
				}
				yield(small{Kernel: k, definition: fixedWindow{limit: most, window: window}, lasts: lasts, grid: window, memory: window}, nil)
			}
		})
	}},
	"SlidingWindow": {true, func(enc kernel.Encoding, yield func(small, error)) {
		of := func(most, segments, length int) {
			k := kernel.NewSlidingWindow(most, uint64(segments), uint64(length), enc)
			yield(small{Kernel: k, definition: slidingWindow{limit: most, segments: segments, length: length},
				grid: (segments + 1) * length, memory: (segments + 1) * length}, nil)
		}
		upTo(2, func(most int) {
			upTo(3, func(segments int) {
				upTo(2, func(length int) { of(most, segments, length) })
			})
		})
		of(2, 1, shortest)
	}},
	"SlidingLog": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(3, func(most int) {
			upTo(4, func(window int) {
				yield(small{
					Kernel:     kernel.NewSlidingLog(most, uint64(window), false),
					definition: slidingLog{limit: most, window: window},
					memory:     window,
				}, nil)
			})
		})
	}},
	"SlidingLog, CountDenied": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(2, func(most int) {
			upTo(3, func(window int) {
				yield(small{
					Kernel:     kernel.NewSlidingLog(most, uint64(window), true),
					definition: countingLog{slidingLog: slidingLog{limit: most, window: window}},
					memory:     window,
				}, nil)
			})
		})
	}},
	"RollingWindow": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(3, func(quota int) {
			upTo(3, func(periods int) {
				upTo(2, func(length int) {
					for perPeriod := range quota + 1 {
						k := kernel.NewRollingWindow(quota, perPeriod, uint64(periods), uint64(length))
						yield(small{Kernel: k, definition: rollingWindow{quota: quota, perPeriod: perPeriod,
							periods: periods, length: length}, grid: periods * length, memory: periods * length}, nil)
					}
				})
			})
		})
	}},
	"InFlight": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(3, func(most int) {
			upTo(4, func(timeout int) {
				yield(small{Kernel: kernel.NewInFlight(most, uint64(timeout)), definition: slidingLog{limit: most, window: timeout}, memory: timeout}, nil)
			})
		})
	}},
	"Lockout": {false, func(_ kernel.Encoding, yield func(small, error)) {
		upTo(3, func(most int) {
			upTo(3, func(window int) {
				upTo(2, func(shortest int) {
					upTo(3, func(longest int) {
						if longest >= shortest {
							k := kernel.NewLockout(most, uint64(window), uint64(shortest), uint64(longest))
							yield(small{Kernel: k,
								definition: lockout{limit: most, window: window, shortest: shortest,
									longest: longest}, memory: 4 * max(window, longest)}, nil)
						}
					})
				})
			})
		})
	}},
	"All of two": {true, func(enc kernel.Encoding, yield func(small, error)) {
		upTo(3, func(most int) {
			upTo(3, func(window int) {
				bucket, err := kernel.NewTokenBucket(2, 3, time.Duration(3), 2, enc, "")
				log := kernel.NewSlidingLog(most, uint64(window), false)
				fixed := kernel.NewFixedWindow(most, uint64(window), true, enc)
				yield(small{
					Kernel:     step.NewAll([]kernel.Kernel{bucket, log}, enc),
					definition: both{tokenBucket{events: 2, per: 3, burst: 2}, slidingLog{limit: most, window: window}},
					unit:       2, memory: window,
				}, err)
				yield(small{
					Kernel:     step.NewAll([]kernel.Kernel{fixed, bucket}, enc),
					definition: both{fixedWindow{limit: most, window: window}, tokenBucket{events: 2, per: 3, burst: 2}},
					unit:       2, grid: window, memory: window,
				}, err)
			})
		})
	}},
}

// shortest is the length of a SlidingWindow whose small counts fit a word in memory, with the number of
// the window.
const shortest = 8

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// bases are instants at which a walk begins: multiples of all lengths of windows here, near the first
// instant, near the present, and near the last one.
var bases = []int64{1 << 26 / 5040 * 5040, 1 << 50 / 5040 * 5040, 1 << 61 / 5040 * 5040}

const (
	week        = 7 * 24 * int64(time.Hour)
	firstMonday = 4 * 24 * int64(time.Hour)
)

// TestComplete: each kernel answers as its definition does, in every state to which any history leads.
func TestComplete(t *testing.T) {
	for name, of := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits, states, answers := 0, 0, 0
			for form, enc := range encodings {
				for _, base := range bases {
					if enc.Portable && base > 1<<50 || enc != kernel.InMemory && !of.forms {
						continue // beyond the last instant, or the same again
					}
					of.limits(enc, func(l small, err error) {
						require.NoError(t, err, form)
						from := base
						if l.lasts > 0 {
							if enc == kernel.InMemory && base < 1<<60 {
								return // its seconds, in a word, look like an instant
							}
							from = firstMonday + base/week*week
						}
						w := walk{T: t, namer: namer{machine: step.NewMachine(l.Kernel, enc), small: l, base: from}}
						states += w.run()
						limits, answers = limits+1, answers+w.answers
					})
				}
			}
			t.Logf("complete: %d limits, %d states, %d answers", limits, states, answers)
		})
	}
}
