package kernel

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFixedWindowWords(t *testing.T) {
	at := begun + second/4
	for name, tt := range map[string]struct {
		aligned  bool
		encoding Encoding
		want     []uint64 // after three events at that instant
		end      Instant
	}{
		"aligned":     {true, InMemory, []uint64{begun/second<<31 | 3}, begun + second},
		"limits vary": {true, InMemory.Varying(), []uint64{begun, 3}, begun + second},
		"first event": {false, InMemory, []uint64{at, 3}, at + second},
	} {
		k := NewFixedWindow(10, second, tt.aligned, tt.encoding)
		st := k.Spend(make([]uint64, k.Width()), at, 3)
		assert.Equal(t, tt.want, st, name)
		assert.Equal(t, 7, k.Remaining(st, at), name)
		assert.Equal(t, at, k.Ready(st, at, 7), name)
		assert.Equal(t, tt.end, k.Ready(st, at, 8), name)
		assert.Equal(t, tt.end, k.Fresh(st), name)
		assert.Equal(t, 10, k.Remaining(st, tt.end), name)
	}
}

// TestWindowsAreDescribed: Describe says at once what Frontier, Remaining and Fresh say of a word.
func TestWindowsAreDescribed(t *testing.T) {
	const day, limit = daySeconds * second, 10
	fixed := NewFixedWindow(limit, day, true, InMemory)
	utc := NewCalendarWindow(limit, days(time.UTC), InMemory)
	later := NewCalendarWindow(limit, days(time.FixedZone("an hour behind", -3600)), InMemory)
	for name, kernels := range map[string][2]Kernel{
		"FixedWindow":                     {fixed, fixed},
		"CalendarWindow":                  {utc, utc},
		"word of a process of other data": {utc, later}, // its days begin within those of utc
	} {
		k, other := kernels[0], kernels[1]
		require.Equal(t, 1, k.Width(), name)
		for _, began := range []Instant{0, begun - 40*day, begun - day, begun, begun + day} {
			for count := range limit + 2 { // with a debt of one event
				spent := other.Spend([]uint64{0}, began, max(count, 1))[0]
				if count == 0 {
					spent-- // the event was cancelled
				}
				dawn := k.Frontier([]uint64{spent})
				for _, now := range []Instant{dawn - min(dawn, 1), dawn, dawn + day - 1, dawn + day, begun} {
					remaining, fresh := k.(Word).Describe(spent, now)
					want := 0
					if now >= dawn {
						want = k.Remaining([]uint64{spent}, now)
					}
					assert.Equal(t, want, remaining, "%s, %d since %d, at %d", name, count, dawn, now)
					assert.Equal(t, k.Fresh([]uint64{spent}), fresh, "%s, %d since %d", name, count, dawn)
				}
			}
		}
	}
}

// Nothing is granted before the window of a state begins: its events were reserved.
func TestNothingIsGrantedBeforeAWindow(t *testing.T) {
	const day, limit = daySeconds * second, 10
	for name, k := range map[string]Kernel{
		"FixedWindow, one word":     NewFixedWindow(limit, day, true, InMemory),
		"FixedWindow, two words":    NewFixedWindow(limit, day, true, InMemory.Varying()),
		"CalendarWindow, one word":  NewCalendarWindow(limit, days(time.UTC), InMemory),
		"CalendarWindow, two words": NewCalendarWindow(limit, days(time.UTC), InMemory.Varying()),
	} {
		reserved := k.Spend(make([]uint64, k.Width()), begun+day, 1)
		begins := k.Frontier(reserved)
		for _, now := range []Instant{begun - day, begins - 1} {
			st, granted := k.Take(slices.Clone(reserved), now, 1)
			assert.False(t, granted, name)
			assert.Equal(t, reserved, st, name)
			assert.Equal(t, begins, k.Ready(st, now, 1), name)
		}
		_, granted := k.Take(slices.Clone(reserved), begins, 1)
		assert.True(t, granted, name)
	}
}

// TestFixedWindowIsNeverNoWord fills the last window that there is.
func TestFixedWindowIsNeverNoWord(t *testing.T) {
	for length, limit := range map[uint64]int{1: 1, 2: 3, 3: 7, second: 1<<31 - 1, 1<<29 - 1: 1<<30 - 1, 1 << 29: 1<<30 - 1, 1<<29 + 1: 1<<31 - 1} {
		k := NewFixedWindow(limit, length, true, InMemory)
		require.Equal(t, 1, k.Width(), length)
		st := k.Spend([]uint64{0}, MaxInstant, limit)
		st = k.Spend(st, MaxInstant, int(k.Chargeable(st, MaxInstant, InMemory)))
		assert.Less(t, st[0], uint64(NoWord), length)
		assert.Equal(t, MaxInstant-MaxInstant%length, k.Frontier(st), "the debt stays in its bits")
		assert.Equal(t, 2, NewFixedWindow(2*limit+1, length, true, InMemory).Width(), length)
	}
}

// TestFixedWindowAdopts: the count is kept, and its window lasts as the new one does.
func TestFixedWindowAdopts(t *testing.T) {
	short := NewFixedWindow(10, second, true, InMemory.Varying())
	long := NewFixedWindow(5, 60*second, true, InMemory.Varying())
	st := short.Spend(make([]uint64, 2), begun, 8)
	st, lasting := long.Adopt(short, st, begun, begun)
	assert.Equal(t, []uint64{begun, 8}, st)
	assert.True(t, lasting, "the long window contains the short one")
	assert.Zero(t, long.Remaining(st, begun), "more than the limit")
	assert.Equal(t, begun+60*second, long.Ready(st, begun, 1))
	now, lasting := short.Adopt(long, st, begun+7*second+1, begun+7*second+1)
	assert.Equal(t, []uint64{begun + 7*second, 8}, now, "they may have happened just now")
	assert.False(t, lasting)
	over, _ := short.Adopt(long, st, begun+60*second, begun+60*second)
	assert.Equal(t, []uint64{0, 0}, over)
}
