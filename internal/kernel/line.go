package kernel

import "slices"

// A Line has the pending reservations of a key, and cancelled ones that others still
// stand behind. When a waiter in the middle leaves, those behind it keep the times that
// they were told. Windows and logs give its events back at once, buckets once all behind it
// have left. undo.go does the arithmetic, and pending.go in the root calls Line for
// concurrent callers.
type Line struct {
	waiters []*Waiter // not changed in place while held is set, except at the end
	last    Instant   // the latest turn
	held    bool      // whether a Cancellation has the waiters
}

// NewWaiter returns a waiter whose turn is an instant of the limiter's clock. unsure
// means that a cancellation may have come between the grant and its trace.
func NewWaiter(g *Grant, turn Instant, unsure bool) *Waiter {
	return &Waiter{Grant: g, turn: turn, unsure: unsure, parts: make([]progress, len(g.traces))}
}

// Over reports whether the last turn in the line has passed.
func (ln *Line) Over(now Instant) bool { return ln.last < now }

// Len returns the number of waiters in the line.
func (ln *Line) Len() int { return len(ln.waiters) }

// SortLine sorts waiters in the order of a line.
func SortLine(waiters []*Waiter) {
	slices.SortStableFunc(waiters, func(v, w *Waiter) int {
		switch {
		case v.before(w.Grant):
			return -1
		case w.before(v.Grant):
			return 1
		}
		return 0
	})
}

// Insert inserts w in order, which is nearly always at the end.
func (ln *Line) Insert(w *Waiter, now Instant) {
	ln.drop(now)
	i := len(ln.waiters)
	for i > 0 && w.before(ln.waiters[i-1].Grant) {
		i--
	}
	if i < len(ln.waiters) && ln.held {
		ln.waiters = slices.Clone(ln.waiters)
	}
	ln.waiters = slices.Insert(ln.waiters, i, w)
	ln.last = max(ln.last, w.turn)
}

// drop removes waiters whose turn has passed, and those before them: they can no longer
// be cancelled, and nothing is undone beyond them. It stops at a waiter that lingers.
func (ln *Line) drop(now Instant) {
	switch {
	case ln.held:
		return
	case ln.last < now:
		ln.waiters = slices.Delete(ln.waiters, 0, len(ln.waiters))
		return
	}
	passed := 0
	for i, w := range ln.waiters {
		if w.turn >= now || w.lingers(now) {
			break
		}
		if !w.cancelled {
			passed = i + 1
		}
	}
	ln.waiters = slices.Delete(ln.waiters, 0, passed)
}

// lingers reports whether w is cancelled, and events of it still count but could not be removed
// because a reservation in a later window has replaced theirs. If that is cancelled, their
// window comes back, and with the line as it is, they are removed from it.
func (w *Waiter) lingers(now Instant) bool {
	if !w.cancelled {
		return false
	}
	for part, leaf := range w.by.leaves() {
		k, ok := leaf.Kernel.(interface{ forgets(slot uint64) Instant })
		if !ok || w.parts[part].gone {
			continue
		}
		if end := k.forgets(w.traces[part].slot); end > w.due && now-w.turn < (end-w.due)*w.by.Tick {
			return true
		}
	}
	return false
}

// Cancel returns the request that cancels the given waiters in the store, or nil if the
// store need not be called. After a non-nil result, Cancel must not be called again
// before Settle or Release.
func (ln *Line) Cancel(asked []*Waiter, now Instant) *Cancellation {
	ln.drop(now)
	asked = slices.DeleteFunc(asked, func(w *Waiter) bool { return w.turn < now }) // too late
	for _, w := range asked {
		w.asked = true
	}
	line := ln.waiters
	if len(asked) > 0 && asked[0].chained() {
		// Only the end of the line matters.
		i := len(line)
		for i > 0 && (line[i-1].cancelled || line[i-1].asked) {
			i--
		}
		line = line[i:]
		for _, w := range asked {
			if len(line) == 0 || w.before(line[0].Grant) {
				w.asked, w.cancelled = false, true // to be undone once those behind it are
			}
		}
	}
	if !slices.ContainsFunc(line, func(w *Waiter) bool { return w.asked }) {
		return nil
	}
	ln.held = true
	return &Cancellation{line: line, asked: asked}
}

// Leave removes a waiter whose events will not be cancelled together: some of them are given
// back on their own. The others are then like those of other limiters, so that what is left of
// the line implies no more than is true. No Cancellation may have the waiters.
func (ln *Line) Leave(w *Waiter) {
	ln.waiters = slices.DeleteFunc(ln.waiters, func(other *Waiter) bool { return other == w })
}

// Undone reports whether no part has events of w any more.
func (w *Waiter) Undone() bool {
	return w.cancelled && !slices.ContainsFunc(w.parts, func(p progress) bool { return !p.gone })
}

// Release says that the store no longer uses the line.
func (ln *Line) Release() { ln.held = false }

// Settle records the outcome of a cancellation.
func (ln *Line) Settle(c *Cancellation, out *Undone) {
	asked := c.asked
	for _, w := range asked {
		w.asked = false
	}
	for _, w := range out.cancelled {
		w.cancelled = true
	}
	if len(out.forgotten) > 0 {
		ln.waiters = slices.DeleteFunc(ln.waiters, func(w *Waiter) bool { return slices.Contains(out.forgotten, w) })
	}
	for part, done := range out.done {
		var removed []*Waiter
		for i, to := range done {
			w := out.line[i]
			if to.gone && !w.parts[part].gone {
				removed = append(removed, w)
			}
			to.less = w.parts[part].less
			w.parts[part] = to
		}
		ln.lessen(removed, part)
	}
	if len(asked) > 0 && asked[0].chained() {
		for n := len(ln.waiters); n > 0 && ln.waiters[n-1].complete(); n-- {
			ln.waiters[n-1] = nil
			ln.waiters = ln.waiters[:n-1]
		}
		return
	}
	ln.waiters = slices.DeleteFunc(ln.waiters, (*Waiter).complete)
}

// Forsake gives up the waiters of a cancellation whose outcome is unknown: those that it may
// have undone, and those that earlier cancellations could not undo yet. It reports whether the
// other waiters can still be cancelled.
//
// They can if a waiter that stays makes no difference to those that leave. Then the lost
// request has the same effect whenever it is carried out, before or after others: it takes its
// own events out of a count or a log, or replaces the state of a bucket that its last grant
// left, or a window without events. On a ring, however, the request also says which events of
// the line stay in a slot. If these leave in the meantime and another limiter reserves as many
// at the same instant, the lost request would lower the frontier below that reservation.
func (ln *Line) Forsake(c *Cancellation) (others bool) {
	for _, w := range c.asked {
		w.asked, w.cancelled = false, true
	}
	if slices.ContainsFunc(ln.waiters, func(w *Waiter) bool { return w.by.counted() }) {
		return false
	}
	lost := make(map[*Waiter]bool, len(c.line))
	for _, w := range c.line {
		lost[w] = w.cancelled
	}
	ln.waiters = slices.DeleteFunc(ln.waiters, func(w *Waiter) bool { return lost[w] })
	return true
}

// counted reports whether a part is a ring, whose cancel depends on the waiters that stay.
func (c *Compiled) counted() bool {
	return slices.ContainsFunc(c.leaves(), func(leaf capable) bool {
		switch leaf.Kernel.(type) {
		case *pair, *sliding, *rolling:
			return true
		}
		return false
	})
}

// lessen records that the events of some waiters, which are in order, were removed from a
// part, for the waiters whose trace counts them as there before.
func (ln *Line) lessen(removed []*Waiter, part int) {
	if len(removed) == 0 {
		return
	}
	parts := len(removed[0].traces)
	sums := make(map[uint64]uint64) // by slot, of the removed waiters before other
	for _, other := range ln.waiters {
		for len(removed) > 0 && removed[0].at < other.at {
			sums[removed[0].traces[part].slot] += uint64(removed[0].n)
			removed = removed[1:]
		}
		if len(sums) > 0 && len(other.traces) == parts {
			other.parts[part].less += sums[other.traces[part].slot]
		}
	}
}

// complete reports whether w is cancelled and entirely undone.
func (w *Waiter) complete() bool {
	for i, to := range w.parts {
		if !to.gone || w.traces[i].raised && !to.fallen {
			return false
		}
	}
	return w.cancelled
}

// chained reports whether all parts are undone from the end of the line.
func (g *Grant) chained() bool {
	for i := range g.traces {
		if g.traces[i].order == [2]uint64{} {
			return false
		}
	}
	return true
}
