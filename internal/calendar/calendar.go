// Package calendar computes where the days, weeks, months, quarters and years of a time zone begin.
//
// By the clock of a zone, each window has a nominal beginning, such as midnight. The window begins
// at the first instant at which this clock shows its nominal beginning, or later. So windows tile
// time, whatever the clock does: where it is set forward past midnight, the day begins with the
// first instant after that; where it is set back past midnight, midnight comes twice, and the day
// begins with the first one. A nominal window without any instant, such as a date that the zone
// has skipped, is no window.
//
// time.Date does not say where windows begin: for a time that does not exist it returns one before
// it, or one after it.
package calendar

import (
	"fmt"
	"time"
)

// A Unit is what a calendar counts in.
type Unit int

// The units. Stored states have their numbers, which never change.
const (
	Day Unit = 1 + iota
	Week
	Month
	Quarter
	Year
)

var unitNames = [...]string{
	Day:     "day",
	Week:    "week",
	Month:   "month",
	Quarter: "quarter",
	Year:    "year",
}

// Valid reports whether u is one of the units.
func (u Unit) Valid() bool { return Day <= u && u <= Year }

// String returns the name of the unit, such as "month".
func (u Unit) String() string {
	if !u.Valid() {
		return fmt.Sprintf("Unit(%d)", int(u))
	}
	return unitNames[u]
}

// months returns the number of months in a Month, Quarter or Year.
func (u Unit) months() int {
	switch u {
	case Quarter:
		return 3
	case Year:
		return 12
	}
	return 1
}

// longest has the days of the longest window of each unit.
var longest = [...]int64{Day: 1, Week: 7, Month: 31, Quarter: 92, Year: 366}

// A Rule says where the windows of a calendar begin.
type Rule struct {
	Every Unit
	// Start is the day on which a window begins: of the week, from Monday, 1, to Sunday, 7; of the
	// month; or of the year, month·100 + day. A quarter begins in each third month from that month
	// on. In a month that is too short for the day, it is the last one. Start is 0 for a Day.
	Start int
	Hour  int // of the day on which a window begins
}

// A Calendar is a Rule in a time zone. Times are in seconds since the Unix epoch.
type Calendar struct {
	rule Rule
	zone *time.Location
}

// New returns the calendar of a valid rule in a zone.
func New(rule Rule, zone *time.Location) *Calendar { return &Calendar{rule, zone} }

// Equals reports whether c and other have the same rule in the same zone.
func (c *Calendar) Equals(other *Calendar) bool {
	return c.rule == other.rule && c.zone.String() == other.zone.String()
}

// Longest returns an upper bound of the length of a window, in seconds. The clock of a zone may be
// set back by up to a day while the window lasts.
func (c *Calendar) Longest() int64 { return (longest[c.rule.Every] + 1) * daySeconds }

const (
	hourSeconds = 60 * 60
	daySeconds  = 24 * hourSeconds
)

// Around returns four borders: the window that contains an instant lies between the second one and
// the third one, and the windows before it and after it lie beside it.
func (c *Calendar) Around(at int64) (borders [4]int64) {
	borders[1], borders[2] = c.Window(at)
	borders[0], _ = c.Window(borders[1] - 1)
	_, borders[3] = c.Window(borders[2])
	return borders
}

// Window returns the window that contains an instant.
func (c *Calendar) Window(at int64) (start, end int64) {
	_, offset := time.Unix(at, 0).In(c.zone).Zone()
	number := c.number(at + int64(offset))
	start = c.border(number)
	for {
		// The window with the next number may have begun before the clock was set back. It may also
		// have no instants.
		end = c.border(number + 1)
		if end > at {
			return start, end
		}
		start = end
		number++
	}
}

// border returns the first instant at which the zone's clock shows the nominal beginning of the
// window with a number, or later.
func (c *Calendar) border(number int64) int64 {
	nominal := c.nominal(number)
	at := time.Unix(nominal-farthest, 0).In(c.zone) // when the clock cannot show it yet
	for {
		_, offset := at.Zone()
		change := changeAfter(at)
		first := max(at.Unix(), nominal-int64(offset))
		if change.IsZero() || first < change.Unix() {
			return first
		}
		at = change
	}
}

// changeAfter returns the end of a span of time that begins with at, in which the clock of at's
// zone is not set, or the zero time if it is never set again.
//
// After the last change that the data of a zone lists, package time takes all years to have 365
// days: for an instant in the 366th day of a leap year, after the last change of that year,
// ZoneBounds returns the beginning of that day as the end. Its end is meant.
func changeAfter(at time.Time) time.Time {
	_, change := at.ZoneBounds()
	if change.IsZero() || change.After(at) {
		return change
	}
	const day = daySeconds * time.Second
	return at.Truncate(day).Add(day)
}

// farthest is more than the clock of any zone differs from UTC. RFC 8536 permits 26 hours.
const farthest = 28 * hourSeconds

// number returns the number of the last window whose nominal beginning is not after shown. A time
// that a clock shows is the number of seconds from 1970-01-01 00:00 by this clock.
func (c *Calendar) number(shown int64) int64 {
	switch c.rule.Every {
	case Day:
		return floorDiv(shown-c.nominal(0), daySeconds)
	case Week:
		return floorDiv(shown-c.nominal(0), 7*daySeconds)
	}
	year, month, _ := time.Unix(shown, 0).UTC().Date()
	months := int64(12*year) + int64(month) - 1 - c.firstMonth()
	number := floorDiv(months, int64(c.rule.Every.months()))
	if c.nominal(number) > shown {
		number--
	}
	return number
}

// nominal returns the time that the zone's clock shows when the window with a number begins, if the
// clock shows it at all.
func (c *Calendar) nominal(number int64) int64 {
	hour := int64(c.rule.Hour) * hourSeconds
	switch c.rule.Every {
	case Day:
		return number*daySeconds + hour
	case Week:
		const monday = -3 // 1970-01-01 was a Thursday
		return (7*number+monday+int64(c.rule.Start)-1)*daySeconds + hour
	}
	month := int(number)*c.rule.Every.months() + int(c.firstMonth())
	first := time.Date(0, 1+time.Month(month), 1, 0, 0, 0, 0, time.UTC)
	days := first.AddDate(0, 1, -1).Day()
	return first.Unix() + int64(min(c.dayOfMonth(), days)-1)*daySeconds + hour
}

// firstMonth returns the month of Start, from 0.
func (c *Calendar) firstMonth() int64 {
	if c.rule.Every == Month {
		return 0
	}
	return int64(c.rule.Start/100) - 1
}

func (c *Calendar) dayOfMonth() int { return c.rule.Start % 100 }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
