package line

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file measures how late the goroutines of callers run.

// Tolerance is how late a turn may be taken in a process that has not been late, because timers are
// not more exact.
const Tolerance = 2 * time.Millisecond

// mostLate is the most that is allowed for a process that is late, besides Tolerance.
const mostLate = 98 * time.Millisecond

// A lateness is how late callers that sleep were woken lately. They are late in a process all of
// whose processors are busy, or whose timers fire late.
type lateness struct {
	since  kernel.Instant // the beginning of the present period
	latest time.Duration  // the greatest delay of the present period
	before time.Duration  // the greatest delay of the period before
}

// remembered is the least time for which a delay is remembered, and half of the longest.
const remembered = 500 * time.Millisecond

// note notes that a caller was late at now.
func (l *lateness) note(now kernel.Instant, by time.Duration) {
	l.forget(now)
	l.latest = max(l.latest, min(by, mostLate))
}

// forget forgets delays of long ago.
func (l *lateness) forget(now kernel.Instant) {
	switch passed := time.Duration(now - min(now, l.since)); {
	case passed >= 2*remembered:
		*l = lateness{since: now}
	case passed >= remembered:
		*l = lateness{before: l.latest, since: now}
	}
}

// most returns the greatest delay that is remembered.
func (l *lateness) most() time.Duration { return max(l.latest, l.before) }

// ofTwo returns how late two callers may be together, one after the other: the one that asks for a
// turn, and the one behind that can ask only when it has an answer.
func (l *lateness) ofTwo() time.Duration { return 2 * l.most() }
