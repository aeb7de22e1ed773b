package rules

import (
	"context"
	"database/sql"
	_ "embed" // for Schema
	"errors"
	"fmt"
	"regexp"
	"slices"
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
//	THROTTLE_EXPIRATION      bigint null: Rule.Expires, in Unix seconds, or a timestamp
//
// and may have METHOD, ALGORITHM, BURST, SHADOW and ENABLED, in which null stands
// for the default. Other columns are not looked at. [Schema] has the statements
// that create it.
//
// A THROTTLE_EXPIRATION that is null, or later than a [time.Time] can be, means never.
// A timestamp without a time zone is in UTC. Rows that cannot be used are [BadRules].
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
		var bad BadRules
		if err != nil && !errors.As(err, &bad) && ctx.Err() == nil {
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
	for _, c := range append([]string{inTable.expires}, inTable.required()...) {
		if !slices.Contains(columns, c) {
			return nil, fmt.Errorf("the table %s has no column %s", table, c)
		}
	}
	var bad BadRules
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		row := make(map[string]any)
		for i, c := range columns {
			row[c] = values[i]
		}
		if row[inTable.algorithm] == nil {
			row[inTable.algorithm] = "sliding-log"
		}
		rule, err := readRow(&inTable, row)
		if err != nil {
			bad = append(bad, BadRule{rule.ID, err})
			continue
		}
		rules = append(rules, rule)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return rules, bad.orNil()
}

// SQLLimits returns a [Lookup] that asks a database. The query has one parameter,
// the key, and returns a window in seconds and what a key may do in it, or no row
// for the limiter's own limit:
//
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = $1   -- PostgreSQL, SQLite
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = ?    -- MySQL, MariaDB
//
// limit makes an algorithm of them; nil means a token bucket that fills in the
// window. A window or a capacity that is null, or less than 1, is a [FieldError].
//
// If db has a limit on its connections, a [Cache] leaves one of them to others.
func SQLLimits(db *sql.DB, query string, limit func(events int, window time.Duration) ratelimit.Algorithm) Lookup {
	if limit == nil {
		limit = func(events int, window time.Duration) ratelimit.Algorithm {
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: events, Per: window}}
		}
	}
	return &sqlLimits{db, query, limit}
}

type sqlLimits struct {
	db    *sql.DB
	query string
	limit func(events int, window time.Duration) ratelimit.Algorithm
}

func (l *sqlLimits) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	if l.db == nil {
		return nil, errors.New("rules: the database is nil: open one with sql.Open")
	}
	var window, capacity any
	err := l.db.QueryRowContext(ctx, l.query, key).Scan(&window, &capacity)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // as WithLimits wants it: the limiter's own limit
	}
	if err != nil {
		return nil, fmt.Errorf("rules: the limit of key %q: %w", key, err)
	}
	per, ok := seconds(window)
	if !ok {
		return nil, &FieldError{key, "time_window_sec", shown(window), wantSeconds}
	}
	n, ok := whole(capacity)
	if !ok || n < 1 || int64(int(n)) != n {
		return nil, &FieldError{key, "capacity", shown(capacity), "a whole number, at least 1"}
	}
	return l.limit(int(n), per), nil
}

// most returns how many lookups the pool of connections has room for at once, if it is
// bounded.
func (l *sqlLimits) most() (n int, ok bool) {
	if l.db == nil {
		return 0, false
	}
	n = l.db.Stats().MaxOpenConnections
	return max(1, n-1), n > 0
}
