package sqlstore

import (
	"context"
	"database/sql"

	"github.com/ratelimit-go/ratelimit"
)

// A Store keeps states in a table. It implements [ratelimit.Store]. It is safe for concurrent use,
// and any number of limiters may share it. [ratelimit.NewStore] says how processes that share a
// table decide on one key, and what Close does.
type Store struct {
	ratelimit.DatabaseStore
	table *table
}

var _ ratelimit.Store = (*Store)(nil)

// New returns a store in a database. If the table is missing, New creates it, and it checks the
// table and the settings of the database. Several processes may call New at once. With
// [WithoutCreate], New does not call the database, and the first call of the store checks.
//
// If an argument is invalid, the error matches [ratelimit.ErrInvalid]. If the table or a setting of
// the database is not as it must be, it matches [ErrUnsuitable]. Other errors are those of the
// database. The store does not close db.
func New(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) (*Store, error) {
	c, err := newConfig(opts)
	switch {
	case err != nil:
		return nil, err
	case ctx == nil:
		return nil, errNoContext
	case db == nil:
		return nil, invalid("db is nil: it must be a database, such as sql.Open returns")
	case dialects[d] == nil:
		return nil, invalid("the Dialect is %d: it must be PostgreSQL, MySQL or SQLite", d)
	}
	t := newTable(db, dialects[d], c)
	if c.creates {
		if err := t.prepare(ctx); err != nil {
			return nil, err
		}
	}
	return &Store{*ratelimit.NewStore(t), t}, nil
}

// String returns the name of the database, such as "PostgreSQL".
func (s *Store) String() string {
	if s.table == nil {
		return "no database"
	}
	return s.table.dialect.name
}

// Database returns the table as a [ratelimit.Database], to wrap it, or to test it with package
// storetest. A store that [ratelimit.NewStore] makes of it decides as s does.
func (s *Store) Database() ratelimit.Database { return s.table }

// Clean deletes all rows that expired a minute ago or earlier, and returns how many. It deletes
// them in steps of some thousands of rows, and so delays no other call for long. If ctx ends first,
// or the database fails, Clean returns how many it has deleted, and the error. The store also
// deletes such rows by itself, little by little. So Clean is for a table that is to shrink at once.
func (s *Store) Clean(ctx context.Context) (deleted int64, err error) {
	switch {
	case ctx == nil:
		return 0, errNoContext
	case s.table == nil:
		return 0, invalid("the Store is zero: it must be one that New returns")
	}
	return s.table.cleanAll(ctx)
}
