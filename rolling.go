package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A RollingWindow recalculates at the start of each Period how many events a key is granted in it:
// Quota minus the events granted in the last Window − Period, and at most PeriodLimit. For a new
// key, that is Quota, or PeriodLimit if it is set and less.
//
// So 10,000 per 24 hours, recalculated hourly with at most 1,000 an hour, lets a key run for ten
// hours, then makes it wait until the first of those falls out of the window. It bounds every 24
// hours that begin on the hour. A span as long as Window that begins within a period may exceed
// Quota by as much as one period may hold. The state is two words, and half a word for each period
// in the window (a word if Quota is above 2³²−1).
//
// Nominet, the .uk registry, describes this limit for its domain availability checker.
type RollingWindow struct {
	Quota       int           // the most events in Window, counted in whole periods
	Window      time.Duration // the length of the window
	Period      time.Duration // how often the quota is recalculated; must divide Window
	PeriodLimit int           // the most events in one period; 0 means no such limit
}

// String returns the limit in words, such as
// "10,000 per day, recalculated every hour, at most 1,000 per hour".
func (a RollingWindow) String() string { return inWords(a) }

func (a RollingWindow) normalized() Algorithm { return a }

func (a RollingWindow) share(by divisor) Algorithm {
	a.Quota, a.PeriodLimit = by.events(a.Quota), by.events(a.PeriodLimit)
	return a
}

func (a RollingWindow) spec() limit.Spec {
	return limit.Spec{
		Kind: limit.RollingWindow,
		Numbers: [4]uint64{
			uint64(a.Quota),
			uint64(a.Window),
			uint64(a.Period),
			uint64(a.PeriodLimit),
		},
	}
}

func (RollingWindow) of(s *limit.Spec) Algorithm {
	return RollingWindow{
		Quota: s.Int(0), Window: s.Duration(1), Period: s.Duration(2), PeriodLimit: s.Int(3),
	}
}
