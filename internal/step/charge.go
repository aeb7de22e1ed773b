package step

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

// exceeds reports whether the state cannot hold n more events. Then it sets a to say so.
func (v *view) exceeds(st []uint64, n int, a *Answer) bool {
	most := v.Chargeable(st, v.now, v.Encoding)
	if uint64(n) <= most {
		return false
	}
	a.Excess, a.Most = true, most
	return true
}
