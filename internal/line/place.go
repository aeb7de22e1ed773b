package line

import (
	"container/list"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file has the places of a line: what their callers are to do, and what they tell the line.

// An Entrant is a caller that enters a line.
type Entrant struct {
	Terms
	Came  int64           // the caller came after all those that have less
	Since kernel.Instant  // when the caller came, or asked for the first time
	Ended <-chan struct{} // closed once the caller waits no longer, if ever

	// Asked is whether the caller has asked before. Then it waits, and later requests do not
	// overtake it. A caller that enters an empty line without having asked may yet be granted at
	// once.
	Asked bool
}

// A Place is the position of one caller in a line. The lock of the line protects it.
type Place struct {
	Entrant
	line    *Line
	element *list.Element // in the list of the line; nil once the place is gone
	state   PlaceState
	woken   chan struct{}  // has an element if Next may return something else
	until   kernel.Instant // how long Next has told the caller to rest

	// asksItself is whether only the own caller is to ask for a turn, because another caller has
	// asked for the place in vain.
	asksItself bool

	// When a turn is asked for, these are the changes of the line, and the earliest instant at
	// which the turn may have come.
	changes int
	from    kernel.Instant

	// askAgain is when to ask again after a denial, unless the line has changed since; or 0.
	askAgain kernel.Instant
}

// A PlaceState is what a place does. Transitions are:
//
//	Resting → AskedByOwner   Next returns Ask
//	Resting → AskedByOther   Behind returns Ask
//	Asked…  → Resting        Granted with a turn, Denied, Taken, InVain
//	Asked…  → Gone           Granted without a turn
//	Resting → Gone           Next or Leave returns Served; Leave returns Left; the caller's
//	                         context has ended, and another caller would have asked for it
//	AskedByOwner → Gone      Leave
type PlaceState uint8

// The states of a place.
const (
	Resting      PlaceState = iota // until an instant, or until the caller is woken
	AskedByOwner                   // the own caller asks the store for a turn
	AskedByOther                   // the caller of another place asks for a turn of this one
	Gone                           // the place is not in the line any more
)

var placeStateNames = [...]string{
	"resting",
	"asked by its caller",
	"asked by another caller",
	"gone",
}

// String returns the state in words.
func (s PlaceState) String() string { return placeStateNames[s] }

// String returns the position and the state of the place.
func (p *Place) String() string {
	ln := p.lock()
	defer ln.Unlock()
	for i, q := range ln.each {
		if q == p {
			return fmt.Sprintf("place %d of %d, %s", i+1, ln.Len(), p.describe(i))
		}
	}
	return "a place that is gone"
}

// describe returns the state of the place, which is the i-th in its line.
func (p *Place) describe(i int) string {
	text := p.state.String()
	switch {
	case p.state != Resting || p.until == 0:
	case p.until == kernel.Forever:
		text += " until it is woken"
	default:
		text += " until " + clockTime(p.until)
	}
	if i < len(p.line.turns) {
		text += ", with a turn at " + clockTime(p.line.turns[i].Due)
	}
	return text
}

// clockTime returns the time of day of an instant, in UTC.
func clockTime(at kernel.Instant) string {
	return time.Unix(0, int64(at)).UTC().Format("15:04:05.999999999")
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
	default: // the caller has not looked since it was woken
	}
}

// isAsked reports whether a turn of the place is being asked for.
func (p *Place) isAsked() bool { return p.state == AskedByOwner || p.state == AskedByOther }

// endAsking says that the turn of the place is not being asked for any more.
func (p *Place) endAsking() {
	if p.isAsked() {
		p.state = Resting
		p.line.asking--
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

// A Step is what the caller of a place is to do.
type Step int

// The steps.
const (
	// Rest: sleep until an instant, or until the caller is woken.
	Rest Step = iota

	// Ask: ask the store for a turn. For the own place, the caller then calls Granted, Denied or
	// Leave; for the place of another caller, Taken or InVain.
	Ask

	// GiveBack: give the returned turns back, newest first, and call Cancelled.
	GiveBack

	// Left: the caller waits no longer. The place is not in the line any more.
	Left

	// Served: the first one of the returned turns is that of the caller, and has come. The caller
	// gives the others back. The place is not in the line any more.
	Served
)

// A Move is a step, and what the caller must know to do it.
type Move struct {
	Do    Step
	Turns []Turn         // of Served and GiveBack
	Until kernel.Instant // of Rest
	For   *Place         // of Ask: the place that is to get the turn
	Now   kernel.Instant // of Ask
	// Of Ask: the earliest instant at which the turn may have come, if turns are asked for when
	// they have come.
	From kernel.Instant
}

// Next returns what the caller is to do at now. A turn is asked for once the turn before it is no
// more than lead away, or earlier if turns were taken late. If lead is 0, a turn is asked for when
// it has come, by the caller that looks first: see Lines.Behind.
func (p *Place) Next(now kernel.Instant, lead time.Duration) Move {
	ln := p.lock()
	defer ln.Unlock()
	if p.state == Gone {
		return Move{Do: Left}
	}
	from := ln.From(now) // before noteDelay, which moves it for the next callers
	ln.noteDelay(p, now)
	i := ln.index(p)
	if turns := ln.serve(p, i, now); turns != nil {
		return Move{Do: Served, Turns: turns}
	}
	if turns := ln.takeUnfit(now); turns != nil {
		return Move{Do: GiveBack, Turns: turns}
	}
	switch {
	case i < len(ln.turns):
		p.until = ln.turns[i].Due
	case i != ln.next():
		p.until = kernel.Forever
	default:
		p.until = ln.mayAsk(p, now, lead)
		if p.until == 0 {
			return ln.ask(p, AskedByOwner, from, now)
		}
	}
	return Move{Do: Rest, Until: p.until}
}

// noteDelay notes how late p is, which was to rest until an instant, and whose caller or another
// one looks at now.
func (ln *Line) noteDelay(p *Place, now kernel.Instant) {
	if p.until > 0 && p.until < now {
		ln.sh.late.note(now, time.Duration(now-p.until))
	}
	p.until = 0
}

// mayAsk returns 0 if a turn of p, which is the next place, may be asked for at now. Otherwise it
// returns the instant until which p rests.
func (ln *Line) mayAsk(p *Place, now kernel.Instant, lead time.Duration) (until kernel.Instant) {
	if ln.cancelling > 0 || ln.asking >= ln.width || ln.next() >= MostTurns {
		return kernel.Forever
	}
	if ln.asking > 0 && p.element.Prev().Value.(*Place).Terms != p.Terms {
		// Only places with the same terms ask together, because their turns can be exchanged.
		return kernel.Forever
	}
	wasDenied := p.changes == ln.changes && p.askAgain > 0
	ahead := uint64(lead)
	if lead > 0 {
		ahead += uint64(ln.sh.late.ofTwo())
	}
	switch {
	case wasDenied && p.askAgain > now:
		return p.askAgain
	case ln.Last() > kernel.After(now, ahead):
		return ln.Last() - ahead
	}
	return 0
}

// nextStaying returns the place that is the next to ask, or nil. It removes places whose callers
// wait no longer and have not called Leave yet. These callers will find that their places are gone,
// and wake nobody then.
func (ln *Line) nextStaying() *Place {
	for {
		p := ln.at(ln.next())
		if p == nil || !p.hasEnded() {
			return p
		}
		ln.EndState = nil
		ln.remove(p)
		ln.wake()
	}
}

// ask has a turn of p asked for.
func (ln *Line) ask(p *Place, state PlaceState, from, now kernel.Instant) Move {
	ln.noteDelay(p, now)
	from = max(from, p.Since) // no turn comes before its place did
	p.state, p.changes, p.askAgain, p.from = state, ln.changes, 0, from
	ln.asking++
	if ln.asking < ln.width {
		ln.wake()
	}
	return Move{Do: Ask, For: p, Now: now, From: from}
}

// Granted says that the place has got a turn that is due at an instant. The turn may become that of
// another place. If held is nil, the events were granted at once, without a turn, and the place
// leaves the line.
//
// If the turn is due by soon, twice as many places may ask at once, up to most, and otherwise half
// as many.
func (p *Place) Granted(due kernel.Instant, held any, soon kernel.Instant, most int) {
	ln := p.lock()
	defer ln.Unlock()
	p.addTurn(Turn{Terms: p.Terms, Due: due, Held: held})
	switch {
	case held == nil || due <= kernel.After(soon, uint64(ln.sh.late.ofTwo())):
		// While places are denied, the first one alone asks.
		ln.width = min(2*ln.width, most)
	case ln.asking == 0: // once for those that asked together
		ln.width = max(1, ln.width/2)
	}
	ln.wake()
}

// Taken says that the caller of another place has got a turn for p, and that this turn has come.
func (p *Place) Taken(due kernel.Instant, held any) {
	ln := p.lock()
	defer ln.Unlock()
	p.addTurn(Turn{Terms: p.Terms, Due: due, Held: held, taken: true})
	ln.wake()
}

// addTurn adds a turn that was asked for for p to the line. If the turn holds nothing, p leaves.
func (p *Place) addTurn(turn Turn) {
	ln := p.line
	p.endAsking()
	if turn.Due <= p.from && p.from > ln.since {
		// The turn may have come before p.from, but was not taken as of then. So the turns behind
		// come later, too.
		ln.EndState = nil
	}
	ln.since = max(ln.since, turn.Due)
	if turn.Held == nil {
		ln.remove(p)
	} else {
		ln.insertTurn(turn)
		ln.waits = true
	}
	p.asksItself, ln.Denial = false, nil
	ln.changes++
}

// Denied says that the place was denied a turn, and is to ask again at an instant, or when it is
// woken. The line keeps why as its Denial.
func (p *Place) Denied(why any, askAgain kernel.Instant) {
	ln := p.lock()
	defer ln.Unlock()
	p.endAsking()
	p.askAgain, p.asksItself = askAgain, false
	ln.width, ln.Denial, ln.waits = 1, why, true
	ln.wake()
}

// InVain says that the caller of another place has asked for p at now in vain, and that the caller
// of p is to ask.
func (p *Place) InVain(now kernel.Instant) {
	ln := p.lock()
	defer ln.Unlock()
	p.endAsking()
	p.asksItself, p.until = true, now
	p.wake()
}

// Leave gives the place up at now, unless it is gone.
//
//   - If the turn of the place has come, the Move is Served, as that of Next.
//   - If the caller of another place is asking for it, the Move is Rest: the caller calls Leave
//     again when it is woken.
//   - Otherwise the Move is Left, with the turns to give back, newest first. If there are some, the
//     caller then calls Cancelled.
func (p *Place) Leave(now kernel.Instant) Move {
	ln := p.lock()
	defer ln.Unlock()
	if p.state == Gone {
		return Move{Do: Left}
	}
	if turns := ln.serve(p, ln.index(p), now); turns != nil {
		return Move{Do: Served, Turns: turns}
	}
	if p.state == AskedByOther {
		p.until = kernel.Forever
		return Move{Do: Rest}
	}
	ln.EndState = nil
	ln.remove(p)
	turns := ln.takeUnfit(now)
	ln.wake()
	return Move{Do: Left, Turns: turns}
}

// Cancelled says that turns have been given back.
func (p *Place) Cancelled() {
	ln := p.lock()
	defer ln.Unlock()
	ln.cancelled()
}
