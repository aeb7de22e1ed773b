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
	page := func(last any, n int64) answer {
		return answer{to: "count(*)", rows: [][]driver.Value{{last, n}}}
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
