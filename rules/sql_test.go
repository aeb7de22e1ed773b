package rules

import (
	"database/sql"
	"testing"
)

// TestSQLMistakes checks that a mistake panics when it is made, and not when rules are loaded or a
// limit is looked up.
func TestSQLMistakes(t *testing.T) {
	assertPanics(t, "the database is nil", func() { SQL(nil) })
	assertPanics(t, "the database is nil", func() { SQLTable(nil, "calls") })
	assertPanics(t, "the database is nil", func() { SQLLimits(nil, "SELECT 1, 1", nil) })
	for _, table := range []string{"", "1", "a b", "a.b.c", "calls; DROP TABLE calls"} {
		assertPanics(t, "SQLTable's table is", func() { SQLTable(new(sql.DB), table) })
	}
}
