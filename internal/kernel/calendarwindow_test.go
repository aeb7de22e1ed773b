package kernel

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
)

const daySeconds = 24 * 60 * 60

// days returns the calendar of days in a zone.
func days(zone *time.Location) *calendar.Calendar {
	return calendar.New(calendar.Rule{Every: calendar.Day}, zone)
}

func TestCalendarWindowWords(t *testing.T) {
	const dawn = begun / second / daySeconds * daySeconds // in seconds
	wide := uint64(1 << 31)
	for name, tt := range map[string]struct {
		limit    int
		encoding Encoding
		want     []uint64 // after three events
	}{
		"one word":    {10, InMemory, []uint64{dawn<<31 | 3}},
		"most in one": {1<<31 - 1, InMemory, []uint64{dawn<<31 | 3}},
		"two words":   {int(wide), InMemory, []uint64{dawn * second, 3}},
		"limits vary": {10, InMemory.Varying(), []uint64{dawn * second, 3}},
		"in Redis":    {10, Encoding{Tick: 1000, Portable: true, Varies: true}, []uint64{dawn * 1e6, 3}},
	} {
		if tt.limit < 0 {
			continue // a 32-bit int cannot name it
		}
		k := NewCalendarWindow(tt.limit, days(time.UTC), tt.encoding)
		at, tomorrow := begun/tt.encoding.Tick, (dawn+daySeconds)*second/tt.encoding.Tick
		st := k.Spend(make([]uint64, k.Width()), at, 3)
		assert.Equal(t, tt.want, st, name)
		assert.Equal(t, tt.limit-3, k.Remaining(st, at), name)
		assert.Equal(t, at, k.Ready(st, at, tt.limit-3), name)
		assert.Equal(t, tomorrow, k.Ready(st, at, tt.limit-2), name)
		assert.Equal(t, tomorrow, k.Fresh(st), name)
		assert.Equal(t, tt.limit, k.Remaining(st, tomorrow), name)
	}
}

// TestCalendarWindowIsNeverNoWord fills the last window that there is.
func TestCalendarWindowIsNeverNoWord(t *testing.T) {
	k := NewCalendarWindow(1<<31-1, days(time.UTC), InMemory)
	st := k.Spend([]uint64{0}, MaxInstant, k.Limit())
	assert.Zero(t, k.Chargeable(st, MaxInstant, InMemory), "the bits are full")
	assert.Less(t, st[0], uint64(NoWord))
	assert.Greater(t, k.Fresh(st), MaxInstant)
}

// The first window began before 1970, where time begins.
func TestCalendarWindowBeforeTime(t *testing.T) {
	year := calendar.New(calendar.Rule{Every: calendar.Year, Start: 406}, time.UTC)
	k := NewCalendarWindow(10, year, InMemory)
	st := k.Spend([]uint64{0}, 0, 4)
	assert.Equal(t, []uint64{4}, st)
	assert.Equal(t, 6, k.Remaining(st, second))
	assert.Equal(t, uint64(time.Date(1970, 4, 6, 0, 0, 0, 0, time.UTC).UnixNano()), k.Fresh(st))
}

// Whatever the order is in which a kernel is asked about windows, its answers are those of a new
// one: what it remembers of the calendar affects none.
func TestCalendarWindowAskedInAnyOrder(t *testing.T) {
	used := NewCalendarWindow(3, days(time.UTC), InMemory)
	for _, day := range []uint64{9, 0, 10, 8, 7, 12, 11, 40, 9} {
		at := begun + day*daySeconds*second
		fresh := NewCalendarWindow(3, days(time.UTC), InMemory)
		for name, ask := range map[string]func(k Kernel) any{
			"Spend": func(k Kernel) any { return k.Spend([]uint64{0}, at, 2) },
			"Fresh": func(k Kernel) any { return k.Fresh(fresh.Spend([]uint64{0}, at, 2)) },
			"Ready": func(k Kernel) any { return k.Ready(fresh.Spend([]uint64{0}, at, 3), at, 1) },
		} {
			assert.Equal(t, ask(fresh), ask(used), "%s on day %d", name, day)
		}
	}
}

// TestCalendarWindowAdopts: a month's count counts in today's window, and a day's in its month.
func TestCalendarWindowAdopts(t *testing.T) {
	varying := InMemory.Varying()
	day := NewCalendarWindow(10, days(time.UTC), varying)
	month := NewCalendarWindow(5, calendar.New(calendar.Rule{Every: calendar.Month, Start: 1}, time.UTC), varying)
	now := uint64(time.Date(2026, 3, 11, 12, 0, 0, 0, time.UTC).UnixNano())
	today := uint64(time.Date(2026, 3, 11, 0, 0, 0, 0, time.UTC).UnixNano())
	first := uint64(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano())

	st, lasting := month.Adopt(day, day.Spend(make([]uint64, 2), now, 8), now, now)
	assert.Equal(t, []uint64{first, 8}, st)
	assert.True(t, lasting, "the month contains the day")
	st, lasting = day.Adopt(month, month.Spend(make([]uint64, 2), first, 8), now, now)
	assert.Equal(t, []uint64{today, 8}, st, "they may have happened just now")
	assert.False(t, lasting)
	st, _ = month.Adopt(day, day.Spend(make([]uint64, 2), first, 8), now, now)
	assert.Equal(t, []uint64{0, 0}, st, "that day is over")

	more := NewCalendarWindow(20, days(time.UTC), varying)
	assert.True(t, more.SharesStates(day))
	assert.False(t, more.SharesStates(month))
	assert.False(t, more.SharesStates(NewCalendarWindow(20, days(time.FixedZone("elsewhere", 3600)), varying)))
}

// zoneOf returns a zone of a name whose clock is ahead of UTC by some hours: that of a file of zone
// data, as one version of the data has it.
func zoneOf(t *testing.T, name string, hours int) *time.Location {
	t.Helper()
	var block []byte
	header := append([]byte("TZif2"), make([]byte, 15)...)
	for _, count := range []uint32{0, 0, 0, 0, 1, 4} { // one type of local time, with a name of 3 letters
		header = binary.BigEndian.AppendUint32(header, count)
	}
	block = binary.BigEndian.AppendUint32(header, uint32(hours*3600))
	block = append(block, 0, 0, 'X', 'Y', 'Z', 0)
	data := append(append([]byte{}, block...), block...) // in both forms of the format
	data = append(data, fmt.Sprintf("\n<XYZ>%d\n", -hours)...)
	zone, err := time.LoadLocationFromTZData(name, data)
	require.NoError(t, err)
	return zone
}

// Two processes have different data of a zone: by the old data, a day begins at 22:00 UTC, and by
// the new data at 23:00. They disagree about that hour, and no window has more events than its
// limit by the data of the process that decides. Once both have the new data, nothing is left of it.
func TestZoneDataThatDiffer(t *testing.T) {
	for name, enc := range map[string]Encoding{"word": InMemory, "words": InMemory.Varying()} {
		t.Run(name, func(t *testing.T) {
			before := NewCalendarWindow(10, days(zoneOf(t, "Europe/Somewhere", 2)), enc)
			after := NewCalendarWindow(10, days(zoneOf(t, "Europe/Somewhere", 1)), enc)
			require.True(t, after.SharesStates(before), "it is the same limit")
			at := func(day, hour, minute int) Instant {
				return uint64(time.Date(2026, 3, day, hour, minute, 0, 0, time.UTC).UnixNano())
			}
			st := make([]uint64, before.Width())
			take := func(k Kernel, now Instant, n int) (granted bool) {
				require.True(t, k.Valid(st, InMemory))
				st, granted = k.Take(st, now, n)
				return granted
			}
			require.True(t, take(after, at(10, 21, 0), 10))
			assert.False(t, take(before, at(10, 21, 59), 1), "both agree")
			assert.True(t, take(before, at(10, 22, 0), 4), "a day begins by the old data")
			assert.True(t, take(after, at(10, 22, 30), 6), "by the new data, these four are the day's")
			assert.False(t, take(after, at(10, 22, 31), 1))
			assert.False(t, take(before, at(10, 22, 31), 1))
			assert.True(t, take(after, at(10, 23, 0), 7), "it begins by the new data, too")
			assert.False(t, take(before, at(10, 23, 1), 4), "both agree again")
			assert.True(t, take(before, at(10, 23, 1), 3))
			assert.Equal(t, at(11, 22, 0), before.Ready(st, at(11, 12, 0), 1))
			assert.Equal(t, at(11, 23, 0), after.Ready(st, at(11, 12, 0), 1))
			assert.True(t, take(after, at(11, 23, 0), 10), "and so does the next day")
		})
	}
}
