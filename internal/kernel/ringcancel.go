package kernel

import "sort"

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

func (r *ring) cancel(st []uint64, u *undoing) []uint64 {
	newRingLine(r, st, u).cancel()
	return st
}

// A ringLine is one cancellation of grants in a line on a ring. Each grant is visited a
// bounded number of times, because the line is in the order of instants, and the frontier
// only falls: the events of a slot are removed when the slot is first visible.
// ringcancel.lua in redisstore/lua does the same.
type ringLine struct {
	*ring
	*undoing
	st    []uint64
	last  int      // grants from here on are beyond the frontier
	all   []uint64 // of each grant, the events of those before it that were in the state at first
	stays []uint64 // likewise, without those that are to be removed
}

func newRingLine(r *ring, st []uint64, u *undoing) *ringLine {
	l := &ringLine{ring: r, undoing: u, st: st, last: len(u.line)}
	sums := make([]uint64, 2*(len(u.line)+1))
	l.all, l.stays = sums[:len(u.line)+1], sums[len(u.line)+1:]
	for i, p := range u.line {
		l.all[i+1], l.stays[i+1] = l.all[i], l.stays[i]
		if !p.parts[u.part].gone {
			l.all[i+1] += uint64(p.n)
			if !u.cancelled(p) {
				l.stays[i+1] += uint64(p.n)
			}
		}
	}
	return l
}

// slot returns the slot of the i-th grant.
func (l *ringLine) slot(i int) uint64 { return l.trace(l.line[i]).slot }

// since returns the index of the first grant in the given slot or a later one.
func (l *ringLine) since(slot uint64) int {
	return sort.Search(len(l.line), func(i int) bool { return l.slot(i) >= slot })
}

func (l *ringLine) cancel() {
	to := l.since(l.latest(l.st) + 1) // the grants before are not removed yet
	for {
		oldest := max(l.latest(l.st), l.floor())
		oldest -= min(oldest, l.slots-1)
		from := to
		for from > 0 && l.slot(from-1) >= oldest {
			from--
		}
		l.removeAll(from, to)
		to = from
		if !l.lower() {
			return
		}
	}
}

// removeAll removes the events of the cancelled grants from the i-th to before the to-th,
// which are all those of some slots.
func (l *ringLine) removeAll(i, to int) {
	next := i                // the next grant that raised the frontier to a later instant
	var slot, removed uint64 // how many events of the slot are removed
	for ; i < to; i++ {
		p := l.line[i]
		if !l.cancelled(p) || l.gone(i) {
			continue
		}
		if s := l.slot(i); s != slot {
			slot, removed = s, 0
		}
		if reach := max(p.at, l.now); !l.local && l.st[0]&touched == 0 && l.frontier(l.st) > reach {
			for next < len(l.line) && (l.line[next].at <= p.at || !l.raises(next)) {
				next++
			}
			if !l.alone(slot, reach, next, removed) {
				l.st[0] |= touched
			}
		}
		l.remove(l.st, slot, p.n)
		removed += uint64(p.n)
		l.changed = true
		l.take(i)
	}
}

// raises reports whether the i-th grant raised the frontier, which has not fallen back since.
func (l *ringLine) raises(i int) bool { return l.trace(l.line[i]).raised && !l.progress(i).fallen }

// alone reports whether no other limiter can have been promised an instant after reach in
// the given slot. next is the next grant that raised the frontier. removed events of the
// slot, all of them before that grant's instant, are gone.
func (l *ringLine) alone(slot uint64, reach Instant, next int, removed uint64) bool {
	if next == len(l.line) {
		return false
	}
	t := l.trace(l.line[next])
	if t.pre[0] > reach {
		return false
	}
	if t.slot != slot {
		return true
	}
	from, to := l.since(slot), l.since(slot+1)
	return l.sole(next, l.all[to]-l.all[next], l.all[next]-l.all[from]-removed, removed)
}

// lower lowers the frontier to its value before the last, cancelled grants of the line. It
// does not fall below a grant that stays. lower reports whether it did.
func (l *ringLine) lower() bool {
	frontier := l.frontier(l.st)
	if frontier <= l.now || l.behind > 0 && l.line[l.behind-1].at >= frontier {
		return false
	}
	for l.last > 0 && l.line[l.last-1].at > frontier {
		l.last-- // the frontier has already fallen below it
	}
	raiser := -1
	same := l.last // the first grant at the frontier
	for ; same > 0 && l.line[same-1].at == frontier; same-- {
		if l.raises(same - 1) {
			raiser = same - 1
		}
	}
	if raiser < 0 {
		return false
	}
	slot := l.slot(raiser)
	from, to := l.since(slot), l.since(slot+1)
	removed := l.all[same] - l.all[from] - (l.stays[same] - l.stays[from])
	if !l.sole(raiser, l.stays[to]-l.stays[raiser], l.stays[raiser]-l.stays[from], removed) {
		return false
	}
	t := l.trace(l.line[raiser])
	l.st[0] = t.pre[0] | l.st[0]&touched
	for _, c := range t.cleared {
		l.set(l.st, c.place, c.count)
	}
	l.changed = true
	l.fall(raiser)
	return true
}

// sole reports whether all events in the slot of the i-th grant, which raised the
// frontier, were there before that grant or belong to the line. The line has since events
// in the slot from that grant on, and earlier ones before it. removed events of earlier
// instants have been removed now.
func (l *ringLine) sole(i int, since, earlier, removed uint64) bool {
	p := l.line[i]
	count := l.back(l.st, l.slot(i), 0)
	if count == earlier+since {
		return true // all events are the line's
	}
	if p.unsure || l.st[0]&touched != 0 {
		return false
	}
	sum := l.trace(p).before + since
	sum -= min(sum, l.progress(i).less)
	return count == sum-min(sum, removed)
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
