package step

import (
	"reflect"
	"slices"
	"weak"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// The limit of a key may change, and while a new version of a service is deployed, processes
// ask in turns for an old limit and a new one. This file decides what a key has granted by a
// limit that did not grant it.
//
// Limits that differ only in how much they grant share their states: one serves both. Otherwise,
// no state has what both need (the count of a second has forgotten what two seconds count, and
// tokens come back at different rates). So the key keeps two limits, each with a state of its own:
// the present one, which granted last, and a former one.
//
// Of a key with the present limit P and perhaps a former one F, N is a limit that shares the states
// of neither, and L is the one that was asked last:
//
//	the key has   asked is   after a grant     after a denial
//	P             P          P                 P
//	P             N          N, and P former   P, or P and N if N's state changes with time
//	P, F          P          P, F              P, F
//	P, F          F          F, and P former   P, F
//	P, F          N          N, and L former   P, F, or L and N if N's state changes with time
//
// The laws are:
//
//   - The one that is asked decides alone, but grants nothing before a reservation that was made
//     under the other one.
//   - A grant counts in both states, above the limit of the other one if need be. A bucket counts
//     only as much as leaves twice as many events missing as it grants at once. If it owed more, a
//     limit that comes back would first pay for all that a higher one has granted since.
//   - N adopts its state from L, also if L has only denied: to ease a clamp grants no more than the
//     clamp would have. If P and F have both denied since the last grant, L is F, so that a denial
//     changes the state at most once for each grant. Events keep their times. If they were taken to
//     be as late as the denial, limits that are asked in turns would starve the key.
//   - The state of N changes with time if it is that of a bucket, whose tokens come back at the new
//     rate from then on, or of a window that remembers what the other one forgets. Then even a
//     denial keeps N, so that its RetryAfter is true.
//   - A limit that shares the states of P or F takes that one's place, and keeps its state. A
//     bucket then counts what it would have adopted from L, if that is more, up to its bound: a
//     lower burst has not counted it.
//   - F goes when nobody has asked F for some time: the time for which either limit remembers
//     what it grants at once. If F went earlier, and were asked again, it would not know what it
//     has granted. That the key is idle makes no difference. A key may owe more than that, by a
//     charge, or because a lower limit has adopted what a higher one granted. So F stays at least
//     until what counted in either, when F was asked, has been forgotten. A denial by F counts as
//     asking until its RetryAfter ends. It is noted only if the last noted one is half as long
//     ago, so that it seldom changes the state, and so F stays half as long again.
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

// twoLimits is the kernel of states of two limits that do not share their states. It decides as the
// one that is asked. It is no Kernel: successorOf looks at the limits one by one.
type twoLimits struct {
	limits  [2]*Machine
	asked   int          // the index of that one
	byAsked *[2]*Machine // the kernels for requests that ask for either
	memory  uint64       // how many ticks either needs to forget all that it grants
}

// JoinLimits returns the kernel of the states of two limits of the same kind, in the order in which
// they came.
func JoinLimits(first, second *Machine) *Machine {
	if cached := second.joined.Load(); cached != nil {
		k := cached.Value()
		if k != nil && k.limits[0] == first {
			return k.byAsked[0]
		}
	}
	k := twoLimits{
		limits:  [2]*Machine{first, second},
		byAsked: new([2]*Machine),
		memory:  max(first.memory(), second.memory()),
	}
	for i := range k.byAsked {
		of := k
		of.asked = i
		k.byAsked[i] = newMachine(&of, first.Encoding)
	}
	// If two goroutines store at once, one kernel is lost, and is made again: this is only a cache.
	cached := weak.Make(k.byAsked[0].two)
	second.joined.Store(&cached)
	return k.byAsked[0]
}

// memory returns how many ticks c needs to forget all that it grants at once.
func (c *Machine) memory() (ticks uint64) {
	for _, part := range c.leaves {
		st := make([]uint64, part.Width())
		ticks = max(ticks, part.Memory(), part.Fresh(part.Spend(st, 0, part.Limit())))
	}
	return ticks
}

// storedAs returns the kernel that states of c are stored with: one for both limits that may be
// asked.
func (c *Machine) storedAs() *Machine {
	if c.two != nil {
		return c.two.byAsked[0]
	}
	return c
}

// presentLimit returns the kernel for requests that ask for the present limit of st.
func (c *Machine) presentLimit(st State) *Machine {
	if c.two == nil {
		return c
	}
	return c.two.byAsked[c.presentIn(st)]
}

// Present returns the limit that granted last on the key of a state of c.
func (c *Machine) Present(st State) *Machine {
	if c.two == nil {
		return c
	}
	return c.two.limits[c.presentIn(st)]
}

// presentIn is presentOf for any state of c.
func (c *Machine) presentIn(st State) int {
	var h heldState
	h.read(c, st)
	return presentOf(h.inner())
}

func presentOf(st []uint64) int { return int(st[formerAsked] / secondPresent) }

func askedAt(st []uint64) kernel.Instant { return st[formerAsked] % formerLast }

// spentAt returns an instant after which neither limit has counted events.
func spentAt(st []uint64) kernel.Instant { return st[lastSpent] % bothCounted }

// lastOf returns the index of the limit that a third one adopts its state from.
func lastOf(st []uint64) int {
	if st[formerAsked]&formerLast != 0 {
		return 1 - presentOf(st)
	}
	return presentOf(st)
}

// Limits returns the limits that the states of c are of: c itself, if it is one.
func (c *Machine) Limits() []*Machine {
	if c.two != nil {
		return c.two.limits[:]
	}
	return []*Machine{c}
}

// askedLimit returns the limit that decides on requests for c, and its state.
func (c *Machine) askedLimit(st []uint64) (*Machine, []uint64) {
	if c.two != nil {
		return c.two.limit(), c.two.askedState(st)
	}
	return c, st
}

func (c *Machine) equal(other *Machine) bool {
	return c == other || c.Encoding == other.Encoding &&
		slices.EqualFunc(c.Limits(), other.Limits(), func(a, b *Machine) bool {
			return a == b || a.sameParameters(b)
		})
}

// sameParameters is equal for the kernels of one limit.
func (c *Machine) sameParameters(other *Machine) bool {
	if c.parts == nil || other.parts == nil {
		return kernel.Equal(c.Kernel, other.Kernel)
	}
	return slices.Equal(c.parts.places, other.parts.places) &&
		slices.EqualFunc(c.leaves, other.leaves, kernel.Equal)
}

// SameKind reports whether other can adopt a state of c.
func (c *Machine) SameKind(other *Machine) bool {
	a, b := c.Limits()[0], other.Limits()[0]
	return reflect.TypeOf(a.Kernel) == reflect.TypeOf(b.Kernel) &&
		slices.EqualFunc(a.leaves, b.leaves, func(a, b kernel.Kernel) bool {
			return reflect.TypeOf(a) == reflect.TypeOf(b)
		})
}

// ReadsStatesOf reports whether a state of other is one of c as it is.
func (c *Machine) ReadsStatesOf(other *Machine) bool {
	if c.two != nil || other.two != nil {
		return false
	}
	return c.SameKind(other) && c.Kernel.SharesStates(other.Kernel) && c.Width() == other.Width() &&
		slices.EqualFunc(c.leaves, other.leaves, kernel.Kernel.SameTimeout)
}

// states returns the states of the limits. To append to one leaves st as it is.
func (k *twoLimits) states(st []uint64) [2][]uint64 {
	end := formerHeader + int(st[firstLength])
	return [2][]uint64{st[formerHeader:end:end], st[end:len(st):len(st)]}
}

// limit returns the limit that is asked, and askedState its state.
func (k *twoLimits) limit() *Machine { return k.limits[k.asked] }

func (k *twoLimits) askedState(st []uint64) []uint64 { return k.states(st)[k.asked] }

func (k *twoLimits) each(
	st []uint64,
	f func(i int, asked bool, part kernel.Kernel, st []uint64) []uint64,
) []uint64 {
	states, first := k.states(st), 0
	for j, limit := range k.limits {
		states[j] = limit.eachOf(states[j], first, j == k.asked, f)
		first += len(limit.leaves)
	}
	header := []uint64{st[formerAsked], st[lastSpent], st[promised], uint64(len(states[0]))}
	return slices.Concat(header, states[0], states[1])
}

// denies records that the limit that is asked denies until an instant, if it is the former one, or
// may become that because turns are ahead. It reports whether that changed the state.
func (k *twoLimits) denies(st []uint64, until kernel.Instant, turnsAhead bool) (noted bool) {
	switch {
	case presentOf(st) != k.asked:
		noted = st[formerAsked]&formerLast == 0
		st[formerAsked] |= formerLast
	case !turnsAhead:
		return false
	}
	until = max(until, k.remembered(st))
	if until > kernel.MaxInstant || kernel.After(askedAt(st), k.memory/2) > until {
		return noted
	}
	st[formerAsked] += until - askedAt(st)
	return true
}

func (k *twoLimits) Frontier(st []uint64) kernel.Instant {
	return max(k.limit().Frontier(k.askedState(st)), st[promised])
}

func (k *twoLimits) Limit() int { return k.limit().Limit() }

func (k *twoLimits) Width() int { return 0 }

func (k *twoLimits) Ready(st []uint64, now kernel.Instant, n int) kernel.Instant {
	return k.limit().Ready(k.askedState(st), max(now, st[promised]), n)
}

func (k *twoLimits) Remaining(st []uint64, now kernel.Instant) int {
	return k.limit().Remaining(k.askedState(st), now)
}

// Fresh comes not before the former limit goes: if a store forgot what both have granted as soon as
// nothing of it counts in either, a limit that comes back would not know it.
func (k *twoLimits) Fresh(st []uint64) kernel.Instant {
	return max(st[promised], kernel.After(askedAt(st), k.memory), k.forgets(st))
}

// remembered returns an instant such that a limit that was asked then stays until nothing counts in
// either.
func (k *twoLimits) remembered(st []uint64) kernel.Instant {
	at := k.forgets(st)
	return min(at-min(at, k.memory), kernel.MaxInstant)
}

// forgets returns the instant from which on nothing counts in either limit.
func (k *twoLimits) forgets(st []uint64) kernel.Instant {
	states := k.states(st)
	return max(k.limits[0].Fresh(states[0]), k.limits[1].Fresh(states[1]))
}

func (k *twoLimits) Delay(st []uint64, at kernel.Instant) uint64 {
	return k.limit().Delay(k.askedState(st), at)
}

func (k *twoLimits) Full(st []uint64, now kernel.Instant, n int) bool {
	return k.limit().Full(k.askedState(st), max(now, st[promised]), n)
}

func (k *twoLimits) Notes() bool { return k.limit().Notes() }

func (k *twoLimits) Delays() bool { return k.limit().Delays() }

func (k *twoLimits) Refuse(
	st []uint64,
	now kernel.Instant,
	n int,
	held uint64,
) (_ []uint64, noted bool) {
	return k.each(st, func(_ int, asked bool, part kernel.Kernel, st []uint64) []uint64 {
		if asked {
			var did bool
			st, did = part.Refuse(st, now, n, held)
			noted = noted || did
		}
		return st
	}), noted
}

func (k *twoLimits) Spend(st []uint64, at kernel.Instant, n int) []uint64 {
	whenAsked := st[formerAsked]
	if presentOf(st) != k.asked { // it is from now on, and the other one is the former one
		whenAsked = max(at, k.remembered(st)) + uint64(k.asked)*secondPresent
	}
	st = k.each(st, func(_ int, asked bool, part kernel.Kernel, st []uint64) []uint64 {
		if asked {
			return part.Spend(st, at, n)
		}
		return k.follow(part, st, at, n)
	})
	st[formerAsked] = whenAsked &^ formerLast
	st[lastSpent] = max(spentAt(st), at) | bothCounted
	return st
}

func (k *twoLimits) Take(st []uint64, now kernel.Instant, n int) ([]uint64, bool) {
	if k.Ready(st, now, n) > now {
		return st, false
	}
	return k.Spend(st, now, n), true
}

func (k *twoLimits) Promise(st []uint64) { k.limit().Promise(k.askedState(st)) }

func (k *twoLimits) Chargeable(st []uint64, now kernel.Instant, enc kernel.Encoding) uint64 {
	return k.limit().Chargeable(k.askedState(st), now, enc)
}

// follow counts events in a part of the other limit: those that its state can hold, and in a bucket
// those that it has credit for.
func (k *twoLimits) follow(part kernel.Kernel, st []uint64, at kernel.Instant, n int) []uint64 {
	most := min(uint64(n), part.Chargeable(st, at, k.limit().Encoding), part.Credit(st, at))
	if most == 0 {
		return st
	}
	return part.Shed(part.Spend(st, at, int(most)))
}

func (k *twoLimits) Pack(st []uint64) []uint64 {
	return k.each(st, func(_ int, _ bool, part kernel.Kernel, st []uint64) []uint64 {
		return part.Pack(st)
	})
}

func (k *twoLimits) Valid(st []uint64, _ kernel.Encoding) bool {
	if len(st) < formerHeader || max(askedAt(st), spentAt(st), st[promised]) > kernel.MaxInstant ||
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
