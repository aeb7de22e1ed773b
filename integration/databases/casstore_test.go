package databases_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
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

// databases have a store in a file, and those of module sqlstore.
var databases = map[string]func(t *testing.T) ratelimit.Database{
	"bbolt":      func(t *testing.T) ratelimit.Database { return newBolt(t, nil) },
	"sqlite":     newTable,
	"postgresql": newTable,
	"mariadb":    newTable,
}

// newTable returns the table of a new server, which the name of the test names.
func newTable(t *testing.T) ratelimit.Database {
	name := path.Base(t.Name())
	return newStore(t, pooled(servers[name](t).open(t)), dialects[name]).Database()
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
