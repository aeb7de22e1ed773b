package sqlstore

import (
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each thousandth write sweeps the next two thousand rows, and its own outcome does not depend on that.
func TestSweep(t *testing.T) {
	f := newFake(t, SQLite)
	s, err := New(t.Context(), f.open(), SQLite)
	require.NoError(t, err)
	f.statements("")
	write := func(n int) {
		for range n {
			swapped, err := s.Database().CompareAndSwap(t.Context(), "k", nil, []byte("state"), time.Time{})
			require.NoError(t, err)
			require.True(t, swapped)
		}
	}
	f.will(page("m", 2000))
	write(1000)
	assert.Len(t, f.statements("DELETE"), 1)
	f.will(answer{to: "count(*)", err: sql.ErrConnDone})
	write(1000)
	assert.Empty(t, f.statements("DELETE"))
	f.will(page("z", 5)) // the end of the table
	write(1000)
	assert.Len(t, f.statements("DELETE"), 1)
	f.will(page(nil, 0)) // which is empty now
	write(1000)
	assert.Empty(t, f.statements("DELETE"))
	assert.Equal(t, []string{"k", "m", "m", ""}, f.cursors())
}

// page is the answer to a statement for a page of n rows, of which the last one has the id last.
func page(last any, n int64) answer {
	return answer{to: "count(*)", rows: [][]driver.Value{{last, n}}}
}

// TestClean checks that Clean returns how many rows it has deleted in all of its steps, also if a
// later one fails.
func TestClean(t *testing.T) {
	deletes := func(n int64) answer { return answer{to: "DELETE", changed: n} }
	for _, tt := range []struct {
		answers []answer
		want    int64
		err     error
	}{
		{[]answer{page(nil, 0)}, 0, nil},
		{[]answer{page("m", 2000), deletes(1500), page("z", 5), deletes(3)}, 1503, nil},
		{[]answer{page("m", 2000), deletes(1500), page(nil, 0)}, 1500, nil},
		{[]answer{page("m", 2000), deletes(1500), {to: "count(*)", err: sql.ErrConnDone}}, 1500, sql.ErrConnDone},
		{[]answer{page("m", 2000), deletes(1500), page("z", 5), {to: "DELETE", err: sql.ErrConnDone}}, 1500, sql.ErrConnDone},
	} {
		f := newFake(t, SQLite)
		s, err := New(t.Context(), f.open(), SQLite)
		require.NoError(t, err)
		f.will(tt.answers...)
		deleted, err := s.Clean(t.Context())
		assert.Equal(t, tt.want, deleted)
		assert.ErrorIs(t, err, tt.err)
	}
}
