package kernel

import (
	"math/bits"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
)

// calendarWindow is the arithmetic of a CalendarWindow: that of a FixedWindow, except that a
// calendar has the borders of its windows.
//
// The window of a state is the one that contains its start. So a state is valid by any calendar.
// Processes whose zone data differ disagree about a border for as long as the data differ, and
// none of them counts the events of two windows together.
type calendarWindow struct{ fixedWindow }

// In a word, the start of a window is in seconds, which take 33 bits until 2116. The count has the
// other bits.
const (
	calendarCountBits = 31
	calendarCountMask = 1<<calendarCountBits - 1
	// A second, in ticks of the only encoding with words.
	secondInTicks = 1e9
)

// NewCalendarWindow returns the kernel of a CalendarWindow. A second has a whole number of ticks.
func NewCalendarWindow(limit int, of *calendar.Calendar, enc Encoding) Kernel {
	k := new(calendarWindow)
	k.most, k.aligned, k.unit = uint64(limit), true, secondInTicks/enc.Tick
	k.borders = &borders{calendar: of, second: k.unit}
	k.borders.latest.Store(new([4]Instant)) // windows without instants
	if !enc.Varies && enc.Tick == 1 && bits.Len64(k.most) <= calendarCountBits {
		k.packed = calendarCountBits
	}
	return k
}

func (*calendarWindow) Kind() string { return "calendar" }

func (k *calendarWindow) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if k.packed == 0 {
		return k.fixedWindow.Take(st, now, n)
	}
	next, granted := k.Decide(st[0], now, n)
	if granted {
		st[0] = next
	}
	return st, granted
}

// Decide implements Word. It is used if packed.
func (k *calendarWindow) Decide(word uint64, now Instant, n int) (next uint64, granted bool) {
	begins, _, ok := k.borders.present(now)
	if !ok {
		begins = k.borders.begin(now)
	}
	start := word >> calendarCountBits * secondInTicks
	count := uint64(n)
	switch {
	case now < start:
		return word, false // a reservation is ahead
	case start >= begins:
		count += word & calendarCountMask
		next = word + uint64(n)
	default:
		next = begins/secondInTicks<<calendarCountBits | count
	}
	return next, count <= k.most
}

// Describe implements Word. It is used if packed. For a word of the present window, as most are, it
// needs no call, and says what the Describe of fixedWindow does.
func (k *calendarWindow) Describe(word uint64, now Instant) (remaining int, fresh Instant) {
	begins, ends, ok := k.borders.present(now)
	start, count := word>>calendarCountBits*secondInTicks, word&calendarCountMask
	if ok && begins <= start && start <= now && count > 0 {
		return int(k.most - min(count, k.most)), ends
	}
	return k.fixedWindow.Describe(word, now)
}

func (k *calendarWindow) Adopt(
	from Kernel,
	st []uint64,
	now, latest Instant,
) (_ []uint64, lasting bool) {
	return k.fixedWindow.Adopt(&from.(*calendarWindow).fixedWindow, st, now, latest)
}

func (k *calendarWindow) SharesStates(from Kernel) bool {
	return k.fixedWindow.SharesStates(&from.(*calendarWindow).fixedWindow)
}

func (k *calendarWindow) Carry(from Kernel, was, st []uint64, now Instant, old, mark []uint64) {
	k.fixedWindow.Carry(&from.(*calendarWindow).fixedWindow, was, st, now, old, mark)
}

func (k *calendarWindow) Memory() uint64 { return uint64(k.borders.calendar.Longest()) * k.unit }

// Borders are those of the windows of a calendar, in ticks.
type borders struct {
	calendar *calendar.Calendar
	second   uint64 // in ticks
	// The borders around an instant that was asked for lately: to compute one takes longer than a
	// decision. The present window is almost always the second of these three.
	latest atomic.Pointer[[4]Instant]
}

// present returns the second window of the latest three, and reports whether it contains t. Nearly
// always it does. So the paths of most decisions ask present, which is inlined, before they call a
// function that answers for any instant.
func (b *borders) present(t Instant) (start, end Instant, ok bool) {
	latest := b.latest.Load()
	start, end = latest[1], latest[2]
	return start, end, t-start < end-start
}

// begin returns the start of the window that contains t.
func (b *borders) begin(t Instant) Instant {
	latest := b.latest.Load()
	if t < latest[0] || t >= latest[3] {
		latest = b.around(t)
		b.latest.Store(latest)
	}
	start, _ := within(latest, t)
	return start
}

// end returns the end of the window that contains t. Unlike begin, it is also asked for old
// windows, which are not worth keeping.
func (b *borders) end(t Instant) Instant {
	latest := b.latest.Load()
	if t < latest[0] || t >= latest[3] {
		latest = b.around(t)
	}
	_, end := within(latest, t)
	return end
}

// around returns the borders around t: the second and the third one are those of its window.
func (b *borders) around(t Instant) *[4]Instant {
	var in [4]Instant
	for i, border := range b.calendar.Around(int64(t / b.second)) {
		in[i] = Instant(max(border, 0)) * b.second // time begins in 1970
	}
	return &in
}

// within returns the window that contains t, of those between the borders.
func within(borders *[4]Instant, t Instant) (start, end Instant) {
	switch {
	case t < borders[1]:
		return borders[0], borders[1]
	case t < borders[2]:
		return borders[1], borders[2]
	}
	return borders[2], borders[3]
}
