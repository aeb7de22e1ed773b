package sqlstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// stateOf is an error of pgx or lib/pq.
type stateOf string

func (e stateOf) Error() string    { return "the server says " + string(e) }
func (e stateOf) SQLState() string { return string(e) }

// A statement that another session has defeated is no failure.
func TestTable_LostRaces(t *testing.T) {
	for _, lost := range []error{stateOf("40001"), stateOf("40P01"), errors.New("Error 1213 (40001): Deadlock found")} {
		f := newFake(t, PostgreSQL)
		s, err := New(t.Context(), f.open(), PostgreSQL)
		require.NoError(t, err)
		db := s.Database()
		for _, old := range []string{"", "old"} {
			var former []byte
			if old != "" {
				former = []byte(old)
			}
			f.will(answer{err: lost})
			swapped, err := db.CompareAndSwap(t.Context(), "k", former, []byte("new"), time.Time{})
			assert.NoError(t, err)
			assert.False(t, swapped)
		}
		f.statements("")
		f.will(answer{err: lost}, answer{err: lost})
		assert.NoError(t, db.Delete(t.Context(), "k"))
		assert.Len(t, f.statements("DELETE"), 3)
		f.will(answer{err: lost}, value([]byte("state")))
		state, err := db.Get(t.Context(), "k")
		assert.NoError(t, err)
		assert.Equal(t, "state", string(state))
	}
}

// Other errors say what failed, and have no key, which may be a secret.
func TestTable_Failures(t *testing.T) {
	broken := errors.New("no space left on device")
	f := newFake(t, MySQL)
	s, err := New(t.Context(), f.open(), MySQL, WithTable("limits.states"))
	require.NoError(t, err)
	db := s.Database()
	f.will(answer{err: broken}, answer{err: broken}, answer{err: broken}, answer{err: broken})
	_, err = db.Get(t.Context(), "secret")
	assert.ErrorIs(t, err, broken)
	assert.EqualError(t, err, "sqlstore: reading limits.states: no space left on device")
	_, err = db.CompareAndSwap(t.Context(), "secret", nil, []byte("a"), time.Time{})
	assert.EqualError(t, err, "sqlstore: writing limits.states: no space left on device")
	assert.EqualError(t, db.Delete(t.Context(), "secret"), "sqlstore: deleting limits.states: no space left on device")
	_, err = s.Clean(t.Context())
	assert.EqualError(t, err, "sqlstore: cleaning limits.states: no space left on device")
	_, err = s.Clean(nil) //nolint:staticcheck // that is the mistake
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// MySQL counts no row that an UPDATE has left as it was.
func TestTable_EqualStates(t *testing.T) {
	for now, want := range map[string]bool{"same": true, "other": false} {
		f := newFake(t, MySQL)
		s, err := New(t.Context(), f.open(), MySQL)
		require.NoError(t, err)
		f.will(answer{changed: 0}, value([]byte(now)))
		swapped, err := s.Database().CompareAndSwap(t.Context(), "k", []byte("same"), []byte("same"), time.Time{})
		require.NoError(t, err)
		assert.Equal(t, want, swapped)
	}
}

func TestInSeconds(t *testing.T) {
	assert.Nil(t, inSeconds(time.Time{}))
	assert.EqualValues(t, 7, inSeconds(time.Unix(7, 0)))
	assert.EqualValues(t, 8, inSeconds(time.Unix(7, 1)))
}

// In SQLite, writers of a process stand in line. Each could otherwise find the file locked many times.
func TestTable_OneWriter(t *testing.T) {
	for d, most := range map[Dialect]int{SQLite: 1, PostgreSQL: 3, MySQL: 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, d)
			pool := f.open()
			s, err := New(t.Context(), pool, d)
			require.NoError(t, err)
			db := s.Database()
			slow := answer{changed: 1, after: time.Second}
			f.will(slow, slow, slow)
			go func() {
				_, err := db.CompareAndSwap(t.Context(), "a", nil, []byte("state"), time.Time{})
				assert.NoError(t, err)
			}()
			go func() {
				_, err := db.CompareAndSwap(t.Context(), "b", []byte("old"), []byte("state"), time.Time{})
				assert.NoError(t, err)
			}()
			go func() { assert.NoError(t, db.Delete(t.Context(), "c")) }()
			synctest.Wait()
			if d == SQLite { // whoever leaves the line has written nothing
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				assert.ErrorIs(t, db.Delete(ctx, "d"), context.DeadlineExceeded)
				cancel()
			}
			<-time.After(time.Minute)
			synctest.Wait()
			assert.Equal(t, most, f.most, d)
			require.NoError(t, pool.Close())
		})
	}
}
