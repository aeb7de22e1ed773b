package kernel

// inFlight is the arithmetic of an InFlight: a log of the events that are not released, which
// are taken for released when they are as old as the timeout.
//
// Events of one instant time out together, so it makes no difference which of them a release
// removes from the log.
type inFlight struct{ eventLog }

// NewInFlight returns the kernel of an InFlight with a timeout in ticks.
func NewInFlight(limit int, timeout uint64) Kernel {
	return &inFlight{eventLog{most: uint64(limit), window: timeout}}
}

// similar is true: releases look for the events in one log.
func (k *inFlight) similar(Kernel) bool { return true }

// move moves events that count until an instant, so that they count until another one. The log has
// them at the window before that.
func (k *inFlight) move(st []uint64, n int, from, to Instant) []uint64 {
	if n == 0 || from == to || len(st) == 0 {
		return st
	}
	frontier, before := st[2], st[0]
	st = k.remove(st, k.logged(from), n)
	if len(st) == 0 {
		st = append(st, 0, logHeader, 0)
	}
	st = k.add(st, k.logged(to), before-st[0], logMany-1)
	st[2] = frontier
	return st
}

// cancel leaves the events of a hold alone, which leave with its entry.
func (k *inFlight) cancel(st []uint64, u *undoing) []uint64 {
	for i, p := range u.pending() {
		u.take(i)
		if p.hold == 0 {
			st = k.remove(st, p.at, p.n)
			u.changed = true
		}
	}
	return st
}

// settle removes all events of the hold, however many happened. Then the frontier is the latest turn of
// another hold or of a reservation without one, which is in the log at its turn.
func (k *inFlight) settle(st []uint64, now Instant, h hold, _ int, m marks, i int) []uint64 {
	frontier := k.frontier(st)
	if st = k.remove(st, k.logged(h.end), h.n); len(st) == 0 || frontier <= now {
		return st
	}
	var last Instant
	for j := range m.count {
		if j != i && m.open(j) {
			last = max(last, m.of(j)[0]-min(m.of(j)[0], 1))
		}
	}
	for end := uint64(len(st)); ; {
		begin, ok := k.lastEntry(st, end)
		if !ok || st[begin] <= last {
			break
		}
		_, others, _ := k.entry(st, begin)
		for j := range m.count {
			if h := m.hold(j); j != i && m.open(j) && k.logged(h.end) == st[begin] {
				others -= min(others, uint64(h.n))
			}
		}
		if others > 0 {
			last = st[begin]
		}
		end = begin
	}
	st[2] = min(frontier, last)
	return st
}

// logged returns the instant at which the log has events that count until another one.
func (k *inFlight) logged(end Instant) Instant { return end - min(end, k.window) }
