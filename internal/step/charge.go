package step

import (
	"slices"
	"sort"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file counts events that nobody asked for, and what exceeds a hold. They are spent like any
// others, at the present instant. Nothing in the states is special about a debt: more is missing,
// or counted, than the limit allows, and Ready tells when there is room again. Only the words bound
// it.

// charge counts n events whatever the limit says, and answers as OpPeek does afterwards.
func (v *view) charge(st []uint64, n int, a *Answer) (_ []uint64, changed bool) {
	if n > 0 && !v.exceeds(st, n, a) {
		st, changed = v.Spend(st, v.now, n), true
	}
	v.peek(st, a)
	return st, changed
}

// charge is the charge of a view, before the turns that are ahead.
func (h *heldState) charge(n int, a *Answer) (changed bool) {
	if n > 0 && !h.exceeds(n, h.Spend, a) {
		h.unshare()
		h.pass(h.now)
		h.setInner(h.Spend(h.inner(), h.now, n))
		h.spendAgain()
		changed = true
	}
	h.describeAfter(a)
	return changed
}

// exceeds is the exceeds of a view for n events that spend counts, which must also leave room for
// the turns that are ahead.
func (h *heldState) exceeds(
	n int,
	spend func(st []uint64, at kernel.Instant, n int) []uint64,
	a *Answer,
) bool {
	excess := h.view.exceeds(h.inner(), n, a)
	fits := func(n int) bool { return h.leavesRoom(spend(slices.Clone(h.inner()), h.now, n)) }
	if h.turns() == 0 || !excess && fits(n) {
		return excess
	}
	most := n
	if excess {
		most = int(a.Most)
	}
	a.Excess = true
	a.Most = uint64(sort.Search(most, func(i int) bool { return !fits(i + 1) }))
	return true
}

// exceeds reports whether the state cannot hold n more events. Then it sets a to say so.
func (v *view) exceeds(st []uint64, n int, a *Answer) bool {
	most := v.Chargeable(st, v.now, v.Encoding)
	if uint64(n) <= most {
		return false
	}
	a.Excess, a.Most = true, most
	return true
}
