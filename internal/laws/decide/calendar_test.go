package decide_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
)

// This file has the laws of windows that begin by the clock of a time zone. Package
// internal/calendar tests where windows begin.

// london returns an instant at which the clocks of London show a time.
func london(t *testing.T, shown string) time.Time {
	t.Helper()
	zone, err := time.LoadLocation("Europe/London")
	require.NoError(t, err)
	at, err := time.ParseInLocation(time.DateTime, shown, zone)
	require.NoError(t, err)
	return at
}

// RetryAfter and ResetAfter end at the border's instant, through both changes of the clock: the same
// request is denied one nanosecond before, and granted then.
func TestCalendarWindowEndsAtItsBorder(t *testing.T) {
	for name, tt := range map[string]struct {
		alg  ratelimit.CalendarWindow
		at   string
		ends string
		in   time.Duration
	}{
		"the clock goes forward": {ratelimit.CalendarWindow{Every: ratelimit.Day}, "2026-03-29 00:30:00", "2026-03-30 00:00:00", 22*time.Hour + 30*time.Minute},
		"the clock goes back":    {ratelimit.CalendarWindow{Every: ratelimit.Day}, "2026-10-25 00:30:00", "2026-10-26 00:00:00", 24*time.Hour + 30*time.Minute},
		"a month with a change":  {ratelimit.CalendarWindow{Every: ratelimit.Month}, "2026-03-01 00:00:00", "2026-04-01 00:00:00", 31*24*time.Hour - time.Hour},
		"a billing day": {
			ratelimit.CalendarWindow{Every: ratelimit.Month, Start: 31},
			"2026-02-28 00:00:00",
			"2026-03-31 00:00:00",
			31*24*time.Hour - time.Hour,
		},
		"an hour": {ratelimit.CalendarWindow{Every: ratelimit.Day, Hour: 4}, "2026-03-29 03:59:59",
			"2026-03-29 04:00:00", time.Second},
		"a year": {
			ratelimit.CalendarWindow{Every: ratelimit.Year, Start: 406},
			"2026-04-06 00:00:00",
			"2027-04-06 00:00:00",
			365 * 24 * time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.alg.Limit, tt.alg.Zone = 3, "Europe/London"
			l, clk := fakes.At(t, tt.alg)
			clk.Set(london(t, tt.at))
			require.True(t, l.AllowN("key", 3))
			d := fakes.Take(t, l, 1)
			assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: tt.in, ResetAfter: tt.in}, d)
			clk.Advance(d.RetryAfter - 1)
			assert.False(t, l.Allow("key"))
			clk.Advance(1)
			assert.Equal(t, london(t, tt.ends).Unix(), clk.Now().Unix())
			assert.True(t, l.AllowN("key", 3))
		})
	}
}

// A clock that is set forward reaches the next window. One that is set back stands still, so that
// no border is passed twice.
func TestClockSetAcrossABorder(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Month, Zone: "Europe/London"})
	clk.Set(london(t, "2026-03-31 23:59:59"))
	require.True(t, l.AllowN("key", 3))
	clk.Set(london(t, "2026-04-10 12:00:00"))
	require.True(t, l.AllowN("key", 2), "it is another month")
	clk.Set(london(t, "2026-03-31 23:59:59"))
	d := fakes.Peek(t, l)
	assert.Equal(t, 1, d.Remaining, "of April")
	assert.Equal(t, london(t, "2026-05-01 00:00:00").Sub(clk.Now()), d.ResetAfter)
	require.True(t, l.Allow("key"))
	clk.Set(london(t, "2026-04-02 00:00:00"))
	assert.False(t, l.Allow("key"), "April does not begin once more")
	clk.Set(london(t, "2026-05-01 00:00:00"))
	assert.True(t, l.AllowN("key", 3))
}

// The limit that a key had before is known again for as long as its window lasts, even if another
// limit was asked meanwhile.
func TestFormerCalendarIsRemembered(t *testing.T) {
	billing := ratelimit.CalendarWindow{Limit: 100, Every: ratelimit.Month, Start: 15} // one began before 1970, and ended two weeks after
	daily := ratelimit.CalendarWindow{Limit: 1000, Every: ratelimit.Day}
	l, own, _, clk := fakes.Varying(t, billing)
	clk.Set(time.Date(2026, 3, 15, 0, 0, 0, 0, time.UTC))
	require.True(t, l.AllowN("key", 10))
	own.Set("key", daily)
	for range 25 {
		clk.Advance(24 * time.Hour)
		require.True(t, l.Allow("key"))
	}
	own.Set("key", billing)
	d, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	assert.Equal(t, 100-10-25, d.Remaining)
}

// Limits differ in their zone, their unit and their beginning, and not in names for the same.
func TestCalendarsOfOneName(t *testing.T) {
	for _, tt := range []struct {
		a, b ratelimit.CalendarWindow
		same bool
	}{
		{ratelimit.CalendarWindow{Every: ratelimit.Month}, ratelimit.CalendarWindow{Every: ratelimit.Month, Zone: "UTC", Start: 1}, true},
		{ratelimit.CalendarWindow{Every: ratelimit.Year}, ratelimit.CalendarWindow{Every: ratelimit.Year, Start: 101}, true},
		{ratelimit.CalendarWindow{Every: ratelimit.Month}, ratelimit.CalendarWindow{Every: ratelimit.Month, Zone: "Europe/London"}, false},
		{ratelimit.CalendarWindow{Every: ratelimit.Month}, ratelimit.CalendarWindow{Every: ratelimit.Month, Start: 2}, false},
		{ratelimit.CalendarWindow{Every: ratelimit.Month}, ratelimit.CalendarWindow{Every: ratelimit.Month, Hour: 1}, false},
		{ratelimit.CalendarWindow{Every: ratelimit.Month}, ratelimit.CalendarWindow{Every: ratelimit.Quarter}, false},
	} {
		tt.a.Limit, tt.b.Limit = 5, 5
		s := new(ratelimit.MemoryStore)
		_, err := ratelimit.New(tt.a, ratelimit.WithStore(s), ratelimit.WithName("test"))
		require.NoError(t, err)
		_, err = ratelimit.New(tt.b, ratelimit.WithStore(s), ratelimit.WithName("test"))
		if tt.same {
			assert.NoError(t, err, "%v and %v", tt.a, tt.b)
		} else {
			assert.ErrorIs(t, err, ratelimit.ErrInvalid, "%v and %v", tt.a, tt.b)
		}
	}
}

// New says which field is wrong, and what to do about a zone that it does not know.
func TestInvalidCalendars(t *testing.T) {
	for want, alg := range map[string]ratelimit.CalendarWindow{
		"CalendarWindow.Limit is 0: it must be at least 1":                                 {Every: ratelimit.Day},
		"CalendarWindow.Every is 0: it must be Day, Week, Month, Quarter or Year":          {Limit: 1},
		"CalendarWindow.Every is -1":                                                       {Limit: 1, Every: -1},
		"CalendarWindow.Start is 1: it must be 0 for a day, which begins at Hour":          {Limit: 1, Every: ratelimit.Day, Start: 1},
		"CalendarWindow.Start is 8: it must be a day of the week":                          {Limit: 1, Every: ratelimit.Week, Start: 8},
		"CalendarWindow.Start is 32: it must be a day of the month":                        {Limit: 1, Every: ratelimit.Month, Start: 32},
		"CalendarWindow.Start is -1: it must be a day of the month":                        {Limit: 1, Every: ratelimit.Month, Start: -1},
		"CalendarWindow.Start is 230: it must be a day of the year as month·100 + day":     {Limit: 1, Every: ratelimit.Year, Start: 230},
		"CalendarWindow.Start is 1301: it must be a day of the quarter as month·100 + day": {Limit: 1, Every: ratelimit.Quarter, Start: 1301},
		"CalendarWindow.Start is 100: it must be a day of the quarter as month·100 + day":  {Limit: 1, Every: ratelimit.Quarter, Start: 100},
		"CalendarWindow.Hour is 24: it must be from 0 to 23":                               {Limit: 1, Every: ratelimit.Day, Hour: 24},
		"CalendarWindow.Hour is -1":                                                        {Limit: 1, Every: ratelimit.Day, Hour: -1},
		`CalendarWindow.Zone is "Europe/Lodnon": it must be the name of a time zone ` +
			`that this program has data of, such as Europe/London, or empty for UTC: unknown time zone Europe/Lodnon; ` +
			`to have the data of all zones in the program, import time/tzdata`: {Limit: 1, Every: ratelimit.Day, Zone: "Europe/Lodnon"},
	} {
		_, err := ratelimit.New(alg)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
}

// New does not advise to import zone data for the zone of the machine, which no data make valid.
func TestZoneOfTheMachineIsInvalid(t *testing.T) {
	for _, zone := range []string{"Local", "localtime", "./localtime"} {
		_, err := ratelimit.New(ratelimit.CalendarWindow{Limit: 1, Every: ratelimit.Day, Zone: zone})
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.EqualError(t, err, "ratelimit: CalendarWindow.Zone is "+strconv.Quote(zone)+": it must be the name of a time zone "+
			"that this program has data of, such as Europe/London, or empty for UTC: "+
			"it is the zone of one machine, and others may have another")
	}
}
