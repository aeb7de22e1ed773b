package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			"THROTTLE_ID": "007", "NORMALIZED_CALL": "/x", "MAX_LOCKS": int64(10), "LOCK_TIMEOUT_SECONDS": int64(60),
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
		{"MAX_LOCKS", []byte("010"), func(*Rule) {}},
		{"MAX_LOCKS", 10.0, func(*Rule) {}},
		{"LOCK_TIMEOUT_SECONDS", 0.5, func(r *Rule) { r.Window = time.Second / 2 }},
		{"LOCK_TIMEOUT_SECONDS", []byte("0.5"), func(r *Rule) { r.Window = time.Second / 2 }},
		{"THROTTLE_EXPIRATION", int64(1893456000), func(r *Rule) { r.Expires = time.Unix(1893456000, 0) }},
		{"THROTTLE_EXPIRATION", "2030-01-01 00:00:00", func(r *Rule) { r.Expires = time.Unix(1893456000, 0).UTC() }},
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
		{"THROTTLE_ID", nil, `rule "": THROTTLE_ID is <nil>: it must be present`},
		{"NORMALIZED_CALL", "x", `rule "007": NORMALIZED_CALL is "x": it must be a path such as "/user/#"`},
		{"MAX_LOCKS", nil, `rule "007": MAX_LOCKS is <nil>: it must be present`},
		{"MAX_LOCKS", 1.9, `rule "007": MAX_LOCKS is "1.9": it must be a whole number`},
		{"LOCK_TIMEOUT_SECONDS", int64(0), `rule "007": LOCK_TIMEOUT_SECONDS is 0: it must be more than 0`},
		{"THROTTLE_EXPIRATION", int64(-1), `rule "007": THROTTLE_EXPIRATION is -1: it must be in Unix seconds`},
		{"ALGORITHM", "magic", `rule "007": ALGORITHM is "magic": it must be one of`},
		{"BURST", "2.5", `rule "007": BURST is "2.5": it must be a whole number`},
		{"SHADOW", "maybe", `rule "007": SHADOW is "maybe": it must be true or false`},
		{"ENABLED", int64(2), `rule "007": ENABLED is 2: it must be true or false`},
	} {
		_, err := inTable.rule(rowOf(t, columns(tt.column, tt.value)))
		assert.ErrorContains(t, err, tt.want)
	}
}
