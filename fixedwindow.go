package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// A FixedWindow counts the events of each window of length Window, and grants n if count + n ≤
// Limit.
//
// It bounds each window exactly ("1,000 a day"). But a burst at the end of one window may be
// followed by another at the start of the next: a span as long as a window may see 2·Limit events.
// Its state is one word for most limits, and two words for the others and with StartOnFirstEvent.
type FixedWindow struct {
	Limit  int           // the most events in one window
	Window time.Duration // the length of a window
	Start  WindowStart   // where windows begin
}

// WindowStart says where the windows of a [FixedWindow] begin.
type WindowStart int

const (
	// StartAligned begins windows at whole multiples of their length since the Unix epoch,
	// 1970-01-01 00:00 UTC: windows of an hour begin on the hour, windows of a day at midnight UTC,
	// and windows of seven days on Thursdays.
	StartAligned WindowStart = iota

	// StartOnFirstEvent begins a key's window with the first event granted after the end of its
	// previous window. So the windows of different keys do not all begin at once.
	StartOnFirstEvent
)

// String returns the limit in words, such as "100 in each minute", or
// "100 in each minute from the first event" with StartOnFirstEvent.
func (a FixedWindow) String() string { return inWords(a) }

func (a FixedWindow) normalized() Algorithm { return a }

func (a FixedWindow) share(by divisor) Algorithm {
	a.Limit = by.events(a.Limit)
	return a
}

func (a FixedWindow) spec() limit.Spec {
	return limit.Spec{
		Kind:    limit.FixedWindow,
		Numbers: [4]uint64{uint64(a.Limit), uint64(a.Window), uint64(a.Start)},
	}
}

func (FixedWindow) of(s *limit.Spec) Algorithm {
	return FixedWindow{Limit: s.Int(0), Window: s.Duration(1), Start: WindowStart(s.Int(2))}
}
