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

// promising implements promiser. Other than that of a SlidingLog, the log keeps all its entries.
func (k *inFlight) promising() Kernel {
	of := *k
	of.promises = true
	return &of
}
