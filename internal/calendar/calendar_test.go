package calendar_test

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that all machines test the same zones

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

//go:embed testdata/zones.txt
var zoneNames string

// rules are of each unit, with days that some months and years do not have.
var rules = []calendar.Rule{
	{Every: calendar.Day},
	{Every: calendar.Day, Hour: 4},
	{Every: calendar.Day, Hour: 23},
	{Every: calendar.Week, Start: 1},
	{Every: calendar.Week, Start: 7, Hour: 2},
	{Every: calendar.Month, Start: 1},
	{Every: calendar.Month, Start: 31},
	{Every: calendar.Quarter, Start: 101},
	{Every: calendar.Quarter, Start: 1231, Hour: 1},
	{Every: calendar.Year, Start: 406},
	{Every: calendar.Year, Start: 229},
}

// since2008 is the instant from which on TestWindowsTileTime looks at the lengths of days.
var since2008 = time.Date(2008, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// windows checks all windows from one instant to another: that they tile time, that none is empty,
// and that each begins where the model says. It returns the shortest and the longest one since 2008:
// before, clocks of stations in Antarctica were set by up to seven hours.
func windows(t *testing.T, name string, rule calendar.Rule, from, to time.Time) (shortest, longest time.Duration) {
	zone, err := calendar.Zone(name)
	require.NoError(t, err)
	c := calendar.New(rule, zone)
	dates := model.NewCalendarDates(ratelimit.CalendarWindow{
		Every: ratelimit.CalendarUnit(rule.Every), Start: rule.Start, Hour: rule.Hour, Zone: name,
	})
	begins := func(sec int64) time.Time { return dates.Beginning(time.Unix(sec, 0)) }
	at := func(sec int64) string { return fmt.Sprint(name, " ", rule, " ", time.Unix(sec, 0).In(zone)) }
	shortest = time.Duration(1<<63 - 1)
	start, end := c.Window(from.Unix())
	before := begins(start - 1)
	for start < to.Unix() {
		nominal := begins(start)
		if start >= end || !before.Before(nominal) || !begins(end-1).Equal(nominal) {
			t.Fatalf("a window from %s to %s: the one of %v, behind that of %v", at(start), at(end), nominal, before)
		}
		if a, b := c.Window(end - 1); a != start || b != end {
			t.Fatalf("%s is from %s to %s, and at its end from %s to %s", nominal, at(start), at(end), at(a), at(b))
		}
		length := time.Duration(end-start) * time.Second
		if start >= since2008 {
			shortest, longest = min(shortest, length), max(longest, length)
		}
		if length > time.Duration(c.Longest())*time.Second {
			t.Fatalf("%s: it lasts %v", at(start), length)
		}
		next, after := c.Window(end)
		if next != end {
			t.Fatalf("a window ends at %s, and the next one begins at %s", at(end), at(next))
		}
		before, start, end = nominal, next, after
	}
	return shortest, longest
}

// Windows tile time in all zones, and begin when the clock first shows their nominal beginning, or
// later. In CI, these are every tenth zone, in a few years that zone data lists and in a few for
// which it only has rules, and at night all zones in ninety years.
func TestWindowsTileTime(t *testing.T) {
	budget.Alone(t)
	zones := strings.Fields(zoneNames)
	spans, each := [][2]int{{2008, 2013}, {2038, 2042}}, 10 // from a year to another
	if budget.Nightly() {
		spans, each = [][2]int{{1970, 2060}}, 1
	}
	newYear := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	var shortest, longest time.Duration
	for i := 0; i < len(zones); i += each {
		for _, rule := range rules {
			for _, span := range spans {
				s, l := windows(t, zones[i], rule, newYear(span[0]), newYear(span[1]))
				if rule.Every == calendar.Day && rule.Hour == 0 {
					shortest, longest = min(cmp.Or(shortest, s), s), max(longest, l)
				}
			}
		}
	}
	t.Logf("days from midnight to midnight have %v to %v", shortest, longest)
	assert.GreaterOrEqual(t, shortest, 21*time.Hour)
	assert.LessOrEqual(t, longest, 27*time.Hour)
}

// Days on which the clock of a zone did something odd. A date that the zone has skipped has none.
func TestOddDays(t *testing.T) {
	utc := func(text string) int64 {
		at, err := time.Parse(time.DateTime, text)
		require.NoError(t, err)
		return at.Unix()
	}
	for name, tt := range map[string]struct {
		zone       string
		hour       int
		at         string // an instant in the day
		start, end string
	}{
		"midnight is skipped":            {"America/Sao_Paulo", 0, "2018-11-04 12:00:00", "2018-11-04 03:00:00", "2018-11-05 02:00:00"},
		"the day before it":              {"America/Sao_Paulo", 0, "2018-11-04 02:59:59", "2018-11-03 03:00:00", "2018-11-04 03:00:00"},
		"midnight comes twice":           {"America/Sao_Paulo", 0, "2018-02-18 02:30:00", "2018-02-17 02:00:00", "2018-02-18 03:00:00"},
		"midnight comes twice, in Cuba":  {"America/Havana", 0, "2018-11-04 12:00:00", "2018-11-04 04:00:00", "2018-11-05 05:00:00"},
		"a date is skipped":              {"Pacific/Apia", 0, "2011-12-30 09:59:59", "2011-12-29 10:00:00", "2011-12-30 10:00:00"},
		"the date after it":              {"Pacific/Apia", 0, "2011-12-30 10:00:00", "2011-12-30 10:00:00", "2011-12-31 10:00:00"},
		"44½ minutes are skipped":        {"Africa/Monrovia", 0, "1972-01-07 12:00:00", "1972-01-07 00:44:30", "1972-01-08 00:00:00"},
		"a day of 21 hours":              {"Antarctica/Casey", 0, "2009-10-18 00:00:00", "2009-10-17 16:00:00", "2009-10-18 13:00:00"},
		"a day of 27 hours":              {"Antarctica/Casey", 0, "2010-03-05 00:00:00", "2010-03-04 13:00:00", "2010-03-05 16:00:00"},
		"the day before is shown again":  {"Antarctica/Casey", 0, "2010-03-04 15:30:00", "2010-03-04 13:00:00", "2010-03-05 16:00:00"},
		"half an hour is skipped":        {"Australia/Lord_Howe", 0, "2018-10-07 00:00:00", "2018-10-06 13:30:00", "2018-10-07 13:00:00"},
		"half an hour comes twice":       {"Australia/Lord_Howe", 0, "2018-04-01 00:00:00", "2018-03-31 13:00:00", "2018-04-01 13:30:00"},
		"2 o'clock is skipped":           {"Europe/Berlin", 2, "2026-03-29 12:00:00", "2026-03-29 01:00:00", "2026-03-30 00:00:00"},
		"2 o'clock comes twice":          {"Europe/Berlin", 2, "2026-10-25 00:30:00", "2026-10-25 00:00:00", "2026-10-26 01:00:00"},
		"3 o'clock comes once, after it": {"Europe/Berlin", 3, "2026-10-25 01:59:59", "2026-10-24 01:00:00", "2026-10-25 02:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			zone, err := calendar.Zone(tt.zone)
			require.NoError(t, err)
			start, end := calendar.New(calendar.Rule{Every: calendar.Day, Hour: tt.hour}, zone).Window(utc(tt.at))
			assert.Equal(t, []string{tt.start, tt.end}, []string{
				time.Unix(start, 0).UTC().Format(time.DateTime), time.Unix(end, 0).UTC().Format(time.DateTime),
			})
		})
	}
}

// Windows of each unit begin on the days that Start says.
func TestDatesOfWindows(t *testing.T) {
	for name, tt := range map[string]struct {
		rule calendar.Rule
		want string // the dates on which windows of 2024 begin
	}{
		"the last of the month": {calendar.Rule{Every: calendar.Month, Start: 31}, "01-31 02-29 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31"},
		"quarters":              {calendar.Rule{Every: calendar.Quarter, Start: 101}, "01-01 04-01 07-01 10-01"},
		"quarters of taxes":     {calendar.Rule{Every: calendar.Quarter, Start: 406}, "01-06 04-06 07-06 10-06"},
		"quarters of ends":      {calendar.Rule{Every: calendar.Quarter, Start: 831}, "02-29 05-31 08-31 11-30"},
		"a year":                {calendar.Rule{Every: calendar.Year, Start: 1001}, "10-01"},
		"a leap day":            {calendar.Rule{Every: calendar.Year, Start: 229}, "02-29"},
	} {
		t.Run(name, func(t *testing.T) {
			c := calendar.New(tt.rule, time.UTC)
			var got []string
			at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			start, end := c.Window(at)
			for ; time.Unix(start, 0).UTC().Year() < 2025; start, end = c.Window(end) {
				if start >= at {
					got = append(got, time.Unix(start, 0).UTC().Format("01-02"))
				}
			}
			assert.Equal(t, tt.want, strings.Join(got, " "))
		})
	}
	_, end := calendar.New(calendar.Rule{Every: calendar.Week, Start: 3}, time.UTC).Window(0)
	assert.Equal(t, time.Wednesday, time.Unix(end, 0).UTC().Weekday())
	start, _ := calendar.New(calendar.Rule{Every: calendar.Year, Start: 229}, time.UTC).Window(time.Date(2025, 3, 1, 0, 0, 0, 0, time.UTC).Unix())
	assert.Equal(t, "2025-02-28", time.Unix(start, 0).UTC().Format(time.DateOnly))
}

// The four borders are those of three windows, of which the second one contains the instant.
func TestAround(t *testing.T) {
	zone, err := calendar.Zone("Pacific/Apia")
	require.NoError(t, err)
	c := calendar.New(calendar.Rule{Every: calendar.Day}, zone)
	at := time.Date(2011, 12, 30, 12, 0, 0, 0, time.UTC).Unix()
	borders := c.Around(at)
	assert.True(t, slices.IsSorted(borders[:]))
	for i := range 3 {
		start, end := c.Window(borders[i])
		assert.Equal(t, []int64{start, end}, borders[i:i+2])
	}
	assert.True(t, borders[1] <= at && at < borders[2])
}
