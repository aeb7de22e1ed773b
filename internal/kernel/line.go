package kernel

import "slices"

// A Line has the reservations of a key that are pending, and those that were
// cancelled while others stood behind them: see undo.go.
type Line struct {
	waiters []*Waiter // not changed in place while held is set, except at the end
	last    Instant   // the latest turn
	held    bool      // whether a Cancellation has the waiters
}

// NewWaiter returns a waiter whose turn is at an instant of the limiter's clock. unsure
// says that a cancellation may lie between the making of the grant and its trace.
func NewWaiter(g *Grant, turn Instant, unsure bool) *Waiter {
	return &Waiter{Grant: g, turn: turn, unsure: unsure, parts: make([]progress, len(g.traces))}
}

// Over reports whether the last turn in the line has passed.
func (ln *Line) Over(now Instant) bool { return ln.last < now }

// Len returns how many stand in the line.
func (ln *Line) Len() int { return len(ln.waiters) }

// Insert puts w where it belongs, which is nearly always the end.
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

// drop drops those whose turn has passed, and who stand before such: they are not
// cancelled any more, nor is anything undone beyond them.
func (ln *Line) drop(now Instant) {
	if ln.held {
		return
	}
	passed := 0
	for i, w := range ln.waiters {
		if w.turn >= now {
			break
		}
		if !w.cancelled || ln.last < now {
			passed = i + 1
		}
	}
	ln.waiters = slices.Delete(ln.waiters, 0, passed)
}

// Cancel returns what the store is to be asked for to cancel some waiters, or nil if
// that is nothing. Then the line must not be asked again before Settle, or Release.
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
				w.asked, w.cancelled = false, true // until those behind are gone
			}
		}
	}
	if !slices.ContainsFunc(line, func(w *Waiter) bool { return w.asked }) {
		return nil
	}
	ln.held = true
	return &Cancellation{line: line, asked: asked}
}

// Release says that the store has the waiters no more.
func (ln *Line) Release() { ln.held = false }

// Settle notes what came of a cancellation.
func (ln *Line) Settle(c *Cancellation, out *Undone) {
	asked := c.asked
	for _, w := range asked {
		w.asked = false
	}
	for _, w := range out.cancelled {
		w.cancelled = true
	}
	for part, done := range out.done {
		for w, to := range done {
			if was := w.parts[part]; to.gone && !was.gone {
				ln.lessen(w, part)
			}
			to.less = w.parts[part].less
			w.parts[part] = to
		}
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

// lessen notes that the events of w were taken out of a part, for those that they
// were there before.
func (ln *Line) lessen(w *Waiter, part int) {
	slot := w.traces[part].slot
	for _, other := range slices.Backward(ln.waiters) {
		if other.at <= w.at {
			break
		}
		if len(other.traces) == len(w.traces) && other.traces[part].slot == slot {
			other.parts[part].less += uint64(w.n)
		}
	}
}

// complete reports whether nothing remains to be undone of w.
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
