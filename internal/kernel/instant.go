package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Instant is a number of ticks since the Unix epoch; a tick is a nanosecond in
// memory, and what a store's clock counts elsewhere. Readings of the
// clock are at most MaxInstant; what is computed from them may lie beyond it,
// up to Forever, to which sums saturate.
type Instant = uint64

const (
	MaxInstant Instant = 1<<62 - 1 // 2116-02-20
	Forever    Instant = math.MaxUint64
)

// Never is the wait for what never comes.
const Never time.Duration = math.MaxInt64

// Gone is a state of one word that no kernel makes before the last moments of time:
// the latest instants, in the finest units of one word, lie below it.
const Gone = math.MaxUint64

// After returns t + d, at most Forever.
func After(t Instant, d uint64) Instant {
	if t > Forever-d {
		return Forever
	}
	return t + d
}

// A Form is what a kernel's states look like.
type Form struct {
	Tick uint64 // the nanoseconds in a tick

	// Portable says that each word of a state is to be a number that a double
	// holds exactly, up to a few times portableMost, but for its top byte, which has the marks.
	// Nothing is packed then, and there is no waste.
	Portable bool

	// Varies says that other parameters may have left a state: it has room for
	// counts above the limit, and for the latest instant of a bucket.
	Varies bool
}

// InMemory is the form of the states in memory.
var InMemory = Form{Tick: 1}

// Varying returns f for states that other parameters may have left.
func (f Form) Varying() Form {
	f.Varies = true
	return f
}

// portableMost bounds what users may ask of a portable form: the sum of an instant
// in the 21st century, in microseconds, and a few of these stays below 2⁵³.
const portableMost = 1 << 51

// portableSlots bounds the counts of a ring in a portable form: a script reads all of
// them for each decision.
const portableSlots = 4096

// Slots checks the number of counts in a ring.
func (f Form) Slots(n uint64, field string) error {
	if f.Portable && n > portableSlots {
		return param.Invalid(field, n, fmt.Sprintf("must be at most %d in this store, which reads all of them for each decision", portableSlots))
	}
	return nil
}

// Ticks returns d in ticks.
func (f Form) Ticks(d time.Duration, field string) (uint64, error) {
	n := uint64(d) / f.Tick
	switch {
	case n*f.Tick != uint64(d):
		return 0, param.Invalid(field, d, fmt.Sprintf("must be a multiple of %v, which this store's clock counts in", time.Duration(f.Tick)))
	case f.Portable && n > portableMost:
		return 0, param.Invalid(field, d, fmt.Sprintf("must be at most %v in this store", time.Duration(portableMost*f.Tick)))
	}
	return n, nil
}

// Count checks a number of events.
func (f Form) Count(n int, field string) error {
	if f.Portable && uint64(n) > portableMost {
		return param.Invalid(field, n, "must be at most 2⁵¹ in this store")
	}
	return nil
}
