package kernel

import "slices"

// This file counts what has happened: events of a hold that were fewer or more than held, and
// events that nobody asked for.
//
// A hold is a Take that leaves a Grant with a trace for each part, like a reservation. To
// settle it for fewer events is to give the rest back. The state is then as if only the
// others had been taken when the hold was made:
//
//   - Counts are sums: the events leave the window or the entry that they are in, if it
//     still counts.
//   - A bucket is as full as if they had not been taken, if nothing was granted since, which
//     shows in the words of its state. Otherwise, it may have been full meanwhile without
//     them, and what overflowed then is lost. The state does not say when others took
//     theirs. So only as much comes back as would be missing now if nothing but the hold had
//     been taken: in whatever order the others came, the bucket would not have been full.
//
// Events beyond the limit are spent like any others, at the present instant or, while
// reservations are ahead, at that of the last one. Nothing in the states is special about a
// debt: more is missing, or counted, than the limit allows, and Ready tells when there is
// room again. Only the words bound it.

// A settler counts events whatever the limit says, and takes back those of a hold.
type settler interface {
	// chargeable returns the most events that charge can count.
	chargeable(st []uint64, now Instant, enc Encoding) uint64

	// charge spends n events, at most chargeable, at now or, if that is later, at the
	// frontier.
	charge(st []uint64, now Instant, n int) []uint64

	// refund takes back some events of a grant, as far as the state allows.
	refund(st []uint64, r *refunding) []uint64
}

// A refunding is the application of an OpSettle that takes events back.
type refunding struct {
	*Grant
	now     Instant
	back    int  // how many of the events did not happen
	part    int  // the current part
	changed bool // whether the state has changed
}

func (r *refunding) trace() *trace { return &r.traces[r.part] }

// all reports whether none of the events happened.
func (r *refunding) all() bool { return r.back == r.n }

// last reports whether nothing was granted since, given the words of a state that change with
// each grant.
func (r *refunding) last(st []uint64) bool {
	return slices.Equal(st, r.trace().post[:len(st)]) && r.at <= r.now
}

// mostCount is the greatest count in a state.
func (enc Encoding) mostCount() uint64 {
	if enc.Portable {
		return portableMost
	}
	return mostCounted
}

// lastInstant is the latest instant in a state.
func (enc Encoding) lastInstant() Instant { return MaxInstant / enc.Tick }

// A single is a Grant with room for the trace of an algorithm without parts.
type single struct {
	Grant
	trace [1]trace
}

// takeHeld is take, and sets the Grant of the answer.
func (v *view) takeHeld(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	delay := v.hold(st, v.now)
	at := v.ready(st, n)
	if at > v.now {
		st, at, changed = v.refuse(st, n, at)
		v.denial(st, n, at, a)
		return st, changed
	}
	now := v.now // a closure that captured v would make each decision allocate
	g := &single{Grant: Grant{by: v.Compiled, at: now, due: After(now, delay), n: n}}
	g.traces = g.trace[:0]
	spend := func(part *capable, st []uint64) []uint64 {
		var t trace
		copy(t.pre[:], st)
		if n > 0 {
			st = part.Spend(st, now, n)
		}
		copy(t.post[:], st)
		g.traces = append(g.traces, t)
		return st
	}
	if v.parts != nil {
		st = v.parts.update(st, spend)
	} else {
		st = spend(&v.capable, st)
	}
	a.Allowed, a.Grant, a.Due = true, &g.Grant, g.due*v.Tick
	if delay > 0 {
		a.Delay = v.until(g.due)
	}
	v.describe(st, 0, a)
	return st, n > 0
}

// takeUpTo takes as many of n events as are granted. If there is none, it denies one.
func (v *view) takeUpTo(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	granted := 0
	if n > 0 {
		granted = max(1, min(n, v.Remaining(st, v.now)))
	}
	st, changed = v.take(st, granted, a)
	if a.Allowed {
		a.Granted = granted
	}
	return st, changed
}

// charge counts n events whatever the limit says, and answers as OpPeek does afterwards.
func (v *view) charge(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	if n > 0 {
		if most := v.chargeable(st, v.now, v.Encoding); uint64(n) > most {
			a.Excess, a.Most = true, most
		} else {
			st, changed = v.Kernel.charge(st, v.now, n), true
		}
	}
	v.peek(st, a)
	return st, changed
}

// settle counts what happened of a grant.
func (v *view) settle(st []uint64, req *Request, a *Answer) (_ []uint64, changed bool) {
	g, ok := req.Grant.(*Grant)
	switch {
	case ok && req.N > g.n:
		return v.charge(st, req.N-g.n, a)
	case ok && req.N < g.n && !req.Lost && len(st) > 0 && v.same(g.by):
		r := &refunding{Grant: g, now: v.now, back: g.n - req.N}
		if v.parts != nil {
			st = v.parts.update(st, func(part *capable, st []uint64) []uint64 {
				st = part.refund(st, r)
				r.part++
				return st
			})
		} else {
			st = v.refund(st, r)
		}
		changed = r.changed
	}
	v.peek(st, a)
	return st, changed
}
