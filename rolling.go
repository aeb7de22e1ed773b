package ratelimit

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A RollingWindow recalculates at the start of each Period how many events a key is
// granted in it: Quota minus the events granted in the last Window − Period, and at
// most PeriodLimit. For a new key, that is Quota, or PeriodLimit if it is set and less.
//
// So 10,000 per 24 hours, recalculated hourly with at most 1,000 an hour, lets
// a key run for ten hours, then makes it wait until the first of those falls
// out of the window. It bounds every 24 hours that begin on the hour, and changes
// only on the hour, which is easy to explain to users. A span as long as Window that
// begins within a period may exceed Quota by as much as one period may hold. The
// state is two words, plus half a word for each period in the window (a word if Quota is
// above 2³²−1). Allow reads a few of these words, and at most one for each period that has
// begun since the last grant.
//
// Nominet, the .uk registry, describes this limit for its domain availability checker.
type RollingWindow struct {
	Quota       int           // the most events in Window, counted in whole periods
	Window      time.Duration // the length of the window
	Period      time.Duration // how often the quota is recalculated; must divide Window
	PeriodLimit int           // the most events in one period; 0 means no such limit
}

func (a RollingWindow) normalized() Algorithm { return a }

func (a RollingWindow) share(by divisor) Algorithm {
	a.Quota, a.PeriodLimit = by.events(a.Quota), by.events(a.PeriodLimit)
	return a
}

func (RollingWindow) kind() uint64 { return 6 }

func (a RollingWindow) fields(visit func(...any)) Algorithm {
	visit(&a.Quota, &a.Window, &a.Period, &a.PeriodLimit)
	return a
}

func (a RollingWindow) compile(enc kernel.Encoding) (kernel.Kernel, error) {
	switch {
	case a.Quota < 1:
		return nil, param.Invalid("RollingWindow.Quota", a.Quota, "must be at least 1")
	case a.Window < 1:
		return nil, param.Invalid("RollingWindow.Window", a.Window, "must be at least 1ns")
	case a.Period < 1 || a.Window%a.Period != 0:
		return nil, param.Invalid("RollingWindow.Period", a.Period, fmt.Sprintf("must be at least 1ns and divide Window, %v", a.Window))
	case a.Window/a.Period > kernel.MaxSlots:
		return nil, param.Invalid("RollingWindow.Period", a.Period, fmt.Sprintf("must be at least a %dth of Window, %v, because each period takes memory", kernel.MaxSlots, a.Window))
	case a.PeriodLimit < 0:
		return nil, param.Invalid("RollingWindow.PeriodLimit", a.PeriodLimit, "must be at least 1, or 0 for no such limit")
	}
	length, err := enc.Ticks(a.Period, "RollingWindow.Period")
	if err == nil {
		_, err = enc.Ticks(a.Window, "RollingWindow.Window") // not too long
	}
	if err == nil {
		err = enc.Count(a.Quota, "RollingWindow.Quota")
	}
	if err == nil {
		err = enc.Slots(uint64(a.Window/a.Period), "RollingWindow.Window / Period")
	}
	if err != nil {
		return nil, err
	}
	return kernel.NewRollingWindow(a.Quota, a.PeriodLimit, uint64(a.Window/a.Period), length), nil
}
