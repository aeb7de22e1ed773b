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
	st = k.insert(st, k.logged(to), before-st[0], logMany-1)
	st[2] = frontier
	return st
}

// settle removes all events of the hold, however many happened.
func (k *inFlight) settle(st []uint64, _ Instant, h hold, _ int, _ marks, _ int) []uint64 {
	return k.remove(st, k.logged(h.end), h.n)
}

// logged returns the instant at which the log has events that count until another one.
func (k *inFlight) logged(end Instant) Instant { return end - min(end, k.window) }
