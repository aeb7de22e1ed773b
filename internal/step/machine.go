package step

import (
	"slices"
	"strings"
	"sync/atomic"
	"weak"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file makes of a kernel what stores apply requests with.

// A Machine is a kernel ready to be applied. Its methods define what every algorithm
// means by a decision and by a reservation.
type Machine struct {
	kernel.Decider
	kernel.Encoding
	Kernel  kernel.Kernel // the Decider, unless that is of two limits; else nil
	parts   *all          // the kernel, if it is one; else nil
	two     *twoLimits    // what decides, if that is of two limits; else nil
	denials bool          // whether the kernel notes denials
	queues  bool          // whether it delays events
	resumes bool          // whether a part is a kernel.Resumer
	timeout uint64        // for how many ticks events may be in flight; 0 if they are not released
	// The kernels of the parts, or else the kernel itself; if there is a base, those of that.
	leaves []kernel.Kernel

	holds atomic.Pointer[holdList] // what open holds look like in its states; nil until needed

	Of any // what the caller knows it by; the package does not look at it

	// The latest of states whose second limit this is. It is weak, because it refers to the first
	// limit, which may refer to one before: of a limit that changes again and again, none is left
	// once no state needs it.
	joined atomic.Pointer[weak.Pointer[twoLimits]]
}

// NewMachine returns k, whose states have encoding enc, ready to be applied.
func NewMachine(k kernel.Kernel, enc kernel.Encoding) *Machine { return newMachine(k, enc) }

func newMachine(k kernel.Decider, enc kernel.Encoding) *Machine {
	c := &Machine{Decider: k, Encoding: enc, denials: k.Notes(), queues: k.Delays()}
	c.Kernel, _ = k.(kernel.Kernel)
	c.parts, _ = k.(*all)
	c.two, _ = k.(*twoLimits)
	switch {
	case c.parts != nil:
		c.leaves = c.parts.parts
	case c.two != nil:
		c.leaves = slices.Concat(c.two.limits[0].leaves, c.two.limits[1].leaves)
	default:
		c.leaves = []kernel.Kernel{c.Kernel}
	}
	c.resumes = slices.ContainsFunc(c.leaves, func(leaf kernel.Kernel) bool {
		_, ok := leaf.(kernel.Resumer)
		return ok
	})
	if c.Releases() {
		c.timeout = c.memory()
	}
	return c
}

// Releases reports whether events are released when they are settled, in a part at least.
func (c *Machine) Releases() bool {
	return slices.ContainsFunc(c.leaves, kernel.Kernel.Releases)
}

// Delays reports whether events that are granted may have to wait, in a part at least.
func (c *Machine) Delays() bool {
	return slices.ContainsFunc(c.leaves, kernel.Kernel.Delays)
}

// Remaining returns the most events that are granted at now: 0 while a reservation is
// ahead.
func (c *Machine) Remaining(st []uint64, now kernel.Instant) int {
	if now < c.Frontier(st) {
		return 0
	}
	return c.Decider.Remaining(st, now)
}

// Stateless reports whether c decides without a state, by Decide. A state of another kernel
// is then left as it is.
func (c *Machine) Stateless() bool {
	_, ok := kernel.Stateless(c.Kernel)
	return ok
}

// Decide is Step for a kernel that is Stateless.
func (c *Machine) Decide(req *Request, a *Answer) {
	c.Step(nil, req, a)
	a.Part, _ = kernel.Stateless(c.Kernel)
	a.Held = false // there is nothing to settle
}

// Word returns the kernel if a state is one word, and nil if not.
func (c *Machine) Word() kernel.Word {
	if c.Width() > 1 {
		return nil
	}
	word, _ := c.Kernel.(kernel.Word)
	return word
}

// each replaces the state of each part, whose index is i, with the result of f. asked says whether
// the limit that is asked has the part.
func (c *Machine) each(
	st []uint64,
	f func(i int, asked bool, part kernel.Kernel, st []uint64) []uint64,
) []uint64 {
	if c.two != nil {
		return c.two.each(st, f)
	}
	return c.eachOf(st, 0, true, f)
}

// eachOf is each for one limit, of whose parts the first has the given index.
func (c *Machine) eachOf(
	st []uint64,
	first int,
	asked bool,
	f func(i int, asked bool, part kernel.Kernel, st []uint64) []uint64,
) []uint64 {
	if c.parts == nil {
		return f(first, asked, c.Kernel, st)
	}
	return c.parts.update(st, func(i int, part kernel.Kernel, st []uint64) []uint64 {
		return f(first+i, asked, part, st)
	})
}

func (c *Machine) partStates(st []uint64) (states [][]uint64) {
	c.each(slices.Clone(st), func(_ int, _ bool, _ kernel.Kernel, st []uint64) []uint64 {
		states = append(states, st)
		return st
	})
	return states
}

// Kind names the kernel's type, and does not change. States of different kinds cannot be converted.
func (c *Machine) Kind() string { return kindsOf(c.leaves) }

// kindsOf returns the kinds of several kernels, in their order.
func kindsOf(kernels []kernel.Kernel) string {
	names := make([]string, len(kernels))
	for i, k := range kernels {
		names[i] = k.Kind()
	}
	return strings.Join(names, " ")
}

// firstCapacity is the capacity, in words, of a new state that grows with use: that of a
// SlidingLog with one event.
const firstCapacity = 4

// NewSize returns the length and the capacity, in words, of the state of a key never seen,
// whose words are 0. If states grow with use, there is room for a first event.
func (c *Machine) NewSize() (length, capacity int) {
	if width := c.Width(); width > 0 {
		return width, width
	}
	if c.parts == nil {
		return 0, firstCapacity
	}
	return 0, c.parts.fixed + c.parts.grows*(1+firstCapacity) // with its length
}

// NewState returns the state of a key never seen.
func (c *Machine) NewState() []uint64 {
	length, capacity := c.NewSize()
	return make([]uint64, length, capacity)
}
