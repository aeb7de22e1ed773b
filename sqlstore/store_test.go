package sqlstore

import (
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestNew_Invalid(t *testing.T) {
	db := newFake(t, MySQL).open()
	for want, call := range map[string]func() (*Store, error){
		"sqlstore: ctx is nil: it must not be nil; context.Background() is one": func() (*Store, error) {
			return New(nil, db, MySQL) //nolint:staticcheck // that is the mistake
		},
		"sqlstore: db is nil: it must be a database, such as sql.Open returns": func() (*Store, error) {
			return New(t.Context(), nil, MySQL)
		},
		"sqlstore: the Dialect is 0: it must be PostgreSQL, MySQL or SQLite": func() (*Store, error) {
			return New(t.Context(), db, 0)
		},
		"sqlstore: option 1 of New is nil: it must be the result of a With function": func() (*Store, error) {
			return New(t.Context(), db, MySQL, WithoutCreate(), nil)
		},
		`sqlstore: WithTable's name is "a; b": it must be that of a table, such as ratelimit_states or limits.states`: func() (*Store, error) {
			return New(t.Context(), db, MySQL, WithTable("a; b"))
		},
		"sqlstore: WithClock's clock is nil: it must be a clock.Clock, such as clock.New()": func() (*Store, error) {
			return New(t.Context(), db, MySQL, WithClock((*clock.Mock)(nil)))
		},
	} {
		_, err := call()
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.EqualError(t, err, want)
	}
	_, err := New(t.Context(), db, MySQL, WithClock(nil))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// A zero Store returns errors.
func TestStore_Zero(t *testing.T) {
	var s Store
	_, err := ratelimit.New(ratelimit.Blocked{}, ratelimit.WithStore(&s))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	_, err = s.Clean(t.Context())
	assert.EqualError(t, err, "sqlstore: the Store is zero: it must be one that New returns")
	assert.NoError(t, s.Close(t.Context()))
	assert.Equal(t, "no database", s.String())
}

func TestStore_String(t *testing.T) {
	s, err := New(t.Context(), newFake(t, SQLite).open(), SQLite)
	require.NoError(t, err)
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(5)}, ratelimit.WithStore(s), ratelimit.WithName("api")))
	assert.Contains(t, l.(interface{ String() string }).String(), `"api": 5/s, in SQLite`)
	assert.Equal(t, "Dialect(7)", Dialect(7).String())
}
