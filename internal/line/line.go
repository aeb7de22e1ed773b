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
	mu    sync.Mutex // protects lines, and what is in them; never held while a store is called
	lines map[string]*Line
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
func (ls *Lines) Any() bool { return ls.Count() > 0 }

// Count returns how many wait, for all keys, and how many calls give turns back.
func (ls *Lines) Count() int64 { return ls.count.Load() }

// Has reports whether anybody waits for key.
func (ls *Lines) Has(key string) (has bool) {
	ls.Look(key, func(ln *Line) { has = ln.Len() > 0 })
	return has
}

// Busy reports whether anybody waits for key, or turns of those who have left are being given back.
func (ls *Lines) Busy(key string) (busy bool) {
	ls.Look(key, func(ln *Line) { busy = ln.Len() > 0 || ln.cancelling > 0 })
	return busy
}

// Wake is that of the line of key.
func (ls *Lines) Wake(key string) { ls.Look(key, (*Line).Wake) }

// Renew is that of the line of key.
func (ls *Lines) Renew(key string) { ls.Look(key, (*Line).Renew) }

// Look calls f with the line of key, locked, if there is one. Perhaps nobody stands in it any more.
func (ls *Lines) Look(key string, f func(ln *Line)) {
	if !ls.Any() {
		return
	}
	sh := ls.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if ln := sh.lines[key]; ln != nil {
		f(ln)
	}
}

// use calls f with the line of key, locked.
func (ls *Lines) use(key string, f func(ln *Line)) {
	sh := ls.shard(key)
	sh.mu.Lock()
	if sh.lines == nil {
		sh.lines = make(map[string]*Line)
	}
	ln := sh.lines[key]
	if ln == nil {
		ln = &Line{all: ls, sh: sh, key: key, width: 1}
		sh.lines[key] = ln
	}
	defer ln.unlock()
	f(ln)
}

// Alone calls ask, which asks for a turn of key without a place, because nobody has one yet. It returns false, and does
// not, if as many are asking so as may have turns.
func (ls *Lines) Alone(key string, ask func()) (may bool) {
	ls.use(key, func(ln *Line) {
		if may = ln.alone < MostTurns-1; may { // and one more may ask in the line
			ln.alone++
		}
	})
	if may {
		defer ls.use(key, func(ln *Line) { ln.alone-- })
		ask()
	}
	return may
}

// Enter takes the last place in the line of key, or one before those who have come later, unless may returns an error. If
// may is nil, its caller has got a turn already, and calls Granted.
func (ls *Lines) Enter(key string, terms Terms, came int64, may func(ln *Line) error) (p *Place, err error) {
	ls.use(key, func(ln *Line) {
		if may != nil {
			err = may(ln)
		}
		if err != nil {
			return
		}
		p = &Place{Terms: terms, line: ln, came: came, woken: make(chan struct{}, 1)}
		ln.insert(p)
		ls.count.Add(1)
		if may == nil {
			p.ask()
		} else if ln.rank(p) <= len(ln.turns) { // it was not denied, and may have got the turn of another one
			ln.again = 0
			ln.wake()
		}
	})
	return p, err
}

// A Line is that of a key. Its shard's lock protects it.
type Line struct {
	all *Lines
	sh  *shard
	key string

	places list.List // of *Place, in order
	turns  []Turn    // the i-th is that of the i-th place that is not asking; those behind the last one are for who asks

	alone      int   // callers that ask without a place
	asking     int   // places that are asking for a turn
	askedFor   Terms // those of the last one that asked
	width      int   // how many may ask at once
	cancelling int   // callers that give turns back: until they have, nobody asks

	renew  bool           // whether the turns are to be given back, and made again
	again  kernel.Instant // when the next place is to ask, because it was denied
	roused bool           // whether there was a Wake while places are asking

	// What follows is the caller's: the state of the key after all who stand in line, which becomes nil once it is
	// not true any more; and why the first one was denied.
	Ahead, Denial any
}

// Len returns how many stand in line.
func (ln *Line) Len() int { return ln.places.Len() }

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

// Turnless yields the terms of each place without a turn, in order.
func (ln *Line) Turnless(yield func(Terms) bool) {
	turns := len(ln.turns)
	for e := ln.places.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*Place); turns > 0 && !p.asking {
			turns--
		} else if !yield(p.Terms) {
			return
		}
	}
}

// resting yields the places that are not asking, in order. The i-th has the i-th turn. The first one without a turn is
// the next to ask.
func (ln *Line) resting(yield func(i int, p *Place) bool) {
	i := 0
	for e := ln.places.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*Place); !p.asking {
			if !yield(i, p) {
				return
			}
			i++
		}
	}
}

// rank returns the index of the turn of p. If it has none, rank returns their number if p is the next to ask, and more
// otherwise.
func (ln *Line) rank(p *Place) int {
	for i, q := range ln.resting {
		if q == p {
			return i
		}
		if i == len(ln.turns) {
			break
		}
	}
	return len(ln.turns) + 1
}

// Wake wakes who may ask, because something may have made room.
func (ln *Line) Wake() {
	ln.Ahead, ln.roused = nil, true
	if ln.again > 0 {
		ln.again = 0
		ln.wake()
	}
}

// Renew has the turns given back and made again, because others may be earlier.
func (ln *Line) Renew() {
	ln.renew = len(ln.turns) > 0
	ln.wake()
}

// wake wakes those for whom something may have changed: the first one, and the next to ask.
func (ln *Line) wake() {
	for i, p := range ln.resting {
		if i == 0 || i == len(ln.turns) {
			p.wake()
		}
		if i == len(ln.turns) {
			return
		}
	}
}

// insert adds p at the end, or before those who have come later, unless they have turns that do not suit p.
func (ln *Line) insert(p *Place) {
	p.element = ln.places.PushBack(p)
	for e := p.element.Prev(); e != nil; e = p.element.Prev() {
		q := e.Value.(*Place)
		if q.came <= p.came || q.Terms != p.Terms && ln.rank(q) < len(ln.turns) {
			return
		}
		ln.places.MoveBefore(p.element, e)
	}
}

// fit returns the turns that suit nobody, newest first, for the caller to give back: those from the first one on that is
// not for its place, and those that nobody needs.
func (ln *Line) fit() (left []Turn) {
	used := 0
	for i, p := range ln.resting {
		if i == len(ln.turns) {
			return nil
		}
		if p.Terms != ln.turns[i].Terms {
			return ln.cut(i)
		}
		used++
	}
	if used += ln.asking; used < len(ln.turns) { // who asks may need one
		return ln.cut(used)
	}
	return nil
}

// cut takes the turns from the i-th on from their places, and returns them, newest first.
func (ln *Line) cut(i int) (left []Turn) {
	left = slices.Clone(ln.turns[i:])
	slices.Reverse(left)
	ln.turns = slices.Delete(ln.turns, i, len(ln.turns))
	ln.cancelling++
	ln.all.count.Add(1)
	ln.Ahead, ln.again = nil, 0
	return left
}

// remove removes a place.
func (ln *Line) remove(p *Place) {
	p.asked()
	ln.places.Remove(p.element)
	ln.all.count.Add(-1)
	if ln.Len() == 0 {
		ln.Denial = nil
	}
}

// serve removes p, and returns what the caller holds for its turn, the i-th. The other turns fit as before, and the
// places behind may have become the first one, or the next to ask.
func (ln *Line) serve(p *Place, i int) (held any) {
	held = ln.turns[i].Held
	ln.turns = slices.Delete(ln.turns, i, i+1)
	ln.remove(p)
	ln.wake()
	return held
}

// unlock unlocks the line, and forgets it if it is not used any more.
func (ln *Line) unlock() {
	sh := ln.sh
	defer sh.mu.Unlock()
	if ln.Len() > 0 || ln.cancelling > 0 || ln.alone > 0 {
		return
	}
	if delete(sh.lines, ln.key); len(sh.lines) == 0 {
		sh.lines = nil // maps do not shrink
	}
}

// A Place is one in a line.
type Place struct {
	Terms
	line    *Line
	element *list.Element
	came    int64         // who has come before others has less
	woken   chan struct{} // has an element if Next may return something else
	asking  bool          // whether it is asking for a turn
}

// lock returns the line, locked.
func (p *Place) lock() *Line {
	p.line.sh.mu.Lock()
	return p.line
}

// Woken has an element when the caller should call Next again.
func (p *Place) Woken() <-chan struct{} { return p.woken }

func (p *Place) wake() {
	select {
	case p.woken <- struct{}{}:
	default: // it has not looked since
	}
}

// ask begins to ask.
func (p *Place) ask() {
	ln := p.line
	if ln.asking == 0 {
		ln.roused = false
	}
	p.asking, ln.askedFor, ln.again = true, p.Terms, 0
	ln.asking++
}

// asked ends the asking, if p asks.
func (p *Place) asked() {
	if p.asking {
		p.asking = false
		p.line.asking--
	}
}

// A Step is what a place is to do.
type Step int

// The steps.
const (
	Rest     Step = iota // until an instant, or until it is woken
	Ask                  // for a turn, and call Granted, GrantedNow, Denied or Leave
	GiveBack             // the turns that Next returns, newest first, and call Cancelled
	Served               // its turn has come, and it has left the line
)

// Next returns what the place is to do at now. A turn is asked for once the one before it is no more than
// soon away.
func (p *Place) Next(now kernel.Instant, soon time.Duration) (do Step, held any, until kernel.Instant) {
	ln := p.lock()
	defer ln.unlock()
	if left := ln.fit(); left != nil {
		return GiveBack, left, 0
	}
	i, turns := ln.rank(p), len(ln.turns)
	switch {
	case i == 0 && turns > 0 && ln.turns[0].Due <= now:
		return Served, ln.serve(p, 0), 0
	case i == 0 && turns > 0 && ln.renew:
		ln.renew = false
		return GiveBack, ln.cut(0), 0
	case i == 0 && turns > 0:
		return Rest, nil, ln.turns[0].Due
	case i != turns || ln.cancelling > 0 || ln.asking >= ln.width || turns+ln.asking >= MostTurns:
		return Rest, nil, kernel.Forever
	case ln.asking > 0 && ln.askedFor != p.Terms: // those who ask together are alike
		return Rest, nil, kernel.Forever
	case ln.again > now:
		return Rest, nil, ln.again
	case ln.Last() > kernel.After(now, uint64(soon)):
		return Rest, nil, ln.Last() - uint64(soon)
	}
	if p.ask(); ln.asking < ln.width {
		ln.wake()
	}
	return Ask, nil, 0
}

// Granted says that the place has got a turn, which may become that of another one. If it comes soon, twice as many
// places may ask at once, up to wide, and otherwise half as many.
func (p *Place) Granted(turn Turn, soon kernel.Instant, wide int) {
	ln := p.lock()
	defer ln.unlock()
	p.asked()
	at := len(ln.turns)
	for at > 0 && ln.turns[at-1].Due > turn.Due && ln.turns[at-1].Terms == turn.Terms { // of an answer that was faster
		at--
	}
	ln.turns = slices.Insert(ln.turns, at, turn)
	ln.Denial, ln.again = nil, 0
	switch {
	case turn.Due <= soon:
		ln.widen(wide)
	case ln.asking == 0: // once for those who asked together
		ln.width = max(1, ln.width/2)
	}
	ln.wake()
}

// GrantedNow says that the place was granted its events at once, without a turn. It is to leave.
func (p *Place) GrantedNow(wide int) {
	ln := p.lock()
	defer ln.unlock()
	ln.Denial = nil
	ln.widen(wide)
}

// widen doubles the width. While places are denied, the first one alone asks.
func (ln *Line) widen(wide int) { ln.width = min(2*ln.width, wide) }

// Denied says that the place was denied a turn, and is to ask again at an instant, or when it is woken.
func (p *Place) Denied(why any, again kernel.Instant) {
	ln := p.lock()
	defer ln.unlock()
	p.asked()
	ln.width, ln.Denial = 1, why
	if ln.rank(p) != len(ln.turns) {
		ln.wake()
	} else if !ln.roused {
		ln.again = again
	}
}

// Leave gives the place up at now. If its turn has come, it is served instead. Otherwise, it returns turns to
// give back, newest first; then the caller calls Cancelled.
func (p *Place) Leave(now kernel.Instant) (served bool, held any, left []Turn) {
	ln := p.lock()
	defer ln.unlock()
	i := ln.rank(p)
	if i < len(ln.turns) && ln.turns[i].Due <= now && ln.turns[i].Terms == p.Terms {
		return true, ln.serve(p, i), nil
	}
	if i <= len(ln.turns) { // the next to ask is another one
		ln.again = 0
	}
	ln.Ahead = nil
	ln.remove(p)
	left = ln.fit()
	ln.wake()
	return false, nil, left
}

// Cancelled says that turns have been given back.
func (p *Place) Cancelled() {
	ln := p.lock()
	defer ln.unlock()
	ln.cancelling--
	ln.all.count.Add(-1)
	ln.wake()
}
