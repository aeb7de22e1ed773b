package kernel

import (
	"slices"
	"sort"
)

// A hold whose events are given back when it ends by itself makes room then, at an instant that its
// entry says. So a request may be granted earlier than at the instant for which a kernel waits, which
// knows nothing of holds: this file finds RetryAfter while such holds are open.

// retryAfter makes the RetryAfter of a denial, a, what it is if nobody settles the holds that are open
// or reserved. At any instant, the state has given back what ended until then, and once it grants a
// request, it goes on to grant it. So the first instant is found by bisection: it is in the first of the
// times between two ends of holds in which the state grants the request, or after the last end.
func (h *holding) retryAfter(req *Request, a *Answer) {
	if a.Allowed || req.Yields {
		return
	}
	otherwise := After(h.now, ceilDiv(uint64(a.RetryAfter), h.Tick)) // if nothing was given back
	if h.soonest() >= otherwise {
		return
	}
	ends := h.endsGivingBack()
	if len(ends) == 0 || ends[0] >= otherwise {
		return
	}
	last := len(ends) - 1
	i := sort.Search(last, func(i int) bool { return h.readyFrom(ends[i], req) < ends[i+1] })
	a.RetryAfter = Never
	if at := h.readyFrom(ends[i], req); at < Forever {
		a.RetryAfter = h.until(at)
	}
}

// endsGivingBack returns the instants at which holds that are open or reserved give their events back
// if nobody settles them, in order.
func (h *holding) endsGivingBack() (ends []Instant) {
	if h.by != nil {
		for i := range h.by.count(h.st) {
			if of := h.by.holdAt(h.st, i); of.back {
				ends = append(ends, of.end)
			}
		}
	}
	for i := range h.turns() {
		if of := holdOf(h.entry(i)[turnEnd:]); of.back {
			ends = append(ends, of.end)
		}
	}
	slices.Sort(ends)
	return slices.Compact(ends)
}

// readyFrom returns the first instant, at or after the given one, at which a request is granted by the
// state as it is at that instant if nothing else happens to it.
func (h *holding) readyFrom(at Instant, req *Request) Instant {
	later := *h
	later.lent = true
	n := 1
	if req.Op == OpTake || req.Op == OpHold {
		n = req.N
	} else if req.Op != OpReserve && h.denials && !h.noted { // the request that retries is denied at first
		later.deny(n, later.readyAfter(n), true, new(Answer))
		later.lent = true
	}
	later.now, later.lag = at, 0
	later.advance(at)
	if req.Op == OpReserve {
		var a Answer
		v, st := later.deciding()
		v.refused(st, req, &a)
		if a.RetryAfter == Never {
			return Forever
		}
		return After(at, ceilDiv(uint64(max(0, a.RetryAfter)), h.Tick))
	}
	return later.readyAfter(n)
}
