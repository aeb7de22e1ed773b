package kernel

import (
	"math"
	"reflect"
	"slices"
)

// The limit of a key may change, and while a new version of a service is deployed, processes
// ask in turns for an old limit and a new one. This file decides what a key has granted by a
// limit that did not grant it.
//
// Limits that differ only in how much they grant are similar: one state serves them. Otherwise,
// no state has what both need (the count of a second has forgotten what two seconds count, and
// tokens come back at different rates). So the key keeps two limits, each with a state of its own:
// the present one, which granted last, and a former one.
//
//   - What is granted counts in both states, above the limit of the other one if need be. A bucket
//     counts only as much as leaves twice as many events missing as it grants at once: it owes no
//     more than that, or a limit that comes back would first pay for all that a higher one has
//     granted since.
//   - The one that is asked decides alone, except that it grants nothing before a reservation
//     that was made under the other one. If it grants, it is the present one from then on.
//   - A limit that is neither of them adopts its state from the one that was asked last, also if
//     that has only denied: to ease a clamp grants no more than the clamp would have. Of two that
//     have both denied since the last grant, that is the former one, so that a denial changes the
//     state once for each grant at most. Events keep their times: were they taken to be as late as
//     the denial, limits that are asked in turns would starve the key.
//   - That limit takes the place of the other one with the first grant. A denial gives it that
//     place, too, if its state would be another one at a later instant: that of a bucket, whose
//     tokens come back at the new rate from then on, or of a window that remembers what the other
//     one forgets. So RetryAfter is true.
//   - One that is similar to either of them keeps that one's state, except that a bucket which
//     would have adopted more from the one that was asked last counts as much, up to its bound: a
//     lower burst has not counted it.
//   - The former one goes when it was not asked for as long as either remembers, whether the key is
//     idle or not. If it went earlier and came back, it would not know what it granted. A denial
//     counts as asking until the instant at which RetryAfter ends. So that it seldom changes the
//     state, that is noted only if the last noted one is half as long ago, and the former one stays
//     half as long again.
//
// While a limit does not change, nothing of this exists.
//
// The words of such a state are:
//
//	when the former limit was last asked, as far as noted, with secondPresent if it is the
//	    first one, and with formerLast if it has denied since the last grant
//	the latest instant at which either has counted events, or may have, with bothCounted if that
//	    was since both are there
//	the latest instant that either has promised to a reservation
//	the length of the state of the first limit
//	that state
//	the state of the second limit
//
// The limits are in the order in which they came, so that a reservation finds its events however
// often they change places.

const (
	formerAsked = iota
	lastSpent
	promised
	firstLength
	formerHeader
)

// The bits are those of no instant.
const (
	secondPresent = 1 << 63
	formerLast    = 1 << 62
	bothCounted   = 1 << 63
)

// changed is the kernel of states of two limits, which are not similar. It decides as the one that
// is asked. The embedded Kernel is nil: meet looks at the limits one by one.
type changed struct {
	Kernel
	limits [2]*Compiled
	asked  int           // the index of that one
	asking *[2]*Compiled // the kernels for requests that ask for either
	memory uint64        // how many ticks either needs to forget all that it grants
}

// Join returns the kernel of the states of two limits of the same kind, in the order in which they
// came.
func Join(first, second *Compiled) *Compiled {
	if k := second.joined.Load(); k != nil && k.limits[0] == first {
		return k.asking[0]
	}
	k := changed{
		limits: [2]*Compiled{first, second},
		asking: new([2]*Compiled),
		memory: max(first.memory(), second.memory()),
	}
	for i := range k.asking {
		of := k
		of.asked = i
		k.asking[i] = Compile(&of, first.Encoding)
	}
	second.joined.Store(k.asking[0].changed) // of two at once, one is lost, and made again
	return k.asking[0]
}

// memory returns how many ticks c needs to forget all that it grants at once.
func (c *Compiled) memory() (ticks uint64) {
	for _, part := range c.leaves {
		st := make([]uint64, part.Width())
		ticks = max(ticks, part.Fresh(part.Spend(st, 0, part.Limit())))
	}
	return ticks
}

// stored returns the kernel that states of c are stored with: one for both limits that may be
// asked.
func (c *Compiled) stored() *Compiled {
	if c.changed != nil {
		return c.changed.asking[0]
	}
	return c
}

// present returns the kernel for requests that ask for the present limit of st.
func (c *Compiled) present(st []uint64) *Compiled {
	k := c.Base().changed
	switch o := c.open; {
	case k == nil:
		return c
	case o != nil:
		return k.asking[presentOf(o.inner(st))].Opened()
	}
	return k.asking[presentOf(st)]
}

func presentOf(st []uint64) int { return int(st[formerAsked] / secondPresent) }

func askedAt(st []uint64) Instant { return st[formerAsked] % formerLast }

// spentAt returns an instant after which neither limit has counted events.
func spentAt(st []uint64) Instant { return st[lastSpent] % bothCounted }

// lastOf returns the index of the limit that a third one adopts its state from.
func lastOf(st []uint64) int {
	if st[formerAsked]&formerLast != 0 {
		return 1 - presentOf(st)
	}
	return presentOf(st)
}

// Limits returns the limits that the states of c are of: c itself, if it is one.
func (c *Compiled) Limits() []*Compiled {
	c = c.Base()
	if c.changed != nil {
		return c.changed.limits[:]
	}
	return []*Compiled{c}
}

// decider returns the limit that decides on requests for c, and its state.
func (c *Compiled) decider(st []uint64) (*Compiled, []uint64) {
	if c.changed != nil {
		return c.changed.limit(), c.changed.askedState(st)
	}
	return c, st
}

func (c *Compiled) same(other *Compiled) bool {
	return c == other || c.Encoding == other.Encoding &&
		slices.EqualFunc(c.Limits(), other.Limits(), func(a, b *Compiled) bool {
			return a == b || reflect.DeepEqual(a.Kernel, b.Kernel)
		})
}

// Alike reports whether other can adopt a state of c.
func (c *Compiled) Alike(other *Compiled) bool {
	a, b := c.Limits()[0], other.Limits()[0]
	return reflect.TypeOf(a.Kernel) == reflect.TypeOf(b.Kernel) &&
		slices.EqualFunc(a.leaves, b.leaves, func(a, b Kernel) bool {
			return reflect.TypeOf(a) == reflect.TypeOf(b)
		})
}

// Similar reports whether a state of other is one of c as it is.
func (c *Compiled) Similar(other *Compiled) bool {
	if c.base != nil || other.base != nil || c.changed != nil || other.changed != nil {
		return false
	}
	return c.Alike(other) && c.similar(other.Kernel) && c.Width() == other.Width() &&
		slices.EqualFunc(c.leaves, other.leaves, Kernel.sameTimeout)
}

// Meet returns the kernel that applies requests which ask for c, and the state that it applies
// them to, of a key with a state that from left. It does not change st, but may return it. The
// result of a request is stored with that kernel (see stored) if it has changed, or if pin says so.
func (c *Compiled) Meet(
	from *Compiled,
	st []uint64,
	now Instant,
) (k *Compiled, _ []uint64, pin bool) {
	if from.HasTurns() { // it stays what it is while turns of c are ahead
		h := holding{view: view{now: now}}
		h.read(from, st)
		h.advance(now)
		if h.turns() > 0 && h.asks(c) {
			return from, st, false
		}
		h.advance(Forever)
		from, st = h.closed()
	}
	if o := from.open; o != nil {
		return o.meet(c, st, now)
	}
	k, st, pin, _ = c.meet(from, st, now)
	return k, st, pin
}

// inPlace are the sources of a state that is not converted.
var inPlace = []int{}

// meet is Meet, for a state without open holds. It also returns, for each part of k, the index of
// the part of from whose state its own is made of, or -1. It returns no sources if the state is a
// fresh one.
func (c *Compiled) meet(
	from *Compiled,
	st []uint64,
	now Instant,
) (k *Compiled, _ []uint64, pin bool, sources []int) {
	if c.same(from) {
		return c, st, false, inPlace
	}
	if !c.Alike(from) || (from.changed != nil || !c.similar(from.Kernel)) && from.Fresh(st) <= now {
		// The store may have forgotten it.
		return c, c.NewState(), false, nil
	}
	kept, present, last := []member{newMember(from, st, 0)}, 0, 0
	header := []uint64{now, now, 0, 0} // of a state of the limit that is there and a second one
	if two := from.changed; two != nil {
		states := two.states(st)
		kept = []member{
			newMember(two.limits[0], states[0], 0),
			newMember(two.limits[1], states[1], len(two.limits[0].leaves)),
		}
		present, last = presentOf(st), lastOf(st)
		copy(header, st)
		if After(After(max(askedAt(st), st[promised]), two.memory), two.memory/2) <= now {
			kept, present, last = kept[present:present+1], 0, 0
			header[formerAsked], header[lastSpent] = now, now
		}
	}
	latest := now      // when the limit that was asked last may have counted events
	uncounted := false // whether a bucket of it may not have counted what the present one granted
	if last != present {
		latest = min(now, spentAt(header))
		uncounted = header[lastSpent]&bothCounted != 0
	}
	asked := slices.IndexFunc(kept, func(m member) bool { return m.limit.same(c) })
	like := slices.IndexFunc(kept, func(m member) bool { return c.similar(m.limit.Kernel) })
	switch {
	case asked >= 0 && len(kept) == 2:
		return from.changed.asking[asked], st, false, inPlace
	case asked >= 0:
	case like >= 0:
		asked = like
		next, lasting := c.Adopt(kept[asked].limit.Kernel, kept[asked].st, now, now)
		kept[asked].limit, kept[asked].st = c, next
		pin = asked != present || asked != last || !lasting
		if asked != last {
			kept[asked].raise(kept[last].adoptedBy(c, now, latest), now)
		}
		if uncounted && asked != present {
			kept[asked].raise(kept[present].adoptedBy(c, now, now), now)
		}
	default:
		old := kept[last]
		next, lasting := c.Adopt(old.limit.Kernel, old.st, now, latest)
		added := member{c, next, slices.Clone(old.sources)}
		if uncounted {
			added.deepen(kept[present].adoptedBy(c, now, now), now)
		}
		pin = !lasting || c.Fresh(added.st) > max(now, old.limit.Fresh(old.st))
		kept, asked = []member{old, added}, 1
		header[formerAsked], header[lastSpent] = now, latest
	}
	if len(kept) == 1 {
		return c, kept[0].st, pin, kept[0].sources
	}
	sources = slices.Concat(kept[0].sources, kept[1].sources)
	k = Join(kept[0].limit, kept[1].limit)
	header[firstLength] = uint64(len(kept[0].st))
	return k.changed.asking[asked], slices.Concat(header, kept[0].st, kept[1].st), pin, sources
}

// A member is one of the limits that a state is of.
type member struct {
	limit   *Compiled
	st      []uint64
	sources []int // for each part, the index of the one whose state its own is made of, or −1
}

// newMember returns the limit whose first part has the given index.
func newMember(limit *Compiled, st []uint64, first int) member {
	m := member{limit, st, make([]int, len(limit.leaves))}
	for i := range m.sources {
		m.sources[i] = first + i
	}
	return m
}

// adoptedBy returns the state that c adopts from that of m.
func (m *member) adoptedBy(c *Compiled, now, latest Instant) []uint64 {
	st, _ := c.Adopt(m.limit.Kernel, m.st, now, latest)
	return st
}

// deepen gives each bucket of m that misses less than in level the state that it has there.
func (m *member) deepen(level []uint64, now Instant) {
	m.deepenBy(level, now, func(_ Kernel, st, deeper []uint64) []uint64 {
		copy(st, deeper)
		return st
	})
}

// raise is deepen for a limit that was there before: its buckets owe no more than they have credit
// for.
func (m *member) raise(level []uint64, now Instant) {
	m.deepenBy(level, now, func(part Kernel, st, deeper []uint64) []uint64 {
		if part.credit(deeper, now) > 0 {
			copy(st, deeper)
			return st
		}
		more := min(part.credit(st, now), part.chargeable(st, now, m.limit.Encoding), math.MaxInt)
		if more == 0 {
			return st
		}
		return part.Spend(st, now, int(more))
	})
}

// deepenBy replaces the state of each bucket of m that misses less than in level with the result of
// f, which is called with the one that it has there.
func (m *member) deepenBy(
	level []uint64,
	now Instant,
	f func(part Kernel, st, deeper []uint64) []uint64,
) {
	levels := m.limit.partStates(level)
	m.st = m.limit.each(m.st, func(i int, _ bool, part Kernel, st []uint64) []uint64 {
		if !part.missesLess(st, levels[i], now) {
			return st
		}
		m.sources[i] = -1
		return f(part, st, levels[i])
	})
}

// states returns the states of the limits. To append to one leaves st as it is.
func (k *changed) states(st []uint64) [2][]uint64 {
	end := formerHeader + int(st[firstLength])
	return [2][]uint64{st[formerHeader:end:end], st[end:len(st):len(st)]}
}

// limit returns the limit that is asked, and askedState its state.
func (k *changed) limit() *Compiled { return k.limits[k.asked] }

func (k *changed) askedState(st []uint64) []uint64 { return k.states(st)[k.asked] }

func (k *changed) each(
	st []uint64,
	f func(i int, asked bool, part Kernel, st []uint64) []uint64,
) []uint64 {
	states, first := k.states(st), 0
	for j, limit := range k.limits {
		states[j] = limit.eachOf(states[j], first, j == k.asked, f)
		first += len(limit.leaves)
	}
	header := []uint64{st[formerAsked], st[lastSpent], st[promised], uint64(len(states[0]))}
	return slices.Concat(header, states[0], states[1])
}

// denies records that the limit that is asked denies until an instant, if it is the former one. It
// reports whether that changed the state.
func (k *changed) denies(st []uint64, until Instant) (noted bool) {
	if presentOf(st) == k.asked {
		return false
	}
	noted = st[formerAsked]&formerLast == 0
	st[formerAsked] |= formerLast
	if until > MaxInstant || After(askedAt(st), k.memory/2) > until {
		return noted
	}
	st[formerAsked] += until - askedAt(st)
	return true
}

func (k *changed) frontier(st []uint64) Instant {
	return max(k.limit().frontier(k.askedState(st)), st[promised])
}

func (k *changed) Limit() int { return k.limit().Limit() }

func (k *changed) Width() int { return 0 }

func (k *changed) Ready(st []uint64, now Instant, n int) Instant {
	return k.limit().Ready(k.askedState(st), max(now, st[promised]), n)
}

func (k *changed) Remaining(st []uint64, now Instant) int {
	return k.limit().Remaining(k.askedState(st), now)
}

// Fresh comes not before the former limit goes: if a store forgot what both have granted as soon as
// nothing of it counts in either, a limit that comes back would not know it.
func (k *changed) Fresh(st []uint64) Instant {
	at := max(st[promised], After(askedAt(st), k.memory))
	for i, state := range k.states(st) {
		at = max(at, k.limits[i].Fresh(state))
	}
	return at
}

func (k *changed) delay(st []uint64, at Instant) uint64 {
	return k.limit().delay(k.askedState(st), at)
}

func (k *changed) full(st []uint64, now Instant, n int) bool {
	return k.limit().full(k.askedState(st), max(now, st[promised]), n)
}

func (k *changed) notes() bool { return k.limit().Notes() }

func (k *changed) delays() bool { return k.limit().Delays() }

func (k *changed) refuse(st []uint64, now Instant, n int, held uint64) (_ []uint64, noted bool) {
	return k.each(st, func(_ int, asked bool, part Kernel, st []uint64) []uint64 {
		if asked {
			var did bool
			st, did = part.refuse(st, now, n, held)
			noted = noted || did
		}
		return st
	}), noted
}

func (k *changed) Spend(st []uint64, at Instant, n int) []uint64 {
	st = k.each(st, func(_ int, asked bool, part Kernel, st []uint64) []uint64 {
		if asked {
			return part.Spend(st, at, n)
		}
		return k.follow(part, st, at, n)
	})
	if presentOf(st) != k.asked { // it is from now on
		st[formerAsked] = at + uint64(k.asked)*secondPresent
	}
	st[formerAsked] &^= formerLast
	st[lastSpent] = max(spentAt(st), at) | bothCounted
	return st
}

func (k *changed) take(st []uint64, now Instant, n int) ([]uint64, bool) {
	if k.Ready(st, now, n) > now {
		return st, false
	}
	return k.Spend(st, now, n), true
}

func (k *changed) promise(st []uint64) { k.limit().promise(k.askedState(st)) }

func (k *changed) chargeable(st []uint64, now Instant, enc Encoding) uint64 {
	return k.limit().chargeable(k.askedState(st), now, enc)
}

// follow counts events in a part of the other limit: those that its state can hold, and in a bucket
// those that it has credit for.
func (k *changed) follow(part Kernel, st []uint64, at Instant, n int) []uint64 {
	most := min(uint64(n), part.chargeable(st, at, k.limit().Encoding), part.credit(st, at))
	if most == 0 {
		return st
	}
	return part.shed(part.Spend(st, at, int(most)))
}

func (k *changed) Pack(st []uint64) []uint64 {
	return k.each(
		st,
		func(_ int, _ bool, part Kernel, st []uint64) []uint64 { return part.Pack(st) },
	)
}

func (k *changed) Valid(st []uint64) bool {
	if len(st) < formerHeader || max(askedAt(st), spentAt(st), st[promised]) > MaxInstant ||
		st[firstLength] > uint64(len(st)-formerHeader) {
		return false
	}
	for i, state := range k.states(st) {
		if !k.limits[i].sound(state) {
			return false
		}
	}
	return true
}
