package databases_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/sqlstore"
)

// rowNumbers has queries for the numbers from 1 to %d.
var rowNumbers = map[sqlstore.Dialect]string{
	sqlstore.PostgreSQL: "SELECT generate_series(1, %d) AS n",
	sqlstore.MySQL:      "SELECT seq AS n FROM seq_1_to_%d",
	sqlstore.SQLite:     "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) SELECT n FROM s",
}

// fill adds rows to the table. Their ids begin with prefix.
func fill(t *testing.T, db *sql.DB, d sqlstore.Dialect, prefix string, rows int, expires any) {
	t.Helper()
	id, parameter := "CONCAT('%s', n)", "$1"
	switch d {
	case sqlstore.SQLite:
		id = "CAST('%s' || n AS BLOB)"
	case sqlstore.MySQL:
		parameter = "?"
	}
	statement := fmt.Sprintf("INSERT INTO ratelimit_states (id, state, expires) SELECT "+id+", '12345678901234567890', "+parameter+" FROM (%s) AS numbers",
		prefix, fmt.Sprintf(rowNumbers[d], rows))
	_, err := db.Exec(statement, expires)
	require.NoError(t, err)
}

// rows returns how many rows have ids that begin with prefix.
func rows(t *testing.T, db *sql.DB, prefix string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRow("SELECT count(*) FROM ratelimit_states WHERE CAST(id AS CHAR(200)) LIKE '"+prefix+"%'").Scan(&n))
	return n
}

// TestClean deletes a million expired rows, and nothing else, while a limiter serves.
func TestClean(t *testing.T) {
	expired := 1_000_000
	if testing.Short() {
		expired = 20_000
	}
	onEachStore(t, func(t *testing.T, _ server, db *sql.DB, d sqlstore.Dialect) {
		const limit = 1_000_000
		store := newStore(t, db, d)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: limit, Window: 24 * 365 * time.Hour},
			ratelimit.WithStore(store), ratelimit.WithName("m"), ratelimit.WithStoreTimeout(time.Minute)))
		now := time.Now()
		fill(t, db, d, "a", expired/2, now.Add(-2*time.Minute).Unix())
		fill(t, db, d, "z", expired-expired/2, now.Add(-time.Hour).Unix())
		for prefix, expires := range map[string]any{"grace": now.Unix(), "later": now.Add(time.Hour).Unix(), "never": nil} {
			fill(t, db, d, prefix, 1000, expires)
		}
		serving, stop := context.WithCancel(t.Context())
		taken, longest := 0, time.Duration(0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for serving.Err() == nil {
				begin := time.Now()
				decision, err := l.Take(t.Context(), fmt.Sprint(taken%3), 1)
				if !assert.NoError(t, err) || !assert.True(t, decision.Allowed) {
					return
				}
				taken++
				longest = max(longest, time.Since(begin))
			}
		}()
		begin := time.Now()
		deleted, err := store.Clean(t.Context())
		took := time.Since(begin)
		stop()
		<-done
		require.NoError(t, err)
		t.Logf("deleted %d rows in %v; meanwhile %d were granted, in at most %v", deleted, took, taken, longest)
		// The sweeps along with writes have deleted some before.
		assert.LessOrEqual(t, deleted, int64(expired))
		assert.GreaterOrEqual(t, deleted, int64(expired-2000*(taken/1000+1)))
		for prefix, want := range map[string]int{"a": 0, "z": 0, "grace": 1000, "later": 1000, "never": 1000} {
			assert.Equal(t, want, rows(t, db, prefix), prefix)
		}
		used := 0
		for key := range 3 {
			decision, err := l.Peek(t.Context(), fmt.Sprint(key))
			require.NoError(t, err)
			used += limit - decision.Remaining
		}
		assert.Equal(t, taken, used)
	})
}

// TestSweep: writes alone delete all expired rows, of a thousand of them two thousand.
func TestSweep(t *testing.T) {
	onEachStore(t, func(t *testing.T, _ server, db *sql.DB, d sqlstore.Dialect) {
		table := newStore(t, db, d).Database()
		fill(t, db, d, "a", 3000, 1)
		fill(t, db, d, "z", 3000, 1)
		fill(t, db, d, "never", 10, nil)
		state, writes := []byte("state 0"), 0
		_, err := table.CompareAndSwap(t.Context(), "m", nil, state, time.Time{})
		require.NoError(t, err)
		for ; rows(t, db, "a")+rows(t, db, "z") > 0 && writes < 10_000; writes++ {
			for range 100 {
				writes++
				next := fmt.Append(nil, "state ", writes)
				swapped, err := table.CompareAndSwap(t.Context(), "m", state, next, time.Time{})
				require.NoError(t, err)
				require.True(t, swapped)
				state = next
			}
		}
		t.Logf("%d writes", writes)
		assert.Less(t, writes, 7000)
		assert.Equal(t, 10, rows(t, db, "never"))
		assert.Equal(t, 1, rows(t, db, "m"))
	})
}
