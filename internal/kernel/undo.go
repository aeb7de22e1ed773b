package kernel

import (
	"iter"
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

// A Grant is what was spent for a reservation.
type Grant struct {
	by     *Compiled // that made it
	at     Instant   // when the events were charged
	due    Instant   // when they may happen: at, except for a leaky bucket's hold
	n      int       // how many
	traces []trace   // of the parts, in their order
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

// A Waiter is a grant in the line.
type Waiter struct {
	*Grant
	turn      Instant // due, by the limiter's clock
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

// A Cancellation is the Grant of a Request to cancel waiters in a line. The line does
// not change while a store has it.
type Cancellation struct {
	line  []*Waiter
	asked []*Waiter // those of it to be cancelled now
	Local bool      // whether nobody else has the state
}

// An undoing is one application of a cancellation to a state. It changes nothing but
// the state: a store may apply it again to another one.
type undoing struct {
	line    []*Waiter
	now     Instant
	local   bool // whether nobody else has the state
	part    int  // whose turn it is
	changed bool // whether the state has
	done    []map[*Waiter]progress
}

// An Undone is the Grant of the Answer to a cancellation.
type Undone struct {
	cancelled []*Waiter              // of those asked for, in time and by the same parameters
	done      []map[*Waiter]progress // by part
}

// undo applies a cancellation.
func (v *view) undo(st []uint64, cancelled any) (_ []uint64, changed bool, _ any) {
	var line []*Waiter
	local := false
	switch g := cancelled.(type) {
	case *Cancellation:
		line, local = g.line, g.Local
	case *Grant: // of a store's own line, of one
		line = []*Waiter{{Grant: g, asked: true, parts: make([]progress, len(g.traces))}}
	default:
		return st, false, nil
	}
	u := &undoing{now: v.now, line: line, local: local}
	if others := func(p *Waiter) bool { return !v.made(p.Grant) }; slices.ContainsFunc(line, others) {
		u.line = slices.DeleteFunc(slices.Clone(line), others)
	}
	out := &Undone{}
	for _, p := range u.line {
		if p.asked && u.cancelled(p) {
			out.cancelled = append(out.cancelled, p)
		}
	}
	if len(out.cancelled) == 0 {
		return st, false, out
	}
	u.done = make([]map[*Waiter]progress, len(out.cancelled[0].traces))
	st = v.cancel(st, u)
	out.done = u.done
	return st, u.changed, out
}

// made reports whether the kernel of v, or one of the same parameters, made g.
func (v *view) made(g *Grant) bool {
	return v.same(g.by)
}

func (u *undoing) cancelled(p *Waiter) bool {
	return p.cancelled || p.asked && p.due >= u.now // else the events may have happened
}

// progress returns how far p is in the present part.
func (u *undoing) progress(p *Waiter) progress {
	if done, ok := u.done[u.part][p]; ok {
		return done
	}
	return p.parts[u.part]
}

// gone reports whether the events of p are out of the state.
func (u *undoing) gone(p *Waiter) bool {
	return p.parts[u.part].gone || len(u.done[u.part]) > 0 && u.done[u.part][p].gone
}

func (u *undoing) trace(p *Waiter) *trace { return &p.traces[u.part] }

// set notes how far p is in the present part.
func (u *undoing) set(p *Waiter, to progress) {
	if u.done[u.part] == nil {
		u.done[u.part] = make(map[*Waiter]progress)
	}
	u.done[u.part][p] = to
}

// pending iterates over the cancelled grants whose events are still in the state, in
// the order of the line.
func (u *undoing) pending() iter.Seq2[int, *Waiter] {
	return func(yield func(int, *Waiter) bool) {
		for i, p := range u.line {
			if u.cancelled(p) && !u.gone(p) && !yield(i, p) {
				return
			}
		}
	}
}

// take notes that the events of p are out of the state.
func (u *undoing) take(p *Waiter) {
	to := u.progress(p)
	to.gone = true
	u.set(p, to)
}

// fall notes that what else p changed is as before.
func (u *undoing) fall(p *Waiter) {
	to := u.progress(p)
	to.fallen = true
	u.set(p, to)
}

// chained spends for an algorithm whose grants are undone from the end of the line.
func chained(st []uint64, order func(st []uint64) [2]uint64, spend func(st []uint64) []uint64) ([]uint64, trace) {
	var t trace
	copy(t.pre[:], st)
	st = spend(st)
	copy(t.post[:], st)
	t.order = order(st)
	return st, t
}

// An unwound kernel gives back what nothing came after: whoever came after was told an
// instant that counts on these events.
type unwound struct{}

func (unwound) cancel(st []uint64, u *undoing) []uint64 { return u.unwind(st) }

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
func (g *Grant) before(h *Grant) bool {
	if g.at != h.at {
		return g.at < h.at
	}
	if g.due != h.due { // in a queue whose limit was changed meanwhile, words do not compare
		return g.due < h.due
	}
	for i := range min(len(g.traces), len(h.traces)) {
		if o, p := g.traces[i].order, h.traces[i].order; o != p {
			return slices.Compare(o[:], p[:]) < 0
		}
	}
	return false
}
