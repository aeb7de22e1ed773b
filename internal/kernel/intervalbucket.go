package kernel

import (
	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// intervalBucket is the arithmetic of a TokenBucket with RefillInterval. Its state has
// two words: the instant from which refills are counted (that of the event that took
// the first token from a full bucket, or of a later refill), and the tokens missing
// then. If none are missing, the first word is only the frontier.
type intervalBucket struct {
	Defaults
	burst  uint64 // the most tokens
	refill uint64 // tokens of one refill
	per    uint64 // ticks between refills
}

// NewIntervalBucket returns the kernel of a TokenBucket with RefillInterval: refill
// tokens arrive every per ticks.
func NewIntervalBucket(burst, refill int, per uint64) Kernel {
	return &intervalBucket{burst: uint64(burst), refill: uint64(refill), per: per}
}

func (*intervalBucket) Kind() string { return "intervalBucket" }

func (k *intervalBucket) Limit() int { return int(k.burst) }

func (k *intervalBucket) Width() int { return 2 }

func (k *intervalBucket) Frontier(st []uint64) Instant { return st[0] }

// refilled returns the words of the state at t, which is not before the state's own,
// after the refills up to t.
func (k *intervalBucket) refilled(st []uint64, t Instant) (anchor Instant, missing uint64) {
	anchor, missing = st[0], st[1]
	if missing == 0 {
		return t, 0
	}
	if t-anchor < k.per {
		return anchor, missing
	}
	came := (t - anchor) / k.per
	tokens := uint128.Mul(came, k.refill)
	if tokens.Hi > 0 || tokens.Lo >= missing {
		return t, 0
	}
	return anchor + came*k.per, missing - tokens.Lo
}

func (k *intervalBucket) Ready(st []uint64, now Instant, n int) Instant {
	now = max(now, k.Frontier(st))
	anchor, missing := k.refilled(st, now)
	if missing+uint64(n) <= k.burst {
		return now
	}
	return k.refillAt(anchor, CeilDiv(missing+uint64(n)-k.burst, k.refill))
}

func (k *intervalBucket) Take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if now < k.Frontier(st) {
		return st, false
	}
	anchor, missing := k.refilled(st, now)
	missing += uint64(n)
	if missing > k.burst {
		return st, false
	}
	st[0], st[1] = anchor, missing
	return st, true
}

func (k *intervalBucket) refillAt(anchor Instant, count uint64) Instant {
	if count > (Forever-anchor)/k.per {
		return Forever
	}
	return anchor + count*k.per
}

func (k *intervalBucket) Spend(st []uint64, at Instant, n int) []uint64 {
	anchor, missing := k.refilled(st, max(at, k.Frontier(st)))
	st[0], st[1] = anchor, missing+uint64(n)
	return st
}

func (k *intervalBucket) Remaining(st []uint64, now Instant) int {
	_, missing := k.refilled(st, now)
	return int(k.burst - min(missing, k.burst))
}

func (k *intervalBucket) Fresh(st []uint64) Instant {
	return k.refillAt(st[0], CeilDiv(st[1], k.refill))
}

func (k *intervalBucket) Valid(st []uint64, enc Encoding) bool {
	return st[0] <= enc.LastInstant() && st[1] <= enc.mostAdded()
}

// Adopt counts refills from now on. If nothing was spent since latest, it counts them from the last
// one on, of which one may be due: limits that only adopt from each other must get refills, too.
func (k *intervalBucket) Adopt(
	from Kernel,
	st []uint64,
	now, latest Instant,
) (_ []uint64, lasting bool) {
	old := from.(*intervalBucket)
	anchor, missing := st[0], st[1]
	if k.SharesStates(from) {
		return []uint64{anchor, missing}, true
	}
	if now > anchor {
		anchor, missing = old.refilled(st, now)
	}
	begin := now
	if latest < now {
		begin -= min(now, k.per)
	}
	return []uint64{max(anchor, begin), missing}, missing == 0
}

func (k *intervalBucket) SharesStates(from Kernel) bool {
	old := from.(*intervalBucket)
	return k.per == old.per && k.refill == old.refill
}

// Chargeable keeps the last refill that pays for a debt within what a state can hold.
func (k *intervalBucket) Chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	now = max(now, k.Frontier(st))
	anchor, missing := k.refilled(st, now)
	most := uint128.Mul((enc.LastInstant()-anchor)/k.per, k.refill)
	if most.Hi > 0 || most.Lo > enc.MostCount() {
		most = uint128.From(enc.MostCount())
	}
	return max(most.Lo-min(missing, most.Lo), uint64(k.Remaining(st, now)))
}

func (k *intervalBucket) Credit(st []uint64, at Instant) uint64 {
	return 2*k.burst - min(k.missing(st, at).Lo, 2*k.burst)
}

func (k *intervalBucket) MissesLess(st, other []uint64, now Instant) bool {
	return k.missing(st, now).Less(k.missing(other, now))
}

// missing returns the tokens missing at an instant, or at that of a reservation ahead.
func (k *intervalBucket) missing(st []uint64, at Instant) uint128.Uint128 {
	_, missing := k.refilled(st, max(at, k.Frontier(st)))
	return uint128.From(missing)
}

func (k *intervalBucket) load(mark []uint64) uint128.Uint128 { return uint128.From(mark[0]) }

func (k *intervalBucket) store(mark []uint64, least uint128.Uint128) []uint64 {
	mark[0] = least.Lo
	return mark
}

func (k *intervalBucket) Mark(st []uint64, at Instant, n int, mark []uint64) {
	k.store(mark, k.missing(st, at).Add(uint128.From(uint64(n))))
}

func (k *intervalBucket) Lower(mark, st []uint64, at Instant) {
	lowered(k, mark, k.missing(st, at))
}

func (k *intervalBucket) LowerTo(mark, ended []uint64) { lowered(k, mark, k.load(ended)) }

// Settle leaves the instants of refills as they are.
func (k *intervalBucket) Settle(st []uint64, now Instant, r Refund, m Marks) []uint64 {
	return k.giveBack(st, now, comesBack(k, r, m, 1))
}

// SettleAll implements BatchHolder.
func (k *intervalBucket) SettleAll(st []uint64, now Instant, refunds []Refund, m Marks) []uint64 {
	for _, back := range comeBack(k, refunds, m, 1) {
		st = k.giveBack(st, now, back)
	}
	return st
}

func (k *intervalBucket) giveBack(st []uint64, now Instant, back uint128.Uint128) []uint64 {
	if now > st[0] {
		st[0], st[1] = k.refilled(st, now)
	}
	st[1] -= min(st[1], back.Lo)
	return st
}

func (k *intervalBucket) Drifts() bool { return true }
