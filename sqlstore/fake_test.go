package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fake is a database whose answers a test chooses. Unless told otherwise, it has the table of its dialect,
// which keeps nothing, and each write changes a row.
type fake struct {
	t *testing.T
	d *dialect

	mu      sync.Mutex // protects the fields below
	asked   []string   // the statements so far
	pages   []string   // the first parameters of those for pages
	answers []answer
	conns   int // so far
	locked  int // how many more connections fail
	writing int // how many statements write now
	most    int // the most of writing
}

// An answer is what the fake answers to the next statement that contains a text.
type answer struct {
	to      string
	rows    [][]driver.Value
	changed int64
	err     error
	after   time.Duration // how long a write takes
}

func newFake(t *testing.T, d Dialect) *fake { return &fake{t: t, d: dialects[d]} }

// open returns a pool of connections to the fake.
func (f *fake) open() *sql.DB {
	db := sql.OpenDB(f)
	f.t.Cleanup(func() { db.Close() })
	return db
}

// will adds an answer. Each is given once, in their order.
func (f *fake) will(answers ...answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = append(f.answers, answers...)
}

// statements returns those since the last call that contain a text.
func (f *fake) statements(text string) (found []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.asked {
		if strings.Contains(s, text) {
			found = append(found, s)
		}
	}
	f.asked = nil
	return found
}

// cursors returns the ids after which pages were asked for.
func (f *fake) cursors() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pages
}

// answer returns the answer to a statement.
func (f *fake) answer(statement string) answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, statement)
	for i, a := range f.answers {
		if strings.Contains(statement, a.to) {
			f.answers = slices.Delete(f.answers, i, i+1)
			return a
		}
	}
	switch statement {
	case f.d.columns:
		return columns(f.d.want...)
	case f.d.now:
		return value(time.Now().Unix())
	case "PRAGMA journal_mode":
		return value("wal")
	case "PRAGMA busy_timeout":
		return value(int64(5000))
	}
	return answer{changed: 1}
}

// value is the answer of one value.
func value(v driver.Value) answer { return answer{rows: [][]driver.Value{{v}}} }

// columns is the answer of a table with these columns.
func columns(columns ...string) (a answer) {
	for _, c := range columns {
		a.rows = append(a.rows, []driver.Value{c})
	}
	return a
}

// on makes an answer one to statements that contain a text.
func (a answer) on(text string) answer {
	a.to = text
	return a
}

func (f *fake) Connect(context.Context) (driver.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locked > 0 {
		f.locked--
		return nil, errors.New("database is locked")
	}
	f.conns++
	return conn{f}, nil
}
func (f *fake) Driver() driver.Driver { return nil }

type conn struct{ *fake }

func (conn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("no statement is prepared") }
func (conn) Begin() (driver.Tx, error)           { return nil, errors.New("no transaction is begun") }
func (conn) Close() error                        { return nil }

func (c conn) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if strings.Contains(statement, "count(*)") {
		c.mu.Lock()
		c.pages = append(c.pages, string(args[0].Value.([]byte)))
		c.mu.Unlock()
	}
	a := c.answer(statement)
	return &rows{a.rows}, a.err
}

func (c conn) ExecContext(ctx context.Context, statement string, _ []driver.NamedValue) (driver.Result, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	a := c.answer(statement)
	c.mu.Lock()
	c.writing++
	c.most = max(c.most, c.writing)
	c.mu.Unlock()
	<-time.After(a.after)
	c.mu.Lock()
	c.writing--
	c.mu.Unlock()
	return driver.RowsAffected(a.changed), a.err
}

type rows struct{ left [][]driver.Value }

func (r *rows) Columns() []string {
	if len(r.left) == 0 {
		return []string{"c"}
	}
	return make([]string, len(r.left[0]))
}
func (r *rows) Close() error { return nil }

func (r *rows) Next(to []driver.Value) error {
	if len(r.left) == 0 {
		return io.EOF
	}
	copy(to, r.left[0])
	r.left = r.left[1:]
	return nil
}
