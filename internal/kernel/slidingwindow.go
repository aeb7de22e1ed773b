package kernel

import "github.com/ratelimit-go/ratelimit/internal/uint128"

// slidingWindow is the arithmetic of a SlidingWindow: a ring with a slot for each
// segment and one for the oldest. With e ticks elapsed in the current segment, n events
// are granted if
//
//	full + oldest·(length−e)/length + n ≤ limit
//
// where full counts the current segment and those that the window covers whole. With one
// segment of length 100, a limit of 12, and 9 events in the previous segment and 5 in this
// one, at e = 25 one more event is refused, because 5 + 9·0.75 + 1 > 12. At e = 34 it is
// granted, because 9·0.66 ≤ 6, so RetryAfter is those 9 ticks. Ready returns that instant,
// and package step makes a decision of it.
type slidingWindow struct {
	ring
	most uint64 // the limit
}

// NewSlidingWindow returns the kernel of a SlidingWindow with segments of length ticks.
func NewSlidingWindow(limit int, segments, length uint64, enc Encoding) Kernel {
	k := &slidingWindow{newRing(segments+1, length, limit), uint64(limit)}
	if !enc.Varies && !enc.Portable {
		if pair, ok := newPair(*k); ok {
			return pair
		}
	}
	return k
}

func (*slidingWindow) Kind() string { return "sliding" }

func (k *slidingWindow) Limit() int { return int(k.most) }

// Ready follows the estimate from segment to segment. The estimate only falls while
// nothing happens.
func (k *slidingWindow) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	t := k.at(st, now)
	oldest := k.oldest(st, &t)
	for t.sum-oldest+uint64(n) > k.most {
		k.next(st, &t)
		oldest = k.oldest(st, &t)
	}
	return max(now, t.slot*k.length+k.fades(oldest, k.most-uint64(n)-(t.sum-oldest)))
}

func (k *slidingWindow) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	t := k.at(st, now)
	oldest := k.oldest(st, &t)
	if !k.fits(t.sum-oldest+uint64(n), oldest, now-t.slot*k.length) {
		return st, false
	}
	k.spend(st, &t, now, n)
	return st, true
}

// fits reports whether the estimate is at most the limit when a time has elapsed in the
// current segment.
func (k *slidingWindow) fits(full, oldest, elapsed uint64) bool {
	if full > k.most {
		return false
	}
	spare := k.most - full
	if oldest <= spare {
		return true // whatever the weight is
	}
	return !uint128.Mul(spare, k.length).Less(uint128.Mul(oldest, k.length-elapsed))
}

// fades returns how far into a segment the weight of the oldest one has fallen to
// spare: the least e with oldest·(length−e) ≤ spare·length.
func (k *slidingWindow) fades(oldest, spare uint64) uint64 {
	if oldest <= spare {
		return 0
	}
	return k.length - uint128.Mul(spare, k.length).Div(oldest)
}

func (k *slidingWindow) Remaining(st []uint64, now Instant) int {
	t := k.at(st, now)
	oldest := k.oldest(st, &t)
	return k.left(t.sum-oldest, oldest, now-t.slot*k.length)
}

// left returns the most events that are granted when a time has elapsed in the segment.
func (k *slidingWindow) left(full, oldest, elapsed uint64) int {
	weighted := oldest
	if elapsed > 0 && oldest > 0 {
		weighted = uint128.Mul(oldest, k.length-elapsed).DivCeil(k.length)
	}
	return int(max(k.most, full+weighted) - full - weighted)
}

func (k *slidingWindow) SharesStates(from Kernel) bool {
	return k.sameSlots(&from.(*slidingWindow).ring)
}
