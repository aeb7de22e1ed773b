// Package stray ends holds of which nobody knows whether they are open. A store that was asked to
// open a hold, or to end one, may not have answered: it stalled, the connection broke, or the
// caller has left. So a [List] asks the store to end the hold, which its ID identifies, until the
// store has answered: after ever longer pauses, and within a second of the last time once the store
// has answered another call.
//
// A command that got no answer may reach the store after one that was sent later. So a hold that is
// not found is looked for again, after ever longer pauses as well.
package stray

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/logvalve"
)

const (
	// The first pause. Each one that follows is twice as long.
	firstPause = 50 * time.Millisecond

	// While the store does not answer, a pause is no longer than this.
	longestPause = time.Minute

	// While the store answers other calls, a pause after an End that has failed is no longer than
	// this: the store may fail for this hold only.
	longestPauseAnswered = time.Second

	// A hold that is not found after a longer pause is not open. Pauses after which the store has
	// not answered do not count.
	lastPause = 5 * time.Second

	// maxHolds bounds the memory of a List. Beyond it, the oldest ones are forgotten, and end by
	// themselves.
	maxHolds = 1 << 16

	// longestOutage is how long a List asks in vain.
	longestOutage = 24 * time.Hour

	// maxAtOnce bounds the calls of the store that are made at once.
	maxAtOnce = 128
)

// A Hold is one that may be open.
type Hold struct {
	ID uint64

	// End has the store end the hold. It reports whether the hold was open. It is called in a
	// goroutine of its own, until there is no error.
	End func() (found bool, err error)

	since    time.Time     // when it was added
	rests    time.Time     // since when it rests, because it was added, or the store was asked
	due      time.Time     // when End is called next
	again    time.Duration // the last pause after End had failed, or the first one
	later    time.Duration // the last pause after it was not found, or the first one
	isRemote bool          // whether Answered has End called earlier than due
}

// A List has holds that may be open. The zero List is empty. While it has holds, it has a timer,
// and a goroutine while it asks the store.
type List struct {
	size   atomic.Int64 // of holds
	remote atomic.Int64 // how many of holds are remote

	mu       sync.Mutex // protects the fields below
	holds    map[uint64]*Hold
	timer    *time.Timer // calls run; nil before there was a hold
	next     time.Time   // when it does so, at the latest; zero if it does not
	running  bool        // whether run runs, which sets the timer at its end
	answered bool        // whether run is to have remote holds ended earlier
}

// Add has a hold ended soon.
func (l *List) Add(h Hold) {
	h.again, h.later = firstPause, firstPause
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == nil {
		l.holds = make(map[uint64]*Hold)
	}
	l.delete(h.ID)
	if len(l.holds) >= maxHolds {
		l.forgetOldest()
	}
	l.rest(&h, firstPause)
	h.since = h.rests
	l.holds[h.ID] = &h
	l.size.Store(int64(len(l.holds)))
	l.callAt(h.due)
}

// Answered has the holds ended soon whose End has failed, because the store has answered another
// call. It costs next to nothing if none is to be ended earlier, and little otherwise.
func (l *List) Answered() {
	if l.remote.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered = true
	l.callAt(time.Now())
}

// Forget ends no hold with that ID any more, because somebody else does.
func (l *List) Forget(id uint64) {
	if l.size.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delete(id)
}

// delete forgets a hold. The caller holds l.mu.
func (l *List) delete(id uint64) {
	if h, known := l.holds[id]; known {
		l.setRemote(h, false)
		delete(l.holds, id)
		l.size.Store(int64(len(l.holds)))
	}
}

// rest has End of a hold called after a pause. The caller holds l.mu.
func (l *List) rest(h *Hold, pause time.Duration) {
	h.rests = time.Now()
	h.due = h.rests.Add(pause)
	l.setRemote(h, false)
}

// restAgain is rest after the store has not answered. The caller holds l.mu.
func (l *List) restAgain(h *Hold) {
	l.rest(h, h.again)
	l.setRemote(h, h.again > longestPauseAnswered)
}

// setRemote sets whether a hold is remote. The caller holds l.mu.
func (l *List) setRemote(h *Hold, is bool) {
	switch {
	case is && !h.isRemote:
		l.remote.Add(1)
	case !is && h.isRemote:
		l.remote.Add(-1)
	}
	h.isRemote = is
}

// forgetOldest makes room for others. It forgets many holds at once, because it looks at all. The
// caller holds l.mu.
func (l *List) forgetOldest() {
	all := slices.SortedFunc(maps.Values(l.holds), func(a, b *Hold) int {
		return a.since.Compare(b.since)
	})
	for _, h := range all[:len(all)/16+1] {
		l.delete(h.ID)
	}
}

// callAt has run called at an instant, or earlier. The caller holds l.mu.
func (l *List) callAt(at time.Time) {
	switch {
	case l.running || !l.next.IsZero() && !at.Before(l.next):
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(time.Until(at), l.run)
	default:
		l.timer.Reset(time.Until(at))
	}
	l.next = at
}

// run ends the holds that are due, and sets the timer.
func (l *List) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return // the timer was set while it fired
	}
	l.running = true
	for due := l.due(); len(due) > 0; due = l.due() {
		l.mu.Unlock()
		l.endAll(due)
		l.mu.Lock()
	}
	l.running, l.next = false, time.Time{}
	for _, h := range l.holds {
		l.callAt(h.due)
	}
}

// due returns holds that are due. The caller holds l.mu.
func (l *List) due() (due []*Hold) {
	now := time.Now()
	for id, h := range l.holds {
		if l.answered && h.isRemote {
			h.due = h.rests.Add(longestPauseAnswered)
			l.setRemote(h, false)
		}
		switch {
		case now.Sub(h.since) > longestOutage:
			l.delete(id)
		case !h.due.After(now) && len(due) < maxAtOnce:
			due = append(due, h)
		}
	}
	l.answered = false
	return due
}

// endAll asks the store to end some holds, which are due. If it answers about none of them, those
// that are due as well are not asked for now.
func (l *List) endAll(some []*Hold) {
	var answered atomic.Bool
	var all sync.WaitGroup
	for _, h := range some {
		all.Go(func() {
			found, err := false, errPanicked
			logvalve.Safely(func() { found, err = h.End() })
			if err == nil {
				answered.Store(true)
			}
			l.note(h, found, err)
		})
	}
	all.Wait()
	if answered.Load() {
		l.Answered()
	} else {
		l.postpone()
	}
}

// errPanicked is the error of an End that has panicked, in code of the program.
var errPanicked = errors.New("ratelimit: the end of a hold panicked")

// note notes what the store has answered about a hold.
func (l *List) note(h *Hold, found bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.holds[h.ID] != h: // it was forgotten meanwhile
	case found, err == nil && h.later > lastPause:
		l.delete(h.ID)
	case err == nil:
		h.again, h.later = firstPause, 2*h.later
		l.rest(h, h.later)
	default:
		h.again = min(2*h.again, longestPause)
		l.restAgain(h)
	}
}

// postpone lets all holds rest that are due, because the store has not answered.
func (l *List) postpone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, h := range l.holds {
		if !h.due.After(now) {
			l.restAgain(h)
		}
	}
}
