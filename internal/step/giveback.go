package step

import (
	"cmp"
	"slices"
	"sort"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// A hold whose events are given back when it ends by itself makes room then, at an instant that
// its entry says. So a request may be granted earlier than at the instant for which a kernel
// waits, which knows nothing of holds: this file finds RetryAfter while such holds are open.
// Events in flight may also be over earlier than a kernel knows: the log has events that end
// early as if they had been granted a Timeout before their end, and it has no instant before
// 1970, where a mock clock begins.

// retryAfter makes the RetryAfter of a denial, a, what it is if nobody settles the holds that are
// open or reserved. At any instant, the state has given back what ended until then, and once it
// grants a request, it goes on to grant it. So the first instant is in the first of the times
// between two ends of holds in which the state grants the request, or after the last end.
func (h *heldState) retryAfter(req *Request, a *Answer) {
	if a.Allowed || req.Yields || req.Brief && h.two == nil {
		// A state of two limits notes until when one denies.
		return
	}
	// If nothing was given back.
	otherwise := kernel.After(h.now, kernel.CeilDiv(uint64(a.RetryAfter), h.Tick))
	if h.soonest() >= otherwise {
		return
	}
	holds := h.givingBack()
	if len(holds) == 0 || holds[0].End >= otherwise {
		return
	}
	a.RetryAfter = kernel.Never
	if at := h.firstReady(holds, req, a.Remaining); at < kernel.Forever {
		a.RetryAfter = h.until(at)
	}
}

// firstReady returns the first instant at which a request is granted once some of the holds have
// given their events back. Most requests are for what remains now and what comes back first.
func (h *heldState) firstReady(
	holds []kernel.Hold,
	req *Request,
	remaining int,
) (ready kernel.Instant) {
	last := len(holds) - 1
	i := searchNear(last, fewest(holds, req.Least()-remaining), func(i int) bool {
		at := h.readyFrom(holds[i].End, req)
		if at >= holds[i+1].End {
			return false
		}
		ready = at
		return true
	})
	if i == last {
		return h.readyFrom(holds[last].End, req)
	}
	return ready // of the last call that returned true, which was that for i
}

// givingBack returns the holds that are open or reserved and, if nobody settles them, give events
// back that the kernel does not know to be over then, in the order of their ends. Those that end
// together are one.
func (h *heldState) givingBack() (holds []kernel.Hold) {
	most := h.turns()
	if h.holds != nil {
		most += h.holds.count(h.st)
	}
	add := func(of kernel.Hold) {
		if !of.Back && of.End >= h.timeout {
			return
		}
		if holds == nil {
			holds = make([]kernel.Hold, 0, most)
		}
		holds = append(holds, of)
	}
	if h.holds != nil {
		for i := range h.holds.count(h.st) {
			add(h.holds.holdAt(h.st, i))
		}
	}
	for i := range h.turns() {
		add(h.turn(i).hold())
	}
	slices.SortFunc(holds, func(a, b kernel.Hold) int { return cmp.Compare(a.End, b.End) })
	together := holds[:0]
	for _, of := range holds {
		if last := len(together) - 1; last >= 0 && together[last].End == of.End {
			together[last].N += of.N
			continue
		}
		together = append(together, of)
	}
	return together
}

// fewest returns the index of the first hold with which n events have come back, or of the last
// one.
func fewest(holds []kernel.Hold, n int) int {
	last := len(holds) - 1
	for i, of := range holds[:last] {
		n -= of.N
		if n <= 0 {
			return i
		}
	}
	return last
}

// searchNear is sort.Search for a result that is probably near a guess. If the guess is right, it
// calls f twice at most, which counts: each call may copy a state with thousands of holds, while
// its shard is locked.
func searchNear(n, guess int, f func(i int) bool) int {
	from, to := 0, n // the result is not before the one, and not after the other
	for step := 1; from < to && guess < to; step *= 2 {
		if f(guess) {
			to = guess
			break
		}
		from = guess + 1
		guess += step
	}
	for step := 1; from < to; step *= 2 {
		before := max(from, to-step)
		if !f(before) {
			from = before + 1
			break
		}
		to = before
	}
	return from + sort.Search(to-from, func(i int) bool { return f(from + i) })
}

// readyFrom returns the first instant, at or after the given one, at which a request is granted by
// the state as it is at that instant if nothing else happens to it.
func (h *heldState) readyFrom(at kernel.Instant, req *Request) kernel.Instant {
	later := *h
	later.shared = true
	n := 1
	if req.Op == OpTake || req.Op == OpHold {
		n = req.Least()
	} else if req.Op != OpReserve && h.denials && !h.noted {
		// The request that retries is denied at first.
		later.deny(n, later.readyAfter(n), true, new(Answer))
		later.shared = true
	}
	later.now, later.lag = at, 0
	later.advance()
	if req.Op == OpReserve {
		var a Answer
		v, st := later.afterTurns()
		v.refused(st, req, &a)
		if a.RetryAfter == kernel.Never {
			return kernel.Forever
		}
		return kernel.After(at, kernel.CeilDiv(uint64(max(0, a.RetryAfter)), h.Tick))
	}
	return later.readyAfter(n)
}
