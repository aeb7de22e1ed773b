package sqlstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first call finds what is wrong with the table, and so does each further call until that is mended.
func TestPrepare_Table(t *testing.T) {
	for d, its := range dialects {
		t.Run(its.name, func(t *testing.T) {
			for name, wrong := range map[string][]string{
				"no primary key":     {its.want[0][:len(its.want[0])-len(" PRIMARY KEY")], its.want[1], its.want[2]},
				"a column is gone":   its.want[:2],
				"a column more":      append([]string{"version bigint"}, its.want...),
				"another type":       {its.want[0], its.want[1], "expires timestamp"},
				"forgets at a crash": append([]string{"UNLOGGED"}, its.want...),
			} {
				f := newFake(t, d)
				s, err := New(t.Context(), f.open(), d, WithoutCreate())
				require.NoError(t, err)
				require.Empty(t, f.statements(""), "New has called the database")
				for range 2 {
					f.will(columns(wrong...).on(its.columns))
					_, err = s.Database().Get(t.Context(), "k")
					assert.ErrorIs(t, err, ErrUnsuitable, name)
					assert.ErrorContains(t, err, "the table ratelimit_states is (", name)
					assert.ErrorContains(t, err, "CREATE TABLE IF NOT EXISTS ratelimit_states (", name)
				}
				f.will(columns(its.want[2], its.want[0], its.want[1]).on(its.columns)) // in any order
				_, err = s.Database().Get(t.Context(), "k")
				assert.NoError(t, err)
				f.statements("")
				_, err = s.Database().Get(t.Context(), "k")
				assert.NoError(t, err)
				assert.Len(t, f.statements(""), 1, "what has been checked is not checked again")
			}
		})
	}
}

// New creates a table that is missing, and only then.
func TestPrepare_Create(t *testing.T) {
	f := newFake(t, PostgreSQL)
	_, err := New(t.Context(), f.open(), PostgreSQL)
	require.NoError(t, err)
	assert.Empty(t, f.statements("CREATE"), "which needs a permission")

	f.will(columns().on("pg_attribute"))
	_, err = New(t.Context(), f.open(), PostgreSQL)
	require.NoError(t, err)
	assert.Len(t, f.statements("CREATE"), 1)

	// Another process has created it at the same time.
	f.will(columns().on("pg_attribute"), answer{to: "CREATE", err: stateOf("23505")})
	_, err = New(t.Context(), f.open(), PostgreSQL)
	require.NoError(t, err)

	f.will(columns().on("pg_attribute"), answer{to: "CREATE", err: stateOf("42501")}, columns().on("pg_attribute"))
	_, err = New(t.Context(), f.open(), PostgreSQL)
	assert.EqualError(t, err, "sqlstore: creating ratelimit_states: the server says 42501")

	s, err := New(t.Context(), f.open(), PostgreSQL, WithoutCreate())
	require.NoError(t, err)
	f.statements("")
	f.will(columns().on("pg_attribute"))
	_, err = s.Database().Get(t.Context(), "k")
	assert.ErrorIs(t, err, ErrUnsuitable)
	assert.ErrorContains(t, err, "there is no table ratelimit_states: create it with\nCREATE TABLE IF NOT EXISTS ratelimit_states (")
	assert.Empty(t, f.statements("CREATE TABLE"))
}

// Clocks that differ by more than rows stay cannot share a table.
func TestPrepare_Clock(t *testing.T) {
	for ahead, fits := range map[time.Duration]bool{0: true, 4 * time.Second: true, -4 * time.Second: true, 8 * time.Second: false, -8 * time.Second: false} {
		for _, d := range []Dialect{PostgreSQL, MySQL} {
			f := newFake(t, d)
			f.will(value(float64(time.Now().Add(ahead).UnixNano()) / 1e9).on(dialects[d].now))
			_, err := New(t.Context(), f.open(), d)
			if fits {
				assert.NoError(t, err, ahead)
				continue
			}
			assert.ErrorIs(t, err, ErrUnsuitable, ahead)
			assert.ErrorContains(t, err, "the clocks of this process and of the server differ by")

			f.will(value(float64(time.Now().Add(ahead).UnixNano()) / 1e9).on(dialects[d].now))
			_, err = New(t.Context(), f.open(), d, WithClock(clock.NewMock()))
			assert.NoError(t, err, "a clock of a test is not compared")
		}
	}
}

// Each connection to SQLite needs its settings, and not only the one on which somebody has set them.
func TestPrepare_SQLite(t *testing.T) {
	for want, wrong := range map[string][]answer{
		"journal_mode is delete: it must be wal": {value("delete").on("journal_mode")},
		"busy_timeout is 0 on a connection":      {value(int64(5000)).on("busy_timeout"), value(int64(0)).on("busy_timeout")},
	} {
		f := newFake(t, SQLite)
		f.will(wrong...)
		_, err := New(t.Context(), f.open(), SQLite)
		assert.ErrorIs(t, err, ErrUnsuitable)
		assert.ErrorContains(t, err, want)
	}
	f := newFake(t, SQLite)
	db := f.open()
	db.SetMaxOpenConns(1)
	_, err := New(t.Context(), db, SQLite)
	require.NoError(t, err)
	assert.Equal(t, 1, f.conns)
	_, err = New(t.Context(), f.open(), SQLite)
	require.NoError(t, err)
	assert.Equal(t, 3, f.conns)
}

// Processes that open a new file of SQLite at once wait until one of them has made it.
func TestPrepare_Locked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for fails, want := range map[int]bool{3: true, 1000: false} {
			f := newFake(t, SQLite)
			f.locked = fails
			db := f.open()
			_, err := New(t.Context(), db, SQLite)
			if want {
				assert.NoError(t, err)
			} else {
				assert.EqualError(t, err, "sqlstore: examining the database of ratelimit_states: database is locked")
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, err = New(ctx, db, SQLite)
				cancel()
				assert.Error(t, err)
			}
			require.NoError(t, db.Close())
		}
	})
}
