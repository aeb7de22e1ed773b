// Package stray ends holds of which nobody knows whether they are open. A store that was asked to
// open a hold, or to end one, may not have answered: it stalled, the connection broke, or the
// caller has left. So a [List] asks the store to end the hold, which its ID identifies, until the
// store has answered: after ever longer pauses, and as soon as the store has answered another call.
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

	// A hold that is not found after a longer pause is not open.
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

	since    time.Time // when it was added
	due      time.Time // when End is called next
	pause    time.Duration
	isFailed bool // whether End has failed when it was last called
}

// A List has holds that may be open. The zero List is empty. While it has holds, it has a timer,
// and a goroutine while it asks the store.
type List struct {
	size atomic.Int64 // of holds

	mu      sync.Mutex // protects the fields below
	holds   map[uint64]*Hold
	timer   *time.Timer // calls run; nil before there was a hold
	next    time.Time   // when it does so, at the latest; zero if it does not
	running bool        // whether run runs, which sets the timer at its end
}

// Add has a hold ended soon.
func (l *List) Add(h Hold) {
	h.since, h.pause = time.Now(), firstPause
	h.due = h.since.Add(h.pause)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == nil {
		l.holds = make(map[uint64]*Hold)
	}
	if _, known := l.holds[h.ID]; !known && len(l.holds) >= maxHolds {
		l.forgetOldest()
	}
	l.holds[h.ID] = &h
	l.size.Store(int64(len(l.holds)))
	l.callAt(h.due)
}

// Answered has the holds ended now whose End has failed, because the store has answered another
// call. It costs next to nothing if there are no holds.
func (l *List) Answered() {
	if l.size.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, h := range l.holds {
		if h.isFailed {
			h.isFailed, h.due = false, now
			l.callAt(now)
		}
	}
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
	delete(l.holds, id)
	l.size.Store(int64(len(l.holds)))
}

// forgetOldest makes room for others. It forgets many holds at once, because it looks at all. The
// caller holds l.mu.
func (l *List) forgetOldest() {
	all := slices.SortedFunc(maps.Values(l.holds), func(a, b *Hold) int {
		return a.since.Compare(b.since)
	})
	for _, h := range all[:len(all)/16+1] {
		delete(l.holds, h.ID)
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
		switch {
		case now.Sub(h.since) > longestOutage:
			l.delete(id)
		case !h.due.After(now) && len(due) < maxAtOnce:
			due = append(due, h)
		}
	}
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
	if !answered.Load() {
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
	case found, err == nil && h.pause > lastPause:
		l.delete(h.ID)
	default:
		h.pause, h.isFailed = min(2*h.pause, longestPause), err != nil
		h.due = time.Now().Add(h.pause)
	}
}

// postpone lets all holds rest that are due, because the store has not answered.
func (l *List) postpone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, h := range l.holds {
		if !h.due.After(now) {
			h.due = now.Add(h.pause)
		}
	}
}
