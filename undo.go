package ratelimit

import (
	"reflect"
	"slices"
)

// How reservations are taken back is in this file and, for windows, next to their
// arithmetic.
//
// A grant keeps a few words for each part of the algorithm, however large the key's
// state is: its trace. Grants of one limiter on one key stand in a line, in the order
// of their instants. A cancellation looks at that line and at the state:
//
//   - Buckets are undone from the end of the line. While the last grant is cancelled
//     and the state is the one that it left, the state becomes the one before it.
//     A cancelled grant with others behind it stays in the line until these are gone.
//   - Windows and logs take events out of their counts at once, for counts are sums.
//     Then the frontier, the latest instant that was promised, falls back to what it
//     was before the grants at the end of the line that are cancelled, and what was
//     dropped for their sake comes back.
//
// Grants of other limiters on the same key are not in the line, and nothing is undone
// beyond them: the state does not look as the line says then.

// A grant is what was spent for a reservation.
type grant struct {
	by     kernel  // that made it
	at     instant // when the events were charged
	due    instant // when they may happen: at, except for a leaky bucket's hold
	n      int     // how many
	traces []trace // of the parts, in their order
}

// A trace is what a part of an algorithm needs to take a grant back. Which fields it
// uses is up to its kernel.
type trace struct {
	pre, post [3]uint64 // words of the state before and after
	order     [2]uint64 // increases from grant to grant at the same instant
	raised    bool      // whether the frontier rose: to a later window, or instant
	slot      uint64    // where the events were counted: the window or slot
	before    uint64    // the events there before
	cleared   []cleared // counts that the grant pushed out of a ring
}

// A cleared count is one that was at a place of a ring.
type cleared struct{ place, count uint64 }

// A waiter is a grant in the line.
type waiter struct {
	*grant
	turn      instant // due, by the limiter's clock
	asked     bool    // whether the cancellation under way is for it
	cancelled bool    // whether an earlier one was
	unsure    bool    // whether a cancellation may lie between its making and its trace
	parts     []progress
}

// A progress says what has come of a cancelled waiter in a part.
type progress struct {
	gone   bool   // the events are out of the state
	fallen bool   // so is what else the grant changed
	less   uint64 // of trace.before: events that were taken out since
}

// A cancellation is the Grant of a Request to cancel waiters in a line. The line does
// not change while a store has it.
type cancellation struct {
	line  []*waiter
	local bool // whether nobody else has the state
}

// An undoing is one application of a cancellation to a state. It changes nothing but
// the state: a store may apply it again to another one.
type undoing struct {
	line    []*waiter
	now     instant
	local   bool // whether nobody else has the state
	part    int  // whose turn it is
	changed bool // whether the state has
	done    []map[*waiter]progress
}

// An undone is the Grant of the Result of a cancellation.
type undone struct {
	cancelled []*waiter              // of those asked for, in time and by the same parameters
	done      []map[*waiter]progress // by part
}

// undo applies a cancellation.
func (v *view) undo(st []uint64, of any) (_ []uint64, changed bool, _ any) {
	var line []*waiter
	local := false
	switch of := of.(type) {
	case *cancellation:
		line, local = of.line, of.local
	case *grant: // of a store's own line, of one
		line = []*waiter{{grant: of, asked: true, parts: make([]progress, len(of.traces))}}
	default:
		return st, false, nil
	}
	u := &undoing{now: v.now, line: line, local: local}
	if others := func(p *waiter) bool { return !v.made(p.grant) }; slices.ContainsFunc(line, others) {
		u.line = slices.DeleteFunc(slices.Clone(line), others)
	}
	out := &undone{}
	for _, p := range u.line {
		if p.asked && u.cancelled(p) {
			out.cancelled = append(out.cancelled, p)
		}
	}
	if len(out.cancelled) == 0 {
		return st, false, out
	}
	u.done = make([]map[*waiter]progress, len(out.cancelled[0].traces))
	st = v.cancel(st, u)
	out.done = u.done
	return st, u.changed, out
}

// made reports whether the kernel of v, or one of the same parameters, made g.
func (v *view) made(g *grant) bool {
	return g.by == v.kernel || reflect.DeepEqual(g.by, v.kernel)
}

func (u *undoing) cancelled(p *waiter) bool {
	return p.cancelled || p.asked && p.due >= u.now // else the events may have happened
}

// progress returns how far p is in the present part.
func (u *undoing) progress(p *waiter) progress {
	if done, ok := u.done[u.part][p]; ok {
		return done
	}
	return p.parts[u.part]
}

// gone reports whether the events of p are out of the state.
func (u *undoing) gone(p *waiter) bool {
	return p.parts[u.part].gone || len(u.done[u.part]) > 0 && u.done[u.part][p].gone
}

func (u *undoing) trace(p *waiter) *trace { return &p.traces[u.part] }

// set notes how far p is in the present part.
func (u *undoing) set(p *waiter, to progress) {
	if u.done[u.part] == nil {
		u.done[u.part] = make(map[*waiter]progress)
	}
	u.done[u.part][p] = to
}

// take notes that the events of p are out of the state.
func (u *undoing) take(p *waiter) {
	to := u.progress(p)
	to.gone = true
	u.set(p, to)
}

// fall notes that what else p changed is as before.
func (u *undoing) fall(p *waiter) {
	to := u.progress(p)
	to.fallen = true
	u.set(p, to)
}

// chained is spend for an algorithm whose grants are undone from the end of the line.
func chained(k kernel, st []uint64, at instant, n int, order func(st []uint64) [2]uint64) ([]uint64, trace) {
	var t trace
	copy(t.pre[:], st)
	st = k.spend(st, at, n)
	copy(t.post[:], st)
	t.order = order(st)
	return st, t
}

// unwind undoes grants from the end of the line: the one that left the state, then
// the one before it. Where windows have freed instants that a bucket keeps, that may
// not be the order of instants.
func (u *undoing) unwind(st []uint64) []uint64 {
	for again := true; again; {
		again = false
		for _, p := range slices.Backward(u.line) {
			if t := u.trace(p); slices.Equal(st, t.post[:len(st)]) && u.cancelled(p) && !u.gone(p) {
				copy(st, t.pre[:])
				u.changed, again = true, true
				u.take(p)
			}
		}
	}
	return st
}

// before reports whether g comes before h in the line.
func (g *grant) before(h *grant) bool {
	if g.at != h.at {
		return g.at < h.at
	}
	for i := range min(len(g.traces), len(h.traces)) {
		if o, p := g.traces[i].order, h.traces[i].order; o != p {
			return slices.Compare(o[:], p[:]) < 0
		}
	}
	return false
}
