package redisstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// The script knows the windows around the server's time. If the store did not know that time, or not
// for a while, the process decides, and the next script knows the windows.
func TestWindowsOfTheServer(t *testing.T) {
	const day = 24 * time.Hour
	for name, skew := range map[string]time.Duration{ // at first, the clock of the server shows 11 o'clock
		"the server is ahead":  40*day + 11*time.Hour,
		"the process is ahead": 11*time.Hour - 40*day,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { windowsOfTheServer(t, skew) })
		})
	}
}

func windowsOfTheServer(t *testing.T, skew time.Duration) {
	f := newFakeServer(t, ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Day, Zone: "Europe/London"})
	f.Skew = skew
	_, l := f.store(t)
	const day = 24 * time.Hour
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
}

// If the script lacks a window of several keys, it is sent again with those of the server's time, so
// that it decides on all keys at once.
func TestWindowsOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, ratelimit.CalendarWindow{Limit: 3, Every: ratelimit.Month})
		f.Skew = 1000 * 24 * time.Hour
		f.Load(script.ForKeys(f.prog.Kinds, script.Plain).Text)
		_, l := f.storeThrough(t, oneServer{f})
		for _, tt := range []struct {
			passes       time.Duration
			n, remaining int
			trips        int
		}{
			{0, 2, 1, 2}, // which learns the time
			{0, 1, 0, 1},
			{100 * 24 * time.Hour, 2, 1, 2}, // nobody has asked meanwhile
		} {
			time.Sleep(tt.passes)
			f.Trips, f.Batches = 0, nil
			d, err := ratelimit.TakeAll(t.Context(), tt.n, ratelimit.For(l, "a"), ratelimit.For(l, "b"))
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			assert.Equal(t, tt.remaining, d.Remaining)
			assert.Equal(t, tt.trips, f.Trips)
			assert.Equal(t, []int{2}, f.Batches, "both keys at once")
		}
	})
}

// Leases grant a day no more than its limit and one lease of the day before, and never less than its
// limit, also in a day of 23 hours.
func TestLeaseInEachDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, lease = 1500, 100
		f := newFakeServer(t, ratelimit.CalendarWindow{Limit: limit, Every: ratelimit.Day, Zone: "Europe/London"})
		s, l := f.store(t, WithLease(lease, 2*time.Hour))
		march := func(day, hour int) time.Time { return time.Date(2000, time.March, day, hour, 0, 0, 0, time.UTC) }
		time.Sleep(time.Until(march(25, 0)))
		for _, tt := range []struct {
			until time.Time
			pause time.Duration // between requests
		}{
			{march(26, 0), time.Minute},
			{march(26, 23), time.Minute / 2}, // the clock was set forward
			{march(27, 23), time.Minute},
			{march(28, 11), time.Minute},
		} {
			leased, asked, granted := s.Stats().Leased, 0, 0
			for time.Now().Before(tt.until) {
				asked++
				if l.Allow("k") {
					granted++
				}
				time.Sleep(tt.pause)
			}
			assert.GreaterOrEqual(t, granted, min(asked, limit), tt.until)
			assert.LessOrEqual(t, granted, limit+lease, tt.until)
			assert.Greater(t, s.Stats().Leased, leased, tt.until)
		}
		conservedWithin(t, f, s, limit, 12*60-lease, 12*60)
	})
}
