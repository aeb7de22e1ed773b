package kernel

import "math/bits"

// pair is the arithmetic of a SlidingWindow with one segment whose state is one word: from
// the lowest bits, the events of the latest window with events, those of the window before
// it, and the number of that window.
//
// The frontier needs no bits. An event is reserved at the first instant at which the
// estimate has fallen far enough, and that follows from the counts after it: it is due in
// the implied frontier, at which the estimate is the limit. If nothing is reserved, the
// implied frontier has passed, because the estimate is at most the limit.
//
// One case is left. If a reservation is cancelled and one behind it stays, the counts are
// lower than those that led to the frontier. Then the word is marked by its highest bit, and
// what the first word of a ring would contain, the frontier and possibly the flag touched,
// is kept elsewhere: in the kernel, by the word, so that equal words have equal frontiers. A
// tag, in the bits between the window's number and the mark, distinguishes words that differ
// only in the frontier. Frontiers are removed some time after the end of their window, when
// they have passed. So their number is in proportion to that of the different marked words
// in a window, however often states change.
type pair struct {
	sliding // the same arithmetic on two words

	bits  uint   // of a count
	shift uint   // where the number of the window begins
	mask  uint64 // of a count
	tag   uint   // where the tag begins

	// ahead has the frontiers of marked words. It is a channel of one element, which is
	// taken out to be used, so that kernels of different limiters are never equal.
	ahead chan frontiers
}

// frontiers has what the first word of a ring would contain, by marked words.
type frontiers struct {
	of    map[uint64]uint64 // nil until needed
	sweep int               // how many there may be until those that have passed are removed
	end   Instant           // when all have passed
}

const (
	marked  = 1 << 63 // the mark of a word
	tagBits = 4       // the fewest bits of a tag

	fewFrontiers = 64 // frontiers that are not worth a sweep
)

// newPair returns k as a pair, if it has two slots and fits one word.
func newPair(k sliding) (*pair, bool) {
	count := uint(bits.Len64(k.most))
	number := uint(bits.Len64(MaxInstant / k.length))
	if k.slots != 2 || !k.narrow || 2*count+number+tagBits > 63 {
		return nil, false
	}
	count += (63 - 2*count - number - tagBits) / 4 // for a debt; the other half is for tags
	p := &pair{sliding: k, bits: count, shift: 2 * count, mask: 1<<count - 1, tag: 2*count + number, ahead: make(chan frontiers, 1)}
	p.ahead <- frontiers{}
	return p, true
}

func (k *pair) Width() int { return 1 }

// counts returns what a word contains that is not marked: the latest window, its events,
// and those of the window before it.
func (k *pair) counts(word uint64) (slot, full, oldest uint64) {
	return word >> k.shift, word & k.mask, word >> k.bits & k.mask
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
	return slot*k.length + k.fades(oldest, k.most-min(full, k.most))
}

// implied returns the frontier that counts imply. It is in the window, although in a debt the
// estimate stays above the limit until the window ends.
func (k *pair) implied(slot, full, oldest uint64) Instant {
	return min(k.falls(slot, full, oldest), (slot+1)*k.length-1)
}

// Decide implements Word.
func (k *pair) Decide(word uint64, now Instant, n int) (next uint64, granted bool) {
	if word >= marked {
		st := [1]uint64{word}
		if granted = k.Ready(st[:], now, n) == now; granted {
			k.Spend(st[:], now, n)
		}
		return st[0], granted
	}
	slot, full, oldest := k.counts(word)
	elapsed := now - slot*k.length // in the window
	switch {
	case elapsed < k.length:
	case now < slot*k.length:
		return word, false // a reservation is ahead
	default:
		slot = now / k.length
		full, oldest = k.since(word, slot)
		elapsed = now - slot*k.length
	}
	if full += uint64(n); !k.fits(full, oldest, elapsed) {
		return word, false
	}
	return slot<<k.shift | oldest<<k.bits | full, true
}

// take implements taker.
func (k *pair) take(st []uint64, now Instant, n int) ([]uint64, bool) {
	next, granted := k.Decide(st[0], now, n)
	if granted {
		st[0] = next
	}
	return st, granted
}

func (k *pair) Ready(st []uint64, now Instant, n int) Instant {
	if st[0] >= marked {
		w := k.load(st[0])
		return k.sliding.Ready(w[:], now, n)
	}
	window := max(now/k.length, st[0]>>k.shift)
	full, oldest := k.since(st[0], window)
	if full+uint64(n) > k.most {
		window, full, oldest = window+1, 0, full
	}
	return max(now, k.falls(window, full+uint64(n), oldest))
}

func (k *pair) Remaining(st []uint64, now Instant) int {
	if st[0] >= marked {
		w := k.load(st[0])
		return k.sliding.Remaining(w[:], now)
	}
	window := now / k.length
	full, oldest := k.since(st[0], window)
	return k.left(full, oldest, now-window*k.length)
}

// Await implements Word.
func (k *pair) Await(word uint64, now Instant, n int) Instant { return k.Ready([]uint64{word}, now, n) }

// Describe implements Word.
func (k *pair) Describe(word uint64, now Instant) (remaining int, fresh Instant) {
	st := []uint64{word}
	if now >= k.frontier(st) {
		remaining = k.Remaining(st, now)
	}
	return remaining, k.Fresh(st)
}

func (k *pair) Fresh(st []uint64) Instant {
	if st[0] >= marked {
		w := k.load(st[0])
		return k.sliding.Fresh(w[:])
	}
	slot, full, oldest := k.counts(st[0])
	switch {
	case full > 0:
		slot += 2
	case oldest > 0:
		slot++
	}
	return slot * k.length
}

func (k *pair) frontier(st []uint64) Instant {
	if st[0] >= marked {
		w := k.load(st[0])
		return k.sliding.frontier(w[:])
	}
	return k.implied(k.counts(st[0]))
}

func (k *pair) Spend(st []uint64, at Instant, n int) []uint64 {
	if st[0] >= marked {
		w := k.load(st[0])
		now := at
		if at == k.sliding.frontier(w[:]) {
			now-- // it may be ahead
		}
		k.sliding.Spend(w[:], at, n)
		st[0] = k.store(w, now)
		return st
	}
	window := at / k.length
	full, oldest := k.since(st[0], window)
	st[0] = window<<k.shift | oldest<<k.bits | (full + uint64(n))
	return st
}

func (k *pair) reserve(st []uint64, now, at Instant, n int, to []trace) ([]uint64, []trace) {
	w := k.load(st[0])
	_, to = k.sliding.reserve(w[:], now, at, n, to)
	st[0] = k.store(w, now)
	return st, to
}

// cancel removes nothing if there is no tag for the result.
func (k *pair) cancel(st []uint64, u *undoing) []uint64 {
	w := k.load(st[0])
	k.sliding.cancel(w[:], u)
	if word := k.store(w, u.now); !k.lost(word) {
		st[0] = word
	} else {
		u.done[u.part], u.changed = nil, false
	}
	return st
}

func (k *pair) giveBack(st []uint64, at, now Instant, n int) (_ []uint64, gone bool) {
	w := k.load(st[0])
	_, gone = k.sliding.giveBack(w[:], at, now, n)
	word := k.store(w, now)
	if k.lost(word) {
		return st, false
	}
	st[0] = word
	return st, gone
}

func (k *pair) Valid(st []uint64) bool {
	slot, full, oldest := k.counts(st[0])
	return slot <= MaxInstant/k.length && full <= k.most && oldest <= k.most // false if marked
}

// Adopt is not called: states that may be adopted are those of a sliding.
func (k *pair) Adopt(Kernel, []uint64, Instant) ([]uint64, bool) { return []uint64{0}, true }

// load returns the state of a ring that equals word.
func (k *pair) load(word uint64) (w [2]uint64) {
	slot, full, oldest := k.counts(word &^ (marked | (1<<(63-k.tag)-1)<<k.tag))
	k.set(w[:], slot%2, full)
	k.set(w[:], (slot+1)%2, oldest)
	if w[0] = k.implied(slot, full, oldest); word < marked {
		return w
	}
	if k.lost(word) {
		w[0] = (slot+1)*k.length - 1
		return w
	}
	ahead := <-k.ahead
	if frontier, ok := ahead.of[word]; ok { // else it has passed
		w[0] = frontier
	}
	k.ahead <- ahead
	return w
}

// store returns the word that equals the state of a ring from now on.
func (k *pair) store(w [2]uint64, now Instant) (word uint64) {
	frontier := k.sliding.frontier(w[:])
	slot := frontier / k.length
	full, oldest := k.back(w[:], slot, 0), k.back(w[:], slot, 1)
	word = slot<<k.shift | oldest<<k.bits | full
	if implied := k.implied(slot, full, oldest); w[0] == implied || max(frontier, implied) <= now {
		return word
	}
	ahead := <-k.ahead
	if ahead.of == nil || ahead.end <= now {
		ahead = frontiers{of: make(map[uint64]uint64), sweep: fewFrontiers}
	}
	word = ahead.mark(word, w[0], k.tag)
	ahead.end = max(ahead.end, (slot+1)*k.length)
	if len(ahead.of) >= ahead.sweep {
		of := make(map[uint64]uint64) // because the old map would not become smaller
		for other, frontier := range ahead.of {
			if slot := other << (64 - k.tag) >> (64 - k.tag + k.shift); (slot+1)*k.length > now {
				of[other] = frontier
			}
		}
		ahead.of, ahead.sweep = of, max(fewFrontiers, 2*len(of))
	}
	k.ahead <- ahead
	return word
}

// lost reports whether a marked word has the tag that means that there was no other one
// left. Its frontier is the end of the window. It needs more states that differ only in
// the frontier, all in one window, than there are tags.
func (k *pair) lost(word uint64) bool { return word >= marked && word<<1>>(k.tag+1) == k.lostTag() }

// lostTag is not the greatest one, so no word is Gone.
func (k *pair) lostTag() uint64 { return 1<<(63-k.tag) - 2 }

// mark marks word and gives it a tag, so that it stands for the given frontier.
func (f frontiers) mark(word, frontier uint64, tag uint) uint64 {
	tags := uint64(1)<<(63-tag) - 2 // without the last two
	first := frontier % tags
	for i := range tags {
		tagged := marked | (first+i)%tags<<tag | word
		if other, ok := f.of[tagged]; !ok || other == frontier {
			f.of[tagged] = frontier
			return tagged
		}
	}
	return marked | tags<<tag | word
}

func (k *pair) chargeable(st []uint64, now Instant, _ Encoding) uint64 {
	w := k.load(st[0])
	t := k.at(w[:], max(now, k.sliding.frontier(w[:])))
	return k.mask - k.used(w[:], &t)
}

// charge marks the word of a debt, because its counts do not imply its frontier. It counts at
// the end of the window if there is no tag left.
func (k *pair) charge(st []uint64, now Instant, n int) []uint64 {
	w := k.load(st[0])
	k.sliding.charge(w[:], now, n)
	st[0] = k.store(w, now)
	return st
}

// settle takes nothing back if there is no tag for the result.
func (k *pair) settle(st []uint64, now Instant, h hold, unused int, m marks, i int) []uint64 {
	w := k.load(st[0])
	k.sliding.settle(w[:], now, h, unused, m, i)
	if word := k.store(w, now); !k.lost(word) {
		st[0] = word
	}
	return st
}
