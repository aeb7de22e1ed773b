package model

import (
	"math/big"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// calendarWindow is ratelimit.CalendarWindow.
type calendarWindow struct {
	history
	max   int
	dates CalendarDates
}

func newCalendarWindow(a ratelimit.CalendarWindow) *calendarWindow {
	return &calendarWindow{max: a.Limit, dates: NewCalendarDates(a)}
}

// window returns the nominal beginning of the window that contains t.
func (w *calendarWindow) window(t instant) instant {
	return instant(w.dates.Beginning(time.Unix(0, int64(t))).Unix())
}

// current counts the events in the window that contains t.
func (w *calendarWindow) current(t instant) *big.Int {
	begins := w.window(t)
	return w.count(func(b batch) bool { return b.start == begins })
}

func (w *calendarWindow) limit() int                      { return w.max }
func (w *calendarWindow) grantable(t instant, n int) bool { return fits(w.current(t), n, w.max) }
func (w *calendarWindow) forgotten(t instant) bool        { return w.current(t).Sign() == 0 }

func (w *calendarWindow) charge(t instant, n int) {
	w.add(batch{at: t, n: n, start: w.window(t)})
}

func (w *calendarWindow) clone() part { return &calendarWindow{w.history.clone(), w.max, w.dates} }

// CalendarDates are the dates on which the windows of a CalendarWindow begin, and its zone.
type CalendarDates struct {
	alg  ratelimit.CalendarWindow
	zone *time.Location
}

// NewCalendarDates returns the dates of a. Its parameters must be valid.
func NewCalendarDates(a ratelimit.CalendarWindow) CalendarDates {
	zone, err := time.LoadLocation(a.Zone)
	if err != nil {
		panic(err)
	}
	return CalendarDates{a, zone}
}

// Beginning returns the nominal beginning of the window that contains an instant, as if it was a
// time in UTC. It is the last one that is not after the latest time that the zone's clock has shown
// until then.
func (c CalendarDates) Beginning(at time.Time) time.Time {
	shown := c.latestShown(at)
	y, m, d := shown.Add(-time.Duration(c.alg.Hour) * time.Hour).Date()
	for !c.begins(y, m, d) {
		y, m, d = time.Date(y, m, d-1, 0, 0, 0, 0, time.UTC).Date()
	}
	return time.Date(y, m, d, c.alg.Hour, 0, 0, 0, time.UTC)
}

// latestShown returns the latest time that the zone's clock has shown until an instant, as if it
// was a time in UTC. No clock is set back by more than two days.
func (c CalendarDates) latestShown(at time.Time) (latest time.Time) {
	shows := func(at time.Time) time.Time {
		_, offset := at.Zone()
		return at.UTC().Add(time.Duration(offset) * time.Second)
	}
	at = at.In(c.zone)
	latest = shows(at)
	for t := at; at.Sub(t) < 48*time.Hour; {
		since, _ := t.ZoneBounds()
		if since.IsZero() {
			break
		}
		t = since.Add(-1) // just before the clock was set
		if shown := shows(t); shown.After(latest) {
			latest = shown
		}
	}
	return latest
}

// begins reports whether a window begins on a date.
func (c CalendarDates) begins(y int, m time.Month, d int) bool {
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	last := date.AddDate(0, 0, 1).Day() == 1 // of its month
	on := func(day int) bool { return d == day || last && d < day }
	switch start := c.alg.Start; c.alg.Every {
	case ratelimit.Day:
		return true
	case ratelimit.Week:
		return int(date.Weekday()+6)%7 == max(start, 1)-1
	case ratelimit.Month:
		return on(max(start, 1))
	case ratelimit.Quarter:
		start = max(start, 101)
		return int(m)%3 == start/100%3 && on(start%100)
	default:
		start = max(start, 101)
		return int(m) == start/100 && on(start%100)
	}
}
