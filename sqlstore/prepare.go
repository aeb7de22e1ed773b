package sqlstore

import (
	"context"
	"database/sql"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// prepare checks the database, unless that has been done, and returns an error if it cannot keep
// states. If there is no table, prepare may create it.
func (t *table) prepare(ctx context.Context) error {
	if t.isPrepared.Load() {
		return nil
	}
	select {
	case t.preparing <- struct{}{}:
		defer func() { <-t.preparing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if t.isPrepared.Load() {
		return nil
	}
	for _, check := range []func(context.Context) error{
		t.checkConnections, t.checkColumns, t.checkClock,
	} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	t.isPrepared.Store(true)
	return nil
}

// checkColumns compares the table with what it must be.
func (t *table) checkColumns(ctx context.Context) error {
	have, err := t.readColumns(ctx)
	if err == nil && len(have) == 0 && t.config.creates {
		_, failure := t.db.ExecContext(ctx, t.sql.create)
		// If several processes create the table at once, PostgreSQL tells some of them that it is
		// there.
		have, err = t.readColumns(ctx)
		if len(have) == 0 && failure != nil {
			return t.failed("creating", failure)
		}
	}
	switch {
	case err != nil:
		return t.failed("examining", err)
	case len(have) == 0:
		return unsuitable("there is no table %s: create it with\n%s", t.config.table, t.sql.create)
	case !sameInAnyOrder(have, t.dialect.want):
		return unsuitable("the table %s is (%s): it must be (%s), as this statement makes it:\n%s",
			t.config.table, strings.Join(have, ", "), strings.Join(t.dialect.want, ", "), t.sql.create)
	}
	return nil
}

// sameInAnyOrder reports whether a and b have the same elements.
func sameInAnyOrder(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// readColumns returns the columns of the table, and none if there is no table.
func (t *table) readColumns(ctx context.Context) (columns []string, err error) {
	schema, name, hasSchema := strings.Cut(t.config.table, ".")
	if !hasSchema {
		schema, name = "", schema
	}
	args := []any{schema, name, schema, name}[:strings.Count(t.dialect.columns, "?")]
	if len(args) == 0 { // they are numbered
		args = []any{schema, name}
	}
	rows, err := t.db.QueryContext(ctx, t.dialect.columns, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var column string
		if err := rows.Scan(&column); err != nil {
			return nil, err
		}
		columns = append(columns, column)
	}
	return columns, rows.Err()
}

// mostSkew is the greatest difference of two clocks that counts as none. It is well below the grace
// that rows have.
const mostSkew = 5 * time.Second

// checkClock compares this process's clock with that of the server.
func (t *table) checkClock(ctx context.Context) error {
	if t.dialect.now == "" || t.config.isTest {
		return nil
	}
	before := time.Now()
	var seconds float64
	if err := t.db.QueryRowContext(ctx, t.dialect.now).Scan(&seconds); err != nil {
		return t.failed("asking for the time, for", err)
	}
	whole, part := math.Modf(seconds)
	now := time.Unix(int64(whole), int64(part*1e9))
	// MySQL's time is in whole seconds, and the query took some time.
	behind, ahead := before.Sub(now)-time.Second, time.Until(now)
	if skew := max(behind, ahead); skew > mostSkew {
		return unsuitable("the clocks of this process and of the server differ by %v: they may differ by "+
			"%v; synchronize them", skew.Round(time.Second/10), mostSkew)
	}
	return nil
}

// checkConnections checks the settings that each connection to SQLite needs. Two connections show
// whether all have them, or only the one on which somebody has set them.
func (t *table) checkConnections(ctx context.Context) error {
	if t.dialect != dialects[SQLite] {
		return nil
	}
	for range 2 {
		conn, err := t.connect(ctx)
		if err != nil {
			return t.failed("examining the database of", err)
		}
		defer conn.Close() // after both, so that they are two
		if err := t.checkPragmas(ctx, conn); err != nil {
			return err
		}
		if t.db.Stats().MaxOpenConnections == 1 {
			break
		}
	}
	return nil
}

// connect opens a connection to SQLite. Of the processes that open a new file at once, the first
// one makes its journal a WAL, for which SQLite lets the others fail, and not wait.
func (t *table) connect(ctx context.Context) (*sql.Conn, error) {
	const most = 100
	for try := 1; ; try++ {
		conn, err := t.db.Conn(ctx)
		if err == nil || try == most || !strings.Contains(err.Error(), "locked") {
			return conn, err
		}
		select {
		case <-time.After(rand.N(50 * time.Millisecond)):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// checkPragmas checks the settings of a connection to SQLite.
func (t *table) checkPragmas(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return t.failed("examining the database of", err)
	}
	if mode != "wal" {
		return unsuitable("journal_mode is %s: it must be wal, so that readers and the writer do not "+
			"wait for each other; set it in the data source name", mode)
	}
	var timeout int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&timeout); err != nil {
		return t.failed("examining the database of", err)
	}
	if timeout == 0 {
		return unsuitable("busy_timeout is 0 on a connection: it must be some seconds on each, so that " +
			"writers wait for each other; set it in the data source name")
	}
	return nil
}
