package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// The script knows the windows around the server's time. If the store did not know that time, or not
// for a while, the process decides, and the next script knows the windows.
func TestWindowsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Day, Zone: "Europe/London"})
		f.Skew = 40*24*time.Hour + 11*time.Hour
		_, l := f.store(t)
		day := 24 * time.Hour
		for _, tt := range []struct {
			passes time.Duration
			trips  int // of the first call
		}{
			{0, 2},               // which learns the time, and replaces the state
			{day, 1},             // the next window
			{day, 1},             // and the next one but one, because the last answer was of the window between
			{10 * day, 2},        // nobody has asked meanwhile
			{day - time.Hour, 1}, // the clock of the server shows 10 o'clock
		} {
			time.Sleep(tt.passes)
			replaced := f.Replaced
			f.Trips = 0
			require.True(t, l.AllowN("k", 2))
			assert.Equal(t, tt.trips, f.Trips)
			assert.Equal(t, tt.trips-1, f.Replaced-replaced)
			require.True(t, l.Allow("k"))
			assert.Equal(t, tt.trips+1, f.Trips, "of now on, the script decides")
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			now := time.Now().Add(f.Skew)
			assert.Equal(t, now.Truncate(day).Add(day).Sub(now), d.RetryAfter)
		}
	})
}

// If the script lacks the windows of several keys, they are decided on one after the other.
func TestWindowsOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Month})
		f.Skew = 1000 * 24 * time.Hour
		f.Load(scriptFor(true, together, []byte{calendarKind}).text)
		_, l := f.storeThrough(t, oneServer{f})
		d, err := ratelimit.TakeAll(t.Context(), 2, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.NotContains(t, f.Batches, 2)
		d, err = ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, 2, f.Batches[len(f.Batches)-1], "now the store knows the server's time")
	})
}
