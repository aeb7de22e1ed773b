package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// An unreadable value is reported once, counted, and replaced by a new state, whether the
// script detects it or the arithmetic does.
func TestUnreadableState(t *testing.T) {
	for name, value := range map[string]string{
		"short":   "damaged",
		"invalid": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 2, Window: time.Hour})
				s, l := f.store(t)
				require.True(t, l.Allow("k"))
				for key := range f.Values {
					f.Values[key] = value
				}
				_, err := l.Take(t.Context(), "k", 1)
				require.ErrorIs(t, err, ratelimit.ErrState)
				for _, want := range []bool{true, false} {
					d, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					assert.Equal(t, want, d.Allowed, "the first call has spent one of two")
				}
				assert.EqualValues(t, 1, s.Stats().Unreadable)
				assert.EqualValues(t, 1, s.Stats().OtherErrors)
				assert.EqualValues(t, 1, s.Stats().Failures)
			})
		})
	}
}
