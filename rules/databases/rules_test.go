package databases

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"strconv"
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
	execute(t, db, fmt.Sprintf("INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_LOCKS, LOCK_TIMEOUT_SECONDS) VALUES ('%s', '%s', %d, %d)", id, call, limit, seconds))
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
		execute(t, db, `INSERT INTO THROTTLED_CALLS VALUES ('bucket', 'GET /x', 10, 3600, 4102444800, 'token-bucket', 5, true, true)`)
		execute(t, db, `INSERT INTO THROTTLED_CALLS VALUES ('off', '/off', 1, 1, null, null, null, false, false)`)
		got, err := rules.SQL(db).Load(t.Context())
		require.NoError(t, err)
		assert.ElementsMatch(t, []rules.Rule{
			{ID: "photos", Call: "/user/#/photos/#", Limit: 3, Window: time.Hour, Algorithm: "sliding-log"},
			{ID: "bucket", Call: "GET /x", Limit: 10, Window: time.Hour, Algorithm: "token-bucket", Burst: 5, Expires: time.Unix(4102444800, 0), Shadow: true},
			{ID: "off", Call: "/off", Limit: 1, Window: time.Second, Algorithm: "sliding-log", Disabled: true},
		}, got)

		set, err := rules.New(t.Context(), rules.SQL(db), rules.WithInterval(0))
		require.NoError(t, err)
		defer set.Close()
		assert.Equal(t, 3, granted(t, set, "/user/1/photos/2", 10))
		execute(t, db, "UPDATE THROTTLED_CALLS SET MAX_LOCKS = 5 WHERE THROTTLE_ID = 'photos'")
		require.NoError(t, set.Reload(t.Context()))
		assert.Equal(t, 2, granted(t, set, "/user/1/photos/2", 10))

		execute(t, db, "INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_LOCKS, LOCK_TIMEOUT_SECONDS, ALGORITHM) VALUES ('bad', '/bad', 1, 1, 'magic')")
		err = set.Reload(t.Context())
		require.ErrorContains(t, err, `rule "bad": ALGORITHM is "magic"`)
		assert.Zero(t, granted(t, set, "/user/1/photos/2", 10), "the last good rules are in force")
	})
}

// TestLeastTable has no more columns than it must, and values that cannot be used.
func TestLeastTable(t *testing.T) {
	onEach(t, func(t *testing.T, _ server, db *sql.DB) {
		execute(t, db, "CREATE TABLE calls (THROTTLE_ID int PRIMARY KEY, NORMALIZED_CALL varchar(200) UNIQUE, MAX_LOCKS int, LOCK_TIMEOUT_SECONDS int, THROTTLE_EXPIRATION bigint NULL)")
		load := func() ([]rules.Rule, error) { return rules.SQLTable(db, "calls").Load(t.Context()) }
		execute(t, db, "INSERT INTO calls VALUES (1, '/x', 2, 60, NULL)")
		got, err := load()
		require.NoError(t, err)
		assert.Equal(t, []rules.Rule{{ID: "1", Call: "/x", Limit: 2, Window: time.Minute, Algorithm: "sliding-log"}}, got)
		for row, want := range map[string]string{
			"(2, 'y', 1, 1, NULL)":   `rule "2": NORMALIZED_CALL is "y"`,
			"(2, NULL, 1, 1, NULL)":  `rule "2": NORMALIZED_CALL is <nil>`,
			"(2, '/y', NULL, 1, 1)":  `rule "2": MAX_LOCKS is <nil>`,
			"(2, '/y', 0, 1, NULL)":  `rule "2": MAX_LOCKS is 0`,
			"(2, '/y', 1, -1, NULL)": `rule "2": LOCK_TIMEOUT_SECONDS is -1`,
		} {
			execute(t, db, "INSERT INTO calls VALUES "+row)
			_, err := load()
			assert.ErrorContains(t, err, want)
			execute(t, db, "DELETE FROM calls WHERE THROTTLE_ID = 2")
		}
		execute(t, db, "ALTER TABLE calls DROP COLUMN LOCK_TIMEOUT_SECONDS")
		_, err = load()
		assert.ErrorContains(t, err, "the table calls has no column LOCK_TIMEOUT_SECONDS")
		_, err = rules.SQLTable(db, "calls; DROP TABLE calls").Load(t.Context())
		assert.ErrorContains(t, err, "the table's name")
	})
}

// TestUnderLoad edits the table while many ask, from outside where there is a psql:
// nobody gains a call, and no request fails.
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
			edit(t, s, db, "UPDATE THROTTLED_CALLS SET MAX_LOCKS = "+strconv.Itoa(limit))
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
	out, err := exec.Command(find(t, "psql", "/usr/lib/postgresql/*/bin/psql"), "-h", "127.0.0.1", "-p", strconv.Itoa(p.port), "-U", "test", "-d", "postgres", "-c", statement).CombinedOutput()
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
		execute(t, db, "UPDATE THROTTLED_CALLS SET MAX_LOCKS = 4")
		require.NoError(t, set.Reload(t.Context()))
		assert.Equal(t, 1, granted(t, set, "/x", 10))
	})
}

// TestManyRules loads 10,000.
func TestManyRules(t *testing.T) {
	db := (&sqlite{file: t.TempDir() + "/many.db"}).open(t)
	execute(t, db, rules.Schema)
	execute(t, db, `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
		INSERT INTO THROTTLED_CALLS (THROTTLE_ID, NORMALIZED_CALL, MAX_LOCKS, LOCK_TIMEOUT_SECONDS) SELECT 'r' || i, '/service/x' || i || '/#', 2, 60 FROM n`)
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
		execute(t, db, "INSERT INTO limits VALUES ('gold', 86400, 5)")
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
