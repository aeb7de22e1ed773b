// Package databases_test runs package rules and stores on real databases.
package databases_test

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/rules"
)

// onEach runs a test on each kind of database, with the tables of the schema.
func onEach(t *testing.T, test func(t *testing.T, s server, db *sql.DB)) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			db := s.open(t)
			execute(t, db, rules.Schema)
			test(t, s, db)
		})
	}
}

func execute(t testing.TB, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.Exec(statement)
	require.NoError(t, err)
}

func insert(t testing.TB, db *sql.DB, id, call string, limit, seconds int) {
	t.Helper()
	execute(t, db, fmt.Sprintf(`INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_CALLS, WINDOW_SECONDS)
		VALUES ('%s', '%s', %d, %d)`, id, call, limit, seconds))
}

func granted(t testing.TB, s *rules.Set, path string, n int) (count int) {
	t.Helper()
	for range n {
		a, err := s.Take(t.Context(), "ann", "GET", path, 1)
		require.NoError(t, err)
		if a.Allowed {
			count++
		}
	}
	return count
}

// TestTable reads each column, and edits the table.
func TestTable(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		insert(t, db, "photos", "/user/#/photos/#", 3, 3600)
		execute(t, db, `INSERT INTO THROTTLED_CALLS
			VALUES ('bucket', 'GET /x', 10, 3600, 4102444800, 'token-bucket', null, null, null, null, null, null, 5, true, true)`)
		execute(t, db, `INSERT INTO THROTTLED_CALLS VALUES ('off', '/off', 1, 1, null, null, null, null, null, null, null, null, null, false, false)`)
		execute(t, db, `INSERT INTO THROTTLED_CALLS
			VALUES ('static', '/static/**', null, null, null, 'unlimited', null, null, null, null, null, null, null, false, true)`)
		execute(t, db, `INSERT INTO THROTTLED_CALLS
			VALUES ('monthly', '/reports', 9, null, null, null, 'month', 'Europe/London', 31, 4, null, null, null, false, true)`)
		execute(t, db, `INSERT INTO THROTTLED_CALLS VALUES ('eager', '/search', 11, 1, null, 'lockout', null, null, null, null, 60, 3600, null, false, true)`)
		got, err := rules.SQL(db).Load(t.Context())
		require.NoError(t, err)
		assert.ElementsMatch(t, []rules.Rule{
			{ID: "photos", Call: "/user/#/photos/#", Limit: 3, Window: time.Hour, Algorithm: "sliding-log"},
			{ID: "bucket", Call: "GET /x", Limit: 10, Window: time.Hour, Algorithm: "token-bucket", Burst: 5, Expires: time.Unix(4102444800, 0), Shadow: true},
			{ID: "off", Call: "/off", Limit: 1, Window: time.Second, Algorithm: "sliding-log", Disabled: true},
			{ID: "static", Call: "/static/**", Algorithm: "unlimited"},
			{ID: "monthly", Call: "/reports", Limit: 9, Algorithm: "calendar-window", Every: ratelimit.Month, Zone: "Europe/London", Start: 31, Hour: 4},
			{ID: "eager", Call: "/search", Limit: 11, Window: time.Second, Algorithm: "lockout", FirstLockout: time.Minute, LongestLockout: time.Hour},
		}, got)

		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
		require.NoError(t, err)
		defer set.Close()
		assert.Equal(t, 3, granted(t, set, "/user/1/photos/2", 10))
		execute(t, db, "UPDATE THROTTLED_CALLS SET MAX_CALLS = 5 WHERE THROTTLE_ID = 'photos'")
		require.NoError(t, set.Reload(t.Context()))
		assert.Equal(t, 2, granted(t, set, "/user/1/photos/2", 10))

		execute(t, db, "INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_CALLS, WINDOW_SECONDS, ALGORITHM) VALUES ('bad', '/bad', 1, 1, 'magic')")
		err = set.Reload(t.Context())
		require.ErrorContains(t, err, `rule "bad": ALGORITHM is "magic"`)
		assert.Zero(t, granted(t, set, "/user/1/photos/2", 10), "the last good rules are in force")
	})
}

// TestConflict edits a rule whose call another row has as well. Databases return rows in different
// orders after that.
func TestConflict(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		insert(t, db, "everybody", "/user/{id}/photos", 5, 86400)
		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
		require.NoError(t, err)
		defer set.Close()
		insert(t, db, "big", "/user/{customer}/photos", 3, 86400)
		require.ErrorContains(t, set.Reload(t.Context()), `rule "big": Call is "/user/{customer}/photos"`)
		execute(t, db, "UPDATE THROTTLED_CALLS SET MAX_CALLS = 6 WHERE THROTTLE_ID = 'everybody'")
		require.ErrorContains(t, set.Reload(t.Context()), `rule "big"`)
		assert.Equal(t, 6, granted(t, set, "/user/42/photos", 20), "the rule in force stays")
		again, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
		require.NoError(t, err)
		defer again.Close()
		assert.ErrorContains(t, again.Status().Err, `rule "everybody": Call is "/user/{id}/photos"`)
		assert.Equal(t, 3, granted(t, again, "/user/42/photos", 20), "none is in force: the lower ID")
	})
}

// TestLeastTable has only the required columns, and invalid values.
func TestLeastTable(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) { testLeastTable(t, db, "MAX_CALLS", "WINDOW_SECONDS") })
}

// TestFormerColumns reads a table whose columns have their former names.
func TestFormerColumns(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) { testLeastTable(t, db, "MAX_LOCKS", "LOCK_TIMEOUT_SECONDS") })
}

// testLeastTable has only the required columns, of which two have the given names.
func testLeastTable(t *testing.T, db *sql.DB, limit, window string) {
	execute(t, db, fmt.Sprintf(`CREATE TABLE calls (THROTTLE_ID int PRIMARY KEY, NORMALIZED_CALL varchar(200) UNIQUE,
		%s int, %s int, THROTTLE_EXPIRATION bigint NULL)`, limit, window))
	load := func() ([]rules.Rule, error) { return rules.SQLTable(db, "calls").Load(t.Context()) }
	execute(t, db, "INSERT INTO calls VALUES (1, '/x', 2, 60, NULL)")
	got, err := load()
	require.NoError(t, err)
	assert.Equal(t, []rules.Rule{{ID: "1", Call: "/x", Limit: 2, Window: time.Minute, Algorithm: "sliding-log"}}, got)
	for row, want := range map[string]string{
		"(2, 'y', 1, 1, NULL)":   `rule "2": NORMALIZED_CALL is "y"`,
		"(2, NULL, 1, 1, NULL)":  `rule "2": NORMALIZED_CALL is <nil>`,
		"(2, '/y', NULL, 1, 1)":  `rule "2": ` + limit + ` is <nil>`,
		"(2, '/y', 0, 1, NULL)":  `rule "2": ` + limit + ` is 0`,
		"(2, '/y', 1, -1, NULL)": `rule "2": ` + window + ` is -1`,
	} {
		execute(t, db, "INSERT INTO calls VALUES "+row)
		_, err := load()
		assert.ErrorContains(t, err, want)
		execute(t, db, "DELETE FROM calls WHERE THROTTLE_ID = 2")
	}
	execute(t, db, "ALTER TABLE calls DROP COLUMN "+window)
	_, err = load()
	assert.ErrorContains(t, err, "the table calls has no column "+window)
}

// kind returns the kind of the database, by its types and parameters.
func kind(s server) string {
	switch s.(type) {
	case *postgres:
		return "postgresql"
	case *mariaDB:
		return "mariadb"
	}
	return "sqlite"
}

// TestExpiration checks expiry times in columns of every suitable type.
func TestExpiration(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		columns := map[string][]string{
			"postgresql": {"bigint", "numeric", "double precision", "text", "timestamp", "timestamptz", "date"},
			"mariadb":    {"bigint unsigned", "decimal(20,0)", "double", "varchar(40)", "datetime", "timestamp NULL", "date"},
			"sqlite":     {"bigint", "numeric", "real", "text", "timestamp", "datetime", "date"},
		}[kind(s)]
		dbs := map[string]*sql.DB{"": db}
		if m, ok := s.(*mariaDB); ok {
			dsn := fmt.Sprintf("root@tcp(127.0.0.1:%d)/mysql?multiStatements=true", m.port)
			dbs = map[string]*sql.DB{
				"":              connect(t, "mysql", dsn),
				" parsed by it": connect(t, "mysql", dsn+"&parseTime=true"),
			}
		}
		for i, column := range columns {
			numeric := i < 4
			for how, db := range dbs {
				execute(t, db, `CREATE TABLE ends (THROTTLE_ID int PRIMARY KEY, NORMALIZED_CALL varchar(200),
					MAX_CALLS int, WINDOW_SECONDS int, THROTTLE_EXPIRATION `+column+`)`)
				load := func(value string) (rules.Rule, error) {
					t.Helper()
					execute(t, db, "INSERT INTO ends VALUES (1, '/x', 2, 60, "+value+")")
					defer execute(t, db, "DELETE FROM ends")
					got, err := rules.SQLTable(db, "ends").Load(t.Context())
					if err != nil {
						return rules.Rule{}, err
					}
					return got[0], nil
				}
				value := "'2030-01-01 00:00:00'"
				if numeric {
					value = "1893456000"
				}
				r, err := load(value)
				require.NoError(t, err, column+how)
				assert.True(t, at.Equal(r.Expires), "%s: %v", column+how, r.Expires)
				r, err = load("NULL")
				require.NoError(t, err)
				assert.True(t, r.Expires.IsZero())
				if numeric {
					r, err = load("9223372036854775807") // never
					require.NoError(t, err, column)
					assert.True(t, r.Expires.IsZero(), "%s: %v", column, r.Expires)
					for _, wrong := range []string{"0", "1893456000000"} { // milliseconds
						_, err = load(wrong)
						assert.ErrorContains(t, err, "THROTTLE_EXPIRATION is", column)
						assert.ErrorContains(t, err, "Unix seconds", column)
					}
				}
				if kind(s) == "postgresql" && !numeric {
					r, err = load("'infinity'")
					require.NoError(t, err, column)
					assert.True(t, r.Expires.IsZero(), column)
					_, err = load("'-infinity'")
					assert.ErrorContains(t, err, "Unix seconds", column)
				}
				if !numeric && column != "timestamp NULL" { // which begins in 1970
					_, err = load("'1960-01-01 00:00:00'")
					assert.ErrorContains(t, err, "Unix seconds", column+how)
				}
				execute(t, db, "DROP TABLE ends")
			}
		}
	})
}

// TestSessionZone reads a TIMESTAMP in sessions that have a time zone.
func TestSessionZone(t *testing.T) {
	s := newMariaDB(t).(*mariaDB)
	execute(t, s.open(t), `CREATE TABLE ends (THROTTLE_ID int PRIMARY KEY, NORMALIZED_CALL varchar(200),
		MAX_CALLS int, WINDOW_SECONDS int, THROTTLE_EXPIRATION timestamp(3) NULL)`)
	execute(t, s.open(t), "SET time_zone='+00:00'; INSERT INTO ends VALUES (1, '/x', 2, 60, '2030-01-01 00:00:00.5'), (2, '/y', 2, 60, NULL)")
	for _, session := range []string{"", "&parseTime=true", "&parseTime=true&loc=Local"} {
		db := connect(t, "mysql", fmt.Sprintf("root@tcp(127.0.0.1:%d)/mysql?time_zone=%%27%%2B05%%3A00%%27%s", s.port, session))
		got, err := rules.SQLTable(db, "ends").Load(t.Context())
		require.NoError(t, err)
		require.Len(t, got, 2)
		assert.True(t, time.Date(2030, 1, 1, 0, 0, 0, 500_000_000, time.UTC).Equal(got[0].Expires), got[0].Expires)
		assert.True(t, got[1].Expires.IsZero())
	}
}

// TestColumnTypes has columns of types that add spaces or zeros to the values.
func TestColumnTypes(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		execute(t, db, `CREATE TABLE calls (THROTTLE_ID char(10) PRIMARY KEY, NORMALIZED_CALL char(20),
			MAX_CALLS numeric(3,1), WINDOW_SECONDS numeric(3,1), THROTTLE_EXPIRATION numeric(20,3), METHOD char(8),
			ALGORITHM char(20), BURST numeric(3,1), SHADOW numeric(3,1), ENABLED char(5))`)
		execute(t, db, "INSERT INTO calls VALUES ('a         ', '/x                  ', 5, 1.5, 1893456000, 'get     ', 'token-bucket        ', 2, 1, 'true ')")
		got, err := rules.SQLTable(db, "calls").Load(t.Context())
		require.NoError(t, err)
		require.Len(t, got, 1)
		got[0].Expires = got[0].Expires.UTC()
		assert.Equal(t, rules.Rule{
			ID: "a", Call: "get /x", Limit: 5, Window: 1500 * time.Millisecond, Algorithm: "token-bucket", Burst: 2, Shadow: true,
			Expires: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
		}, got[0])
	})
}

// TestBits has columns of bits, which drivers return as text, or as a byte that is 0 or 1.
func TestBits(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		column, bits := "bit(1)", [2]string{"b'0'", "b'1'"}
		if kind(s) == "sqlite" { // which has no type of bits
			column, bits = "boolean", [2]string{"0", "1"}
		}
		execute(t, db, fmt.Sprintf(`CREATE TABLE calls (THROTTLE_ID int PRIMARY KEY, NORMALIZED_CALL varchar(20),
			MAX_CALLS int, WINDOW_SECONDS int, THROTTLE_EXPIRATION bigint, SHADOW %s, ENABLED %s)`, column, column))
		for i := range 4 {
			execute(t, db, fmt.Sprintf("INSERT INTO calls VALUES (%d, '/%d', 5, 60, NULL, %s, %s)", i, i, bits[i/2], bits[i%2]))
		}
		got, err := rules.SQLTable(db, "calls").Load(t.Context())
		require.NoError(t, err)
		require.Len(t, got, 4)
		for _, r := range got {
			assert.Equal(t, r.ID >= "2", r.Shadow, "%+v", r)
			assert.Equal(t, r.ID == "0" || r.ID == "2", r.Disabled, "%+v", r)
		}
	})
}

// TestNever checks that a rule whose expiry is later than the last time.Time stays in
// force.
func TestNever(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		insert(t, db, "r", "/x", 3, 3600)
		execute(t, db, "UPDATE THROTTLED_CALLS SET THROTTLE_EXPIRATION = 9223372036854775807")
		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
		require.NoError(t, err)
		defer set.Close()
		assert.Equal(t, 3, granted(t, set, "/x", 10))
	})
}

// TestBadRows checks that an invalid row does not affect the others, at the start or
// later.
func TestBadRows(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		execute(t, db, `CREATE TABLE calls (THROTTLE_ID varchar(20) PRIMARY KEY, NORMALIZED_CALL varchar(200),
			MAX_CALLS int, WINDOW_SECONDS int, THROTTLE_EXPIRATION bigint, METHOD varchar(20))`)
		execute(t, db, "INSERT INTO calls VALUES ('a', '/a', 0, 60, NULL, NULL), ('b', '/b', 2, 3600, NULL, 'get,post'), ('c', '/c', NULL, 60, NULL, '*')")
		set, err := rules.New(t.Context(), rules.SQLTable(db, "calls"), rules.WithInterval(0))
		require.NoError(t, err)
		defer set.Close()
		st := set.Status()
		assert.Equal(t, []int{1, 2}, []int{st.Rules, st.Bad})
		assert.ErrorContains(t, st.Err, `rule "a": MAX_CALLS is 0`)
		assert.ErrorContains(t, st.Err, `rule "c": MAX_CALLS is <nil>`)
		assert.Equal(t, 2, granted(t, set, "/b", 9))
		execute(t, db, "UPDATE calls SET MAX_CALLS = 3")
		require.NoError(t, set.Reload(t.Context()))
		assert.Equal(t, 1, granted(t, set, "/b", 9))
		execute(t, db, "UPDATE calls SET MAX_CALLS = 0 WHERE THROTTLE_ID = 'b'")
		execute(t, db, "UPDATE calls SET MAX_CALLS = 5 WHERE THROTTLE_ID = 'a'")
		require.Error(t, set.Reload(t.Context()))
		assert.Zero(t, granted(t, set, "/b", 9), "its last good version")
		assert.Equal(t, 5, granted(t, set, "/a", 9))
		_, err = rules.New(t.Context(), rules.SQLTable(db, "calls"), rules.WithAllOrNothing())
		assert.ErrorContains(t, err, `rule "b"`)
	})
}

// TestColdStart asks for many new keys at once through a small pool.
func TestColdStart(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		const keys = 200
		for i := range keys {
			execute(t, db, fmt.Sprintf("INSERT INTO limits VALUES ('%d', 86400, 2, NULL)", i))
		}
		db.SetMaxOpenConns(3)
		query := "SELECT time_window_sec, capacity FROM limits WHERE config_key = $1"
		if kind(s) == "mariadb" {
			query = "SELECT time_window_sec, capacity FROM limits WHERE config_key = ?"
		}
		var at, most atomic.Int32
		lookup := rules.SQLLimits(db, query, func(events int, window time.Duration) ratelimit.Algorithm {
			most.Store(max(most.Load(), at.Add(1)))
			defer at.Add(-1)
			return ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: events, Per: window}}
		})
		cache, err := rules.Cached(lookup, rules.WithLookupTimeout(time.Minute))
		require.NoError(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerDay(100)}, ratelimit.WithLimits(cache.Limit)))
		var grants atomic.Int32
		var wg sync.WaitGroup
		for i := range keys {
			for range 5 {
				wg.Go(func() {
					d, err := l.Take(t.Context(), strconv.Itoa(i), 1)
					assert.NoError(t, err)
					if d.Allowed {
						grants.Add(1)
					}
				})
			}
		}
		wg.Wait()
		assert.EqualValues(t, 2*keys, grants.Load())
		assert.LessOrEqual(t, most.Load(), int32(2))
		assert.LessOrEqual(t, db.Stats().WaitCount, int64(0), "no call waits for a connection")
	})
}

// TestUnusableLimits checks that a capacity of 0 or null blocks the key, and that an invalid
// limit does not disable limiting.
func TestUnusableLimits(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		execute(t, db, "CREATE TABLE loose (config_key varchar(20), time_window_sec int, capacity int)")
		execute(t, db, "INSERT INTO loose VALUES ('zero', 60, 0), ('null', 60, NULL), ('window', NULL, 5), ('minus', 60, -1)")
		query := "SELECT time_window_sec, capacity FROM loose WHERE config_key = $1"
		if kind(s) == "mariadb" {
			query = "SELECT time_window_sec, capacity FROM loose WHERE config_key = ?"
		}
		cache, err := rules.Cached(rules.SQLLimits(db, query, nil), rules.WithLookupTimeout(time.Minute))
		require.NoError(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerDay(2)}, ratelimit.WithLimits(cache.Limit)))
		for _, key := range []string{"zero", "null"} {
			d, err := l.Take(t.Context(), key, 1)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{RetryAfter: ratelimit.Never}, d, key)
		}
		for i, key := range []string{"window", "minus"} {
			want := []string{"time_window_sec is <nil>", "capacity is -1"}[i]
			for n := range 10 {
				d, err := l.Take(t.Context(), key, 1)
				require.NoError(t, err)
				assert.Equal(t, n < 2, d.Allowed, "%s has the limiter's own limit", key)
			}
			assert.EqualValues(t, i+1, cache.Stats().Invalid)
			assert.ErrorContains(t, cache.Stats().Err, want)
		}
	})
}

// TestUnderLoad edits the table during concurrent calls, with psql if it is installed: no
// extra call is granted, and no request fails.
func TestUnderLoad(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		insert(t, db, "r", "/x", 100, 86400)
		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(10*time.Millisecond))
		require.NoError(t, err)
		defer set.Close()
		var count atomic.Int64
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					a, err := set.Take(context.Background(), "ann", "GET", "/x", 1)
					assert.NoError(t, err)
					if a.Allowed {
						count.Add(1)
					}
				}
			})
		}
		for limit := 200; limit <= 500; limit += 100 {
			version := set.Status().Version
			edit(t, s, db, "UPDATE THROTTLED_CALLS SET MAX_CALLS = "+strconv.Itoa(limit))
			require.Eventually(t, func() bool { return set.Status().Version > version }, 30*time.Second, time.Millisecond, "it is loaded")
			require.Eventually(t, func() bool { return count.Load() == int64(limit) }, 30*time.Second, time.Millisecond, "in force: exactly so many")
		}
		close(stop)
		wg.Wait()
		assert.EqualValues(t, 500, count.Load())
	})
}

// edit changes the table as an administrator does.
func edit(t *testing.T, s server, db *sql.DB, statement string) {
	t.Helper()
	p, ok := s.(*postgres)
	if !ok {
		execute(t, db, statement)
		return
	}
	out, err := exec.Command(find(t, "psql", "/usr/lib/postgresql/*/bin/psql"), "-h", "127.0.0.1", "-p",
		strconv.Itoa(p.port), "-U", "test", "-d", "postgres", "-c", statement).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestDatabaseGone kills the database and brings it back.
func TestDatabaseGone(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		if _, ok := s.(*sqlite); ok {
			return // it has no process
		}
		insert(t, db, "r", "/x", 3, 86400)
		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0), rules.WithTimeout(5*time.Second))
		require.NoError(t, err)
		defer set.Close()
		assert.Equal(t, 2, granted(t, set, "/x", 2))
		s.kill(t)
		require.Error(t, set.Reload(t.Context()))
		assert.Equal(t, 1, granted(t, set, "/x", 10), "the rules stay in force")
		_, err = rules.New(t.Context(), rules.SQL(db))
		require.Error(t, err)
		s.start(t)
		require.Eventually(t, func() bool { return set.Reload(t.Context()) == nil }, 30*time.Second, 10*time.Millisecond)
		assert.Zero(t, granted(t, set, "/x", 10))
		execute(t, db, "UPDATE THROTTLED_CALLS SET MAX_CALLS = 4")
		require.NoError(t, set.Reload(t.Context()))
		assert.Equal(t, 1, granted(t, set, "/x", 10))
	})
}

// TestManyRules loads 10,000 rules.
func TestManyRules(t *testing.T) {
	db := (&sqlite{file: t.TempDir() + "/many.db"}).open(t)
	execute(t, db, rules.Schema)
	execute(t, db, `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
		INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_CALLS, WINDOW_SECONDS) SELECT 'r' || i, '/service/x' || i || '/#', 2, 60 FROM n`)
	set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
	require.NoError(t, err)
	defer set.Close()
	assert.Equal(t, 10_000, set.Status().Rules)
	assert.Equal(t, 2, granted(t, set, "/service/x9999/7", 5))
	assert.Equal(t, 5, granted(t, set, "/service/x10000/7", 5))
}

// TestLimitsPerKey looks limits up in the second table.
func TestLimitsPerKey(t *testing.T) {
	onEach(t, func(t *testing.T, s server, db *sql.DB) {
		query := "SELECT time_window_sec, capacity FROM limits WHERE config_key = $1"
		if _, ok := s.(*mariaDB); ok {
			query = "SELECT time_window_sec, capacity FROM limits WHERE config_key = ?"
		}
		execute(t, db, "INSERT INTO limits VALUES ('gold', 86400, 5, NULL)")
		execute(t, db, `INSERT INTO limits VALUES ('partner', NULL, NULL, 'unlimited'), ('suspended', 60, 5, 'blocked'),
			('window', 60, 5, 'fixed-window'), ('wrong', 60, 5, 'magic')`)
		named := rules.SQLLimits(db, strings.Replace(query, "capacity", "capacity, algorithm", 1), nil)
		for key, want := range map[string]ratelimit.Algorithm{
			"gold":    ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 24 * time.Hour}},
			"partner": ratelimit.Unlimited{}, "suspended": ratelimit.Blocked{},
			"window": ratelimit.FixedWindow{Limit: 5, Window: time.Minute}, "nobody": nil,
		} {
			alg, err := named.Limit(t.Context(), key)
			require.NoError(t, err)
			assert.Equal(t, want, alg)
		}
		_, err := named.Limit(t.Context(), "wrong")
		assert.ErrorContains(t, err, `Algorithm is "magic"`)
		_, err = rules.SQLLimits(db, strings.Replace(query, "time_window_sec, ", "", 1), nil).Limit(t.Context(), "gold")
		assert.ErrorContains(t, err, "the query returns 1 columns")
		lookup := rules.SQLLimits(db, query, nil)
		alg, err := lookup.Limit(t.Context(), "gold")
		require.NoError(t, err)
		assert.Equal(t, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 5, Per: 24 * time.Hour}}, alg)
		cache, err := rules.Cached(lookup, rules.WithTTL(time.Hour), rules.WithLookupTimeout(10*time.Second))
		require.NoError(t, err)
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerDay(2)}, ratelimit.WithLimits(cache.Limit)))
		count := func(key string) (n int) {
			for l.Allow(key) {
				n++
			}
			return n
		}
		assert.Equal(t, 5, count("gold"))
		assert.Equal(t, 2, count("free"))
		if _, ok := s.(*sqlite); !ok {
			s.kill(t)
			assert.False(t, l.Allow("gold"), "what is known stays in force")
			_, err = lookup.Limit(t.Context(), "gold")
			assert.Error(t, err)
			s.start(t)
		}
	})
}
