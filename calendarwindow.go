package ratelimit

import (
	"cmp"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A CalendarWindow counts the events of each day, week, month, quarter or year of a time zone, and
// grants n if count + n ≤ Limit:
//
//	monthly := CalendarWindow{Limit: 10_000, Every: Month, Zone: "Europe/London"}
//	billing := CalendarWindow{Limit: 10_000, Every: Month, Start: 31} // or the month's last day
//	shift := CalendarWindow{Limit: 50, Every: Day, Zone: "Asia/Tokyo", Hour: 4}
//
// A window begins at the first instant at which the zone's clock shows its nominal beginning, or
// later. So each instant is in one window, whatever the clock does. Where the clock is set forward
// past midnight, the day begins right after that, and where it is set back past midnight, the day
// begins with the first of both midnights. Since 2008, days had 21 to 27 hours.
//
// Within a window, a CalendarWindow decides as a [FixedWindow] does: it bounds each window exactly,
// but 2·Limit events may happen around the border of two windows. Its state is one word for limits
// below 2³¹, and two words for others.
//
// A [MemoryStore] forgets a month with its process, so that a deploy gives each key the whole month
// again. [docs/databases.md] is about stores that do not.
//
// For customers with billing days of their own, let the lookup of [WithLimits] return a
// CalendarWindow with the Start of the customer. If a customer gets another Limit, the events
// of the present window still count. If a customer gets another Every, Start, Hour or Zone, the
// events of the old window count in the new one as well if they may have happened in it.
//
// The processes that share a store may have different zone data, after a government has changed
// its clocks. Until all of them have the same data, they disagree about where a window begins.
// None of them counts the events of two windows together.
//
// [docs/databases.md]: https://github.com/ratelimit-go/ratelimit/blob/main/docs/databases.md
type CalendarWindow struct {
	Limit int          // the most events in one window
	Every CalendarUnit // Day, Week, Month, Quarter or Year

	// Zone is the name of the time zone, such as "Europe/London", as [time.LoadLocation] knows it,
	// and not "Local" or "localtime", which is another zone on another machine. If it is empty,
	// the zone is UTC. [New] returns an error if the program has no data of the zone. Import
	// time/tzdata to have the data of all zones in the program.
	Zone string

	// Start is the day on which a window begins, or 0 for the first one of the week, month or year.
	//
	//   - Of a Week, it is the day of the week, from Monday, 1, to Sunday, 7.
	//   - Of a Month, it is the day of the month. In a shorter month, it is the last day.
	//   - Of a Year, it is month·100 + day, such as 406 for 6 April. 29 February is the 28th in
	//     most years.
	//   - Of a Quarter, it is the same: quarters begin in that month, and in each third one after
	//     it.
	//   - Of a Day, it must be 0.
	Start int

	Hour int // the hour of the day at which a window begins, from 0 to 23
}

// A CalendarUnit is what a [CalendarWindow] counts the events of.
type CalendarUnit int

const (
	Day     CalendarUnit = CalendarUnit(calendar.Day)     // the days of a time zone
	Week    CalendarUnit = CalendarUnit(calendar.Week)    // from Monday on, or from Start
	Month   CalendarUnit = CalendarUnit(calendar.Month)   // from the 1st on, or from Start
	Quarter CalendarUnit = CalendarUnit(calendar.Quarter) // three months
	Year    CalendarUnit = CalendarUnit(calendar.Year)    // from 1 January on, or from Start
)

// String returns the name of the unit, such as "month".
func (u CalendarUnit) String() string { return calendar.Unit(u).String() }

func (a CalendarWindow) normalized() Algorithm {
	a.Zone = cmp.Or(a.Zone, calendar.UTC)
	a.Start = cmp.Or(a.Start, calendar.Unit(a.Every).FirstDay())
	return a
}

// String returns a in words: "10,000 in each month of Europe/London, from the 31st".
func (a CalendarWindow) String() string { return inWords(a) }

func (a CalendarWindow) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (a CalendarWindow) spec() limit.Spec {
	return limit.Spec{
		Kind: limit.CalendarWindow,
		Numbers: [4]uint64{
			uint64(a.Limit),
			uint64(a.Every),
			uint64(a.Start),
			uint64(a.Hour),
		},
		Text: a.Zone,
	}
}

func (CalendarWindow) of(s *limit.Spec) Algorithm {
	return CalendarWindow{
		Limit: s.Int(0), Every: CalendarUnit(s.Int(1)),
		Start: s.Int(2), Hour: s.Int(3), Zone: s.Text,
	}
}
