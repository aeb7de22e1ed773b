// Package line keeps those who wait for a key, in one process, in the order in which they came.
//
// A [Line] has places and turns. A turn is a reservation in the state of the key. Only the first places have
// turns, those that come soon: the first turn is that of the first place, the second that of the second, and so
// on. Who leaves takes no turn along. So those behind move up, and have earlier turns at once; what is left
// over at the end is given back, newest first, which loses nothing. Where the turns do not fit the places any
// more, because these are not for the same number of events, or by the same limit, they are given back as well,
// and made again.
//
// Each place has a goroutine, that of its caller. It asks [Place.Next] what to do, and is woken when that may
// have changed. Nothing here calls a store: waiter.stand in reserve.go of the root does what it says, and overtakes,
// there, denies those who would not stand in line.
package line

import (
	"container/list"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// MostTurns is the most turns of a line.
const MostTurns = 64

// Terms are what a turn is for. It suits any place with the same terms.
type Terms struct {
	N  int // events
	By any // comparable: by whom and how they are reserved
}

// A Turn is a reservation.
type Turn struct {
	Terms
	Due  kernel.Instant // when the events may happen
	Held any            // the caller's
}

// Lines are the lines of the keys of limiters with one name, in one store. The zero Lines has none.
type Lines struct {
	count  atomic.Int64           // places, and turns that are being given back
	shards atomic.Pointer[shards] // nil until the first line

	// What follows is the caller's: how long the store took to answer lately, in nanoseconds, and how many have come, for
	// Enter.
	Took, Came atomic.Int64
}

// Named are the Lines of the limiters in a store, by their names.
type Named struct {
	mu     sync.Mutex // protects byName
	byName map[string]*Lines
}

// mostNamed bounds the memory of a Named. Limiters of one name that are made further apart have two lines.
const mostNamed = 4096

// Of returns the Lines of the limiters called name.
func (n *Named) Of(name string) *Lines {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil || len(n.byName) >= mostNamed {
		n.byName = make(map[string]*Lines)
	}
	if n.byName[name] == nil {
		n.byName[name] = new(Lines)
	}
	return n.byName[name]
}

type shards [16]shard

type shard struct {
	mu    sync.Mutex // protects lines, what is in them, and alone; never held while a store is called
	lines map[string]*Line
	alone map[string]int // how many ask for turns of a key, and have no place
}

var seed = maphash.MakeSeed()

func (ls *Lines) shard(key string) *shard {
	all := ls.shards.Load()
	if all == nil {
		ls.shards.CompareAndSwap(nil, new(shards))
		all = ls.shards.Load()
	}
	return &all[maphash.String(seed, key)%uint64(len(all))]
}

// Any reports whether anybody waits for some key. It is faster than the other methods.
func (ls *Lines) Any() bool { return ls.count.Load() > 0 }

// Count returns how many wait, for all keys, and how many calls give turns back.
func (ls *Lines) Count() int64 { return ls.count.Load() }

// Waits returns how many wait for key. Busy is also true while turns of those who have left are given back.
func (ls *Lines) Waits(key string) (places int, busy bool) {
	if !ls.Any() {
		return 0, false
	}
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ln := sh.lines[key]
	if ln == nil {
		return 0, false
	}
	return ln.Len(), true
}

// Has reports whether anybody waits for key.
func (ls *Lines) Has(key string) bool {
	places, _ := ls.Waits(key)
	return places > 0
}

// Wake wakes who may ask for key, if anybody waits, because something may have made room.
func (ls *Lines) Wake(key string) {
	ls.Look(key, func(ln *Line) {
		ln.Ahead = nil
		for e := ln.others.Front(); e != nil; e = e.Next() {
			if p := e.Value.(*Place); p.asking {
				p.again = roused
			} else if p.again > 0 {
				p.again = 0
				p.wake()
				return
			}
		}
	})
}

// Renew has the turns of key given back and made again, because others may be earlier.
func (ls *Lines) Renew(key string) {
	ls.Look(key, func(ln *Line) {
		if e := ln.first.Front(); e != nil {
			ln.renew = true
			e.Value.(*Place).wake()
		}
	})
}

// Forget has the turns of key made again, because its state has none any more.
func (ls *Lines) Forget(key string) {
	ls.Look(key, func(ln *Line) {
		ln.uncover(0)
		ln.turns = nil
		ln.wake()
	})
	ls.Wake(key)
}

// Look calls f with the line of key, locked, if anybody stands in it.
func (ls *Lines) Look(key string, f func(ln *Line)) {
	if !ls.Any() {
		return
	}
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.lines[key]; ln != nil && ln.Len() > 0 {
		f(ln)
	}
}

// Alone says that somebody asks for a turn of key without a place, because nobody has one yet. It returns false if as many
// do as may have turns. Otherwise, the caller calls Answered.
func (ls *Lines) Alone(key string) (may bool) {
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.alone[key] >= MostTurns-1 { // and one more may ask in the line
		return false
	}
	if sh.alone == nil {
		sh.alone = make(map[string]int)
	}
	sh.alone[key]++
	return true
}

// Answered ends what Alone has allowed.
func (ls *Lines) Answered(key string) {
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.alone[key]--; sh.alone[key] == 0 {
		if delete(sh.alone, key); len(sh.alone) == 0 {
			sh.alone = nil // maps do not shrink
		}
	}
}

// Enter takes the last place in the line of key, or one before those who have come later, unless enter says that it must
// not be taken.
func (ls *Lines) Enter(key string, terms Terms, came int64, enter func(ln *Line) error) (*Place, error) {
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ln := sh.lines[key]
	if ln == nil {
		ln = &Line{all: ls, sh: sh, key: key, width: 1}
	}
	if err := enter(ln); err != nil {
		return nil, err
	}
	if sh.lines == nil {
		sh.lines = make(map[string]*Line)
	}
	sh.lines[key] = ln
	p := &Place{Terms: terms, line: ln, came: came, woken: make(chan struct{}, 1)}
	ln.push(&ln.others, p)
	ls.count.Add(1)
	return p, nil
}

// A Line is that of a key. Its shard's lock protects it.
type Line struct {
	all *Lines
	sh  *shard
	key string

	first  list.List // of *Place: those that have turns, in order
	others list.List // of *Place: those that have none, in order; who asks is one of them
	turns  []Turn    // of the first places, and then perhaps some for those who ask

	asking     int // places that are asking for a turn
	width      int // how many may at once
	cancelling int // callers that give turns back: until they have, nobody asks

	renew bool // whether the turns are to be given back, and made again

	// What follows is the caller's: the state of the key after all who stand in line, which becomes nil once it is
	// not true any more; and why the first one was denied.
	Ahead, Denial any
}

// Len returns how many stand in line.
func (ln *Line) Len() int { return ln.first.Len() + ln.others.Len() }

// Last returns when the last turn that there is comes, or 0 if there is none.
func (ln *Line) Last() kernel.Instant {
	if len(ln.turns) == 0 {
		return 0
	}
	return ln.turns[len(ln.turns)-1].Due
}

// Held returns what the caller holds for the first turn, or nil if there is none.
func (ln *Line) Held() any {
	if len(ln.turns) == 0 {
		return nil
	}
	return ln.turns[0].Held
}

// Turnless calls f for the terms of each place without a turn, in order, until it returns false.
func (ln *Line) Turnless(f func(Terms) bool) {
	for e := ln.others.Front(); e != nil && f(e.Value.(*Place).Terms); e = e.Next() {
	}
}

// asker returns the first place that has no turn, and is not asking for one, or nil.
func (ln *Line) asker() *Place {
	for e := ln.others.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*Place); !p.asking {
			return p
		}
	}
	return nil
}

// wake wakes those for whom something may have changed: the first one, and the next to ask.
func (ln *Line) wake() {
	if e := ln.first.Front(); e != nil {
		e.Value.(*Place).wake()
	}
	if p := ln.asker(); p != nil {
		p.wake()
	}
}

// fit gives the turns that nobody has to places, and returns those that suit nobody, newest first, for the caller to
// give back.
func (ln *Line) fit() (left []Turn) {
	for ln.first.Len() < len(ln.turns) {
		p := ln.asker()
		if p == nil {
			break
		}
		if p.Terms != ln.turns[ln.first.Len()].Terms {
			return ln.cut(ln.first.Len())
		}
		ln.others.Remove(p.element)
		p.has = true
		ln.push(&ln.first, p)
	}
	if most := ln.first.Len() + ln.asking; len(ln.turns) > most { // who asks may need one
		return ln.cut(most)
	}
	return nil
}

// push adds p to first or to others: at the end, or before those who have come later; in first, if they have the same terms.
func (ln *Line) push(to *list.List, p *Place) {
	p.element = to.PushBack(p)
	for e := p.element.Prev(); e != nil; e = p.element.Prev() {
		if q := e.Value.(*Place); q.came <= p.came || to == &ln.first && q.Terms != p.Terms {
			return
		}
		to.MoveBefore(p.element, e)
	}
}

// uncover takes the turns from the i-th on from their places.
func (ln *Line) uncover(i int) {
	for ln.first.Len() > i {
		p := ln.first.Remove(ln.first.Back()).(*Place)
		p.element, p.has = ln.others.PushFront(p), false
	}
}

// cut returns the turns from the i-th on, newest first. Their places have none any more.
func (ln *Line) cut(i int) (left []Turn) {
	ln.uncover(i)
	left = slices.Clone(ln.turns[i:])
	slices.Reverse(left)
	clear(ln.turns[i:])
	ln.turns = ln.turns[:i]
	ln.cancelling++
	ln.all.count.Add(1)
	ln.Ahead = nil
	return left
}

// remove removes a place. The caller calls changed.
func (ln *Line) remove(p *Place) {
	p.asked(ln)
	if p.has {
		ln.first.Remove(p.element)
	} else {
		ln.others.Remove(p.element)
	}
	ln.all.count.Add(-1)
}

// changed wakes those for whom something has changed, and forgets the line if it is not used any more.
func (ln *Line) changed() {
	ln.wake()
	if ln.Len() > 0 || ln.cancelling > 0 {
		return
	}
	if delete(ln.sh.lines, ln.key); len(ln.sh.lines) == 0 {
		ln.sh.lines = nil // maps do not shrink
	}
}

// A Place is one in a line.
type Place struct {
	Terms
	line    *Line
	element *list.Element
	came    int64          // who has come before others has less
	woken   chan struct{}  // has an element if Next may return something else
	has     bool           // whether it has a turn
	asking  bool           // whether it is asking for one
	again   kernel.Instant // if it was denied: when it is to ask again; roused, if there was a Wake since it asks
}

const roused = 1

// Woken has an element when the caller should call Next again.
func (p *Place) Woken() <-chan struct{} { return p.woken }

func (p *Place) wake() {
	select {
	case p.woken <- struct{}{}:
	default: // it has not looked since
	}
}

// A Step is what a place is to do.
type Step int

// The steps.
const (
	Rest     Step = iota // until an instant, or until it is woken
	Ask                  // for a turn, and call Granted, Denied or Leave
	GiveBack             // the turns that Next returns, newest first, and call Cancelled
	Served               // its turn has come, and it has left the line
)

// Next returns what the place is to do at now. A turn is asked for once the one before it is no more than
// soon away.
func (p *Place) Next(now kernel.Instant, soon time.Duration) (do Step, held any, until kernel.Instant) {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	if p.has {
		if ln.first.Front() != p.element {
			return Rest, nil, kernel.Forever
		}
		if due := ln.turns[0].Due; due > now {
			if ln.renew {
				ln.renew = false
				return GiveBack, ln.cut(0), 0
			}
			return Rest, nil, due
		}
		held = ln.turns[0].Held
		ln.turns = slices.Delete(ln.turns, 0, 1)
		ln.remove(p) // the other turns fit as before
		ln.changed()
		return Served, held, 0
	}
	switch {
	case p.asking || ln.cancelling > 0 || ln.asking >= ln.width || len(ln.turns)+ln.asking >= MostTurns || ln.asker() != p:
		return Rest, nil, kernel.Forever
	case ln.asking > 0 && ln.others.Front().Value.(*Place).Terms != p.Terms: // those who ask together are alike
		return Rest, nil, kernel.Forever
	case p.again > now:
		return Rest, nil, p.again
	case ln.Last() > kernel.After(now, uint64(soon)):
		return Rest, nil, ln.Last() - uint64(soon)
	}
	p.asking, p.again = true, 0
	if ln.asking++; ln.asking < ln.width {
		ln.wake()
	}
	return Ask, nil, 0
}

// Granted says that the place has got a turn, which may become that of another one. If it comes soon, twice as many
// places may ask at once, up to wide, and otherwise half as many. It returns turns to give back, newest first; then
// the caller calls Cancelled.
func (p *Place) Granted(turn Turn, soon kernel.Instant, wide int) (left []Turn) {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	p.asked(ln)
	at := len(ln.turns)
	for at > 0 && ln.turns[at-1].Due > turn.Due && ln.turns[at-1].Terms == turn.Terms { // of an answer that was faster
		at--
	}
	ln.turns, ln.Denial = slices.Insert(ln.turns, at, turn), nil
	switch {
	case turn.Due <= soon:
		ln.widen(wide)
	case ln.asking == 0: // once for those who asked together
		ln.width = max(1, ln.width/2)
	}
	left = ln.fit()
	ln.wake()
	return left
}

// GrantedNow says that the place was granted its events at once, without a turn. It is to leave.
func (p *Place) GrantedNow(wide int) {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	ln.Denial = nil
	ln.widen(wide)
}

// widen doubles the width. While places are denied, the first one alone asks.
func (ln *Line) widen(wide int) { ln.width = min(2*ln.width, wide) }

// asked ends the asking.
func (p *Place) asked(ln *Line) {
	if p.asking {
		p.asking = false
		ln.asking--
	}
}

// Denied says that the place was denied a turn, and is to ask again at an instant, or when it is woken.
func (p *Place) Denied(why any, again kernel.Instant) {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	p.asked(ln)
	if p.again != roused {
		p.again = again
	}
	ln.width, ln.Denial = 1, why
	if next := ln.asker(); next != nil && next != p {
		next.wake()
	}
}

// Leave gives the place up at now. If its turn has come, it is served instead. Otherwise, it returns turns to
// give back, newest first; then the caller calls Cancelled.
func (p *Place) Leave(now kernel.Instant) (served bool, held any, left []Turn) {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	defer ln.changed()
	if !p.has {
		ln.Ahead = nil
		ln.remove(p)
		return false, nil, ln.fit()
	}
	i, behind := 0, p.element.Next()
	for e := ln.first.Front(); e != p.element; e = e.Next() {
		i++
	}
	ln.remove(p)
	if ln.turns[i].Due <= now {
		held = ln.turns[i].Held
		ln.turns = slices.Delete(ln.turns, i, i+1)
		return true, held, nil
	}
	ln.Ahead = nil
	for ; behind != nil; behind = behind.Next() { // those behind move up
		if behind.Value.(*Place).Terms != ln.turns[i].Terms {
			return false, nil, ln.cut(i)
		}
		i++
	}
	return false, nil, ln.fit()
}

// Cancelled says that turns have been given back.
func (p *Place) Cancelled() {
	ln := p.line
	ln.sh.mu.Lock()
	defer ln.sh.mu.Unlock()
	ln.cancelling--
	ln.all.count.Add(-1)
	ln.changed()
}
