package kernel

import "github.com/ratelimit-go/ratelimit/internal/uint128"

// This file converts the states of keys whose limits vary between two forms.
//
// With Encoding.Varies, a state has room for what only a change of the limit leaves
// behind: counts above the limit, a window that is not aligned, and the promises to
// reservations that were made under another limit. Most states have none of this. Then
// they fit into the word of the same kernel without Varies, which decides equally on
// them from now on: see Word.
//
// A state with a reservation that is ahead, a debt or an open hold is not narrow. A word stays in
// use only while events are granted or denied at once.

// Widen returns the state of the varying kernel that equals word.
func (k *gcra) Widen(word uint64) [2]uint64 { return [2]uint64{word, 0} }

// Narrow requires that the latest instant has passed, because a word does not have it.
func (k *gcra) Narrow(st []uint64, now Instant) (word uint64, ok bool) {
	ok = (st[1] == 0 || st[1] < now) && k.grants(uint128.From(st[0]), uint128.Mul(now, k.unit))
	return st[0], ok
}

// Widen returns the state of the varying kernel that equals word.
func (k *fixedWindow) Widen(word uint64) [2]uint64 {
	start, count := k.load([]uint64{word})
	return [2]uint64{start, count}
}

// Narrow requires an aligned window, or a start in whole seconds if there is a calendar, and no
// more events than the limit.
func (k *fixedWindow) Narrow(st []uint64, _ Instant) (word uint64, ok bool) {
	start, count := st[0], st[1]
	if start%k.unit != 0 || count > k.most {
		return 0, false
	}
	return k.store([]uint64{0}, start, count)[0], true
}

// Widen returns the state of the varying kernel that equals word.
func (k *pair) Widen(word uint64) (w [2]uint64) {
	slot, full, oldest := k.counts(word)
	w[0] = k.falls(slot, full, oldest)
	k.set(w[:], slot%2, full)
	k.set(w[:], (slot+1)%2, oldest)
	return w
}

// Narrow requires that the latest instant has passed, and no more events than the limit.
func (k *pair) Narrow(st []uint64, now Instant) (word uint64, ok bool) {
	frontier := k.slidingWindow.Frontier(st)
	slot := frontier / k.length
	full, oldest := k.back(st, slot, 0), k.back(st, slot, 1)
	if max(full, oldest) > k.most || max(frontier+1, k.falls(slot, full, oldest)) > now {
		return 0, false
	}
	return k.word(slot, full, oldest), true
}
