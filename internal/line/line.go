// Package line keeps the callers that wait for a key, in one process, in the order in which they
// came.
//
// A [Line] has places and turns. A place is the position of a caller. A turn is a reservation in
// the state of the key. The first turn is that of the first place, the second turn that of the
// second place, and so on. Only the first places have turns, namely those that come soon.
//
// Behind the places with turns are as many places as callers are asking the store at the moment. It
// does not matter which caller asks: the answer is for the line. The place behind those is the next
// to ask.
//
// A caller that leaves does not take its turn along. So the places behind move up, and have earlier
// turns at once. The turn that is left over at the end is given back. Turns are given back newest
// first, so that nothing is lost. A turn fits a place if both are for the same number of events and
// the same limit. From the first turn on that does not fit its place, turns are given back as well,
// and made again.
//
// Each place has a goroutine, that of its caller. The goroutine asks [Place.Next] what to do,
// and is woken when the answer may have changed. Nothing here calls a store. The waiter of the
// root (waiter.go) does what Next says, and the root (behindline.go) denies requests that would
// overtake a line.
package line

import (
	"container/list"
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// MostTurns is the most turns of a line.
const MostTurns = 64

// Terms are what a turn is for. A turn fits any place with the same terms.
type Terms struct {
	N  int // the number of events
	By any // comparable: who reserves the events, and how
}

// A Turn is a reservation.
type Turn struct {
	Terms
	Due  kernel.Instant // when the events may happen
	Held any            // what the caller keeps for the turn

	stale bool // whether the turn is to be made again
	taken bool // whether it was asked for when it had come, so that it cannot be given back
}

// HasCome reports whether the turn has come at now. A turn that was taken has come, even for a
// caller that read the clock before that.
func (t *Turn) HasCome(now kernel.Instant) bool { return t.taken || t.Due <= now }

// A Line is that of a key. The lock of its shard protects it.
type Line struct {
	all *Lines
	sh  *shard
	key string

	places list.List // of *Place, in order
	turns  []Turn    // the i-th is that of the i-th place

	asking     int // callers that ask for a turn, which will be that of the first place without one
	width      int // how many callers may ask at once
	cancelling int // callers that give turns back; until they have, nobody asks
	changes    int // how often something has made room, so that denied places are to ask again

	waits bool // whether a caller has had to wait since the line was empty
	// When the state of the key has last changed, or the line began. No turn comes before.
	since kernel.Instant

	// EndState belongs to the limiters: the state of the key after all turns of the line. The line
	// sets it to nil once it is not true any more.
	EndState any

	// Denial is why the first place was denied, as Place.Denied was told.
	Denial any
}

// Len returns the number of places.
func (ln *Line) Len() int { return ln.places.Len() }

func (ln *Line) isBusy() bool { return ln.Len() > 0 || ln.cancelling > 0 }

// String returns the places of the line, one in each line of text, and the work in progress.
func (ln *Line) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d asking of %d, %d giving back", ln.asking, ln.width, ln.cancelling)
	for i, p := range ln.each {
		fmt.Fprintf(&b, "\n%d. for %d: %s", i+1, p.N, p.describe(i))
	}
	return b.String()
}

// Waits reports whether the callers in line wait. Otherwise, the only caller is about to ask for
// the first time.
func (ln *Line) Waits() bool { return ln.waits }

// Last returns when the last turn of the line comes, or 0 if the line has no turns.
func (ln *Line) Last() kernel.Instant {
	if len(ln.turns) == 0 {
		return 0
	}
	return ln.turns[len(ln.turns)-1].Due
}

// Turns yields the turns, in order.
func (ln *Line) Turns(yield func(Turn) bool) {
	for _, turn := range ln.turns {
		if !yield(turn) {
			return
		}
	}
}

// Held returns what the caller keeps for the first turn, or nil if there is none.
func (ln *Line) Held() any {
	if len(ln.turns) == 0 {
		return nil
	}
	return ln.turns[0].Held
}

func (ln *Line) each(yield func(i int, p *Place) bool) {
	i := 0
	for e := ln.places.Front(); e != nil && yield(i, e.Value.(*Place)); e = e.Next() {
		i++
	}
}

// Turnless yields the entrants whose places have no turns, in order.
func (ln *Line) Turnless(yield func(Entrant) bool) {
	for i, p := range ln.each {
		if i >= len(ln.turns) && !yield(p.Entrant) {
			return
		}
	}
}

// next returns the index of the place that is the next to ask.
func (ln *Line) next() int { return len(ln.turns) + ln.asking }

// index returns the index of p, or an index greater than next if p is behind that.
func (ln *Line) index(p *Place) (i int) {
	for e := p.element.Prev(); e != nil && i <= ln.next(); e = e.Prev() {
		i++
	}
	return i
}

// at returns the i-th place, or nil.
func (ln *Line) at(i int) *Place {
	for j, p := range ln.each {
		if j == i {
			return p
		}
	}
	return nil
}

// Enter takes the last place in the line, or one before the places of callers that came later.
func (ln *Line) Enter(e Entrant) *Place {
	p := &Place{Entrant: e, line: ln, woken: make(chan struct{}, 1)}
	ln.insert(p)
	ln.waits = ln.waits || e.Asked || ln.Len() > 1
	if ln.Len() == 1 {
		ln.since = e.Since
	}
	ln.all.count.Add(1)
	return p
}

// insert adds p at the end, or before places of callers that came later. It does not pass a place
// whose turn does not fit p.
func (ln *Line) insert(p *Place) {
	p.element = ln.places.PushBack(p)
	for e := p.element.Prev(); e != nil; e = p.element.Prev() {
		q := e.Value.(*Place)
		if q.Came <= p.Came || q.Terms != p.Terms && ln.index(q) < len(ln.turns) {
			break
		}
		ln.places.MoveBefore(p.element, e)
	}
	if p.element != ln.places.Back() { // the last place with a turn may have lost it to p
		ln.wake()
	}
}

func (ln *Line) remove(p *Place) {
	p.endAsking()
	ln.places.Remove(p.element)
	p.element, p.state = nil, Gone
	ln.all.count.Add(-1)
	if ln.Len() == 0 {
		ln.Denial, ln.waits = nil, false
	}
}

// Wake wakes the callers that may ask, because something may have made room at now: a Release, a
// Settle, an Extend or a Reset. Places that were denied ask the store again.
func (ln *Line) Wake(now kernel.Instant) {
	ln.Changed(now)
	ln.Recheck()
}

// Recheck wakes the callers that may ask, although what has happened makes no turn earlier: a
// Settle of all events of a hold. So a caller whose turn has come takes its events at that turn, as
// if the Settle had not been.
func (ln *Line) Recheck() {
	ln.EndState = nil
	ln.changes++
	ln.wake()
}

// Changed says that something else than a turn has changed the state of the key at now.
func (ln *Line) Changed(now kernel.Instant) {
	ln.EndState = nil
	ln.since = max(ln.since, now)
}

// wake wakes the callers for whom something may have changed: the caller of the first place, which
// gives turns back that fit no place; those that would sleep longer than until their turns; and the
// next to ask.
func (ln *Line) wake() {
	next := ln.next()
	for i, p := range ln.each {
		if i == 0 || i == next || i < len(ln.turns) && ln.turns[i].Due < p.until {
			p.wake()
		}
		if i == next {
			return
		}
	}
}

// From returns the instant from which on turns may be taken at now, if they are asked for when they
// have come. It is as long ago as callers were late lately, but not before the last change of the
// state of the key.
func (ln *Line) From(now kernel.Instant) kernel.Instant {
	ln.sh.late.forget(now)
	allowed := uint64(Tolerance + ln.sh.late.most())
	return min(now, max(ln.since, now-min(now, allowed)))
}

// Renew has the turns given back and made again, because new ones may be earlier.
func (ln *Line) Renew() {
	for i := range ln.turns {
		ln.turns[i].stale = true
	}
	ln.wake()
}

// Outdated renews the turns, and returns those to give back at now, newest first. If there are
// some, the caller, which need not stand in line, then calls Lines.Cancelled.
func (ln *Line) Outdated(now kernel.Instant) []Turn {
	ln.Renew()
	return ln.takeUnfit(now)
}

// insertTurn adds a turn. It is the last one, unless the store has answered calls of one limit in
// another order than that in which they were made.
func (ln *Line) insertTurn(turn Turn) {
	i := len(ln.turns)
	for i > 0 && ln.turns[i-1].Due > turn.Due && ln.turns[i-1].Terms == turn.Terms {
		i--
	}
	ln.turns = slices.Insert(ln.turns, i, turn)
}

// takeUnfit takes the turns that fit no place at now from the line, and returns them, newest first,
// for the caller to give back. These are the turns from the first one on that does not fit its
// place, and those that have no place. A stale turn fits only if it has come: then it cannot be
// given back.
func (ln *Line) takeUnfit(now kernel.Instant) []Turn {
	fits := 0
	for i, p := range ln.each {
		if i == len(ln.turns) || ln.turns[i].stale && !ln.turns[i].HasCome(now) ||
			ln.turns[i].Terms != p.Terms {
			break
		}
		fits++
	}
	if fits == len(ln.turns) {
		return nil
	}
	unfit := slices.Clone(ln.turns[fits:])
	slices.Reverse(unfit)
	ln.turns = slices.Delete(ln.turns, fits, len(ln.turns))
	ln.cancelling++
	ln.changes++
	ln.all.count.Add(1)
	ln.EndState = nil
	return unfit
}

// serve serves the caller of p, the i-th place, if its turn has come at now: p leaves the line, and
// serve returns its turn, followed by turns to give back that no other caller would give back.
// Otherwise, serve returns nil.
func (ln *Line) serve(p *Place, i int, now kernel.Instant) []Turn {
	if i >= len(ln.turns) || !ln.turns[i].HasCome(now) || ln.turns[i].Terms != p.Terms {
		return nil
	}
	turns := []Turn{ln.turns[i]}
	ln.turns = slices.Delete(ln.turns, i, i+1)
	ln.remove(p)
	ln.wake() // places behind may have become the first one, or the next to ask
	if ln.asking >= ln.Len() {
		turns = append(turns, ln.takeUnfit(now)...)
	}
	return turns
}

func (ln *Line) cancelled() {
	ln.cancelling--
	ln.all.count.Add(-1)
	ln.wake()
}
