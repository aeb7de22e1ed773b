// Package line keeps those who wait for a key, in one process, in the order in which they came.
//
// A [Line] has places and turns. A turn is a reservation in the state of the key. Only the first
// places have turns, those that come soon: the first turn is that of the first place, the second
// that of the second, and so on. Behind them are as many places as are asked for at the moment. It
// does not matter who asks: the answer is for the line, and the place behind those is the next to
// ask. Who leaves takes no turn along. So those behind move up, and have earlier turns at once;
// what is left over at the end is given back, newest first, which loses nothing. Where the turns do
// not fit the places any more, because these are not for the same number of events, or by the same
// limit, they are given back as well, and made again.
//
// Each place has a goroutine, that of its caller. It asks [Place.Next] what to do, and is woken
// when that may have changed. Nothing here calls a store: waiter.stand in waiter.go of the root
// does what it says, and overtakes, there, denies those who would not stand in line.
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

	stale bool // whether it is to be made again
	taken bool // whether it was asked for when it had come, so that it cannot be given back
}

// HasCome reports whether the turn has come at now. Who read the clock before a turn was taken may
// look at it afterwards.
func (t *Turn) HasCome(now kernel.Instant) bool { return t.taken || t.Due <= now }

// Lines are the lines of the keys of limiters with one name, in one store. The zero Lines has none.
type Lines struct {
	count  atomic.Int64           // places, and turns that are being given back
	shards atomic.Pointer[shards] // nil until the first line

	// What follows is the caller's: how long the store took to answer lately, in nanoseconds, and
	// how many have come, for Enter.
	Took, Came atomic.Int64
}

// Named are the Lines of the limiters in a store, by their names.
type Named struct {
	mu     sync.Mutex // protects byName
	byName map[string]*Lines
}

// mostNamed bounds the memory of a Named. Limiters of one name that are made further apart have two
// lines.
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
	mu    sync.Mutex // protects what follows, and what is in it; never held while a store is called
	lines map[string]*Line
	late  lateness
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

// Has reports whether anybody waits for key, or turns of those who have left are being given back.
func (ls *Lines) Has(key string) (has bool) {
	ls.Look(key, func(ln *Line) { has = ln.busy() })
	return has
}

// Wake is that of the line of key.
func (ls *Lines) Wake(key string, now kernel.Instant) {
	ls.Look(key, func(ln *Line) { ln.Wake(now) })
}

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

// Alone calls ask, which asks for a turn of key without a place, unless somebody has one, or as
// many are asking so as may have turns. It returns whether it has called ask.
func (ls *Lines) Alone(key string, ask func()) (asked bool) {
	ls.use(key, func(ln *Line) {
		asked = !ln.busy() && ln.asking < MostTurns
		if asked {
			ln.asking++
		}
	})
	if asked {
		defer ls.use(key, func(ln *Line) {
			ln.asking--
			ln.wake()
		})
		ask()
	}
	return asked
}

// An Entrant is somebody who enters a line.
type Entrant struct {
	Terms
	Came  int64           // who has come before others has less
	Since kernel.Instant  // when it came, or asked for the first time
	Ended <-chan struct{} // closed once it waits no longer, if ever

	// Asked is whether it has asked before: then it waits, and requests that come later do not
	// overtake it. Who enters an empty line without having asked may yet be granted at once.
	Asked bool
}

// Enter takes the last place in the line of key, or one before those who have come later, unless
// may returns an error.
func (ls *Lines) Enter(key string, e Entrant, may func(ln *Line) error) (p *Place, err error) {
	ls.use(key, func(ln *Line) {
		if err = may(ln); err != nil {
			return
		}
		p = &Place{Entrant: e, line: ln, woken: make(chan struct{}, 1)}
		ln.insert(p)
		ln.waits = ln.waits || e.Asked || ln.Len() > 1
		if ln.Len() == 1 {
			ln.since = e.Since
		}
		ls.count.Add(1)
	})
	return p, err
}

// Cancelled says that the turns that Line.Outdated has returned, for the line of key, have been
// given back.
func (ls *Lines) Cancelled(key string) { ls.use(key, (*Line).cancelled) }

// A Line is that of a key. Its shard's lock protects it.
type Line struct {
	all *Lines
	sh  *shard
	key string

	places list.List // of *Place, in order
	turns  []Turn    // the i-th is that of the i-th place

	// Callers that are asking for a turn, which will be that of the first place without one.
	asking     int
	width      int // how many may ask at once
	cancelling int // callers that give turns back: until they have, nobody asks
	changes    int // how often something has made room, so that who was denied is to ask again

	waits bool // whether anybody has had to wait since the line was empty
	// When the state of the key has last changed, or the line began: no turn comes before.
	since kernel.Instant

	// What follows is the caller's: the state of the key after all who stand in line, which becomes
	// nil once it is not true any more; and why the first one was denied.
	Ahead, Denial any
}

// Len returns how many stand in line.
func (ln *Line) Len() int { return ln.places.Len() }

func (ln *Line) busy() bool { return ln.Len() > 0 || ln.cancelling > 0 }

// Waits reports whether those in line wait, and are not only about to ask for the first time.
func (ln *Line) Waits() bool { return ln.waits }

// Last returns when the last turn that there is comes, or 0 if there is none.
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

// Held returns what the caller holds for the first turn, or nil if there is none.
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

// Turnless yields who has each place without a turn, in order.
func (ln *Line) Turnless(yield func(Entrant) bool) {
	for i, p := range ln.each {
		if i >= len(ln.turns) && !yield(p.Entrant) {
			return
		}
	}
}

// next returns the index of the place that is the next to ask.
func (ln *Line) next() int { return len(ln.turns) + ln.asking }

// index returns the index of p, or more than next if it is behind that.
func (ln *Line) index(p *Place) (i int) {
	for e := p.element.Prev(); e != nil && i <= ln.next(); e = e.Prev() {
		i++
	}
	return i
}

// Wake wakes who may ask, because something may have made room at now: a Release or Settle
// (limiter.do in the root), an Extend, a Reset. Who was denied asks the store again.
func (ln *Line) Wake(now kernel.Instant) {
	ln.Changed(now)
	ln.Look()
}

// Look wakes who may ask, too, although what happened makes no turn earlier: a Settle of all events
// of a hold. So turns that have come may still be taken as of before it.
func (ln *Line) Look() {
	ln.Ahead = nil
	ln.changes++
	ln.wake()
}

// Changed says that something else than a turn has changed the state of the key at now.
func (ln *Line) Changed(now kernel.Instant) {
	ln.Ahead = nil
	ln.since = max(ln.since, now)
}

// From returns the instant from which turns may be taken at now, if they are asked for when they
// have come: as long ago as those who take them are late, but not before the state of the key has
// changed.
func (ln *Line) From(now kernel.Instant) kernel.Instant {
	ln.sh.late.pass(now)
	allowed := uint64(Tolerance + ln.sh.late.most())
	return min(now, max(ln.since, now-min(now, allowed)))
}

// Renew has the turns given back and made again, because others may be earlier.
func (ln *Line) Renew() {
	for i := range ln.turns {
		ln.turns[i].stale = true
	}
	ln.wake()
}

// wake wakes those for whom something may have changed: the first one, who gives turns back that
// fit nobody, those who would sleep longer than until their turns, and the next to ask.
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

// at returns the i-th place, or nil.
func (ln *Line) at(i int) *Place {
	for j, p := range ln.each {
		if j == i {
			return p
		}
	}
	return nil
}

// insert adds p at the end, or before those who have come later, unless they have turns that do not
// suit p.
func (ln *Line) insert(p *Place) {
	p.element = ln.places.PushBack(p)
	for e := p.element.Prev(); e != nil; e = p.element.Prev() {
		q := e.Value.(*Place)
		if q.Came <= p.Came || q.Terms != p.Terms && ln.index(q) < len(ln.turns) {
			break
		}
		ln.places.MoveBefore(p.element, e)
	}
	if p.element != ln.places.Back() { // the last one with a turn may have lost it to p
		ln.wake()
	}
}

// Outdated renews the turns, and returns those to give back at now, newest first. If there are
// some, the caller, who need not stand in line, then calls Lines.Cancelled.
func (ln *Line) Outdated(now kernel.Instant) []Turn {
	ln.Renew()
	return ln.fit(now)
}

// fit takes the turns that suit nobody at now from the line, and returns them, newest first, for
// the caller to give back: those from the first one on that is not for its place, and those that
// nobody needs.
func (ln *Line) fit(now kernel.Instant) (left []Turn) {
	fits := 0
	for i, p := range ln.each {
		if i == len(ln.turns) || ln.turns[i].stale && !ln.turns[i].HasCome(now) ||
			ln.turns[i].Terms != p.Terms {
			break // what has come cannot be given back
		}
		fits++
	}
	if fits == len(ln.turns) {
		return nil
	}
	left = slices.Clone(ln.turns[fits:])
	slices.Reverse(left)
	ln.turns = slices.Delete(ln.turns, fits, len(ln.turns))
	ln.cancelling++
	ln.changes++
	ln.all.count.Add(1)
	ln.Ahead = nil
	return left
}

func (ln *Line) remove(p *Place) {
	p.answered()
	ln.places.Remove(p.element)
	p.element = nil
	ln.all.count.Add(-1)
	if ln.Len() == 0 {
		ln.Denial, ln.waits = nil, false
	}
}

// serve removes p, and returns its turn, the i-th, if that has come, and those to give back because
// nobody else would. The places behind may have become the first one, or the next to ask.
func (ln *Line) serve(p *Place, i int, now kernel.Instant) (turns []Turn) {
	if i >= len(ln.turns) || !ln.turns[i].HasCome(now) || ln.turns[i].Terms != p.Terms {
		return nil
	}
	turns = []Turn{ln.turns[i]}
	ln.turns = slices.Delete(ln.turns, i, i+1)
	ln.remove(p)
	ln.wake()
	if ln.asking >= ln.Len() {
		turns = append(turns, ln.fit(now)...)
	}
	return turns
}

// unlock unlocks the line, and forgets it if it is not used any more. A caller whose place has left
// may come back to a line that was forgotten already. Since then, others may have begun a new line
// of the key, which must stay: nobody would wake them otherwise.
func (ln *Line) unlock() {
	sh := ln.sh
	defer sh.mu.Unlock()
	if ln.busy() || ln.asking > 0 || sh.lines[ln.key] != ln {
		return
	}
	delete(sh.lines, ln.key)
	if len(sh.lines) == 0 {
		sh.lines = nil // maps do not shrink
	}
}

// A Place is one in a line.
type Place struct {
	Entrant
	line    *Line
	element *list.Element  // nil once it has left
	woken   chan struct{}  // has an element if Next may return something else
	until   kernel.Instant // how long Next has told it to rest
	asking  bool           // whether a turn is being asked for
	by      *Place         // of whose caller, while it is
	alone   bool           // whether nobody else is to ask for it, because one did so in vain
	changes int            // those of the line when it asked
	again   kernel.Instant // when to ask again, because it was denied, unless there were changes
	from    kernel.Instant // from when on its turn is asked for
}

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

func (p *Place) answered() {
	if p.asking {
		p.asking = false
		p.line.asking--
	}
}

// A Step is what a place is to do.
type Step int

// The steps.
const (
	Rest Step = iota // until an instant, or until it is woken
	// For a turn, and call Granted, Denied or Leave; for the place of another caller, Taken or
	// InVain.
	Ask
	GiveBack // the turns that Next returns, newest first, and call Cancelled
	Left     // the caller waits no longer, and the place is not in line any more
	// The first turn that Next returns has come, the others are to be given back, and the place has
	// left the line.
	Served
)

// A Move is what Next returns.
type Move struct {
	Do    Step
	Turns []Turn         // of Served and GiveBack
	Until kernel.Instant // of Rest
	For   *Place         // of Ask that Behind returns: who is to get the turn
	Now   kernel.Instant // of Ask
	// Of Ask: how long ago that may have come, if it is asked for when it has come.
	From kernel.Instant
}

// Next returns what the place is to do at now. A turn is asked for once the one before it is no
// more than soon away, or earlier if turns were taken late. If soon is 0, it is asked for when it
// has come, by whoever looks first: see Behind.
func (p *Place) Next(now kernel.Instant, soon time.Duration) Move {
	ln := p.lock()
	defer ln.unlock()
	if p.element == nil {
		return Move{Do: Left}
	}
	from := ln.From(now) // how late this one is lets the next ones be late
	ln.overslept(p, now)
	i := ln.index(p)
	if turns := ln.serve(p, i, now); turns != nil {
		return Move{Do: Served, Turns: turns}
	}
	if turns := ln.fit(now); turns != nil {
		return Move{Do: GiveBack, Turns: turns}
	}
	switch {
	case i < len(ln.turns):
		p.until = ln.turns[i].Due
	case i != ln.next():
		p.until = kernel.Forever
	default:
		p.until = ln.mayAsk(p, now, soon)
		if p.until == 0 {
			return ln.ask(p, p, from, now)
		}
	}
	return Move{Do: Rest, Until: p.until}
}

// overslept notes how late p, whose caller looks at now or is looked after, is up.
func (ln *Line) overslept(p *Place, now kernel.Instant) {
	if p.until > 0 && p.until < now {
		ln.sh.late.note(now, time.Duration(now-p.until))
	}
	p.until = 0
}

// Behind is Next for a caller who does not stand in the line of key, but runs: it is to ask for the
// next place, if that has the given terms and its turn may have come, or to rest. Until the caller
// has called Taken or InVain, nobody else asks, and the place cannot leave. So it must not wait for
// anything meanwhile, such as a lookup.
func (ls *Lines) Behind(key string, by any, now kernel.Instant) (move Move) {
	ls.Look(key, func(ln *Line) {
		p := ln.nextStaying()
		if p == nil || p.alone || p.By != by || ln.mayAsk(p, now, 0) > 0 {
			return
		}
		move = ln.ask(p, nil, ln.From(now), now)
	})
	return move
}

// mayAsk returns 0 if a turn may be asked for at now for p, the next place, or until when p rests.
func (ln *Line) mayAsk(p *Place, now kernel.Instant, soon time.Duration) (until kernel.Instant) {
	if ln.cancelling > 0 || ln.asking >= ln.width || ln.next() >= MostTurns {
		return kernel.Forever
	}
	if ln.asking > 0 && p.element.Prev().Value.(*Place).Terms != p.Terms {
		// Those who ask together are alike.
		return kernel.Forever
	}
	denied := p.changes == ln.changes && p.again > 0
	ahead := uint64(soon)
	if soon > 0 {
		ahead += uint64(ln.sh.late.most())
	}
	switch {
	case denied && p.again > now:
		return p.again
	case ln.Last() > kernel.After(now, ahead):
		return ln.Last() - ahead
	}
	return 0
}

// nextStaying returns the place that is the next to ask, or nil. Those whose callers wait no
// longer, and have not come to leave yet, are removed. They will find that they have left, and wake
// nobody then.
func (ln *Line) nextStaying() *Place {
	for {
		p := ln.at(ln.next())
		if p == nil || !p.hasEnded() {
			return p
		}
		ln.Ahead = nil
		ln.remove(p)
		ln.wake()
	}
}

func (p *Place) hasEnded() bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}

// ask has the caller of by ask for p.
func (ln *Line) ask(p, by *Place, from, now kernel.Instant) Move {
	ln.overslept(p, now)
	from = max(from, p.Since) // nobody has a turn before it came
	p.asking, p.by, p.changes, p.again, p.from = true, by, ln.changes, 0, from
	ln.asking++
	if ln.asking < ln.width {
		ln.wake()
	}
	return Move{Do: Ask, For: p, Now: now, From: from}
}

// Granted says that the place has got a turn that is due at an instant, which may become that of
// another one. If held is nil, its events were granted at once, without a turn, and it has left. If
// the turn comes soon, twice as many places may ask at once, up to wide, and otherwise half as
// many.
func (p *Place) Granted(due kernel.Instant, held any, soon kernel.Instant, wide int) {
	ln := p.lock()
	defer ln.unlock()
	p.granted(Turn{Terms: p.Terms, Due: due, Held: held})
	switch {
	case held == nil || due <= kernel.After(soon, uint64(ln.sh.late.most())):
		// While places are denied, the first one alone asks.
		ln.width = min(2*ln.width, wide)
	case ln.asking == 0: // once for those who asked together
		ln.width = max(1, ln.width/2)
	}
	ln.wake()
}

// Taken says that the caller of another place has got a turn for p, which has come.
func (p *Place) Taken(due kernel.Instant, held any) {
	ln := p.lock()
	defer ln.unlock()
	p.granted(Turn{Terms: p.Terms, Due: due, Held: held, taken: true})
	ln.wake()
}

// granted adds a turn that was asked for for p. If it holds nothing, p has left.
func (p *Place) granted(turn Turn) {
	ln := p.line
	p.answered()
	if turn.Due <= p.from && p.from > ln.since {
		// It may have come before, so long ago that those behind come later, too.
		ln.Ahead = nil
	}
	ln.since = max(ln.since, turn.Due)
	if turn.Held == nil {
		ln.remove(p)
	} else {
		at := len(ln.turns)
		for at > 0 && ln.turns[at-1].Due > turn.Due && ln.turns[at-1].Terms == p.Terms {
			// Of an answer that was faster.
			at--
		}
		ln.turns = slices.Insert(ln.turns, at, turn)
		ln.waits = true
	}
	p.alone, ln.Denial = false, nil
	ln.changes++
}

// Denied says that the place was denied a turn, and is to ask again at an instant, or when it is
// woken.
func (p *Place) Denied(why any, again kernel.Instant) {
	ln := p.lock()
	defer ln.unlock()
	p.answered()
	p.again, p.alone, ln.width, ln.Denial, ln.waits = again, false, 1, why, true
	ln.wake()
}

// InVain says that the caller of another place has asked for p at now in vain, and that p is to ask
// itself.
func (p *Place) InVain(now kernel.Instant) {
	ln := p.lock()
	defer ln.unlock()
	p.answered()
	p.alone, p.until = true, now
	p.wake()
}

// Leave gives the place up at now, unless it has left. If its turn has come, it was served, and
// Leave returns what Next does. Otherwise, Leave returns turns to give back, newest first; if there
// are some, the caller then calls Cancelled. While the caller of another place is asking for it, do
// is Rest: it leaves when it is woken.
func (p *Place) Leave(now kernel.Instant) Move {
	ln := p.lock()
	defer ln.unlock()
	if p.element == nil {
		return Move{Do: Left}
	}
	if turns := ln.serve(p, ln.index(p), now); turns != nil {
		return Move{Do: Served, Turns: turns}
	}
	if p.asking && p.by != p {
		p.until = kernel.Forever
		return Move{Do: Rest}
	}
	ln.Ahead = nil
	ln.remove(p)
	turns := ln.fit(now)
	ln.wake()
	return Move{Do: Left, Turns: turns}
}

// Cancelled says that turns have been given back.
func (p *Place) Cancelled() {
	ln := p.lock()
	defer ln.unlock()
	ln.cancelled()
}

func (ln *Line) cancelled() {
	ln.cancelling--
	ln.all.count.Add(-1)
	ln.wake()
}

// Tolerance is how late a turn may be taken in a process that has not been late, because timers are
// not more exact.
const Tolerance = 2 * time.Millisecond

// mostLate is the most that is allowed for a process that is late, besides Tolerance.
const mostLate = 98 * time.Millisecond

// A lateness is how late those who sleep are up, of late: in a process all of whose processors are
// busy, or whose timers fire late.
type lateness struct {
	latest, before time.Duration // the most since an instant, and in the time before that
	since          kernel.Instant
}

// remembered is how long a lateness is remembered, at least, and half of how long it is, at most.
const remembered = 500 * time.Millisecond

// note notes that somebody was late at now.
func (l *lateness) note(now kernel.Instant, by time.Duration) {
	l.pass(now)
	l.latest = max(l.latest, min(by, mostLate))
}

// pass forgets what is long ago.
func (l *lateness) pass(now kernel.Instant) {
	switch passed := time.Duration(now - min(now, l.since)); {
	case passed >= 2*remembered:
		*l = lateness{since: now}
	case passed >= remembered:
		*l = lateness{before: l.latest, since: now}
	}
}

// most returns how late somebody was of late.
func (l *lateness) most() time.Duration { return max(l.latest, l.before) }
