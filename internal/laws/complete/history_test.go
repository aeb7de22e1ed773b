package complete_test

import (
	"fmt"
	"slices"
)

// A history is what happened to a key of which some events are held, and others are reserved, as
// docs/holds.md defines it: to settle a hold for n events leaves the key as if only n had been taken
// when the hold was made. So a history has a world for each way in which the open holds may be
// settled, and all that is granted, denied or charged happens in each of them. A history is never
// changed in place.
type history struct {
	holds []hold // that are open, oldest first
	turns []turn // that are ahead, in order

	// A definition for each number of events of each hold that may have happened. Those of the
	// youngest hold differ first. In the last world, all events that are held have happened: it
	// decides.
	worlds []definition

	flies bool // whether events are in flight: they count while their hold is open, and not after
}

// A hold is one that is open.
type hold struct {
	id  uint64
	n   int
	end int  // when it ends by itself
	due int  // when its events may happen
	all bool // whether they are only reserved, so that the hold ends when they may happen
	// Whether its events come back then, and do not count as they were held.
	back bool
}

// A turn is a reservation that is ahead. When it comes, its events happen, or are held.
type turn struct {
	hold  // whose all says that it does not last beyond when its events may happen
	at    int
	final bool // whether it is settled
}

// A fact is a definition in which it is a fact what has happened, whatever is settled afterwards.
type fact interface {
	// asIn returns the definition with the facts of the world that decides, at t.
	asIn(decides definition, t int) definition
}

func (h history) decides() definition { return h.worlds[len(h.worlds)-1] }

// each changes each world.
func (h history) each(t int, change func(definition) definition) history {
	worlds := make([]definition, len(h.worlds))
	for i, w := range h.worlds {
		worlds[i] = change(w)
	}
	h.worlds = worlds
	return h.settled(t)
}

// settled returns the history with what is a fact at t.
func (h history) settled(t int) history {
	if _, ok := h.decides().(fact); !ok || len(h.worlds) == 1 {
		return h
	}
	worlds := make([]definition, len(h.worlds))
	for i, w := range h.worlds {
		worlds[i] = w.(fact).asIn(h.decides(), t)
	}
	h.worlds = worlds
	return h
}

// at returns the history as of t, if nobody asks for anything meanwhile: turns have come, and holds
// have ended by themselves, each at its time.
func (h history) at(t int) history {
	for {
		i, end := h.soonest()
		switch turns := len(h.turns) > 0; {
		case i >= 0 && end <= t && (!turns || end <= h.turns[0].at):
			h = h.settled(end)
			n := h.holds[i].n
			if h.holds[i].back {
				n = 0
			}
			h = h.end(i, n)
		case turns && h.turns[0].at <= t:
			next := h.turns[0]
			h.turns = h.turns[1:]
			if next.final || next.all && next.end <= next.at {
				h = h.take(next.at, next.n)
			} else {
				h = h.open(next.at, next.hold)
			}
		default:
			return h.settled(t)
		}
	}
}

// soonest returns the index of the hold that ends first, or −1.
func (h history) soonest() (index, end int) {
	index = -1
	for i, one := range h.holds {
		if index < 0 || one.end < end {
			index, end = i, one.end
		}
	}
	return index, end
}

// end says how many events of a hold have happened.
func (h history) end(i, n int) history {
	if !h.flies {
		after := 1 // how many worlds there are for each number of events of the hold
		for _, younger := range h.holds[i+1:] {
			after *= younger.n + 1
		}
		var left []definition
		for from := n * after; from < len(h.worlds); from += (h.holds[i].n + 1) * after {
			left = append(left, h.worlds[from:from+after]...)
		}
		h.worlds = left
	}
	h.holds = slices.Delete(slices.Clone(h.holds), i, i+1)
	return h
}

// held is how many events in flight are held.
func (h history) held() (n int) {
	if h.flies {
		for _, one := range h.holds {
			n += one.n
		}
	}
	return n
}

// room returns the most events that are granted at t, as the history is.
func (h history) room(t int) int { return h.decides().room(t) - h.held() }

// counts reports whether anything makes a difference at t.
func (h history) counts(t int) bool { return h.decides().counts(t) || h.held() > 0 }

// matters reports whether anything makes a difference at t, whichever limit is asked.
func (h history) matters(t int) bool {
	if c, ok := h.decides().(changing); ok {
		return c.matters(t)
	}
	return h.counts(t)
}

// latest returns the index of the limit that has made the latest grant.
func (h history) latest() int {
	if c, ok := h.decides().(changing); ok {
		return c.latest
	}
	return 0
}

// as returns the key with one of the limits between which it changes, which is asked at t. One of
// another kind knows nothing of the holds of the other one.
func (h history) as(i, t int) history {
	if c, ok := h.decides().(changing); ok && i != c.latest && c.areOfTwoKinds() {
		h.holds, h.worlds = nil, []definition{c}
	}
	return h.drop(t).change(t, func(c changing) changing { return c.as(i, t) })
}

// asPresent returns the key with the limit that has made the latest grant, and its index.
func (h history) asPresent(t int) (history, int) {
	i := h.latest()
	return h.change(t, func(c changing) changing {
		c.asks, c.begins, c.shares, c.took = i, false, false, false
		return c
	}), i
}

// drop returns the key as of t without what it does not keep any more, if its limit changes.
func (h history) drop(t int) history {
	c, ok := h.decides().(changing)
	if !ok {
		return h
	}
	left := c.at(t)
	return h.change(t, func(c changing) changing { return c.like(left) })
}

// denied returns the key after a denial that ends at an instant.
func (h history) denied(t, until int) history {
	return h.change(t, func(c changing) changing { return c.denied(t, until) })
}

// noted returns the key after it has counted n events that are denied, if it does so.
func (h history) noted(t, n int) history {
	if _, ok := h.decides().(denialCounter); !ok {
		return h
	}
	return h.each(t, func(w definition) definition { return w.(denialCounter).deny(t, n) })
}

// mayForget reports whether a store may keep the key as it was before it was asked and denied.
func (h history) mayForget(before history, t int) bool {
	c, ok := h.decides().(changing)
	return !ok || c.mayForget(before.decides().(changing), t)
}

// change changes each world of a key whose limit changes.
func (h history) change(t int, f func(changing) changing) history {
	if _, ok := h.decides().(changing); !ok {
		return h
	}
	return h.each(t, func(w definition) definition { return f(w.(changing)) })
}

// take counts events in all worlds.
func (h history) take(t, n int) history {
	if n == 0 {
		return h
	}
	return h.each(t, func(w definition) definition { return w.take(t, n) })
}

// open takes events and holds them.
func (h history) open(t int, one hold) history {
	if !h.flies {
		var worlds []definition
		for _, w := range h.worlds {
			for n := range one.n + 1 {
				if n > 0 {
					worlds = append(worlds, w.take(t, n))
				} else {
					worlds = append(worlds, w)
				}
			}
		}
		h.worlds = worlds
		h = h.settled(t)
	}
	h.holds = append(slices.Clip(h.holds), one)
	return h
}

// after returns the history after its turns, and when the last of them comes. Nothing is granted
// before.
func (h history) after(t int) (history, int) {
	for _, next := range h.turns {
		h, t = h.take(next.at, next.n), next.at
	}
	h.turns = nil
	return h, t
}

// ready returns when n events are granted if nobody asks for anything meanwhile, and settles
// nothing.
func (h history) ready(t, n int) int {
	_, from := h.after(t)
	return first(from, func(t int) bool { return h.at(t).room(t) >= n })
}

// remaining returns the most events that are granted at t.
func (h history) remaining(t int) int {
	if len(h.turns) > 0 {
		return 0
	}
	return max(0, h.room(t))
}

// fresh returns when nothing counts any more if all events that are held or reserved happen.
func (h history) fresh(t int) int {
	after, from := h.after(t)
	return first(from, func(t int) bool {
		if h.flies {
			return !h.at(t).counts(t)
		}
		return !after.counts(t)
	})
}

// turn returns when n events would come if they were reserved at t, and all that is held happens.
func (h history) turn(t, n int) int {
	after, from := h.after(t)
	return first(from, func(t int) bool {
		if h.flies {
			return h.at(t).room(t) >= n
		}
		return after.room(t) >= n
	})
}

func (h history) delay(t int) int {
	if q, ok := h.decides().(queue); ok {
		return q.delay(t)
	}
	return 0
}

// pending is how many holds and turns there are.
func (h history) pending() int { return len(h.holds) + len(h.turns) }

// ids returns those of all holds and turns.
func (h history) ids() (ids []uint64) {
	for _, one := range h.holds {
		ids = append(ids, one.id)
	}
	for _, one := range h.turns {
		ids = append(ids, one.id)
	}
	return ids
}

// key names what makes a difference from t on.
func (h history) key(t int) (name string) {
	for _, one := range h.holds {
		name += fmt.Sprint("hold ", one.n, " ", one.end-t, " ", max(0, one.due-t), one.all, one.back, " ")
	}
	for _, one := range h.turns {
		name += fmt.Sprint("turn ", one.at-t, " ", one.n, " ", one.end-t, one.all, one.back, one.final, " ")
	}
	for _, w := range h.worlds {
		if c, ok := w.(changing); ok && !h.decides().(changing).matters(t) {
			w = changing{latest: c.latest}
		}
		name += w.key(t) + "; "
	}
	return name
}
