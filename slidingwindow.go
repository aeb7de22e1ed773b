package ratelimit

import (
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// A SlidingWindow estimates the events of the last Window from the counts of
// Segments equal parts, and grants n if estimate + n ≤ Limit. The estimate is
// the current segment and the Segments−1 before it, plus the oldest one
// weighted by the share of it that the window still covers. It is compared
// exactly, not after rounding.
//
// With one segment this is the classic pair of windows: a quarter into the
// current one, with 9 events in the previous and 5 in this, the estimate is
// 9·0.75 + 5 = 11.75. It has no burst at a border as [FixedWindow] has, for
// little more memory, but takes the events of the oldest segment for evenly
// spread. So it bounds every span of Window·(1 − 1/Segments) to Limit exactly;
// a span of Window itself sees, at the very worst, 2·Limit − 1. Its state is
// two words with one segment, and half a word for each further one (a word if
// Limit is above 2³²−1); the time of a decision grows with Segments.
//
// The weighted pair is described in "How we built rate limiting capable of
// scaling to millions of domains", Cloudflare, 2017.
type SlidingWindow struct {
	Limit    int           // the most events in Window, estimated
	Window   time.Duration // the length of the window
	Segments int           // how many parts it is counted in; must divide Window; 0 means 1
}

func (a SlidingWindow) compile(f form) (kernel, error) {
	switch {
	case a.Limit < 1:
		return nil, invalid("SlidingWindow.Limit", a.Limit, "must be at least 1")
	case a.Window < 1:
		return nil, invalid("SlidingWindow.Window", a.Window, "must be at least 1ns")
	case a.Segments < 0:
		return nil, invalid("SlidingWindow.Segments", a.Segments, "must be at least 1, or 0 for 1")
	case a.Segments > maxSlots:
		return nil, invalid("SlidingWindow.Segments", a.Segments, fmt.Sprintf("must be at most %d, for each takes memory", maxSlots))
	}
	segments := uint64(a.Segments)
	if uint64(a.Window)%segments != 0 {
		return nil, invalid("SlidingWindow.Segments", a.Segments, fmt.Sprintf("must divide Window, %v, into whole nanoseconds", a.Window))
	}
	length, err := f.ticks(a.Window/time.Duration(segments), "SlidingWindow.Window / Segments")
	if err == nil {
		err = f.count(a.Limit, "SlidingWindow.Limit")
	}
	if err == nil {
		err = f.slots(segments, "SlidingWindow.Segments")
	}
	return &sliding{newRing(segments+1, length, a.Limit), uint64(a.Limit)}, err
}

// sliding is the arithmetic of a [SlidingWindow]: a ring with a slot for each
// segment and one for the oldest.
type sliding struct {
	ring
	most uint64 // the limit
}

func (k *sliding) limit() int { return int(k.most) }

// counts returns the events of the segments that count fully at slot, and of
// the oldest, which is weighted. The former are at most the limit.
func (k *sliding) counts(st []uint64, slot uint64) (full, oldest uint64) {
	others := k.slots - 2 // that count fully, besides slot itself
	return k.sum(st, slot-min(slot, others), slot), k.back(st, slot, others+1)
}

// ready follows the estimate, which only falls while nothing happens, from
// segment to segment.
func (k *sliding) ready(st []uint64, now instant, n int) instant {
	now = max(now, k.frontier(st))
	slot := now / k.length
	full, oldest := k.counts(st, slot)
	for full+uint64(n) > k.most {
		slot++
		oldest = k.back(st, slot, k.slots-1)
		full -= oldest
	}
	return max(now, slot*k.length+k.fades(oldest, k.most-uint64(n)-full))
}

// fades returns how far into a segment the weight of the oldest has fallen to
// spare: the least e with oldest·(length−e) ≤ spare·length.
func (k *sliding) fades(oldest, spare uint64) uint64 {
	if oldest <= spare {
		return 0
	}
	return k.length - uint128.Mul(spare, k.length).Div(oldest)
}

func (k *sliding) room(st []uint64, now instant) int {
	if now < k.frontier(st) {
		return 0 // a reservation is ahead
	}
	slot := now / k.length
	full, oldest := k.counts(st, slot)
	weighted := uint128.Mul(oldest, k.length-now%k.length).DivCeil(k.length)
	return int(max(k.most, full+weighted) - full - weighted)
}

func (k *sliding) valid(st []uint64) bool { return k.holds(st, k.slots-1, k.most) }
