package kernel

import (
	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// This file gives events of holds back to buckets, of which a hold remembers the least that was
// missing since.

// A level is a kernel whose marks are the least that was missing since a hold.
type level interface {
	missing(st []uint64, at Instant) uint128.Uint128
	load(mark []uint64) uint128.Uint128
	store(mark []uint64, least uint128.Uint128) []uint64
}

// lowered lowers a mark to what is missing, if that is less.
func lowered(k level, mark []uint64, missing uint128.Uint128) {
	if missing.Less(k.load(mark)) {
		k.store(mark, missing)
	}
}

// comesBack returns how much comes back of a refund, whose unused events have a cost each, and
// lowers the marks of the holds since by that.
func comesBack(k level, r Refund, m Marks, cost uint64) uint128.Uint128 {
	back := uint128.Mul(uint64(r.Unused), cost)
	for i := r.Index; i < m.Count && back != (uint128.Uint128{}); i++ {
		back = uint128.Min(back, k.load(m.Of(i)))
	}
	for i := r.Index; i < m.Count && back != (uint128.Uint128{}); i++ {
		k.store(m.Of(i), k.load(m.Of(i)).Sub(back))
	}
	return back
}

// comeBack is comesBack for any number of refunds, one after the other. It looks at each mark once.
func comeBack(k level, refunds []Refund, m Marks, cost uint64) []uint128.Uint128 {
	first := refunds[0].Index
	least := make([]uint128.Uint128, m.Count-first) // that was missing since each hold
	for i := len(least) - 1; i >= 0; i-- {
		least[i] = k.load(m.Of(first + i))
		if i+1 < len(least) {
			least[i] = uint128.Min(least[i], least[i+1])
		}
	}
	backs := make([]uint128.Uint128, 0, len(refunds))
	// Of what has come back: it is missing no more since the holds that are younger.
	var sum uint128.Uint128
	for i := range least {
		if len(backs) < len(refunds) && refunds[len(backs)].Index == first+i {
			unused := uint128.Mul(uint64(refunds[len(backs)].Unused), cost)
			back := uint128.Min(unused, least[i].Sub(sum))
			backs, sum = append(backs, back), sum.Add(back)
		}
		mark := m.Of(first + i)
		k.store(mark, k.load(mark).Sub(sum))
	}
	return backs
}
