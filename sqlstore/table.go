package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A table is a [ratelimit.Database] in a table of SQL. Each of its methods is one statement, which
// is a transaction of its own: what is lost is lost whole.
type table struct {
	db      *sql.DB
	config  *config
	dialect *dialect
	sql     statements

	preparing  chan struct{} // has an element while a goroutine prepares
	writing    chan struct{} // has an element while a goroutine writes, with a oneWriter
	isPrepared atomic.Bool
	sweep      sweep
}

func newTable(db *sql.DB, d *dialect, c *config) *table {
	t := &table{
		db: db, config: c, dialect: d, sql: d.statementsFor(c.table),
		preparing: make(chan struct{}, 1), writing: make(chan struct{}, 1),
	}
	t.sweep.init()
	return t
}

// Get implements [ratelimit.Database].
func (t *table) Get(ctx context.Context, key string) (state []byte, err error) {
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	err = untilWon(func() error {
		return t.db.QueryRowContext(ctx, t.sql.get, t.dialect.id(key)).Scan(&state)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return state, t.failed("reading", err)
}

// CompareAndSwap implements [ratelimit.Database].
func (t *table) CompareAndSwap(
	ctx context.Context,
	key string,
	old, state []byte,
	expires time.Time,
) (swapped bool, err error) {
	if err := t.prepare(ctx); err != nil {
		return false, err
	}
	id, at := t.dialect.id(key), inSeconds(expires)
	if old == nil {
		swapped, err = t.changes(ctx, t.sql.insert, id, state, at)
	} else {
		swapped, err = t.changes(ctx, t.sql.update, state, at, id, old)
	}
	switch {
	case isLostRace(err):
		return false, nil
	case err != nil:
		return false, t.failed("writing", err)
	case !swapped && bytes.Equal(old, state):
		// MySQL counts no row that an UPDATE leaves as it was.
		now, err := t.Get(ctx, key)
		return err == nil && bytes.Equal(now, old), err
	case swapped:
		t.sweepSometimes(ctx, key)
	}
	return swapped, nil
}

// changes executes a statement, and reports whether it has changed a row.
func (t *table) changes(ctx context.Context, statement string, args ...any) (bool, error) {
	n, err := t.write(ctx, statement, args...)
	return n > 0, err
}

// write executes a statement, and returns how many rows it has changed.
func (t *table) write(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	if t.dialect.oneWriter {
		select {
		case t.writing <- struct{}{}:
			defer func() { <-t.writing }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	result, err := t.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Delete implements [ratelimit.Database].
func (t *table) Delete(ctx context.Context, key string) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	return t.failed("deleting", untilWon(func() error {
		_, err := t.write(ctx, t.sql.delete, t.dialect.id(key))
		return err
	}))
}

// inSeconds returns the value of the column expires: a time, rounded up to seconds, or nil for the
// zero Time.
func inSeconds(expires time.Time) any {
	if expires.IsZero() {
		return nil
	}
	return expires.Add(time.Second - 1).Unix()
}

// untilWon calls f until it does not fail because of another session. f fails when its context has
// ended.
func untilWon(f func() error) error {
	for {
		if err := f(); !isLostRace(err) {
			return err
		}
	}
}

// isLostRace reports whether a statement has failed, and has changed nothing, because another
// session was faster: a conflict of transactions, which PostgreSQL reports from the isolation level
// REPEATABLE READ on, or a deadlock.
func isLostRace(err error) bool {
	if err == nil {
		return false
	}
	var coded interface{ SQLState() string } // as errors of pgx and lib/pq are
	if errors.As(err, &coded) {
		return coded.SQLState() == "40001" || coded.SQLState() == "40P01"
	}
	return strings.Contains(err.Error(), "(40001)") // as in those of go-sql-driver/mysql
}

// failed returns the error of a database, with what it was asked for, or nil.
func (t *table) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqlstore: %s %s: %w", doing, t.config.table, err)
}
