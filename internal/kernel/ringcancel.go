package kernel

// This file takes back reservations on a ring. Their events are removed from the slot
// at once. When the last grants of the line are cancelled, the frontier falls, and the
// counts that they pushed out of the ring are restored, unless another limiter has
// spent something since the first of them.
//
// Counts show whether another limiter has: they must be the line's alone, or the same
// as before. The second test fails if an earlier event was removed while another
// limiter reserved one in the same slot. So a limiter that removes events which others
// may have counted marks the ring as touched, and only the first test is used on a
// touched ring. A state in memory that no other limiter uses is never marked.

// touched is a flag in the first word of a ring, which is otherwise below 2⁶². It lasts
// until the frontier has passed.
const touched = 1 << 63

func (r *ring) reserve(st []uint64, now, at Instant, n int, to []trace) ([]uint64, []trace) {
	was, mark := r.frontier(st), st[0]&touched
	if was <= now {
		mark = 0
	}
	slot, latest := at/r.length, r.latest(st)
	t := trace{raised: was < at, slot: slot}
	t.pre[0] = was
	if slot == latest {
		t.before = r.get(st, slot%r.slots)
	}
	if at > now {
		for i := range min(slot-latest, r.slots) { // slots that still count now
			if place := (slot - i) % r.slots; slot-i > now/r.length && r.get(st, place) > 0 {
				t.cleared = append(t.cleared, cleared{place, r.get(st, place)})
			}
		}
	}
	st = r.Spend(st, at, n)
	st[0] |= mark
	return st, append(to, t)
}

// remove removes n events from a slot. If it has fewer, the state is not the one that
// the grant was made in, and remove does nothing.
func (r *ring) remove(st []uint64, slot uint64, n int) {
	if count := r.back(st, slot, 0); count >= uint64(n) {
		r.set(st, slot%r.slots, count-uint64(n))
	}
}

// visible reports whether the events of a slot are in st.
func (r *ring) visible(st []uint64, slot uint64) bool {
	latest := r.latest(st)
	return slot <= latest && latest-slot < r.slots
}

func (r *ring) cancel(st []uint64, u *undoing) []uint64 {
	for again := true; again; again = r.fall(st, u) {
		for i, p := range u.pending() {
			if slot := u.trace(p).slot; r.visible(st, slot) {
				if !u.local && !r.alone(st, u, i) {
					st[0] |= touched
				}
				r.remove(st, slot, p.n)
				u.changed = true
				u.take(i)
			}
		}
	}
	return st
}

// fall lowers the frontier to its value before the last, cancelled grants of the line.
// It reports whether it did.
func (r *ring) fall(st []uint64, u *undoing) bool {
	frontier := r.frontier(st)
	if frontier <= u.now {
		return false
	}
	first := -1 // index of the grant that raised the frontier to where it is
	for i := len(u.line) - 1; i >= 0 && u.line[i].at >= frontier; i-- {
		p := u.line[i]
		if p.at > frontier {
			continue // the frontier has already fallen below it
		}
		if !u.cancelled(p) {
			return false
		}
		if u.trace(p).raised && !u.progress(i).fallen {
			first = i
		}
	}
	if first < 0 || !r.sole(st, u, first) {
		return false
	}
	p := u.line[first]
	t := u.trace(p)
	st[0] = t.pre[0] | st[0]&touched
	for _, c := range t.cleared {
		r.set(st, c.place, c.count)
	}
	u.changed = true
	u.fall(first)
	return true
}

// sole reports whether all events in the slot of the i-th grant, which raised the
// frontier, were there before that grant or belong to the line.
func (r *ring) sole(st []uint64, u *undoing, i int) bool {
	p := u.line[i]
	slot := u.trace(p).slot
	count := r.back(st, slot, 0)
	var since uint64
	for j := i; j < len(u.line) && u.trace(u.line[j]).slot == slot; j++ {
		if q := u.line[j]; !u.gone(j) {
			since += uint64(q.n)
		}
	}
	earlier := uint64(0)
	for j := i - 1; j >= 0 && u.trace(u.line[j]).slot == slot; j-- {
		if q := u.line[j]; !u.gone(j) {
			earlier += uint64(q.n)
		}
	}
	if count == earlier+since {
		return true // all events are the line's
	}
	if p.unsure || st[0]&touched != 0 {
		return false
	}
	sum := u.trace(p).before + since
	sum -= min(sum, u.progress(i).less)
	for j := i - 1; j >= 0 && u.trace(u.line[j]).slot == slot; j-- { // earlier grants that are removed now
		if q := u.line[j]; q.at < p.at && u.gone(j) && !q.parts[u.part].gone {
			sum -= min(sum, uint64(q.n))
		}
	}
	return count == sum
}

// alone reports whether no other limiter can have been promised an instant in the slot
// of the i-th grant after it.
func (r *ring) alone(st []uint64, u *undoing, i int) bool {
	p := u.line[i]
	if r.frontier(st) <= max(p.at, u.now) {
		return true
	}
	for j := i + 1; j < len(u.line); j++ {
		next := u.line[j]
		t := u.trace(next)
		if next.at == p.at || !t.raised || u.progress(j).fallen {
			continue
		}
		return t.pre[0] <= max(p.at, u.now) && (t.slot != u.trace(p).slot || r.sole(st, u, j))
	}
	return false
}

func (r *ring) giveBack(st []uint64, at, now Instant, n int) (_ []uint64, gone bool) {
	slot := at / r.length
	if r.frontier(st) > now && slot == now/r.length {
		st[0] |= touched
	}
	r.remove(st, slot, n)
	// A reservation far ahead may have pushed them out of the ring, to return if it is cancelled.
	return st, r.latest(st) < slot+r.slots || now/r.length >= slot+r.slots
}
