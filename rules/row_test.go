package rules

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// rowOf returns a row with the values that a database driver has for its columns.
func rowOf(t *testing.T, columns map[string]any) *row {
	t.Helper()
	r := new(row)
	cells := inTable.cellsOf(r)
	for name, value := range columns {
		require.Contains(t, cells, name)
		require.NoError(t, cells[name].Scan(value))
	}
	return r
}

// TestRowsOfTables checks the values that tables have, and that an error names the rule, the column,
// the value and what to write.
func TestRowsOfTables(t *testing.T) {
	columns := func(name string, value any) map[string]any {
		all := map[string]any{
			"THROTTLE_ID": "007", "NORMALIZED_CALL": "/x", "MAX_CALLS": int64(10), "WINDOW_SECONDS": int64(60),
			"THROTTLE_EXPIRATION": nil,
		}
		all[name] = value
		return all
	}
	for _, tt := range []struct {
		column string
		value  any
		change func(*Rule)
	}{
		{"THROTTLE_ID", int64(7), func(r *Rule) { r.ID = "7" }},
		{"THROTTLE_ID", []byte("a      "), func(r *Rule) { r.ID = "a" }},
		{"MAX_CALLS", []byte("010"), func(*Rule) {}},
		{"MAX_CALLS", 10.0, func(*Rule) {}},
		{"WINDOW_SECONDS", 0.5, func(r *Rule) { r.Window = time.Second / 2 }},
		{"WINDOW_SECONDS", []byte("0.5"), func(r *Rule) { r.Window = time.Second / 2 }},
		{"THROTTLE_EXPIRATION", int64(1893456000), func(r *Rule) { r.Expires = time.Unix(1893456000, 0) }},
		{"THROTTLE_EXPIRATION", "2030-01-01 00:00:00", func(r *Rule) { r.Expires = time.Unix(1893456000, 0).UTC() }},
		{"EVERY", nil, func(*Rule) {}},
		{"EVERY", "", func(*Rule) {}},
		{"ZONE", []byte("   "), func(*Rule) {}},
		{"FIRST_LOCKOUT_SECONDS", nil, func(*Rule) {}},
		{"FIRST_LOCKOUT_SECONDS", int64(0), func(*Rule) {}},
		{"LONGEST_LOCKOUT_SECONDS", []byte("0"), func(*Rule) {}},
		{"METHOD", "GET  ", func(r *Rule) { r.Call = "GET /x" }},
		{"METHOD", "", func(*Rule) {}},
		{"SHADOW", "Y", func(r *Rule) { r.Shadow = true }},
		{"SHADOW", nil, func(*Rule) {}},
		{"ENABLED", "N", func(r *Rule) { r.Disabled = true }},
		{"ENABLED", []byte("Y"), func(*Rule) {}},
		{"ENABLED", nil, func(*Rule) {}},
	} {
		want := Rule{ID: "007", Call: "/x", Limit: 10, Window: time.Minute}
		tt.change(&want)
		got, err := inTable.rule(rowOf(t, columns(tt.column, tt.value)))
		require.NoError(t, err, "%s: %v", tt.column, tt.value)
		assert.Equal(t, want, got, "%s: %v", tt.column, tt.value)
	}
	for _, tt := range []struct {
		column string
		value  any
		want   string
	}{
		{"THROTTLE_ID", nil, `rules: THROTTLE_ID is <nil>: it must be present`},
		{"NORMALIZED_CALL", "x", `rule "007": NORMALIZED_CALL is "x": it must be a path such as "/user/#"`},
		{"MAX_CALLS", nil, `rule "007": MAX_CALLS is <nil>: it must be present`},
		{"MAX_CALLS", 1.9, `rule "007": MAX_CALLS is "1.9": it must be a whole number`},
		{"WINDOW_SECONDS", int64(0), `rule "007": WINDOW_SECONDS is 0: it must be more than 0`},
		{"THROTTLE_EXPIRATION", int64(-1), `rule "007": THROTTLE_EXPIRATION is -1: it must be in Unix seconds`},
		{"ALGORITHM", "magic", `rule "007": ALGORITHM is "magic": it must be one of`},
		{"EVERY", "month", `rule "007": WINDOW_SECONDS is 60: it must be left out, for a calendar-window`},
		{"EVERY", "fortnight", `rule "007": EVERY is "fortnight": it must be day, week, month, quarter or year`},
		{"ALGORITHM", "calendar-window", `rule "007": EVERY is 0: it must be day, week, month, quarter or year, for a calendar-window`},
		{"ZONE", "Europe/London", `rule "007": ZONE is "Europe/London": it must be left out, except for a calendar-window`},
		{"START", int64(31), `rule "007": START is 31: it must be left out, except for a calendar-window`},
		{"HOUR", int64(4), `rule "007": HOUR is 4: it must be left out, except for a calendar-window`},
		{"HOUR", "04:00", `rule "007": HOUR is "04:00": it must be a whole number`},
		{"ALGORITHM", "lockout", `rule "007": FIRST_LOCKOUT_SECONDS is "0s": it must be longer than 0, for a lockout`},
		{"FIRST_LOCKOUT_SECONDS", int64(60), `rule "007": FIRST_LOCKOUT_SECONDS is "1m0s": it must be left out, unless the algorithm is lockout`},
		{"LONGEST_LOCKOUT_SECONDS", int64(60), `rule "007": LONGEST_LOCKOUT_SECONDS is "1m0s": it must be left out, unless the algorithm is lockout`},
		{
			"FIRST_LOCKOUT_SECONDS", "1m",
			`rule "007": FIRST_LOCKOUT_SECONDS is "1m": it must be more than 0 and at most 9223372036 seconds, in whole nanoseconds; or left out`,
		},
		{"LONGEST_LOCKOUT_SECONDS", int64(-1), `rule "007": LONGEST_LOCKOUT_SECONDS is -1: it must be more than 0`},
		{"BURST", "2.5", `rule "007": BURST is "2.5": it must be a whole number`},
		{"SHADOW", "maybe", `rule "007": SHADOW is "maybe": it must be true or false`},
		{"ENABLED", int64(2), `rule "007": ENABLED is 2: it must be true or false`},
	} {
		_, err := inTable.rule(rowOf(t, columns(tt.column, tt.value)))
		assert.ErrorContains(t, err, tt.want)
	}
}

// TestCalendarsOfTables checks rows with an EVERY, which have no WINDOW_SECONDS.
func TestCalendarsOfTables(t *testing.T) {
	row := func(more map[string]any) *row {
		columns := map[string]any{
			"THROTTLE_ID": "007", "NORMALIZED_CALL": "/x", "MAX_CALLS": int64(10), "WINDOW_SECONDS": nil,
		}
		maps.Copy(columns, more)
		return rowOf(t, columns)
	}
	for _, tt := range []struct {
		columns map[string]any
		want    Rule
	}{
		{map[string]any{"EVERY": "day"}, Rule{Every: ratelimit.Day}},
		{map[string]any{"EVERY": []byte("WEEK   "), "START": int64(7)}, Rule{Every: ratelimit.Week, Start: 7}},
		{map[string]any{"EVERY": "Month", "ZONE": "Europe/London  "}, Rule{Every: ratelimit.Month, Zone: "Europe/London"}},
		{map[string]any{"EVERY": "quarter", "ZONE": nil, "START": nil, "HOUR": nil}, Rule{Every: ratelimit.Quarter}},
		{map[string]any{"EVERY": "year", "START": "0406", "HOUR": 4.0}, Rule{Every: ratelimit.Year, Start: 406, Hour: 4}},
		{map[string]any{"EVERY": "day", "ALGORITHM": "calendar-window"}, Rule{Every: ratelimit.Day, Algorithm: "calendar-window"}},
	} {
		tt.want.ID, tt.want.Call, tt.want.Limit = "007", "/x", 10
		got, err := inTable.rule(row(tt.columns))
		require.NoError(t, err, "%v", tt.columns)
		assert.Equal(t, tt.want, got, "%v", tt.columns)
	}
	for _, tt := range []struct {
		columns map[string]any
		want    string
	}{
		{map[string]any{"EVERY": "day", "MAX_CALLS": nil}, `rule "007": MAX_CALLS is <nil>: it must be present`},
		{map[string]any{"EVERY": "day", "BURST": int64(5)}, `rule "007": BURST is 5: it must be 0, except for a token-bucket or a leaky-bucket`},
		{map[string]any{"EVERY": "day", "WINDOW_SECONDS": int64(0)}, `rule "007": WINDOW_SECONDS is 0: it must be left out, for a calendar-window`},
		{map[string]any{"EVERY": "month", "ALGORITHM": "calendar"}, `rule "007": ALGORITHM is "calendar": it must be one of ["sliding-log"`},
		{map[string]any{"EVERY": "month", "ALGORITHM": "unlimited"}, `rule "007": EVERY is "month": it must be left out, except for a calendar-window`},
		{
			map[string]any{"EVERY": "month", "ALGORITHM": "fixed-window", "WINDOW_SECONDS": int64(1)},
			`rule "007": EVERY is "month": it must be left out, except for a calendar-window`,
		},
		{map[string]any{"EVERY": "month", "ALGORITHM": "fixed-window"}, `rule "007": EVERY is "month": it must be left out, except for a calendar-window`},
		{
			map[string]any{"EVERY": "month", "ZONE": "Europe/Lodnon"},
			`rule "007": ratelimit: CalendarWindow.Zone is "Europe/Lodnon": it must be the name of a time zone`,
		},
		{map[string]any{"EVERY": "month", "START": int64(32)}, `rule "007": ratelimit: CalendarWindow.Start is 32: it must be a day of the month`},
		{map[string]any{"EVERY": "month", "HOUR": int64(24)}, `rule "007": ratelimit: CalendarWindow.Hour is 24: it must be`},
	} {
		_, err := inTable.rule(row(tt.columns))
		assert.ErrorContains(t, err, tt.want, "%v", tt.columns)
	}
}

// TestLockoutsOfTables checks rows whose algorithm is a lockout.
func TestLockoutsOfTables(t *testing.T) {
	row := func(more map[string]any) *row {
		columns := map[string]any{
			"THROTTLE_ID": "007", "NORMALIZED_CALL": "/x", "MAX_CALLS": int64(11), "WINDOW_SECONDS": int64(1),
			"ALGORITHM": "lockout", "FIRST_LOCKOUT_SECONDS": int64(60),
		}
		maps.Copy(columns, more)
		return rowOf(t, columns)
	}
	for _, tt := range []struct {
		columns        map[string]any
		first, longest time.Duration
	}{
		{nil, time.Minute, 0},
		{map[string]any{"LONGEST_LOCKOUT_SECONDS": nil}, time.Minute, 0},
		{map[string]any{"LONGEST_LOCKOUT_SECONDS": int64(0)}, time.Minute, 0},
		{map[string]any{"LONGEST_LOCKOUT_SECONDS": int64(60)}, time.Minute, time.Minute},
		{map[string]any{"LONGEST_LOCKOUT_SECONDS": []byte("3600")}, time.Minute, time.Hour},
		{map[string]any{"FIRST_LOCKOUT_SECONDS": "0.5"}, time.Second / 2, 0},
	} {
		got, err := inTable.rule(row(tt.columns))
		require.NoError(t, err, "%v", tt.columns)
		assert.Equal(t, Rule{
			ID: "007", Call: "/x", Limit: 11, Window: time.Second,
			Algorithm: "lockout", FirstLockout: tt.first, LongestLockout: tt.longest,
		}, got, "%v", tt.columns)
		alg, err := got.algorithm()
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Lockout{Limit: 11, Window: time.Second, First: tt.first, Longest: tt.longest}, alg)
	}
	for _, tt := range []struct {
		columns map[string]any
		want    string
	}{
		{map[string]any{"FIRST_LOCKOUT_SECONDS": nil}, `rule "007": FIRST_LOCKOUT_SECONDS is "0s": it must be longer than 0, for a lockout`},
		{
			map[string]any{"LONGEST_LOCKOUT_SECONDS": int64(59)},
			`rule "007": LONGEST_LOCKOUT_SECONDS is "59s": it must be at least as long as the first lockout, 1m0s, or left out`,
		},
		{map[string]any{"WINDOW_SECONDS": nil}, `rule "007": WINDOW_SECONDS is <nil>: it must be present`},
		{map[string]any{"EVERY": "month"}, `rule "007": EVERY is "month": it must be left out, except for a calendar-window`},
		{map[string]any{"BURST": int64(5)}, `rule "007": BURST is 5: it must be 0, except for a token-bucket or a leaky-bucket`},
		{map[string]any{"ALGORITHM": "lock-out"}, `rule "007": ALGORITHM is "lock-out": it must be one of ["sliding-log"`},
		{map[string]any{"ALGORITHM": "blocked"}, `rule "007": FIRST_LOCKOUT_SECONDS is "1m0s": it must be left out, unless the algorithm is lockout`},
		{map[string]any{"ALGORITHM": nil}, `rule "007": FIRST_LOCKOUT_SECONDS is "1m0s": it must be left out, unless the algorithm is lockout`},
	} {
		_, err := inTable.rule(row(tt.columns))
		assert.ErrorContains(t, err, tt.want, "%v", tt.columns)
	}
}
