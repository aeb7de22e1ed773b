package kernel

import (
	"iter"
	"slices"
)

// This file takes reservations back. For windows, the arithmetic is in their own files.
//
// For each part of the algorithm, a grant keeps a trace: a few words, however large the
// key's state is. The grants of one limiter on one key form a line, in the order of
// their instants. A cancellation looks at the line and at the state:
//
//   - Buckets are undone from the end of the line. While the last grant is cancelled and
//     the state is the one that it left, the state is set to the one before it. A
//     cancelled grant with others behind it stays in the line until these are gone.
//   - Windows and logs remove events from their counts at once, because counts are sums.
//     If the grants at the end of the line are cancelled, the frontier (the latest
//     instant promised) falls back to its value before them, and counts that they
//     pushed out are restored.
//
// Grants of other limiters on the same key are not in the line. Nothing is undone
// beyond them, because the state then differs from what the line implies.

// A Grant records what was spent for a reservation.
type Grant struct {
	by     *Compiled // the kernel that made it
	at     Instant   // when the events were charged
	due    Instant   // when they may happen: at, plus a leaky bucket's hold
	n      int       // number of events
	ahead  Instant   // by how much at is after the instant at which the grant was made
	hold   uint64    // the ID of the hold that it has opened, or 0
	traces []trace   // one for each part, in order
}

// A trace is what a part of an algorithm needs to take a grant back. Each kernel uses
// only some of the fields.
type trace struct {
	pre     words     // the state before
	post    words     // and after
	order   [2]uint64 // increases from grant to grant at the same instant
	raised  bool      // whether the frontier rose: to a later window, or instant
	slot    uint64    // where the events were counted: the window or slot
	before  uint64    // the events there before the grant
	cleared []cleared // counts that the grant pushed out of a ring
}

// words are the first words of a state: all of them, for a kernel that compares them.
type words [3]uint64

// A cleared is a count that was pushed out of a ring.
type cleared struct{ place, count uint64 }

// A Waiter is a grant in the line.
type Waiter struct {
	*Grant
	turn      Instant // due, by the limiter's clock
	asked     bool    // whether the current cancellation is for it
	cancelled bool    // whether an earlier cancellation was for it
	unsure    bool    // whether a cancellation may have come between the grant and its trace
	parts     []progress
}

// A progress says how much of a cancelled waiter has been undone in a part.
type progress struct {
	gone   bool   // the events are removed from the state
	fallen bool   // the frontier that the grant raised has fallen back
	less   uint64 // events of trace.before that were removed since
}

// A Cancellation is the Grant of a Request to cancel waiters in a line. The line does
// not change while a store uses it.
type Cancellation struct {
	line  []*Waiter
	asked []*Waiter // the waiters to cancel now
	Local bool      // whether no other limiter or process uses the state

	forgotten []*Waiter // those left out of line because the key was reset since; see Forget
}

// An undoing is one application of a cancellation to a state. It changes only the
// state, so a store may repeat it with another state.
type undoing struct {
	line    []*Waiter
	now     Instant
	local   bool         // see Cancellation.Local
	ended   []*Waiter    // those whose holds have ended, and with them what can be taken back
	behind  int          // the index of the first waiter behind all that stay
	part    int          // the current part
	changed bool         // whether the state has changed
	done    [][]progress // of each part and waiter; nil for parts without any so far
}

// An Undone is the Grant of the Answer to a cancellation.
type Undone struct {
	cancelled []*Waiter // the waiters asked for that were in time and have the same parameters
	forgotten []*Waiter // those that the key was reset since
	line      []*Waiter
	done      [][]progress // see undoing.done
}

// Any reports whether anything was cancelled.
func (out *Undone) Any() bool { return len(out.cancelled) > 0 }

// take records that no part has the events of the i-th waiter any more, and returns which had lost
// them before.
func (out *Undone) take(i int) (gone []bool) {
	for part := range out.done {
		if out.done[part] == nil {
			for _, w := range out.line {
				out.done[part] = append(out.done[part], w.parts[part])
			}
		}
		p := &out.done[part][i]
		gone = append(gone, p.gone)
		p.gone = true
	}
	return gone
}

// undo applies a cancellation at now. open reports whether a hold is open; it is nil if none is.
func (c *Compiled) undo(st []uint64, now Instant, cancelled any, open func(id uint64) bool) (_ []uint64, changed bool, _ any) {
	line, local := c.lineOf(cancelled)
	if line == nil {
		return st, false, nil
	}
	u := &undoing{now: now, line: line, local: local}
	out := &Undone{}
	if of, ok := cancelled.(*Cancellation); ok {
		out.forgotten = of.forgotten
	}
	for _, p := range u.line {
		if id := p.hold; p.asked && id != 0 && (open == nil || !open(id)) {
			u.ended = append(u.ended, p)
		} else if p.asked && u.cancelled(p) {
			out.cancelled = append(out.cancelled, p)
		}
	}
	if len(out.cancelled) == 0 {
		return st, false, out
	}
	u.behind = lastIndex(u.line, func(p *Waiter) bool { return !u.cancelled(p) }) + 1
	u.done = make([][]progress, len(out.cancelled[0].traces))
	st = c.cancel(st, u)
	out.line, out.done = u.line, u.done
	return st, u.changed, out
}

// lineOf returns the line in the Grant of an OpCancel without the waiters that kernels with
// other parameters made, and Cancellation.Local. The line is nil if there is none.
func (c *Compiled) lineOf(cancelled any) (line []*Waiter, local bool) {
	switch g := cancelled.(type) {
	case *Cancellation:
		line, local = g.line, g.Local
	case *Grant: // a line of one, made by a store
		line = []*Waiter{{Grant: g, asked: true, parts: make([]progress, len(g.traces))}}
	}
	by, same := c, true // to compare the parameters of equal neighbours once
	others := func(p *Waiter) bool {
		if p.by != by {
			by, same = p.by, p.by != nil && c.same(p.by)
		}
		return !same
	}
	if slices.ContainsFunc(line, others) {
		line = slices.DeleteFunc(slices.Clone(line), others)
	}
	return line, local
}

func (u *undoing) cancelled(p *Waiter) bool {
	return p.cancelled || p.asked && p.due >= u.now && !slices.Contains(u.ended, p) // otherwise the events may have happened
}

// progress returns the progress of the i-th waiter in the current part.
func (u *undoing) progress(i int) progress {
	if done := u.done[u.part]; done != nil {
		return done[i]
	}
	return u.line[i].parts[u.part]
}

// gone reports whether the events of the i-th waiter are removed from the state.
func (u *undoing) gone(i int) bool { return u.progress(i).gone }

func (u *undoing) trace(p *Waiter) *trace { return &p.traces[u.part] }

// floor returns the slot of the last waiter that stays, or 0. Nothing is undone before it,
// because slots only come back as the frontier falls.
func (u *undoing) floor() uint64 { return floor(u.line, u.behind, u.part) }

func floor(line []*Waiter, behind, part int) uint64 {
	if behind == 0 {
		return 0
	}
	return line[behind-1].traces[part].slot
}

// at returns the progress of the i-th waiter in the current part, to be changed.
func (u *undoing) at(i int) *progress {
	if u.done[u.part] == nil {
		done := make([]progress, len(u.line))
		for i, p := range u.line {
			done[i] = p.parts[u.part]
		}
		u.done[u.part] = done
	}
	return &u.done[u.part][i]
}

// pending iterates over the cancelled grants whose events are still in the state, in
// the order of the line.
func (u *undoing) pending() iter.Seq2[int, *Waiter] {
	return func(yield func(int, *Waiter) bool) {
		for i, p := range u.line {
			if u.cancelled(p) && !u.gone(i) && !yield(i, p) {
				return
			}
		}
	}
}

// take records that the events of the i-th waiter are removed from the state.
func (u *undoing) take(i int) { u.at(i).gone = true }

// fall records that the frontier that the i-th waiter raised has fallen back.
func (u *undoing) fall(i int) { u.at(i).fallen = true }

// chained spends for a kernel whose grants are undone from the end of the line, and
// returns the trace.
func chained(st []uint64, order func(st []uint64) [2]uint64, spend func(st []uint64) []uint64) ([]uint64, trace) {
	var t trace
	copy(t.pre[:], st)
	st = spend(st)
	copy(t.post[:], st)
	t.order = order(st)
	return st, t
}

// An unwound kernel takes a grant back only if nothing was granted after it: a later
// caller has been given an instant that counts on these events.
type unwound struct{}

func (unwound) cancel(st []uint64, u *undoing) []uint64 { return u.unwind(st) }

// unwind undoes grants from the end of the line, behind those that stay: the one that left
// the state, then the one before it. That may differ from the order of instants if another
// part, a window, has made earlier instants available that a bucket does not.
func (u *undoing) unwind(st []uint64) []uint64 {
	for again := true; again; {
		again = false
		for i := len(u.line) - 1; i >= u.behind; i-- {
			if t := u.trace(u.line[i]); slices.Equal(st, t.post[:len(st)]) && !u.gone(i) {
				copy(st, t.pre[:])
				u.changed, again = true, true
				u.take(i)
			}
		}
	}
	return st
}

// lastIndex returns the index of the last waiter for which is returns true, or −1.
func lastIndex(line []*Waiter, is func(*Waiter) bool) int {
	for i, w := range slices.Backward(line) {
		if is(w) {
			return i
		}
	}
	return -1
}

// before reports whether g comes before h in the line.
func (g *Grant) before(h *Grant) bool {
	if g.at != h.at {
		return g.at < h.at
	}
	if g.due != h.due { // in a queue whose limit was changed, words are not comparable
		return g.due < h.due
	}
	for i := range min(len(g.traces), len(h.traces)) {
		if o, p := g.traces[i].order, h.traces[i].order; o != p {
			return slices.Compare(o[:], p[:]) < 0
		}
	}
	return false
}
