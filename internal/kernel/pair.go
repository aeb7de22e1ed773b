package kernel

import "math/bits"

// pair is the arithmetic of a SlidingWindow with one segment whose state is one word: from
// the lowest bits, the events of the latest window with events, those of the window before
// it, and the number of that window.
//
// Such a state has no reservations and no debt, and nothing is taken back from it: see narrow.go.
// So the frontier needs no bits. It has passed, and so has the instant at which the estimate fell
// to the limit. For the same reason, the other methods of slidingWindow are not called.
type pair struct {
	slidingWindow // the same arithmetic on two words

	bits  uint   // of a count
	shift uint   // where the number of the window begins
	mask  uint64 // of a count
}

// newPair returns k as a pair, if it has two slots and fits one word, with a bit left so that no
// word reaches NoWord.
func newPair(k slidingWindow) (*pair, bool) {
	count := uint(bits.Len64(k.most))
	number := uint(bits.Len64(MaxInstant / k.length))
	if k.slots != 2 || !k.narrow || 2*count+number > 63 {
		return nil, false
	}
	return &pair{k, count, 2 * count, 1<<count - 1}, true
}

func (*pair) Kind() string { return "pair" }

func (k *pair) Width() int { return 1 }

// counts returns what a word contains: the latest window, its events, and those of the window
// before it.
func (k *pair) counts(word uint64) (slot, full, oldest uint64) {
	return word >> k.shift, word & k.mask, word >> k.bits & k.mask
}

func (k *pair) word(slot, full, oldest uint64) uint64 {
	return slot<<k.shift | oldest<<k.bits | full
}

// since returns the counts as of a window, which is not before the latest.
func (k *pair) since(word, window uint64) (full, oldest uint64) {
	switch slot, full, oldest := k.counts(word); window - slot {
	case 0:
		return full, oldest
	case 1:
		return 0, full
	}
	return 0, 0
}

// falls returns the instant at which the estimate falls to the limit.
func (k *pair) falls(slot, full, oldest uint64) Instant {
	return slot*k.length + k.fades(oldest, k.most-full)
}

// Decide implements Word.
func (k *pair) Decide(word uint64, now Instant, n int) (next uint64, granted bool) {
	slot, full, oldest := k.counts(word)
	elapsed := now - slot*k.length // in the window
	if elapsed >= k.length {
		slot = now / k.length
		full, oldest = k.since(word, slot)
		elapsed = now - slot*k.length
	}
	full += uint64(n)
	if !k.fits(full, oldest, elapsed) {
		return word, false
	}
	return k.word(slot, full, oldest), true
}

func (k *pair) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	next, granted := k.Decide(st[0], now, n)
	if granted {
		st[0] = next
	}
	return st, granted
}

func (k *pair) Ready(st []uint64, now Instant, n int) Instant {
	window := max(now/k.length, st[0]>>k.shift)
	full, oldest := k.since(st[0], window)
	if full+uint64(n) > k.most {
		window, full, oldest = window+1, 0, full
	}
	return max(now, k.falls(window, full+uint64(n), oldest))
}

func (k *pair) Remaining(st []uint64, now Instant) int {
	window := now / k.length
	full, oldest := k.since(st[0], window)
	return k.left(full, oldest, now-window*k.length)
}

// Await implements Word.
func (k *pair) Await(word uint64, now Instant, n int) Instant {
	return k.Ready([]uint64{word}, now, n)
}

// Describe implements Word.
func (k *pair) Describe(word uint64, now Instant) (remaining int, fresh Instant) {
	st := []uint64{word}
	return k.Remaining(st, now), k.Fresh(st)
}

func (k *pair) Fresh(st []uint64) Instant {
	slot, full, oldest := k.counts(st[0])
	switch {
	case full > 0:
		slot += 2
	case oldest > 0:
		slot++
	}
	return slot * k.length
}

func (k *pair) Frontier(st []uint64) Instant { return k.falls(k.counts(st[0])) }

func (k *pair) Spend(st []uint64, at Instant, n int) []uint64 {
	st[0], _ = k.Decide(st[0], at, n)
	return st
}

// Chargeable is asked only for events that are granted.
func (k *pair) Chargeable(st []uint64, now Instant, _ Encoding) uint64 {
	return uint64(k.Remaining(st, now))
}
