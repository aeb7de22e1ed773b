package kernel

import (
	"cmp"
	"slices"
)

// lockout is the arithmetic of a Lockout. Its state is
//
//	word 0   when the count began: the instant of the first event in it
//	word 1   the instant of the latest event, from which a lock lasts
//	word 2   the end of the lock before
//	word 3   how often the length of the lock is doubled: of this one, or of the next
//	word 4   the count
//
// An event that is counted brings the state up to its instant: a lock that has ended moves to word
// 2, and a count that is over begins anew. Nothing else does, so whoever looks at a state looks at
// it as of an instant (asOf).
type lockout struct {
	Defaults
	most     uint64 // the limit
	window   uint64 // for how long events count that do not lock, in ticks
	shortest uint64 // how long the first lock lasts
	longest  uint64 // how long any lock lasts at most
}

// The words of the state.
const (
	lockBegan = iota
	lockLatest
	lockServed
	lockDoublings
	lockCount
	lockWords
)

// mostDoublings is the most doublings of a length in ticks.
const mostDoublings = 63

// NewLockout returns the kernel of a Lockout, of lengths in ticks. longest is at least shortest.
func NewLockout(limit int, window, shortest, longest uint64) Kernel {
	return &lockout{
		most:     uint64(limit),
		window:   window,
		shortest: shortest,
		longest:  longest,
	}
}

func (*lockout) Kind() string { return "lockout" }

func (k *lockout) Limit() int { return int(k.most) }

func (k *lockout) Width() int { return lockWords }

// lasts returns how long a lock lasts whose length was doubled so often.
func (k *lockout) lasts(doublings uint64) uint64 {
	if doublings > mostDoublings || k.shortest > k.longest>>doublings {
		return k.longest
	}
	return k.shortest << doublings
}

// grows reports whether a lock may last longer than the one before.
func (k *lockout) grows() bool { return k.shortest < k.longest }

// A lockView is a state as of an instant.
type lockView struct {
	began     Instant // of the count, or the instant if nothing counts
	over      Instant // the end of the lock or, if there is none, when the count is forgotten
	served    Instant // the end of the lock before
	doublings uint64
	count     uint64
}

// locked reports whether the view is of a locked key.
func (k *lockout) locked(v lockView) bool { return v.count >= k.most }

// asOf returns the state as of t, which is not before the latest event.
func (k *lockout) asOf(st []uint64, t Instant) lockView {
	v := lockView{
		began:     st[lockBegan],
		over:      After(st[lockBegan], k.window),
		served:    st[lockServed],
		doublings: st[lockDoublings],
		count:     st[lockCount],
	}
	if k.locked(v) {
		v.over = k.unlocks(st)
	}
	if t >= v.over {
		if k.locked(v) {
			v.served = v.over
			if k.lasts(v.doublings) < k.longest {
				v.doublings++
			}
		}
		v.count = 0
	}
	if !k.locked(v) && t >= After(v.served, k.longest) {
		v.doublings = 0
	}
	if v.count == 0 {
		v.began = t
	}
	return v
}

// unlocks returns the end of the lock that a state is in, or was in.
func (k *lockout) unlocks(st []uint64) Instant {
	return After(st[lockLatest], k.lasts(st[lockDoublings]))
}

func (k *lockout) Frontier(st []uint64) Instant { return st[lockLatest] }

func (k *lockout) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	v := k.asOf(st, now)
	if v.count+uint64(n) <= k.most {
		return now
	}
	return v.over
}

func (k *lockout) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	v := k.asOf(st, now)
	if v.count+uint64(n) > k.most {
		return st, false
	}
	return k.add(st, v, now, n), true
}

func (k *lockout) Spend(st []uint64, at Instant, n int) []uint64 {
	at = max(at, k.Frontier(st))
	return k.add(st, k.asOf(st, at), at, n)
}

// add counts n events at an instant, as of which v is the state.
func (k *lockout) add(st []uint64, v lockView, at Instant, n int) []uint64 {
	st[lockBegan], st[lockLatest] = v.began, at
	st[lockServed], st[lockDoublings] = v.served, v.doublings
	st[lockCount] = v.count + uint64(n)
	return st
}

func (k *lockout) Remaining(st []uint64, now Instant) int {
	v := k.asOf(st, now)
	return int(k.most - min(v.count, k.most))
}

// Fresh returns when nothing counts any more, and the next lock lasts no longer than the first. If
// all events were cancelled, nothing may be granted before the latest of them all the same.
func (k *lockout) Fresh(st []uint64) Instant {
	if st[lockCount] >= k.most {
		return k.forgets(k.unlocks(st))
	}
	return k.freshUnlocked(st)
}

// FreshAfterRefund implements Resumer: a lock that has never been leaves the count before it.
func (k *lockout) FreshAfterRefund(st []uint64) Instant {
	return max(k.Fresh(st), k.freshUnlocked(st))
}

// freshUnlocked is Fresh for a state whose count does not lock.
func (k *lockout) freshUnlocked(st []uint64) Instant {
	at := k.Frontier(st)
	if st[lockCount] > 0 {
		at = max(at, After(st[lockBegan], k.window))
	}
	if st[lockDoublings] > 0 {
		at = max(at, k.forgets(st[lockServed]))
	}
	return at
}

// forgets returns when a lock that ended at an instant does not make the next one longer any more.
func (k *lockout) forgets(served Instant) Instant {
	if k.grows() {
		return After(served, k.longest)
	}
	return served
}

func (k *lockout) Valid(st []uint64, enc Encoding) bool {
	return max(st[lockBegan], st[lockLatest], st[lockServed]) <= enc.LastInstant() &&
		st[lockDoublings] <= mostDoublings && st[lockCount] <= enc.mostAdded()
}

// Adopt keeps the state as it is, which has all instants: a lower limit that the count has reached
// locks the key from the latest event on. While anything counts, that is not lasting: by the other
// kernel, the count may be over earlier, and what is settled afterwards would not come back.
func (k *lockout) Adopt(from Kernel, st []uint64, _, _ Instant) (_ []uint64, lasting bool) {
	return slices.Clone(st), k.SharesStates(from) || st[lockCount] == 0
}

// SharesStates is false for another limit: what locks the key by one limit is counted by the other.
func (k *lockout) SharesStates(from Kernel) bool { return *k == *from.(*lockout) }

func (k *lockout) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	v := k.asOf(st, max(now, k.Frontier(st)))
	return enc.MostCount() - min(v.count, enc.MostCount())
}

// Memory is for how long a count is remembered that has not locked, or the longest lock and its
// doubling.
func (k *lockout) Memory() uint64 {
	if k.grows() {
		return max(k.window, After(k.longest, k.longest))
	}
	return max(k.window, k.shortest)
}

func (k *lockout) Drifts() bool { return true }

// Mark writes the beginning of the count that the events are in, plus 1.
func (k *lockout) Mark(st []uint64, at Instant, _ int, mark []uint64) {
	mark[0] = k.asOf(st, at).began + 1
}

// Settle takes the unused events out of the count that they are in. If that is over, because the
// lock has ended that it made, the lock was served, and that stays so. A hold that has ended by
// itself, since the latest event, gave its events back at its end.
func (k *lockout) Settle(st []uint64, now Instant, r Refund, m Marks) []uint64 {
	v := k.asOf(st, min(now, r.End))
	if v.count >= uint64(r.Unused) && v.began+1 == m.Of(r.Index)[0] {
		st[lockCount] -= uint64(r.Unused)
	}
	return st
}

// SettleAll implements BatchHolder, because it makes a difference whether a hold has ended before
// the lock or after it: the holds end in the order of their ends.
func (k *lockout) SettleAll(st []uint64, now Instant, refunds []Refund, m Marks) []uint64 {
	refunds = slices.Clone(refunds)
	slices.SortStableFunc(refunds, func(a, b Refund) int { return cmp.Compare(a.End, b.End) })
	for _, r := range refunds {
		st = k.Settle(st, now, r, m)
	}
	return st
}
