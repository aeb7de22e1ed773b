package kernel

import "math"

// A stateless is the kernel of an algorithm that needs no state: one that grants everything, or
// nothing. It never counts an event.
type stateless struct {
	Defaults
	limit int // math.MaxInt, or 0
	part  int // the index of the part of an All that decides
}

// NewUnlimited returns the kernel of an Unlimited.
func NewUnlimited() Kernel { return &stateless{limit: math.MaxInt} }

// NewBlocked returns the kernel of a Blocked.
func NewBlocked() Kernel { return &stateless{} }

// NewBlockedPart returns the kernel of an All that is blocked by the part with an index.
func NewBlockedPart(part int) Kernel { return &stateless{part: part} }

// Stateless reports whether k needs no state, and returns the index of the part of an All that
// decides.
func Stateless(k Kernel) (part int, ok bool) {
	if k, ok := k.(*stateless); ok {
		return k.part, true
	}
	return 0, false
}

func (*stateless) Kind() string { return "stateless" }

func (k *stateless) Limit() int { return k.limit }

// Width is 0: a state grows with use, but nothing uses it.
func (k *stateless) Width() int { return 0 }

func (k *stateless) Ready(_ []uint64, now Instant, _ int) Instant { return now }

func (k *stateless) Spend(st []uint64, _ Instant, _ int) []uint64 { return st }

func (k *stateless) Remaining([]uint64, Instant) int { return k.limit }

func (k *stateless) Fresh([]uint64) Instant { return 0 }

func (k *stateless) Frontier([]uint64) Instant { return 0 }

func (k *stateless) Valid(st []uint64, _ Encoding) bool { return len(st) == 0 }

func (k *stateless) Adopt(_ Kernel, st []uint64, _, _ Instant) ([]uint64, bool) { return st, true }

func (k *stateless) Take(st []uint64, _ Instant, _ int) ([]uint64, bool) { return st, true }

func (k *stateless) SharesStates(Kernel) bool { return true }

func (k *stateless) Chargeable([]uint64, Instant, Encoding) uint64 { return math.MaxUint64 }
