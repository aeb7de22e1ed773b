package databases_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

// The tests in this file are about what databases do, and a table in them must not suffer from.

// TestCreateTogether: many processes that start at once create one table.
func TestCreateTogether(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, _ *sql.DB, d sqlstore.Dialect) {
		for round := range 10 {
			var wg sync.WaitGroup
			for range 8 {
				db := s.open(t)
				wg.Go(func() {
					_, err := sqlstore.New(t.Context(), db, d, sqlstore.WithTable(fmt.Sprint("round_", round)))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
		}
	})
}

// TestSchemas has a table in a schema, and in a schema with another table of that name.
func TestSchemas(t *testing.T) {
	onEachStore(t, func(t *testing.T, _ server, db *sql.DB, d sqlstore.Dialect) {
		schema := "other"
		if d == sqlstore.SQLite {
			schema = "main"
		} else {
			execute(t, db, "CREATE SCHEMA other")
			execute(t, db, "CREATE TABLE Limits (id INT)")
		}
		for range 2 {
			store := newStore(t, db, d, sqlstore.WithTable(schema+".Limits"))
			swapped, err := store.Database().CompareAndSwap(t.Context(), "k", nil, []byte("state"), time.Time{})
			require.NoError(t, err)
			require.True(t, swapped)
			require.NoError(t, store.Database().Delete(t.Context(), "k"))
		}
	})
}

// TestWrongTables: the first call says what is wrong with a table, and changes nothing.
func TestWrongTables(t *testing.T) {
	wrong := map[string]map[string]string{ // by what the error says
		"postgresql": {
			"id character varying\\(200\\) COLLATE C NOT NULL[,)]": `id VARCHAR(200) COLLATE "C" NOT NULL, state BYTEA NOT NULL, expires BIGINT`,
			"state text COLLATE default NOT NULL":                  `id VARCHAR(200) COLLATE "C" PRIMARY KEY, state TEXT NOT NULL, expires BIGINT`,
			"expires integer":                                      `id VARCHAR(200) COLLATE "C" PRIMARY KEY, state BYTEA NOT NULL, expires INTEGER`,
			"version integer":                                      `id VARCHAR(200) COLLATE "C" PRIMARY KEY, state BYTEA NOT NULL, expires BIGINT, version INTEGER`,
			"id .* NOT NULL[,)].*: it must be":                     `id VARCHAR(200) COLLATE "C", state BYTEA NOT NULL, expires BIGINT, PRIMARY KEY (id, state)`,

			"id character varying\\(200\\) COLLATE default NOT NULL PRIMARY KEY": `id VARCHAR(200) PRIMARY KEY, state BYTEA NOT NULL, expires BIGINT`,
		},
		"mariadb": {
			"id varbinary\\(200\\) NOT NULL[,)]":       `id VARBINARY(200) NOT NULL, state LONGBLOB NOT NULL, expires BIGINT`,
			"id varchar\\(200\\) NOT NULL PRIMARY KEY": `id VARCHAR(200) PRIMARY KEY, state LONGBLOB NOT NULL, expires BIGINT`,
			"id varbinary\\(100\\)":                    `id VARBINARY(100) PRIMARY KEY, state LONGBLOB NOT NULL, expires BIGINT`,
			"state blob NOT NULL":                      `id VARBINARY(200) PRIMARY KEY, state BLOB NOT NULL, expires BIGINT`,
			"version int":                              `id VARBINARY(200) PRIMARY KEY, state LONGBLOB NOT NULL, expires BIGINT, version INT`,
		},
		"sqlite": {
			"id BLOB NOT NULL[,)]":         `id BLOB NOT NULL, state BLOB NOT NULL, expires INTEGER`,
			"id TEXT NOT NULL PRIMARY KEY": `id TEXT NOT NULL PRIMARY KEY, state BLOB NOT NULL, expires INTEGER`,
			"state BLOB[,)]":               `id BLOB NOT NULL PRIMARY KEY, state BLOB, expires INTEGER`,
			"version INTEGER":              `id BLOB NOT NULL PRIMARY KEY, state BLOB NOT NULL, expires INTEGER, version INTEGER`,
		},
	}
	onEachStore(t, func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect) {
		check := func(say string) {
			t.Helper()
			store := newStore(t, db, d, sqlstore.WithTable("wrong"), sqlstore.WithoutCreate())
			l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithStore(store),
				ratelimit.WithName("x"), ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
			decision, err := l.Take(t.Context(), "k", 1)
			assert.ErrorIs(t, err, sqlstore.ErrUnsuitable, say)
			assert.Regexp(t, say, err)
			assert.True(t, decision.Degraded && !decision.Allowed)
			_, err = sqlstore.New(t.Context(), db, d, sqlstore.WithTable("wrong"))
			assert.Regexp(t, say, err)
			var rows int
			require.NoError(t, db.QueryRow("SELECT count(*) FROM wrong").Scan(&rows))
			assert.Zero(t, rows)
			execute(t, db, "DROP TABLE wrong")
		}
		for say, columns := range wrong[kind(s)] {
			execute(t, db, "CREATE TABLE wrong ("+columns+")")
			check(say)
		}
		switch d {
		case sqlstore.PostgreSQL:
			execute(t, db, `CREATE UNLOGGED TABLE wrong (id VARCHAR(200) COLLATE "C" PRIMARY KEY, state BYTEA NOT NULL, expires BIGINT)`)
			check("UNLOGGED")
		case sqlstore.MySQL:
			execute(t, db, `CREATE TABLE wrong (id VARBINARY(200) PRIMARY KEY, state LONGBLOB NOT NULL, expires BIGINT) ENGINE = Aria`)
			check("ENGINE = Aria")
		}
	})
}

// TestPragmas: each connection to SQLite has its settings, and not only one.
func TestPragmas(t *testing.T) {
	for dsn, want := range map[string]string{
		"?_pragma=busy_timeout(5000)":                                            "journal_mode is delete",
		"?_pragma=journal_mode(WAL)":                                             "busy_timeout is 0",
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)":                  "",
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=deferred": "",
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&mode=memory":      "journal_mode is memory",
	} {
		db := connect(t, "sqlite", "file:"+t.TempDir()+"/limits.db"+dsn)
		_, err := sqlstore.New(t.Context(), db, sqlstore.SQLite)
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, sqlstore.ErrUnsuitable)
		assert.ErrorContains(t, err, want)
	}
	db := connect(t, "sqlite", "file:"+t.TempDir()+"/limits.db?_pragma=journal_mode(WAL)")
	execute(t, db, "PRAGMA busy_timeout = 5000") // on one of its connections
	_, err := sqlstore.New(t.Context(), db, sqlstore.SQLite)
	assert.ErrorContains(t, err, "busy_timeout is 0 on a connection")
	db = connect(t, "sqlite", "file:"+t.TempDir()+"/limits.db?_pragma=journal_mode(WAL)")
	db.SetMaxOpenConns(1)
	execute(t, db, "PRAGMA busy_timeout = 5000")
	_, err = sqlstore.New(t.Context(), db, sqlstore.SQLite)
	assert.NoError(t, err)
}

// TestIsolation: at each level, goroutines with stores of their own share a key exactly, and no call fails.
func TestIsolation(t *testing.T) {
	sources := map[string][]string{
		"postgresql": {" default_transaction_isolation='repeatable read'", " default_transaction_isolation=serializable"},
		"mariadb":    {"&tx_isolation=%27READ-COMMITTED%27", "&tx_isolation=%27SERIALIZABLE%27", "&interpolateParams=true&clientFoundRows=true"},
	}
	onEachStore(t, func(t *testing.T, s server, _ *sql.DB, d sqlstore.Dialect) {
		if d == sqlstore.SQLite {
			t.Skip("it has one level")
		}
		driver, dsn := s.source()
		for i, more := range sources[kind(s)] {
			db := pooled(connect(t, driver, dsn+more))
			var granted atomic.Int64
			var wg sync.WaitGroup
			table := sqlstore.WithTable(fmt.Sprint("level_", i, "_states"))
			for range 8 {
				l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 200, Window: 24 * 365 * time.Hour},
					ratelimit.WithStore(newStore(t, db, d, table)), ratelimit.WithName("x"), ratelimit.WithStoreTimeout(time.Minute)))
				wg.Go(func() {
					for i := range 60 {
						decision, err := l.Take(t.Context(), "k", 1)
						assert.NoError(t, err, more)
						if decision.Allowed {
							granted.Add(1)
						}
						if i%20 == 10 {
							assert.NoError(t, l.Reset(t.Context(), "other"))
						}
						_, err = l.Take(t.Context(), "other", 1)
						assert.NoError(t, err, more)
					}
				})
			}
			wg.Wait()
			assert.EqualValues(t, 200, granted.Load(), more)
		}
	})
}

// TestEqualSwap: a state may be swapped for an equal one, which MySQL counts as no change.
func TestEqualSwap(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect) {
		dbs := []*sql.DB{db}
		if d == sqlstore.MySQL {
			driver, dsn := s.source()
			dbs = append(dbs, connect(t, driver, dsn+"&clientFoundRows=true"))
		}
		for _, db := range dbs {
			table := newStore(t, db, d).Database()
			require.NoError(t, table.Delete(t.Context(), "k"))
			swap := func(old, state string) bool {
				former := []byte(old)
				if old == "" {
					former = nil
				}
				swapped, err := table.CompareAndSwap(t.Context(), "k", former, []byte(state), time.Time{})
				require.NoError(t, err)
				return swapped
			}
			assert.True(t, swap("", "state"))
			assert.True(t, swap("state", "state"))
			assert.False(t, swap("other", "other"))
			assert.False(t, swap("", "state"))
		}
	})
}

// TestUnwritable: while a database is read-only or full, the FailurePolicy decides, and what is used stays used.
func TestUnwritable(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect) {
		newLimiter := func(db *sql.DB) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithName("x"),
				ratelimit.WithStore(newStore(t, db, d)), ratelimit.WithFailurePolicy(ratelimit.FailClosed())))
		}
		l := newLimiter(db)
		_, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		unwritable := func(l ratelimit.Limiter, why string) {
			t.Helper()
			decision, err := l.Take(t.Context(), "k", 1)
			assert.ErrorContains(t, err, "sqlstore: writing ratelimit_states: ")
			assert.ErrorContains(t, err, why)
			assert.True(t, decision.Degraded && !decision.Allowed)
			decision, err = l.Peek(t.Context(), "k")
			assert.NoError(t, err)
			assert.Equal(t, 2, decision.Remaining)
		}
		driver, dsn := s.source()
		switch d {
		case sqlstore.PostgreSQL:
			unwritable(newLimiter(connect(t, driver, dsn+" default_transaction_read_only=on")), "read-only transaction")
		case sqlstore.MySQL:
			execute(t, db, "CREATE USER app; GRANT ALL ON mysql.ratelimit_states TO app; SET GLOBAL read_only = 1")
			unwritable(newLimiter(connect(t, driver, strings.Replace(dsn, "root@", "app@", 1))), "--read-only")
			execute(t, db, "SET GLOBAL read_only = 0")
		case sqlstore.SQLite:
			unwritable(newLimiter(connect(t, driver, dsn+"&mode=ro")), "readonly database")
			full := connect(t, driver, dsn+"&_pragma=max_page_count(1)") // SQLite makes it as many as there are
			table := newStore(t, full, d).Database()
			_, err := table.CompareAndSwap(t.Context(), "large", nil, bytes.Repeat([]byte("x"), 1e6), time.Time{})
			assert.ErrorContains(t, err, "sqlstore: writing ratelimit_states: database or disk is full")
			_, err = os.Stat(s.(*sqlite).file)
			require.NoError(t, err)
		}
		decision, err := l.Take(t.Context(), "k", 2)
		assert.NoError(t, err)
		assert.True(t, decision.Allowed, "nothing was spent meanwhile")
	})
}

// TestStartWithoutServer: with its table made, a service starts while the database is away.
func TestStartWithoutServer(t *testing.T) {
	onEachStore(t, func(t *testing.T, s server, db *sql.DB, d sqlstore.Dialect) {
		if _, ok := s.(*sqlite); ok {
			t.Skip("it has no server")
		}
		newStore(t, db, d)
		s.kill(t)
		_, err := sqlstore.New(t.Context(), s.open(t), d)
		assert.Error(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Hour}, ratelimit.WithName("x"),
			ratelimit.WithStore(newStore(t, s.open(t), d, sqlstore.WithoutCreate())), ratelimit.WithStoreTimeout(time.Minute)))
		decision, err := l.Take(t.Context(), "k", 1)
		assert.ErrorContains(t, err, "sqlstore: examining ratelimit_states: ")
		assert.True(t, decision.Degraded && decision.Allowed)
		s.start(t)
		decision, err = l.Take(t.Context(), "k", 1)
		assert.NoError(t, err)
		assert.Equal(t, 2, decision.Remaining)
	})
}

// TestHeapOnly: in PostgreSQL, at least nine of ten grants write to no index, because the page of the
// row has room.
func TestHeapOnly(t *testing.T) {
	s := newPostgres(t)
	db := pooled(s.open(t))
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1e6, Window: time.Hour}, ratelimit.WithName("x"),
		ratelimit.WithStore(newStore(t, db, sqlstore.PostgreSQL)), ratelimit.WithStoreTimeout(time.Minute)))
	for range 20 {
		for key := range 200 {
			_, err := l.Take(t.Context(), fmt.Sprint(key), 1)
			require.NoError(t, err)
		}
	}
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	db.SetMaxIdleConns(0) // sessions report what they have done when they end
	var updates, heapOnly int
	require.Eventually(t, func() bool {
		require.NoError(t, conn.QueryRowContext(context.Background(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables").Scan(&updates, &heapOnly))
		return updates == 19*200
	}, 30*time.Second, 10*time.Millisecond)
	t.Logf("%d of %d updates wrote to no index", heapOnly, updates)
	assert.GreaterOrEqual(t, heapOnly, updates*9/10)
}
