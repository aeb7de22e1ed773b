package databases_test

import (
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/sqlstore"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// dialects are those of the servers.
var dialects = map[string]sqlstore.Dialect{
	"sqlite": sqlstore.SQLite, "postgresql": sqlstore.PostgreSQL, "mariadb": sqlstore.MySQL,
}

// onEachStore runs a test on each kind of database, without a table.
func onEachStore(t *testing.T, test func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect)) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			test(t, s, pooled(s.open(t)), dialects[name])
		})
	}
}

// pooled lets a pool keep connections, and open no more than servers have.
func pooled(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	return db
}

// newStore returns a store, and creates its table.
func newStore(t testing.TB, db *sql.DB, d sqlstore.Dialect, opts ...sqlstore.Option) *sqlstore.Store {
	t.Helper()
	store, err := sqlstore.New(t.Context(), db, d, opts...)
	require.NoError(t, err)
	return store
}

// TestSQLStore runs storetest on each database. Each of its tests has tables of its own, and files of
// SQLite, which has one lock for all tables of a file.
func TestSQLStore(t *testing.T) {
	var tables atomic.Int64
	onEachStore(t, func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect) {
		storetest.Run(t, storetest.Config{
			Database: func(tb testing.TB, clk clock.Clock) ratelimit.Database {
				name := fmt.Sprintf("states_%d", tables.Add(1))
				of := db
				if file, ok := s.(*sqlite); ok {
					driver, dsn := (&sqlite{file: file.file + name}).source()
					of = connect(tb, driver, dsn+"&_pragma=synchronous(OFF)")
				}
				return newStore(tb, of, d, sqlstore.WithTable(name), sqlstore.WithClock(clk)).Database()
			},
			Steps: 50,
			Keys:  1000,
		})
	})
}
