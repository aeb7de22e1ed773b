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

var errChanged = errors.New("the state has changed")

// newBolt opens a bbolt database in a file, and returns a constructor of stores on it.
func newBolt(t testing.TB, options *bbolt.Options) func() *ratelimit.CASStore {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "states"), 0o600, options)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	states := []byte("states")
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(states)
		return err
	}))
	get := func(_ context.Context, key string) (state, version []byte, err error) {
		err = db.View(func(tx *bbolt.Tx) error {
			state = bytes.Clone(tx.Bucket(states).Get([]byte(key)))
			return nil
		})
		return state, state, err
	}
	compareAndSwap := func(_ context.Context, key string, version, state []byte, _ time.Time) (bool, error) {
		err := db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(states)
			if !bytes.Equal(b.Get([]byte(key)), version) {
				return errChanged // rolls back
			}
			return b.Put([]byte(key), state)
		})
		if errors.Is(err, errChanged) {
			return false, nil
		}
		return err == nil, err
	}
	remove := func(_ context.Context, key string) error {
		return db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(states).Delete([]byte(key)) })
	}
	return func() *ratelimit.CASStore { return ratelimit.NewCASStore(get, compareAndSwap, remove) }
}

// newSQL returns a constructor of stores on a table of PostgreSQL or SQLite.
func newSQL(t testing.TB, db *sql.DB, blob string) func() *ratelimit.CASStore {
	execute(t, db, "CREATE TABLE states (id VARCHAR(200) PRIMARY KEY, state "+blob+" NOT NULL)")
	get := func(ctx context.Context, key string) (state, version []byte, err error) {
		err = db.QueryRowContext(ctx, "SELECT state FROM states WHERE id = $1", key).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, nil, nil
		}
		return state, state, err
	}
	compareAndSwap := func(ctx context.Context, key string, version, state []byte, _ time.Time) (bool, error) {
		var done sql.Result
		var err error
		if version == nil {
			done, err = db.ExecContext(ctx, "INSERT INTO states (id, state) VALUES ($1, $2) ON CONFLICT DO NOTHING", key, state)
		} else {
			done, err = db.ExecContext(ctx, "UPDATE states SET state = $1 WHERE id = $2 AND state = $3", state, key, version)
		}
		if err != nil {
			return false, err
		}
		rows, err := done.RowsAffected()
		return rows == 1, err
	}
	remove := func(ctx context.Context, key string) error {
		_, err := db.ExecContext(ctx, "DELETE FROM states WHERE id = $1", key)
		return err
	}
	return func() *ratelimit.CASStore { return ratelimit.NewCASStore(get, compareAndSwap, remove) }
}

// casDatabases are databases for a CASStore.
var casDatabases = map[string]func(t *testing.T) func() *ratelimit.CASStore{
	"bbolt":      func(t *testing.T) func() *ratelimit.CASStore { return newBolt(t, nil) },
	"sqlite":     func(t *testing.T) func() *ratelimit.CASStore { return newSQL(t, servers["sqlite"](t).open(t), "BLOB") },
	"postgresql": func(t *testing.T) func() *ratelimit.CASStore { return newSQL(t, newPostgres(t).open(t), "BYTEA") },
}

// TestParallelCalls calls limiters on a CASStore in parallel with one key: as many are granted
// as the limit permits, and the FailurePolicy decides on none.
func TestParallelCalls(t *testing.T) {
	for name, database := range casDatabases {
		t.Run(name, func(t *testing.T) {
			store := database(t)
			for _, calls := range []int{100, 400, 1000} {
				for _, processes := range []int{1, 4} {
					var granted, failed atomic.Int64
					var wg sync.WaitGroup
					for range processes {
						l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 50, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
							ratelimit.WithStore(store()), ratelimit.WithName("api")))
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

// TestStoreInBolt checks a CASStore in a file as an author of a store would.
func TestStoreInBolt(t *testing.T) {
	handles := make(map[ratelimit.Store]func() *ratelimit.CASStore)
	var mu sync.Mutex // protects handles
	open := func(another func() *ratelimit.CASStore) ratelimit.Store {
		mu.Lock()
		defer mu.Unlock()
		s := another()
		handles[s] = another
		return s
	}
	storetest.Run(t, storetest.Config{
		New: func(t testing.TB, _ clock.Clock) ratelimit.Store {
			return open(newBolt(t, &bbolt.Options{NoSync: true}))
		},
		Reopen: func(_ testing.TB, _ clock.Clock, s ratelimit.Store) ratelimit.Store {
			mu.Lock()
			another := handles[s]
			mu.Unlock()
			return open(another)
		},
		Steps: 50,
	})
}
