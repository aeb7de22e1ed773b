package rules

import (
	"context"
	"database/sql"
	_ "embed" // for Schema
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Schema has the statements that create the tables for [SQL] and [SQLLimits], in
// PostgreSQL, MySQL, MariaDB or SQLite.
//
//go:embed schema.sql
var Schema string

// SQL returns a source that reads the table THROTTLED_CALLS. The table must have
// the columns
//
//	THROTTLE_ID              primary key: Rule.ID
//	NORMALIZED_CALL          varchar unique: Rule.Call
//	MAX_LOCKS                int: Rule.Limit
//	LOCK_TIMEOUT_SECONDS     int: Rule.Window
//	THROTTLE_EXPIRATION      bigint null: Rule.Expires, in Unix seconds
//
// and may have METHOD, ALGORITHM, BURST, SHADOW and ENABLED, in which null stands
// for the default. Other columns are not looked at. [Schema] has the statements
// that create it.
func SQL(db *sql.DB) Source { return SQLTable(db, "THROTTLED_CALLS") }

// SQLTable is SQL for a table of another name, which may have a schema before it:
// throttling.calls.
func SQLTable(db *sql.DB, table string) Source {
	return SourceFunc(func(ctx context.Context) ([]Rule, error) {
		if db == nil {
			return nil, errors.New("the database is nil: open one with sql.Open")
		}
		if !tableName.MatchString(table) {
			return nil, fmt.Errorf("the table's name is %q: it must be one such as THROTTLED_CALLS or throttling.calls", table)
		}
		rules, err := loadSQL(ctx, db, table)
		var field *FieldError
		if err != nil && !errors.As(err, &field) && ctx.Err() == nil {
			// A column may have been added since the driver prepared the statement, or
			// the connection was one that is gone; now that it knows, once more.
			rules, err = loadSQL(ctx, db, table)
		}
		return rules, err
	})
}

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func loadSQL(ctx context.Context, db *sql.DB, table string) (rules []Rule, err error) {
	rows, err := db.QueryContext(ctx, "SELECT * FROM "+table) // a name, as it was checked
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(columns))
	to := make([]any, len(columns))
	for i, c := range columns {
		columns[i], to[i] = strings.ToUpper(c), &values[i]
	}
	for _, c := range append([]string{"THROTTLE_EXPIRATION"}, notNull...) {
		if !slices.Contains(columns, c) {
			return nil, fmt.Errorf("the table %s has no column %s", table, c)
		}
	}
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		r := row{values: make(map[string]any)}
		for i, c := range columns {
			r.values[c] = values[i]
		}
		rule, err := r.rule()
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, rows.Err()
}

// notNull are the columns that every rule must have a value in.
var notNull = []string{"THROTTLE_ID", "NORMALIZED_CALL", "MAX_LOCKS", "LOCK_TIMEOUT_SECONDS"}

// A row reads the columns of one rule, and keeps the first error.
type row struct {
	values map[string]any
	id     string
	err    error
}

func (r *row) rule() (Rule, error) {
	r.id = r.text("THROTTLE_ID", "")
	rule := Rule{
		ID:        r.id,
		Call:      r.text("NORMALIZED_CALL", ""),
		Limit:     int(r.number("MAX_LOCKS")),
		Window:    r.window("LOCK_TIMEOUT_SECONDS"),
		Algorithm: r.text("ALGORITHM", "sliding-log"),
		Burst:     int(r.number("BURST")),
		Shadow:    r.truth("SHADOW", false),
		Disabled:  !r.truth("ENABLED", true),
	}
	if method := r.text("METHOD", "*"); method != "" && method != "*" {
		rule.Call = method + " " + rule.Call
	}
	for _, column := range notNull {
		if r.values[column] == nil {
			r.wrong(column, nil, "there")
		}
	}
	if r.values["THROTTLE_EXPIRATION"] != nil {
		rule.Expires = time.Unix(r.number("THROTTLE_EXPIRATION"), 0)
	}
	if r.err == nil {
		r.check(rule)
	}
	return rule, r.err
}

// check finds out what is wrong with a rule, and says it of its column.
func (r *row) check(rule Rule) {
	_, err := rule.algorithm()
	if err == nil {
		_, _, _, err = rule.parse()
	}
	var field *FieldError
	if errors.As(err, &field) {
		if column := columnOf[field.Field]; column != "" {
			field.Field = column
		}
	}
	r.err = err
}

var columnOf = map[string]string{
	"ID":        "THROTTLE_ID",
	"Call":      "NORMALIZED_CALL",
	"Limit":     "MAX_LOCKS",
	"Window":    "LOCK_TIMEOUT_SECONDS",
	"Algorithm": "ALGORITHM",
	"Burst":     "BURST",
}

func (r *row) wrong(column string, value any, want string) {
	if r.err == nil {
		r.err = &FieldError{r.id, column, value, want}
	}
}

func (r *row) text(column, otherwise string) string {
	switch v := r.values[column].(type) {
	case nil:
		return otherwise
	case string:
		return v
	case []byte:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}

// number returns a whole number, that drivers may give as text; 0 for null.
func (r *row) number(column string) int64 {
	if r.values[column] == nil {
		return 0
	}
	text := r.text(column, "")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || int64(int(n)) != n && column != "THROTTLE_EXPIRATION" {
		r.wrong(column, text, "a whole number")
	}
	return n
}

func (r *row) window(column string) time.Duration {
	n := r.number(column)
	d, ok := seconds(n)
	if !ok {
		r.wrong(column, n, "from 1 to 9223372036 seconds")
	}
	return d
}

func (r *row) truth(column string, otherwise bool) bool {
	switch strings.ToLower(r.text(column, strconv.FormatBool(otherwise))) {
	case "true", "t", "1", "y", "yes":
		return true
	case "false", "f", "0", "n", "no":
		return false
	}
	r.wrong(column, r.values[column], "true or false, or 1 or 0")
	return false
}

// SQLLimits returns a [Lookup] that asks a database. The query has one parameter,
// the key, and returns a window in seconds and what a key may do in it, or no row
// for the limiter's own limit:
//
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = $1   -- PostgreSQL, SQLite
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = ?    -- MySQL, MariaDB
//
// limit makes an algorithm of them; nil means a token bucket that fills in the
// window.
func SQLLimits(db *sql.DB, query string, limit func(events int, window time.Duration) ratelimit.Algorithm) Lookup {
	if limit == nil {
		limit = func(events int, window time.Duration) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: events, Per: window}}
		}
	}
	return LookupFunc(func(ctx context.Context, key string) (ratelimit.Algorithm, error) {
		if db == nil {
			return nil, errors.New("rules: the database is nil: open one with sql.Open")
		}
		var window, capacity int64
		err := db.QueryRowContext(ctx, query, key).Scan(&window, &capacity)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, nil //nolint:nilnil // as WithLimits wants it: the limiter's own limit
		}
		if err != nil {
			return nil, fmt.Errorf("rules: the limit of key %q: %w", key, err)
		}
		per, ok := seconds(window)
		if !ok {
			return nil, &FieldError{key, "time_window_sec", window, "from 1 to 9223372036 seconds"}
		}
		if capacity < 1 || int64(int(capacity)) != capacity {
			return nil, &FieldError{key, "capacity", capacity, "at least 1"}
		}
		return limit(int(capacity), per), nil
	})
}
