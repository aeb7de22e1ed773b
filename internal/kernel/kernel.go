// Package kernel has the arithmetic of each algorithm: what the state of a key is, when events are
// granted, and how a grant changes the state. The package knows neither stores nor the types that
// users see.
//
// A kernel has a file with the same name as the file of its algorithm. Some kernels share a file:
// gcra.go has both buckets that refill or drain continuously, ring.go has windows of several
// segments or periods, and pair.go has a SlidingWindow whose state fits into one word.
//
// This file has all that the packages above use. They define once, for all kernels, what a request
// means, and how holds, turns and limits that change affect a state.
package kernel

import (
	"math"
	"reflect"
)

// A Kernel is the arithmetic of an algorithm: pure functions of a key's state.
//
// The state is a few 64-bit words. All zero is the state of a key never seen, and from
// the instant that Fresh returns for it, any state is equivalent to that. A kernel may
// change the words that it is given in place, and returns them. States of fixed width
// never move. Around these words, package step keeps what all algorithms share: holds, turns that
// are ahead, and a second limit (holds.go, turns.go and former.go there).
//
// One question decides everything else, Ready: when would n events be granted? A
// request is granted if the answer is now. If not, it is denied until then, or reserved
// by spending at that instant. Ready never returns an instant before that of a
// reservation already in the state. So reservations are served in the order they were
// made.
//
// Preconditions: now ≤ MaxInstant, and not before an earlier now; n from 1 to Limit(). Limit
// is at least 1, except that of a stateless kernel, which has no states.
//
// What only some kernels do has a default in Defaults.
type Kernel interface {
	Decider

	// Kind names the type of the kernel. The name never changes: the tokens of reservations depend
	// on it. States of different kinds cannot be converted.
	Kind() string

	Adopter
	Holder
}

// A Decider is what requests are decided by.
type Decider interface {
	Describer

	// Spend records n events at an instant or, if that is later, at the frontier. They may be any
	// number up to Chargeable, whether or not they are granted.
	Spend(st []uint64, at Instant, n int) []uint64

	// Take is Ready and Spend in one. It spends n events if they are granted at now, and
	// reports whether they were.
	Take(st []uint64, now Instant, n int) (_ []uint64, granted bool)

	// Chargeable returns the most events that Spend can count, whatever the limit says.
	Chargeable(st []uint64, now Instant, enc Encoding) uint64

	Queue
	DenialCounter
}

// A Describer says what is known of a state: that is all that stores ask of any state, whatever has
// left it.
type Describer interface {
	// Limit returns the most events that a fresh key grants at once.
	Limit() int

	// Width returns the number of words of a state, or 0 if it grows with use.
	Width() int

	// Ready returns the first instant, now or later, at which n events are granted if
	// nothing else happens to the key; Forever if there is none.
	Ready(st []uint64, now Instant, n int) Instant

	// Remaining returns the most events that are granted at now, which is not before the
	// frontier.
	Remaining(st []uint64, now Instant) int

	// Fresh returns the first instant at which st equals the zero state.
	Fresh(st []uint64) Instant

	// Frontier returns the latest instant promised to a reservation; nothing is granted
	// before it. Callers of Remaining check it. Each Ready begins with it: asking for it
	// through this interface first would make a decision up to 9 % slower (5 ns of 80 for
	// an interval bucket, 8 of 93 for a sliding window, 10 of 115 for an All of two).
	Frontier(st []uint64) Instant

	// Valid reports whether this kernel can work with st, a state in an encoding, from a store
	// that others may write to. Counts may lie above the limit.
	Valid(st []uint64, enc Encoding) bool

	// Pack removes the unused words of a state.
	Pack(st []uint64) []uint64
}

// A Queue is what a kernel says of the events that it grants and delays, so that they leave evenly.
type Queue interface {
	// Delays reports whether the kernel ever delays events.
	Delays() bool

	// Delay returns how long events granted at an instant are delayed, in ticks. st is the state
	// before they are spent.
	Delay(st []uint64, at Instant) uint64

	// Full reports whether there is a queue that has no room for n events.
	Full(st []uint64, now Instant, n int) bool

	// Promise records that the events that Spend has just recorded were promised to be delayed no
	// longer than Delay said.
	Promise(st []uint64)
}

// A DenialCounter is what a kernel does with events that are denied.
type DenialCounter interface {
	// Notes reports whether Refuse ever changes a state.
	Notes() bool

	// Refuse records that n events were denied at now, if such events count, and reports whether
	// that changed the state. Of the events in it, as many as are held may leave it again.
	Refuse(st []uint64, now Instant, n int, held uint64) ([]uint64, bool)
}

// An Adopter is what a kernel does with the states of another kernel of the same type, when the
// limit of a key changes.
type Adopter interface {
	// Adopt converts a state of another kernel of the same type to one of this kernel, and
	// does not change st. Events keep the times at which they happened, as exactly as both
	// states can tell; an event whose time is unknown happened as late as it can have, and not
	// after latest, which is at most now. Counts may then lie above the limit. lasting reports
	// whether the result is the same at any later instant.
	Adopt(from Kernel, st []uint64, now, latest Instant) (_ []uint64, lasting bool)

	// SharesStates reports whether a state of from, a kernel of the same type, says all that one of
	// this kernel does: they differ only in how much they grant.
	SharesStates(from Kernel) bool

	// SameTimeout reports whether events that are in flight by this kernel and by other, one of the
	// same type, time out at the same instants.
	SameTimeout(other Kernel) bool

	// Credit returns the most events that can be charged at an instant until twice as many are
	// missing as the kernel grants at once. A bucket pays for what exceeds its limit at its rate,
	// however long that takes, and so may owe no more. There is no such bound for all others:
	// whatever they count is forgotten once it is old.
	Credit(st []uint64, at Instant) uint64

	// MissesLess reports whether a bucket misses less in one state than in another.
	MissesLess(st, other []uint64, now Instant) bool

	// Shed removes what no decision can depend on from a state in which another limit has counted
	// events.
	Shed(st []uint64) []uint64

	// Memory returns an upper bound of the ticks for which a state remembers events, if that
	// depends on when they happen, and 0 if not.
	Memory() uint64

	// Drifts reports whether events may come later because earlier ones did not happen: because a
	// window, a refill or the warmth begins with what came first.
	Drifts() bool
}

// Defaults is what kernels do unless they define it otherwise. Of a hold, a mark is one word that
// any parameters can use, and nothing is taken back: a kernel with states needs a Mark and a Settle
// of its own, which rule "Exact" of package storetest asks for, and not the compiler.
type Defaults struct{}

func (Defaults) Pack(st []uint64) []uint64 { return st }

func (Defaults) Delays() bool { return false }

func (Defaults) Delay([]uint64, Instant) uint64 { return 0 }

func (Defaults) Full([]uint64, Instant, int) bool { return false }

func (Defaults) Promise([]uint64) {}

func (Defaults) Notes() bool { return false }

func (Defaults) Refuse(st []uint64, _ Instant, _ int, _ uint64) ([]uint64, bool) {
	return st, false
}

func (Defaults) SameTimeout(Kernel) bool { return true }

func (Defaults) Credit([]uint64, Instant) uint64 { return math.MaxUint64 }

func (Defaults) MissesLess(_, _ []uint64, _ Instant) bool { return false }

func (Defaults) Shed(st []uint64) []uint64 { return st }

func (Defaults) Memory() uint64 { return 0 }

func (Defaults) Drifts() bool { return false }

func (Defaults) DelayOf(uint64, Instant) uint64 { return 0 }

func (Defaults) Marks() int { return 1 }

func (Defaults) Mark([]uint64, Instant, int, []uint64) {}

func (Defaults) Lower([]uint64, []uint64, Instant) {}

func (Defaults) LowerTo([]uint64, []uint64) {}

func (Defaults) Settle(st []uint64, _ Instant, _ Refund, _ Marks) []uint64 { return st }

func (Defaults) Carry(_ Kernel, _, _ []uint64, _ Instant, old, mark []uint64) { copy(mark, old) }

func (Defaults) ValidMark([]uint64) bool { return true }

func (Defaults) Releases() bool { return false }

func (Defaults) Lasts(st []uint64, _ int, _ Instant) []uint64 { return st }

func (Defaults) Extend(st []uint64, _ Hold, _ Instant) []uint64 { return st }

func (Defaults) CarryHolds(_ Kernel, st []uint64, _ []Hold) []uint64 { return st }

// A Word is a kernel whose state may be a single word, on which it can then decide
// without accessing memory.
type Word interface {
	// Decide is Ready and Spend in one. It reports whether n events are granted now,
	// and returns the state after them.
	Decide(word uint64, now Instant, n int) (next uint64, granted bool)

	// Await is Ready.
	Await(word uint64, now Instant, n int) Instant

	// Describe is Remaining, or 0 before the frontier, and Fresh.
	Describe(word uint64, now Instant) (remaining int, fresh Instant)

	// DelayOf is Delay.
	DelayOf(word uint64, at Instant) uint64

	// Widen returns the state that equals word, in the form of the same kernel with
	// Encoding.Varies.
	Widen(word uint64) [2]uint64

	// Narrow is the reverse, at now. ok is false if st has no equal that is a word.
	Narrow(st []uint64, now Instant) (word uint64, ok bool)
}

// PartOf returns k as a part of an All, whose other parts determine when events are reserved: in a
// form whose states say at which instant events were spent last. A state of one word that has too
// few bits for a debt cannot be replaced with a wider one, as that of a key can, so it has two.
func PartOf(k Kernel) Kernel {
	switch k := k.(type) {
	case *pair:
		return &k.slidingWindow
	case *fixedWindow:
		if k.packed > 0 && k.packed < bitsOfDebt {
			wide := *k
			wide.packed = 0
			return &wide
		}
	case *gcra:
		keeping := *k
		keeping.last = latestSpent
		return &keeping
	}
	return k
}

// Equal reports whether two kernels are of one type and have the same parameters.
func Equal(a, b Kernel) bool {
	if _, ok := a.(*calendarWindow); ok { // other goroutines change the borders that it remembers
		_, ok := b.(*calendarWindow)
		return ok && a.Limit() == b.Limit() && a.Width() == b.Width() && a.SharesStates(b)
	}
	return reflect.DeepEqual(a, b)
}
