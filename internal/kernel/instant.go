package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Instant is a number of ticks since the Unix epoch. In memory, a tick is a
// nanosecond; in other stores, it is the unit of the store's clock. Readings of the
// clock are at most MaxInstant. Computed instants may be later, up to Forever, at which
// sums saturate.
type Instant = uint64

const (
	MaxInstant Instant = 1<<62 - 1 // 2116-02-20
	Forever    Instant = math.MaxUint64
)

// Never is the wait for an instant that is never reached.
const Never time.Duration = math.MaxInt64

// NoWord and all greater words are not states: no kernel produces them. The states of one word at
// the latest instants, in the finest units that fit one word, lie below it.
const NoWord = 1<<64 - 1<<32

// After returns t + d, at most Forever.
func After(t Instant, d uint64) Instant {
	if t > Forever-d {
		return Forever
	}
	return t + d
}

// Until returns the time from a reading of the clock, now and lag, to t, all in
// nanoseconds.
func Until(t, now Instant, lag uint64) time.Duration { return UntilIn(t, now, lag, 1) }

func UntilIn(t, now Instant, lag, tick uint64) time.Duration {
	if t <= now {
		return 0
	}
	if t-now > uint64(Never)/tick {
		return Never
	}
	return time.Duration(min((t-now)*tick+lag, uint64(Never)))
}

// An Encoding is the representation of a kernel's states.
type Encoding struct {
	Tick uint64 // the nanoseconds in a tick

	// Portable says that each word of a state is a number that a float64 holds exactly:
	// at most a small multiple of portableMost, apart from flags in its top byte.
	Portable bool

	// Varies says that a kernel with other parameters may have left a state. States
	// then have room for counts above the limit, and for the frontier of a bucket. All
	// states that are kept as bytes are of such an encoding.
	Varies bool
}

// InMemory is the encoding of the states in memory.
var InMemory = Encoding{Tick: 1}

// Varying returns enc with Varies set.
func (enc Encoding) Varying() Encoding {
	enc.Varies = true
	return enc
}

// portableMost is the largest parameter in a portable encoding. The sum of an instant in
// the 21st century, in microseconds, and a few of these stays below 2⁵³.
const portableMost = 1 << 51

// portableSlots is the most counts of a ring in a portable encoding, because a script reads
// and replaces whole states.
const portableSlots = 4096

// Slots checks the number of counts in a ring.
func (enc Encoding) Slots(n uint64, field string) error {
	if enc.Portable && n > portableSlots {
		return param.Invalid(
			field,
			n,
			fmt.Sprintf(
				"must be at most %d in this store, which replaces the whole state for each decision",
				portableSlots,
			),
		)
	}
	return nil
}

// Ticks returns d in ticks.
func (enc Encoding) Ticks(d time.Duration, field string) (uint64, error) {
	n := uint64(d) / enc.Tick
	switch {
	case n*enc.Tick != uint64(d):
		return 0, param.Invalid(
			field,
			d,
			fmt.Sprintf(
				"must be a multiple of %v, which this store's clock counts in",
				time.Duration(enc.Tick),
			),
		)
	case enc.Portable && n > portableMost:
		return 0, param.Invalid(
			field,
			d,
			fmt.Sprintf("must be at most %v in this store", time.Duration(portableMost*enc.Tick)),
		)
	}
	return n, nil
}

// Count checks a number of events.
func (enc Encoding) Count(n int, field string) error {
	switch {
	case uint64(n) <= enc.MostCount():
		return nil
	case enc.Portable:
		return param.Invalid(field, n, "must be at most 2⁵¹ in this store; Unlimited has no limit")
	}
	return param.Invalid(field, n, "must be at most 2⁶²; Unlimited has no limit")
}

// MostCounted is the largest valid count. Sums must not overflow.
const MostCounted = 1 << 62

func (enc Encoding) MostCount() uint64 {
	if enc.Portable {
		return portableMost
	}
	return MostCounted
}

// mostAdded is the largest valid count in a state of an encoding, where the counts of several slots
// may be added up. A portable one is a number that a float64 holds exactly.
func (enc Encoding) mostAdded() uint64 {
	if enc.Portable {
		return 4 * portableMost
	}
	return MostCounted
}

// LastInstant is the latest instant that events are spent at, and so the latest in a valid state.
func (enc Encoding) LastInstant() Instant { return MaxInstant / enc.Tick }

func CeilDiv(a, b uint64) uint64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}
