package ratelimit

import (
	"fmt"
	"iter"
	"math"
	"slices"
)

// An All grants what each of its parts grants, and then spends it in all of
// them at once; if one part refuses, nothing is spent in any. So
//
//	All{TokenBucket{Rate: PerSecond(10)}, FixedWindow{Limit: 1000, Window: 24 * time.Hour}}
//
// is 10 a second and 1,000 a day. Parts may be of any kind and number, two of
// the same included; an All within an All stands for its parts.
//
// Limit and Remaining are the least over the parts, RetryAfter, ResetAfter and
// Delay the greatest; [Decision].Part says which part decided. Reserve waits
// until the parts grant, but not for room in a [LeakyBucket] among them: it
// fails with [ErrQueueFull] if there is none when the others grant. A refusal by any part enters the log of every
// [SlidingLog] with CountDenied. Its state is the states of its parts.
type All []Algorithm

func (a All) compile(f form) (kernel, error) {
	k := &all{most: math.MaxInt, tick: f.tick}
	for _, alg := range a { // which compile has made a list of leaves
		part, err := alg.compile(f)
		if err != nil {
			return nil, err
		}
		k.parts = append(k.parts, part)
		k.most = min(k.most, part.limit())
		k.fixed += part.width()
		if part.width() == 0 {
			k.grows++
		}
	}
	return k, nil
}

// Bounds on what a user may put together, by mistake: an All that contains
// itself, for one.
const (
	maxDepth = 16
	maxParts = 1024
)

// leaves appends the parts of a that are no Alls themselves, checked, as values.
func (a All) leaves(to All, f form, name string, depth int) (All, error) {
	switch {
	case len(a) == 0:
		return nil, invalid(name, "empty", "must have at least one part")
	case depth > maxDepth:
		return nil, invalid(name, "too deep", fmt.Sprintf("must not be nested more than %d times", maxDepth))
	}
	for i, alg := range a {
		field := fmt.Sprintf("%s[%d]", name, i)
		alg, err := value(alg)
		if err != nil {
			return nil, within(field, err)
		}
		if nested, ok := alg.(All); ok {
			if to, err = nested.leaves(to, f, field, depth+1); err != nil {
				return nil, err
			}
			continue
		}
		alg = normalized(alg)
		if _, err := alg.compile(f); err != nil {
			return nil, within(field, err)
		}
		if to = append(to, alg); len(to) > maxParts {
			return nil, invalid("All", "too long", fmt.Sprintf("must have at most %d parts", maxParts))
		}
	}
	return to, nil
}

// all is the arithmetic of an [All]. Its state is the states of its parts: first
// those of fixed width, in the order of the parts, then those that grow with
// use. If there are any of the latter, it begins with the length of each.
type all struct {
	parts []kernel
	grows int    // how many parts grow with use
	fixed int    // the sum of the others' widths
	most  int    // the limit
	tick  uint64 // the nanoseconds in a tick
}

func (k *all) limit() int { return k.most }

func (k *all) width() int {
	if k.grows > 0 {
		return 0
	}
	return k.fixed
}

// states iterates over the parts and their states, to be read.
func (k *all) states(st []uint64) iter.Seq2[kernel, []uint64] {
	return func(yield func(kernel, []uint64) bool) {
		st := k.begin(st)
		c := k.cursor()
		for _, part := range k.parts {
			from, to := c.next(part, st)
			if !yield(part, st[from:to:to]) {
				return
			}
		}
	}
}

// update puts in the place of each part's state what f makes of it.
func (k *all) update(st []uint64, f func(part kernel, st []uint64) []uint64) []uint64 {
	st = k.begin(st)
	c := k.cursor()
	for _, part := range k.parts {
		from, to := c.next(part, st)
		if part.width() > 0 {
			f(part, st[from:to:to])
			continue
		}
		limit := to // of what f may write
		if to == len(st) {
			limit = cap(st)
		}
		next := f(part, st[from:to:limit])
		moved := len(next) > 0 && (cap(st) == from || &next[0] != &st[:from+1][from])
		switch {
		case to < len(st) && (moved || len(next) != to-from):
			st = slices.Replace(st, from, to, next...)
		case to == len(st) && moved:
			st = append(st[:from], next...)
		case to == len(st):
			st = st[:from+len(next)]
		}
		c.resized(st, len(next))
	}
	return st
}

// begin returns st with its header and fixed part, which an empty state lacks.
func (k *all) begin(st []uint64) []uint64 {
	if len(st) == 0 {
		st = append(st, make([]uint64, k.grows+k.fixed)...)
	}
	return st
}

// A cursor walks over the states of the parts.
type cursor struct {
	fixed   int // where the next state of fixed width begins
	growing int // where the next that grows begins
	length  int // the word of the header that holds the latter's length
}

func (k *all) cursor() cursor { return cursor{fixed: k.grows, growing: k.grows + k.fixed} }

// next returns where the state of part begins and ends.
func (c *cursor) next(part kernel, st []uint64) (from, to int) {
	if w := part.width(); w > 0 {
		from, c.fixed = c.fixed, c.fixed+w
		return from, c.fixed
	}
	from, c.growing = c.growing, c.growing+int(st[c.length])
	c.length++
	return from, c.growing
}

// resized notes the new length of the growing state that next returned.
func (c *cursor) resized(st []uint64, length int) {
	c.growing += length - int(st[c.length-1])
	st[c.length-1] = uint64(length)
}

func (k *all) ready(st []uint64, now instant, n int) instant {
	at := now
	for part, st := range k.states(st) {
		at = max(at, part.ready(st, now, n))
	}
	return at
}

func (k *all) spend(st []uint64, at instant, n int) []uint64 {
	return k.update(st, func(part kernel, st []uint64) []uint64 {
		return part.spend(st, at, n)
	})
}

func (k *all) reserve(st []uint64, now, at instant, n int, to []trace) ([]uint64, []trace) {
	st = k.update(st, func(part kernel, st []uint64) []uint64 {
		st, to = part.reserve(st, now, at, n, to)
		return st
	})
	return st, to
}

func (k *all) room(st []uint64, now instant) int {
	room := k.most
	for part, st := range k.states(st) {
		room = min(room, part.room(st, now))
	}
	return room
}

func (k *all) fresh(st []uint64) (at instant) {
	for part, st := range k.states(st) {
		at = max(at, part.fresh(st))
	}
	return at
}

func (k *all) hold(st []uint64, at instant) (ns uint64) {
	for part, st := range k.states(st) {
		ns = max(ns, part.hold(st, at))
	}
	return ns
}

// full asks the queues at the instant at which the other parts grant.
func (k *all) full(st []uint64, now instant, n int) bool {
	at := now
	for part, st := range k.states(st) {
		if _, queue := part.(*leaky); !queue {
			at = max(at, part.ready(st, now, n))
		}
	}
	if at > maxInstant/k.tick {
		return false // never is another answer
	}
	for part, st := range k.states(st) {
		if part.full(st, at, n) {
			return true
		}
	}
	return false
}

func (k *all) refuse(st []uint64, now instant, n int) (_ []uint64, changed bool) {
	if !k.notes() {
		return st, false
	}
	st = k.update(st, func(part kernel, st []uint64) []uint64 {
		st, noted := part.refuse(st, now, n)
		changed = changed || noted
		return st
	})
	return st, changed
}

// cancel lets each part take back what it can.
func (k *all) cancel(st []uint64, u *undoing) []uint64 {
	u.part = -1
	return k.update(st, func(part kernel, st []uint64) []uint64 {
		u.part++
		return part.cancel(st, u)
	})
}

func (k *all) giveBack(st []uint64, at, now instant, n int) []uint64 {
	return k.update(st, func(part kernel, st []uint64) []uint64 {
		return part.giveBack(st, at, now, n)
	})
}

func (k *all) part(st []uint64, now instant, n int) (index int) {
	var latest instant
	least := math.MaxInt
	i := 0
	for part, st := range k.states(st) {
		if n == 0 {
			if room := part.room(st, now); room < least {
				index, least = i, room
			}
		} else {
			at := forever
			if n <= part.limit() {
				at = part.ready(st, now, n)
			}
			if at > latest {
				index, latest = i, at
			}
		}
		i++
	}
	return index
}

func (k *all) notes() bool {
	return slices.ContainsFunc(k.parts, func(part kernel) bool { return part.notes() })
}

func (k *all) valid(st []uint64) bool {
	if len(st) == 0 {
		return true
	}
	left := uint64(len(st))
	for _, n := range append([]uint64{uint64(k.grows + k.fixed)}, st[:min(k.grows, len(st))]...) {
		if n > left {
			return false
		}
		left -= n
	}
	if left > 0 {
		return false
	}
	for part, st := range k.states(st) {
		if !part.valid(st) {
			return false
		}
	}
	return true
}
