package databases_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A bolt is a database in the bucket "states" of a bbolt file.
type bolt struct{ *bbolt.DB }

var states, errChanged = []byte("states"), errors.New("the state has changed")

func (db bolt) Get(_ context.Context, key string) (state []byte, err error) {
	err = db.View(func(tx *bbolt.Tx) error {
		state = bytes.Clone(tx.Bucket(states).Get([]byte(key)))
		return nil
	})
	return state, err
}

func (db bolt) CompareAndSwap(_ context.Context, key string, old, state []byte, _ time.Time) (swapped bool, err error) {
	err = db.Update(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(states); bytes.Equal(b.Get([]byte(key)), old) {
			return b.Put([]byte(key), state)
		}
		return errChanged // rolls back
	})
	if errors.Is(err, errChanged) {
		return false, nil
	}
	return err == nil, err
}

func (db bolt) Delete(_ context.Context, key string) error {
	return db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(states).Delete([]byte(key)) })
}

// newBolt opens a bbolt database in a file.
func newBolt(t testing.TB, options *bbolt.Options) ratelimit.Database {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "states"), 0o600, options)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(states)
		return err
	}))
	return bolt{db}
}

// A table is a database in a table of PostgreSQL or SQLite.
type table struct{ *sql.DB }

func (db table) Get(ctx context.Context, key string) (state []byte, err error) {
	err = db.QueryRowContext(ctx, "SELECT state FROM states WHERE id = $1", key).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return state, err
}

func (db table) CompareAndSwap(ctx context.Context, key string, old, state []byte, expires time.Time) (swapped bool, err error) {
	query, args := "INSERT INTO states (id, state, expires) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", []any{key, state, expires.Unix()}
	if old != nil {
		query, args = "UPDATE states SET state = $2, expires = $3 WHERE id = $1 AND state = $4", append(args, old)
	}
	done, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	rows, err := done.RowsAffected()
	return rows == 1, err
}

func (db table) Delete(ctx context.Context, key string) error {
	_, err := db.ExecContext(ctx, "DELETE FROM states WHERE id = $1", key)
	return err
}

// newTable makes the table. The type of its states is BYTEA or BLOB.
func newTable(t testing.TB, db *sql.DB, blob string) ratelimit.Database {
	execute(t, db, "CREATE TABLE states (id VARCHAR(200) PRIMARY KEY, state "+blob+" NOT NULL, expires BIGINT NOT NULL)")
	return table{db}
}

// databases are what docs/redis.md shows.
var databases = map[string]func(t *testing.T) ratelimit.Database{
	"bbolt":      func(t *testing.T) ratelimit.Database { return newBolt(t, nil) },
	"sqlite":     func(t *testing.T) ratelimit.Database { return newTable(t, servers["sqlite"](t).open(t), "BLOB") },
	"postgresql": func(t *testing.T) ratelimit.Database { return newTable(t, newPostgres(t).open(t), "BYTEA") },
}

// TestParallelCalls calls limiters on a database in parallel with one key: as many are granted
// as the limit permits, and the FailurePolicy decides on none.
func TestParallelCalls(t *testing.T) {
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			for _, calls := range []int{100, 400, 1000} {
				for _, processes := range []int{1, 4} {
					var granted, failed atomic.Int64
					var wg sync.WaitGroup
					for range processes {
						l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 50, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
							ratelimit.WithStore(ratelimit.NewStore(db)), ratelimit.WithName("api"),
							ratelimit.WithStoreTimeout(time.Minute))) // the machine may be busy
						for range calls / processes {
							wg.Go(func() {
								d, err := l.Take(context.Background(), fmt.Sprint(calls, processes), 1)
								if err != nil {
									failed.Add(1)
								} else if d.Allowed {
									granted.Add(1)
								}
							})
						}
					}
					began := time.Now()
					wg.Wait()
					t.Logf("%d calls in %d processes: %v", calls, processes, time.Since(began))
					assert.EqualValues(t, 50, granted.Load(), "%d calls", calls)
					assert.Zero(t, failed.Load(), "of %d calls, decided by the policy", calls)
				}
			}
		})
	}
}

// TestBolt checks a database in a file as its author would.
func TestBolt(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Database: func(t testing.TB, _ clock.Clock) ratelimit.Database {
			return newBolt(t, &bbolt.Options{NoSync: true})
		},
		Steps: 50,
	})
}

// TestSQLite does so with a table of SQLite.
func TestSQLite(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Database: func(t testing.TB, _ clock.Clock) ratelimit.Database {
			db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)")
			require.NoError(t, err)
			t.Cleanup(func() { db.Close() })
			return newTable(t, db, "BLOB")
		},
		Steps: 50,
		Keys:  1000,
	})
}

// TestExpiredRows: the statement of docs/redis.md deletes what has expired, and nothing else.
func TestExpiredRows(t *testing.T) {
	for name, blob := range map[string]string{"sqlite": "BLOB", "postgresql": "BYTEA"} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			conn := servers[name](t).open(t)
			db := newTable(t, conn, blob)
			now := time.Now()
			for key, expires := range map[string]time.Time{"expired": now.Add(-2 * time.Minute), "margin": now, "later": now.Add(time.Hour), "never": {}} {
				swapped, err := db.CompareAndSwap(ctx, key, nil, []byte("state"), expires)
				require.NoError(t, err)
				require.True(t, swapped)
			}
			_, err := conn.ExecContext(ctx, "DELETE FROM states WHERE expires BETWEEN 0 AND $1", now.Unix()-60)
			require.NoError(t, err)
			for key, want := range map[string]string{"expired": "", "margin": "state", "later": "state", "never": "state"} {
				state, err := db.Get(ctx, key)
				require.NoError(t, err)
				assert.Equal(t, want, string(state), key)
			}
		})
	}
}
