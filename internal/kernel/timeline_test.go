package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestInstantOf(t *testing.T) {
	for _, at := range []time.Time{
		{}, // year 1
		time.Date(1969, 12, 31, 23, 59, 59, 5, time.UTC),
		time.Date(2100, 1, 1, 0, 0, 0, 7, time.UTC),
		time.Date(3000, 6, 1, 12, 0, 0, 0, time.UTC),
		time.Date(-4000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got := InstantOf(at)
		assert.LessOrEqual(t, got, MaxInstant, at)
		shown := time.Unix(0, int64(got)).UTC()
		assert.Equal(t, at.Weekday(), shown.Weekday(), at)
		assert.Equal(t, at.Format("15:04:05.000000000"), shown.Format("15:04:05.000000000"), at)
	}
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(0, 1), time.Date(2099, 12, 31, 23, 59, 59, 999_999_999, time.UTC)} {
		assert.EqualValues(t, at.UnixNano(), InstantOf(at), at)
	}
}
