package rules

import (
	"context"
	"database/sql"
	_ "embed" // for Schema
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// Schema has the SQL statements that create the tables for [SQL] and [SQLLimits] in
// PostgreSQL, MySQL, MariaDB or SQLite.
//
//go:embed schema.sql
var Schema string

// SQL returns a source that reads the table THROTTLED_CALLS. The table must have
// the columns
//
//	THROTTLE_ID              primary key: Rule.ID
//	NORMALIZED_CALL          varchar unique: Rule.Call
//	MAX_CALLS                int: Rule.Limit
//	WINDOW_SECONDS           int: Rule.Window
//	THROTTLE_EXPIRATION      bigint null: Rule.Expires, in Unix seconds, or a timestamp
//
// and may have METHOD, ALGORITHM, EVERY, ZONE, START, HOUR, FIRST_LOCKOUT_SECONDS,
// LONGEST_LOCKOUT_SECONDS, BURST, SHADOW and ENABLED, in which null means the default. Other
// columns are ignored. [Schema] has the statements that create the table. A table with the former
// names MAX_LOCKS and LOCK_TIMEOUT_SECONDS, for MAX_CALLS and WINDOW_SECONDS, is read as well.
//
// If the ALGORITHM is unlimited or blocked, MAX_CALLS and WINDOW_SECONDS may be null. In a
// row with an EVERY, such as month, WINDOW_SECONDS must be null. In any other row, a null or
// 0 in one of the two is invalid. If the ALGORITHM is lockout, FIRST_LOCKOUT_SECONDS must be more
// than 0.
//
// A THROTTLE_EXPIRATION that is null, or later than the last [time.Time], means never; any other
// number after the year 9999 is invalid, because it is probably in milliseconds. A timestamp
// without a time zone is in UTC. Columns of seconds may have a fraction, such as 0.5. SHADOW and
// ENABLED may be of a boolean type, a bit, 1 or 0, or text such as Y or N. Spaces at the end of
// text are ignored. Invalid rows are reported as [BadRules]. SQL panics if db is nil.
func SQL(db *sql.DB) Source { return SQLTable(db, "THROTTLED_CALLS") }

// SQLTable is like [SQL] for a table with another name, which may include a schema, such
// as throttling.calls. It also panics if the name is that of no table.
func SQLTable(db *sql.DB, table string) Source {
	requireDB(db)
	if !tableName.MatchString(table) {
		panic(invalid("SQLTable's table is %q: it must be a name such as THROTTLED_CALLS or throttling.calls",
			table))
	}
	return SourceFunc(func(ctx context.Context) ([]Rule, error) {
		rules, err := loadSQL(ctx, db, table)
		var bad BadRules
		if err != nil && !errors.As(err, &bad) && ctx.Err() == nil {
			// Retry once: a column may have been added since the driver prepared the
			// statement, or the pooled connection was broken. The driver knows by now.
			rules, err = loadSQL(ctx, db, table)
		}
		return rules, err
	})
}

// requireDB panics if db is nil.
func requireDB(db *sql.DB) {
	if db == nil {
		panic(invalid("the database is nil: open one with sql.Open"))
	}
}

// inUnix is the name of a column of Unix seconds.
const inUnix = "RATELIMIT_UNIX_SECONDS"

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func loadSQL(ctx context.Context, db *sql.DB, table string) (rules []Rule, err error) {
	// The table cannot be an injection: it matches tableName. MySQL and MariaDB read the comment,
	// because they return a TIMESTAMP in the time zone of the session.
	expires := inTable.nameOf("Expires")
	rows, err := db.QueryContext(
		ctx,
		"SELECT * /*!, UNIX_TIMESTAMP("+expires+") AS "+inUnix+" */ FROM "+table,
	)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	columns := make(map[string]*sql.ColumnType, len(types))
	for _, t := range types {
		columns[strings.ToUpper(t.Name())] = t
	}
	in := inTable
	if columns[in.nameOf("Limit")] == nil && columns[inFormerTable.nameOf("Limit")] != nil {
		in = inFormerTable
	}
	var r row
	var unixSeconds cell
	cells := in.cellsOf(&r)
	cells[inUnix] = &unixSeconds
	to := make([]any, len(types))
	for i, t := range types {
		to[i] = new(cell)
		if c := cells[strings.ToUpper(t.Name())]; c != nil {
			to[i] = c
		}
	}
	for _, field := range []string{"ID", "Call", "Limit", "Window", "Expires"} {
		if name := in.nameOf(field); columns[name] == nil {
			return nil, fmt.Errorf("the table %s has no column %s", table, name)
		}
	}
	inSession := columns[inUnix] != nil && columns[expires].DatabaseTypeName() == "TIMESTAMP"
	var bad BadRules
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		if inSession {
			r.Expires = unixSeconds
		}
		rule, err := in.rule(&r)
		if err != nil {
			bad = append(bad, BadRule{rule.ID, err})
			continue
		}
		rule.Algorithm = rule.algorithmName()
		rules = append(rules, rule)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return rules, bad.orNil()
}

// SQLLimits returns a [Lookup] that queries a database. The query has one parameter, the
// key. It returns a window in seconds and the number of events allowed in it, or no row
// if the limiter's own limit applies:
//
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = $1   -- PostgreSQL, SQLite
//	SELECT time_window_sec, capacity FROM limits WHERE config_key = ?    -- MySQL, MariaDB
//
// limit converts these to an algorithm. If it is nil, the algorithm is a token bucket of
// that many events that refills within the window. A capacity of 0 or null means
// [ratelimit.Blocked], whatever the window is. A negative capacity, or a window that is null
// or not positive, is a [FieldError].
//
// The query may return a third column, the name of an algorithm of [Algorithms]: "unlimited" and
// "blocked" need no window and no capacity, and null leaves the choice to limit. It cannot be
// "calendar-window" or "lockout", which need more columns: use a [LookupFunc] for these.
//
// If the number of db's connections is limited, a [Cache] leaves one of them to other
// uses. SQLLimits panics if db is nil.
func SQLLimits(
	db *sql.DB,
	query string,
	limit func(events int, window time.Duration) ratelimit.Algorithm,
) Lookup {
	requireDB(db)
	if limit == nil {
		limit = bucketOf
	}
	return &sqlLimits{db, query, limit}
}

func bucketOf(events int, window time.Duration) ratelimit.Algorithm {
	return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: events, Per: window}}
}

type sqlLimits struct {
	db    *sql.DB
	query string
	limit func(events int, window time.Duration) ratelimit.Algorithm
}

func (l *sqlLimits) Limit(ctx context.Context, key string) (ratelimit.Algorithm, error) {
	var window, capacity, algorithm cell
	found, err := l.scan(ctx, key, &window, &capacity, &algorithm)
	switch {
	case err != nil:
		return nil, limitError(key, err)
	case !found:
		return nil, nil //nolint:nilnil // means the limiter's own limit, as in WithLimits
	}
	alg, err := l.limitOf(window, capacity, algorithm)
	if err != nil {
		return nil, limitError(key, err)
	}
	return alg, nil
}

// limitError returns err, which says why the limit of key is not known.
func limitError(key string, err error) error {
	return fmt.Errorf("rules: the limit of key %s: %w", keyhint.Of(key), keyhint.In(err, key))
}

// scan sets cells to the columns of the row of a key. The query may leave out the last one.
func (l *sqlLimits) scan(ctx context.Context, key string, cells ...any) (found bool, err error) {
	rows, err := l.db.QueryContext(ctx, l.query, key)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return false, err
	}
	if n := len(columns); n != 2 && n != 3 {
		return false, fmt.Errorf(
			"the query returns %d columns: it must return a window and a capacity, and may return an algorithm",
			n,
		)
	}
	if !rows.Next() {
		return false, rows.Err()
	}
	return true, rows.Scan(cells[:len(columns)]...)
}

// limitOf returns the limit with a window, a capacity and an algorithm, as a database
// has them. If it has no capacity, the key is blocked: an error would let a limiter without a
// [Cache] grant everything, by its FailurePolicy.
func (l *sqlLimits) limitOf(window, capacity, algorithm cell) (ratelimit.Algorithm, error) {
	name, _ := algorithm.text()
	events, wrong := capacity.number() // 0 for null
	switch {
	case planOf(name) != nil:
		return planOf(name), nil
	case wrong != "" || events < 0:
		return nil, &FieldError{
			"",
			"capacity",
			capacity.shown(),
			"a whole number, at least 1, or 0 or null to block the key",
		}
	case events == 0:
		return ratelimit.Blocked{}, nil
	case name == calendarWindow:
		const want = "another one, because the query returns no calendar: use a LookupFunc"
		return nil, &FieldError{"", "algorithm", name, want}
	case name == lockout:
		const want = "another one, because the query returns no length of a lockout: use a LookupFunc"
		return nil, &FieldError{"", "algorithm", name, want}
	}
	per, want := window.seconds()
	if want != "" {
		return nil, &FieldError{"", "time_window_sec", window.shown(), want}
	}
	if name == "" {
		return l.limit(events, per), nil
	}
	return (&Rule{Limit: events, Window: per, Algorithm: name}).algorithm()
}

// most returns how many lookups the connection pool allows at once. ok is false if the
// pool is unbounded.
func (l *sqlLimits) most() (n int, ok bool) {
	n = l.db.Stats().MaxOpenConnections
	return max(1, n-1), n > 0
}
