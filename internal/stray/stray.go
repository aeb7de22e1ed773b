// Package stray ends holds of which nobody knows whether they are open. A store that was asked to
// open a hold, or to end one, may not have answered: it stalled, the connection broke, or the
// caller has left. So a [List] asks the store to end the hold, which its ID identifies, until the
// store has answered: after ever longer pauses, and within a second of the last time once the store
// has answered another call.
//
// A command that got no answer may reach the store after one that was sent later. So a hold that is
// not found is looked for again, after ever longer pauses as well.
//
// A List keeps what its holds refer to: so it forgets a hold once that has ended by itself, and all
// of them when its store is closed.
package stray

import (
	"container/heap"
	"context"
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

	// longestOutage is how long a List asks in vain, if a hold does not end before.
	longestOutage = 24 * time.Hour

	// maxAtOnce bounds the calls of the store that are made at once.
	maxAtOnce = 128
)

// A Hold is one that may be open.
type Hold struct {
	ID uint64

	// Lasts is how long the hold is open if nobody ends it, or 0 if that is not known.
	Lasts time.Duration

	// End has the store end the hold. It reports whether the hold was open. It is called in a
	// goroutine of its own, until there is no error.
	End func() (found bool, err error)

	// GivenUp is called, unless it is nil, if the hold is forgotten although the store has never
	// answered about it. It must not call the List.
	GivenUp func()

	since   time.Time     // when it was added
	rests   time.Time     // since when it rests, because it was added, or the store was asked
	due     time.Time     // when End is called next, if the store answers nothing before
	again   time.Duration // the last pause after End had failed, or the first one
	later   time.Duration // the last pause after it was not found, or the first one
	answers uint64        // how many of List.answers there were when it began to rest
	places  [2]int        // in List.resting and List.remote, counted from 1; 0 if it is not there
}

// ends returns when a hold is forgotten at the latest. It may have been opened late.
func (h *Hold) ends() time.Time {
	if h.Lasts == 0 || h.Lasts > longestOutage {
		return h.since.Add(longestOutage)
	}
	return h.since.Add(h.Lasts + longestPause)
}

// A List has holds that may be open. The zero List is empty, and a nil one keeps nothing: that is
// for stores that always answer. While a List has holds, it has a timer, and a goroutine while it
// asks the store.
type List struct {
	size atomic.Int64 // of holds
	// Whether a hold has become remote since Answered was called last.
	unanswered atomic.Bool

	mu      sync.Mutex // protects the fields below
	holds   map[uint64]*Hold
	resting queue // those that rest, and not those that the store is asked about now
	// Those of them whose pause is so long that they are due earlier if the store answers others.
	remote  queue
	answers uint64        // how often Answered was called since a hold became remote
	timer   *time.Timer   // calls run; nil before there was a hold
	next    time.Time     // when it does so, at the latest; zero if it does not
	running bool          // whether run runs, which sets the timer at its end
	closed  chan struct{} // closed, once, when nothing is left; nil before Close
	ended   sync.Once
}

// Add has a hold ended soon. After Close, it gives the hold up.
func (l *List) Add(h Hold) {
	if l == nil {
		return
	}
	h.again, h.later = firstPause, firstPause
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		l.giveUp(&h)
		return
	}
	if l.holds == nil {
		l.holds = make(map[uint64]*Hold)
		l.resting.before = func(a, b *Hold) bool { return a.due.Before(b.due) }
		l.remote.before = func(a, b *Hold) bool { return a.rests.Before(b.rests) }
		l.remote.index = 1
	}
	l.delete(h.ID)
	if len(l.holds) >= maxHolds {
		l.forgetOldest()
	}
	h.since = time.Now()
	l.rest(&h, firstPause)
	l.holds[h.ID] = &h
	l.size.Store(int64(len(l.holds)))
	l.callAt(h.due)
}

// Answered has the holds ended soon whose End has failed, because the store has answered another
// call. It costs next to nothing if none is to be ended earlier, and little otherwise.
func (l *List) Answered() {
	if !l.unanswered.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unanswered.Store(false)
	l.answers++
	l.callWhenDue()
}

// Forget ends no hold with that ID any more, because somebody else does.
func (l *List) Forget(id uint64) {
	if l == nil || l.size.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delete(id)
}

// Close asks the store once more about each hold, until it does not answer, and forgets them all.
// It returns when that is done, or ctx ends. No goroutine and no timer is left then, unless a call
// of the store has still to return.
func (l *List) Close(ctx context.Context) error {
	l.mu.Lock()
	if l.closed == nil {
		l.closed = make(chan struct{})
		for _, h := range l.holds {
			h.due = h.rests // they may have rested for longer than others, or not
		}
		heap.Init(&l.resting)
		if l.timer == nil {
			l.ended.Do(func() { close(l.closed) })
		} else {
			l.callAt(time.Now())
		}
	}
	closed := l.closed
	l.mu.Unlock()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// delete forgets a hold. The caller holds l.mu.
func (l *List) delete(id uint64) {
	if h, known := l.holds[id]; known {
		l.wake(h)
		delete(l.holds, id)
		l.size.Store(int64(len(l.holds)))
	}
}

// giveUp forgets a hold that may still be open. The caller holds l.mu.
func (l *List) giveUp(h *Hold) {
	l.delete(h.ID)
	if h.GivenUp != nil && h.later == firstPause {
		h.GivenUp()
	}
}

// wake ends the rest of a hold. The caller holds l.mu.
func (l *List) wake(h *Hold) {
	l.resting.remove(h)
	l.remote.remove(h)
}

// rest has End of a hold called after a pause. The caller holds l.mu.
func (l *List) rest(h *Hold, pause time.Duration) {
	l.wake(h)
	h.rests = time.Now()
	h.due = h.rests.Add(pause)
	heap.Push(&l.resting, h)
}

// restAgain is rest after the store has not answered. The caller holds l.mu.
func (l *List) restAgain(h *Hold) {
	l.rest(h, h.again)
	if h.again > longestPauseAnswered {
		h.answers = l.answers
		heap.Push(&l.remote, h)
		l.unanswered.Store(true)
	}
}

// forgetOldest makes room for others. It forgets many holds at once, because it looks at all. The
// caller holds l.mu.
func (l *List) forgetOldest() {
	all := slices.SortedFunc(maps.Values(l.holds), func(a, b *Hold) int {
		return a.since.Compare(b.since)
	})
	for _, h := range all[:len(all)/16+1] {
		l.giveUp(h)
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

// callWhenDue has run called when the next hold is due. The caller holds l.mu.
func (l *List) callWhenDue() {
	if _, due := l.first(); !due.IsZero() {
		l.callAt(due)
	}
}

// first returns the hold that is due next, and when, or nil and zero. The caller holds l.mu.
func (l *List) first() (h *Hold, due time.Time) {
	h = l.resting.first()
	if h != nil {
		due = h.due
	}
	// The one that rests for longest has also seen the fewest answers.
	if far := l.remote.first(); far != nil && far.answers < l.answers {
		if soon := far.rests.Add(longestPauseAnswered); soon.Before(due) {
			return far, soon
		}
	}
	return h, due
}

// run ends the holds that are due, and sets the timer.
func (l *List) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return // the timer was set while it fired
	}
	l.running = true
	for due := l.takeDue(); len(due) > 0; due = l.takeDue() {
		l.mu.Unlock()
		l.endAll(due)
		l.mu.Lock()
	}
	l.running, l.next = false, time.Time{}
	l.callWhenDue()
	if l.closed != nil && len(l.holds) == 0 {
		l.ended.Do(func() { close(l.closed) })
	}
}

// takeDue returns holds that are due, which rest no longer. The caller holds l.mu.
func (l *List) takeDue() (taken []*Hold) {
	now := time.Now()
	for len(taken) < maxAtOnce {
		h, due := l.first()
		switch {
		case h == nil || due.After(now):
			return taken
		case now.After(h.ends()):
			l.giveUp(h)
		default:
			l.wake(h)
			taken = append(taken, h)
		}
	}
	return taken
}

// endAll asks the store to end some holds, which are due. If it answers about none of them, those
// that are due as well are not asked for now.
func (l *List) endAll(some []*Hold) {
	var answered atomic.Bool
	var all sync.WaitGroup
	for _, h := range some {
		all.Go(func() {
			found, err := false, errNotReturned
			defer func() {
				if err == nil {
					answered.Store(true)
				}
				l.note(h, found, err)
			}()
			logvalve.Safely("the end of a hold", func() { found, err = h.End() })
		})
	}
	all.Wait()
	if answered.Load() {
		l.Answered()
	} else {
		l.postpone()
	}
}

// errNotReturned is the error of an End that has panicked, or has ended its goroutine, in code of
// the program.
var errNotReturned = errors.New("ratelimit: the end of a hold has not returned")

// note notes what the store has answered about a hold.
func (l *List) note(h *Hold, found bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.holds[h.ID] != h: // it was forgotten meanwhile
	case found, err == nil && (h.later > lastPause || l.closed != nil):
		l.delete(h.ID)
	case l.closed != nil:
		l.giveUp(h)
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
	for h, due := l.first(); h != nil && !due.After(now); h, due = l.first() {
		if l.closed != nil {
			l.giveUp(h)
		} else {
			l.restAgain(h)
		}
	}
}

// A queue is a heap of holds.
type queue struct {
	holds  []*Hold
	index  int // of the places of holds
	before func(a, b *Hold) bool
}

// first returns the first hold, or nil.
func (q *queue) first() *Hold {
	if len(q.holds) == 0 {
		return nil
	}
	return q.holds[0]
}

// remove removes a hold if it is there.
func (q *queue) remove(h *Hold) {
	if place := h.places[q.index]; place > 0 {
		heap.Remove(q, place-1)
	}
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (q *queue) Len() int           { return len(q.holds) }
func (q *queue) Less(i, j int) bool { return q.before(q.holds[i], q.holds[j]) }

func (q *queue) Swap(i, j int) {
	q.holds[i], q.holds[j] = q.holds[j], q.holds[i]
	q.holds[i].places[q.index], q.holds[j].places[q.index] = i+1, j+1
}

func (q *queue) Push(h any) {
	q.holds = append(q.holds, h.(*Hold))
	q.holds[len(q.holds)-1].places[q.index] = len(q.holds)
}

func (q *queue) Pop() any {
	last := len(q.holds) - 1
	h := q.holds[last]
	h.places[q.index] = 0
	q.holds[last] = nil
	q.holds = q.holds[:last]
	return h
}
