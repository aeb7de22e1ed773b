// Package kernel is the arithmetic of one key: what a state is, when events are
// granted, and what a grant, a reservation or a cancellation makes of the state.
//
// There is a file for each kernel, named as the file of its algorithm. What all of
// them share, step.go has once. The package knows no store, and none of the types
// that users see.
package kernel

import (
	"reflect"
	"slices"
	"strings"
)

// A Kernel is the arithmetic of an algorithm: pure functions of a key's state.
//
// The state is a few 64-bit words; all zero is that of a key never seen, and
// so is a state at or after the instant that Fresh returns for it. A kernel
// may change the words that it is given in place, and returns them; those of
// fixed width never move.
//
// There is one question that decides everything else, Ready: when would n
// events be granted? A request is granted if the answer is now, is told to
// come back then if not, and is reserved by spending at the instant answered.
// It never answers an instant before that of a reservation already in the
// state, which is what makes reservations first come, first served.
//
// Preconditions: now ≤ MaxInstant, and not before an earlier now; n from 1 to
// Limit().
//
// What only some kernels can do are the interfaces below. [Compile] looks for them
// once.
type Kernel interface {
	// Limit returns the most events that a fresh key is granted at once.
	Limit() int

	// Width returns the number of words of a state, or 0 if it grows with use.
	Width() int

	// Ready returns the first instant, now or later, at which n events are
	// granted if nothing else happens to the key.
	Ready(st []uint64, now Instant, n int) Instant

	// Spend records n events at the instant that Ready returned.
	Spend(st []uint64, at Instant, n int) []uint64

	// Room returns the most events that are granted at now.
	Room(st []uint64, now Instant) int

	// Fresh returns the first instant at which st equals the zero state.
	Fresh(st []uint64) Instant

	// frontier returns the latest instant that was promised: nobody is granted
	// anything before it. Room is asked for instants from it on only; Ready sees to
	// it by itself, which is faster.
	frontier(st []uint64) Instant

	// Valid reports whether st may be a state that this kernel made, if its form
	// varies, or at least one that it can work with: its counts may lie above the
	// limit. It is for states that were stored where others may write.
	Valid(st []uint64) bool

	// Adopt makes a state of its own of one that another kernel of the same type
	// left. Counts may lie above the limit then.
	Adopt(from Kernel, st []uint64, now Instant) []uint64

	undoer
}

// An undoer takes grants back. Either it is a chained kernel, whose grants are undone
// from the end of the line, or a counting one, whose events are taken out of the
// counts at once.
type undoer interface {
	// reserve is Spend at an instant that may be after now, and appends what
	// cancel needs, for each part.
	reserve(st []uint64, now, at Instant, n int, to []trace) ([]uint64, []trace)

	// cancel takes back what can be taken back of the cancelled grants in a line.
	cancel(st []uint64, u *undoing) []uint64
}

// A Word is a kernel whose state may be a single word, which it can then
// decide on without touching memory.
type Word interface {
	// Decide is Ready and Spend in one: it reports whether n events are
	// granted now, and returns the state after them.
	Decide(word uint64, now Instant, n int) (next uint64, granted bool)
}

// A queue is a kernel that holds the events that it grants, so that they leave evenly.
type queue interface {
	// hold returns how many nanoseconds events granted at an instant are to
	// be held. st is the state before they are spent.
	hold(st []uint64, at Instant) uint64

	// full reports whether n events find no room in the queue.
	full(st []uint64, now Instant, n int) bool
}

// A denialLog is a kernel that records denials.
type denialLog interface {
	// notes reports whether refuse ever changes anything.
	notes() bool

	// refuse records that n events were refused at now, and reports whether
	// that changed anything.
	refuse(st []uint64, now Instant, n int) ([]uint64, bool)
}

// A returner is a kernel that takes events back that did not happen.
type returner interface {
	// giveBack takes back, at now, n events that were granted at an instant, and did
	// not happen.
	giveBack(st []uint64, at, now Instant, n int) []uint64
}

// A capable is a kernel, and what it can do.
type capable struct {
	Kernel
	can ability
}

// An ability is a set of what only some kernels can do.
type ability uint8

const (
	holds   ability = 1 << iota // it is a queue
	notes                       // it is a denialLog that notes anything
	returns                     // it is a returner
)

func capabilities(k Kernel) capable {
	c := capable{Kernel: k}
	if _, ok := k.(queue); ok {
		c.can |= holds
	}
	if d, ok := k.(denialLog); ok && d.notes() {
		c.can |= notes
	}
	if _, ok := k.(returner); ok {
		c.can |= returns
	}
	return c
}

// Room returns the most events that are granted at now. While a reservation is ahead,
// there is none.
func (c *capable) Room(st []uint64, now Instant) int {
	if now < c.frontier(st) {
		return 0
	}
	return c.Kernel.Room(st, now)
}

// hold is that of a queue, and 0 for what is none.
func (c *capable) hold(st []uint64, at Instant) uint64 {
	if c.can&holds == 0 {
		return 0
	}
	return c.Kernel.(queue).hold(st, at)
}

// full is that of a queue. What is none has room.
func (c *capable) full(st []uint64, now Instant, n int) bool {
	return c.can&holds != 0 && c.Kernel.(queue).full(st, now, n)
}

// refuse is that of a log of denials. What is none notes nothing.
func (c *capable) refuse(st []uint64, now Instant, n int) ([]uint64, bool) {
	if c.can&notes == 0 {
		return st, false
	}
	return c.Kernel.(denialLog).refuse(st, now, n)
}

// giveBack is that of a returner. What is none keeps the events.
func (c *capable) giveBack(st []uint64, at, now Instant, n int) []uint64 {
	if c.can&returns == 0 {
		return st
	}
	return c.Kernel.(returner).giveBack(st, at, now, n)
}

// A Compiled is a kernel ready to be applied. What every algorithm means by a
// decision, and by a reservation, are its methods.
type Compiled struct {
	capable
	Form
	parts *all // the kernel, if it is one
}

// Compile returns k, whose states are in form f, ready to be applied.
func Compile(k Kernel, f Form) *Compiled {
	c := &Compiled{capable: capabilities(k), Form: f}
	c.parts, _ = k.(*all)
	return c
}

// Word returns the kernel if a state is one word, and nil if not.
func (c *Compiled) Word() Word {
	if c.Width() > 1 {
		return nil
	}
	word, _ := c.Kernel.(Word)
	return word
}

// leaves returns the kernels of the parts, or the one that there is.
func (c *Compiled) leaves() []capable {
	if c.parts != nil {
		return c.parts.parts
	}
	return []capable{c.capable}
}

// Kind names the kernel: states of different kinds have nothing in common.
func (c *Compiled) Kind() string {
	var names []string
	for _, leaf := range c.leaves() {
		names = append(names, reflect.TypeOf(leaf.Kernel).Elem().Name())
	}
	return strings.Join(names, " ")
}

// Size returns the bytes that the kernel takes, about.
func (c *Compiled) Size() uint64 {
	size := func(v any) uint64 { return uint64(reflect.TypeOf(v).Elem().Size()) }
	sum := size(c) + size(c.Kernel)
	if c.parts != nil {
		for i := range c.parts.parts {
			sum += size(&c.parts.parts[i]) + size(c.parts.parts[i].Kernel)
		}
	}
	return sum
}

// NewState returns the state of a key never seen, with room for a first event if it
// grows with use. Its capacity is what is allocated for it.
func (c *Compiled) NewState() []uint64 {
	if width := c.Width(); width > 0 {
		return slices.Grow([]uint64(nil), width)[:width]
	}
	return make([]uint64, 0, logHeader+1)
}

// same reports whether c and other have the same parameters.
func (c *Compiled) same(other *Compiled) bool {
	return c == other || reflect.DeepEqual(c, other)
}

// alike reports whether a state of c can become one of other.
func (c *Compiled) alike(other *Compiled) bool {
	return reflect.TypeOf(c.Kernel) == reflect.TypeOf(other.Kernel) &&
		slices.EqualFunc(c.leaves(), other.leaves(), func(a, b capable) bool {
			return reflect.TypeOf(a.Kernel) == reflect.TypeOf(b.Kernel)
		})
}

// adopt returns what becomes of a state that from left, and whether it is another.
func (c *Compiled) adopt(from *Compiled, st []uint64, now Instant) (_ []uint64, changed bool) {
	switch {
	case c.same(from):
		return st, false
	case !c.alike(from):
		return make([]uint64, c.Width()), true
	}
	return c.Adopt(from.Kernel, st, now), true
}
