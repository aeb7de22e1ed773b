package kernel

import (
	"cmp"
	"math"
	"reflect"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// The limit of a key may change, and while a new version of a service is deployed, processes
// ask in turns for an old limit and a new one. This file decides what a key has granted by a
// limit that did not grant it.
//
// Limits that differ only in how much they grant are similar: one state serves them. Otherwise,
// no state has what both need (the count of a second has forgotten what two seconds count, and
// tokens come back at different rates). So the key has a state for each limit:
//
//   - A limit that is asked for the first time gets a state of its own, which is adopted from
//     that of the limit that knows most. It is kept from the first grant on. A denial keeps it, too,
//     if it would be another one at a later instant: that of a bucket, whose tokens come back at the
//     new rate from then on, or of a window that remembers what the others forget. So RetryAfter is
//     true.
//   - What is granted counts in all states, above the limits of the others if need be.
//   - A request is granted if the limit that is asked grants it. That bounds what all of them have
//     in any span, if the limit carries a debt over (a bucket). A window forgets it. So if there is
//     a looser window, which grants no less at once and in the long run, that one must grant the
//     request as well. All of them together then never have more than the looser would grant
//     alone, and a limit that is raised has an effect at once.
//   - A limit that is no longer asked goes with the next grant of another one, once its state is
//     idle and it has granted nothing for as long as any of the limits remembers. (If it went
//     earlier and came back, its new state would count again what it has forgotten.) A key may never
//     be idle: after mostUnasked times as long, the limit goes as well. If there are more than
//     MostVersions limits, the one that came first goes.
//
// While a limit does not change, nothing of this exists.

// MostVersions is the most limits that a key has a state of at once.
const MostVersions = 3

// mostUnasked is how many times as long as limits remember one stays that grants nothing, if it is never
// idle. What each return of a limit costs is then a small part of what it grants in between.
const mostUnasked = 10

// versions are similar to no other: the limits of a key, in the order in which they came.
type versions struct {
	limits []*Compiled // each of one limit
	asked  []*Compiled // for each limit, the kernel that applies requests which ask for it
	memory uint64      // how many ticks the limit with the longest memory needs to forget all that it grants
}

// stored returns the kernel that states of c are stored with: one for all limits that may be asked.
func (c *Compiled) stored() *Compiled {
	if c.versions != nil {
		return c.versions.asked[0]
	}
	return c
}

// granted returns the kernel for requests that ask for the limit of st which granted something last.
func (c *Compiled) granted(st []uint64) *Compiled {
	base := c.Base()
	if base.versions == nil {
		return c
	}
	inner := st
	if o := c.opened(); o != nil {
		inner = o.inner(st)
	}
	i, last, by := 0, Instant(0), base
	for part, st := range base.parts.states(inner) {
		if _, ok := part.Kernel.(*mark); !ok {
			continue
		}
		if st[0] >= last { // which it is of the mark with grantedLast
			last, by = st[0], base.versions.asked[i]
		}
		i++
	}
	if c != base {
		return by.Opened()
	}
	return by
}

// Versions returns the limits that the states of c are of: c itself, if it is one limit.
func (c *Compiled) Versions() []*Compiled {
	if c = c.Base(); c.versions != nil {
		return c.versions.limits
	}
	return []*Compiled{c}
}

// Join returns the kernel of the states of several limits, in their order: at least two, of the
// same kind.
func Join(limits []*Compiled) *Compiled {
	last := limits[len(limits)-1]
	var known []*versions
	if p := last.joined.Load(); p != nil {
		known = *p
	}
	for _, v := range known {
		if slices.Equal(v.limits, limits) {
			return v.asked[0]
		}
	}
	v := &versions{limits: slices.Clone(limits)}
	for i, limit := range limits {
		for _, part := range limit.leaves() {
			v.memory = max(v.memory, memory(part))
		}
		v.asked = append(v.asked, v.compile(i))
	}
	known = append([]*versions{v}, known[:min(len(known), 3)]...)
	last.joined.Store(&known) // of two at once, one is lost, and made again
	return v.asked[0]
}

// compile returns the kernel for requests that ask for a limit, by its index.
func (v *versions) compile(asked int) *Compiled {
	own := v.limits[asked]
	k := &all{most: own.Limit(), tick: own.Tick}
	for i, limit := range v.limits {
		for j, part := range limit.leaves() {
			binds := i != asked && looser(part, i, own.leaves()[j], asked)
			if p, ok := part.Kernel.(promiser); ok {
				part.Kernel = p.promising()
			}
			if i != asked {
				part = capable{&passive{part.Kernel, own.Encoding, binds}, part.can &^ (holds | notes)}
			}
			k.parts = append(k.parts, part)
			if part.Width() == 0 {
				k.grows++
			}
			k.fixed += part.Width()
			place := j
			if own.parts != nil {
				place = own.parts.place(j)
			}
			k.places = append(k.places, place)
		}
		k.parts, k.places = append(k.parts, capable{Kernel: &mark{plan{limit: math.MaxInt}, v.memory, i == asked}}), append(k.places, 0)
		k.fixed++
	}
	c := Compile(k, own.Encoding)
	c.versions = v
	return c
}

// memory returns how many ticks a part of a limit needs to forget all that it grants at once.
func memory(part capable) uint64 {
	events, ticks, carries := part.pace()
	if !carries {
		return ticks
	}
	return uint128.Mul(uint64(part.Limit()), ticks).DivCeil(max(events, 1))
}

// over reports whether a limit goes that last granted anything at asked, and whose state is idle from
// fresh on.
func (v *versions) over(asked, fresh, now Instant) bool {
	return After(asked, v.memory) <= now && (fresh <= now || After(asked, mostUnasked*min(v.memory, Forever/mostUnasked)) <= now)
}

// looser reports whether a, of the i-th limit, is a window that grants no less than b, of the j-th:
// neither at once nor in the long run. Of equals, the first does.
func looser(a capable, i int, b capable, j int) bool {
	events, ticks, carries := a.pace()
	others, theirs, _ := b.pace()
	mine, other := uint128.Mul(events, theirs), uint128.Mul(others, ticks)
	if mine == other && a.Limit() == b.Limit() {
		return !carries && i < j
	}
	return !carries && !mine.Less(other) && a.Limit() >= b.Limit()
}

// same reports whether c and other have the same parameters.
func (c *Compiled) same(other *Compiled) bool {
	return c == other || c.Encoding == other.Encoding &&
		slices.EqualFunc(c.Versions(), other.Versions(), func(a, b *Compiled) bool {
			return a == b || reflect.DeepEqual(a.Kernel, b.Kernel)
		})
}

// Alike reports whether other can adopt a state of c.
func (c *Compiled) Alike(other *Compiled) bool {
	a, b := c.Versions()[0], other.Versions()[0]
	return reflect.TypeOf(a.Kernel) == reflect.TypeOf(b.Kernel) &&
		slices.EqualFunc(a.leaves(), b.leaves(), func(a, b capable) bool {
			return reflect.TypeOf(a.Kernel) == reflect.TypeOf(b.Kernel)
		})
}

// Similar reports whether states of c and other are the same.
func (c *Compiled) Similar(other *Compiled) bool {
	return c.base == nil && other.base == nil && c.versions == nil && other.versions == nil && c.Alike(other) && c.similar(other.Kernel) && c.Width() == other.Width()
}

// Meet returns the kernel that applies requests which ask for c, and the state that it applies
// them to, of a key with a state that from left. It does not change st, but may return it. The
// result of a request is stored with that kernel (see stored) if it has changed, or if pin says so.
func (c *Compiled) Meet(from *Compiled, st []uint64, now Instant) (k *Compiled, _ []uint64, pin bool) {
	if o := from.opened(); o != nil {
		return o.meet(c, st, now)
	}
	k, st, pin, _ = c.meet(from, st, now)
	return k, st, pin
}

// inPlace are the sources of a state that is not converted.
var inPlace = []int{}

// meet is Meet, for a state without open holds. It also returns, for each part of k, the index of the
// part of from whose state its own is made of. It returns no sources if the state is a fresh one.
func (c *Compiled) meet(from *Compiled, st []uint64, now Instant) (k *Compiled, _ []uint64, pin bool, sources []int) {
	if c == from || c.same(from) {
		return c, st, false, inPlace
	}
	if !c.Alike(from) || (from.versions != nil || !c.similar(from.Kernel)) && from.Fresh(st) <= now { // the store may have forgotten it
		return c, c.NewState(), false, nil
	}
	if k := from.asking(c, st, now); k != nil {
		return k, st, false, inPlace
	}
	all := from.members(st, now)
	isOver := func(m member) bool { return m.over(now) && !m.limit.same(c) }
	own := slices.IndexFunc(all, func(m member) bool { return m.limit.same(c) })
	if own < 0 {
		known := all
		like := slices.IndexFunc(all, func(m member) bool { return c.similar(m.limit.Kernel) })
		if like >= 0 {
			known = all[like : like+1]
		}
		m := member{limit: c, mark: now}
		for i, part := range c.leaves() {
			old, st, source := witness(part, i, known)
			next, same := part.Adopt(old.Kernel, st, now)
			m.parts, m.sources = append(m.parts, next), append(m.sources, source)
			pin = pin || like < 0 && (!same || part.Fresh(next) > max(now, old.Fresh(st)))
		}
		if like >= 0 {
			m.mark |= all[like].mark & grantedLast
			all[like] = m
		} else {
			all = append(all, m)
		}
	}
	all = slices.DeleteFunc(all, isOver)
	if more := len(all) - MostVersions; more > 0 {
		all, pin = all[more:], false // denials of limits that come in turns would renew what counts
	}
	if len(all) == 1 {
		return c, all[0].state(), pin, all[0].sources
	}
	var limits []*Compiled
	var states [][]uint64
	for _, m := range all {
		limits = append(limits, m.limit)
		states = append(append(states, m.parts...), []uint64{m.mark})
		sources = append(append(sources, m.sources...), 0) // the mark has none
	}
	k = Join(limits).versions.asked[slices.IndexFunc(limits, c.same)]
	return k, joined(k.parts.parts, states), pin, sources
}

// asking returns the kernel for requests that ask for limit, if it is one of those of c, and none of
// the others is over.
func (c *Compiled) asking(limit *Compiled, st []uint64, now Instant) (k *Compiled) {
	if c.versions == nil {
		return nil
	}
	i, fresh := 0, Instant(0)
	for part, st := range c.parts.states(st) {
		if _, last := part.Kernel.(*mark); !last {
			fresh = max(fresh, part.Fresh(st))
			continue
		}
		if c.versions.limits[i].same(limit) {
			k = c.versions.asked[i]
		} else if c.versions.over(markedAt(st[0]), fresh, now) {
			return nil
		}
		i, fresh = i+1, 0
	}
	return k
}

// A member is one of the limits that a state is of.
type member struct {
	limit   *Compiled
	parts   [][]uint64 // the states of its parts
	sources []int      // the parts of the state that these are made of
	mark    uint64     // of a mark
	of      *versions  // those that it is one of, if there are others
}

// members returns the limits that st is of. If it is only one, it granted whatever the key was granted, but
// the state does not say when, which may be now.
func (c *Compiled) members(st []uint64, now Instant) (all []member) {
	parts := c.partStates(st)
	sources := placesUpTo(len(parts))
	if c.versions == nil {
		return []member{{limit: c, parts: parts, sources: sources, mark: now | grantedLast}}
	}
	for _, limit := range c.versions.limits {
		n := len(limit.leaves())
		all = append(all, member{limit, parts[:n:n], sources[:n:n], parts[n][0], c.versions})
		parts, sources = parts[n+1:], sources[n+1:]
	}
	return all
}

// witness returns the i-th part of the member from whose state part knows most, and that state: of
// buckets, the one that granted last; of windows, the one that remembers least of those that remember
// as long as part does, or else longest. It also returns where it is among all parts.
func witness(part capable, i int, known []member) (old capable, st []uint64, source int) {
	_, _, carries := part.pace()
	best := slices.MaxFunc(known, func(a, b member) int {
		if carries {
			return cmp.Compare(a.mark, b.mark)
		}
		want, x, y := memory(part), memory(a.limit.leaves()[i]), memory(b.limit.leaves()[i])
		return cmp.Or(cmp.Compare(min(x, want), min(y, want)), cmp.Compare(y, x))
	})
	return best.limit.leaves()[i], best.parts[i], best.sources[i]
}

// over reports whether the limit goes, unless it is asked at now. If it is the only one, it is not idle.
func (m *member) over(now Instant) bool {
	return m.of != nil && m.of.over(markedAt(m.mark), m.limit.Fresh(m.state()), now)
}

// state returns the state of the limit alone.
func (m *member) state() []uint64 {
	if m.limit.parts == nil {
		return m.parts[0]
	}
	return joined(m.limit.leaves(), m.parts)
}

// A passive is a part of a limit that is not asked. It counts what is granted, and if it binds, it
// must grant it as well: as many events at once as it ever does.
type passive struct {
	Kernel
	enc   Encoding
	binds bool
}

// A promiser is a kernel that must know that it counts what other limits reserve: at instants at which
// it would not grant that, and more than it would.
type promiser interface {
	// promising returns a copy that does.
	promising() Kernel
}

func (k *passive) Limit() int { return math.MaxInt }

func (k *passive) frontier(st []uint64) Instant {
	if k.binds {
		return k.Kernel.frontier(st)
	}
	return 0
}

func (k *passive) Ready(st []uint64, now Instant, n int) Instant {
	if k.binds {
		return k.Kernel.Ready(st, now, min(n, k.Kernel.Limit()))
	}
	return now
}

func (k *passive) Remaining(st []uint64, now Instant) int {
	if k.binds {
		if remaining := k.Kernel.Remaining(st, now); remaining < k.Kernel.Limit() {
			return remaining
		}
	}
	return math.MaxInt
}

// Spend counts as many of the events as the state can hold.
func (k *passive) Spend(st []uint64, at Instant, n int) []uint64 {
	if most := k.Kernel.chargeable(st, at, k.enc); uint64(n) > most {
		n = int(most)
	}
	if n == 0 {
		return st
	}
	return k.shed(k.Kernel.charge(st, at, n))
}

// shed bounds a log, in which others than its limit may grant any number of events.
func (k *passive) shed(st []uint64) []uint64 {
	if log, ok := k.Kernel.(*eventLog); ok {
		return log.shed(st)
	}
	return st
}

func (k *passive) charge(st []uint64, now Instant, n int) []uint64 { return k.Spend(st, now, n) }

func (k *passive) chargeable([]uint64, Instant, Encoding) uint64 { return math.MaxUint64 }

func (k *passive) reserve(st []uint64, now, at Instant, n int, to []trace) ([]uint64, []trace) {
	if uint64(n) > k.Kernel.chargeable(st, at, k.enc) {
		return st, append(to, trace{})
	}
	st, to = k.Kernel.reserve(st, now, max(at, k.Kernel.frontier(st)), n, to)
	return k.shed(st), to
}

func (k *passive) giveBack(st []uint64, at, now Instant, n int) (_ []uint64, gone bool) {
	if r, ok := k.Kernel.(returner); ok {
		return r.giveBack(st, at, now, n)
	}
	return st, false
}

func (k *passive) pack(st []uint64) []uint64 {
	if p, ok := k.Kernel.(packer); ok && len(st) > 0 {
		return p.pack(st)
	}
	return st
}

// A mark is the instant at which a limit last granted anything. That of the limit that granted last has
// grantedLast as well: several may have granted at one instant, or ahead of time, and one that is asked for the
// first time has granted nothing yet.
type mark struct {
	plan
	memory uint64 // that of the versions
	own    bool   // whether the limit is the one that is asked
}

const grantedLast = 1 << 63

// markedAt returns the instant of a mark.
func markedAt(mark uint64) Instant { return mark &^ grantedLast }

func (k *mark) Width() int { return 1 }

// Fresh returns when the limit goes, if it is idle: a key that is forgotten earlier would lose it too soon.
func (k *mark) Fresh(st []uint64) Instant { return After(markedAt(st[0]), k.memory) }

func (k *mark) Valid(st []uint64) bool { return markedAt(st[0]) <= MaxInstant }

func (k *mark) Spend(st []uint64, at Instant, _ int) []uint64 {
	if k.own {
		st[0] = at | grantedLast
	} else {
		st[0] = markedAt(st[0])
	}
	return st
}

func (k *mark) reserve(st []uint64, _, at Instant, n int, to []trace) ([]uint64, []trace) {
	return k.Spend(st, at, n), append(to, trace{})
}
