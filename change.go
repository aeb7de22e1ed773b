package ratelimit

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"sync"

	"github.com/ratelimit-go/ratelimit/internal/uint128"
)

// What becomes of a key's state when its limit changes is in this file.

// WithLimits gives keys limits of their own, which may change at any time:
// lookup returns the algorithm for a key, or nil for the one given to [New]. It is
// called by each Take, Wait, Reserve and Peek, before the store is, so it should
// answer from memory (package rules has a cache for those that ask a database). If
// it fails, or returns parameters that cannot be used, the limiter's
// [FailurePolicy] decides, as if the store had failed.
//
// A key that is given another limit keeps what it has used. What that means,
// when its next request comes:
//
//   - [TokenBucket] and [LeakyBucket]: the tokens that are missing (the level)
//     stay so, also those beyond a new, smaller bucket, and come back at the new
//     rate. With RefillInterval, lumps are counted from the change if Per changes.
//     While reservations of a TokenBucket are pending, the tokens that are missing at
//     the instant of the last one stay so, and nobody goes before it. In a LeakyBucket
//     that leaks faster than before, those who come now may be told an earlier turn
//     than those who wait already.
//   - [FixedWindow], [SlidingWindow] and [RollingWindow] keep their counts, also
//     those above a new, lower limit. If the window's length changes, or its
//     Segments or Period, what the old window holds counts as used at once.
//   - [SlidingLog] keeps its events, and their instants; with CountDenied, no
//     more of them than the lowest Limit since.
//   - [WarmingUp] keeps the next free time, and how warm it is, in proportion.
//   - [All] does so for each part, if they are as many as before and of the same
//     kinds in the same order.
//
// So a change lets nobody do at once what the new limit would not have let it, had
// it been there before; and one that is taken back, before anything has come of it,
// has changed nothing. But what has left a window that was made shorter is
// forgotten, if it is made longer again; so are missing tokens that would take more
// than a century to come back at the lower rate, and the part of a count above 2³²−1
// under a limit of no more than that (in a SlidingWindow or RollingWindow). Another kind of algorithm, or another
// Refill, begins afresh. A [Reservation] that was made under other parameters gives
// nothing back.
//
// A key of such a limiter costs about 75 bytes in a [MemoryStore], besides its state,
// and each limit that differs from the others about 250, which [MemoryStats] does not count.
// AlgorithmOf returns nil for it. An All of more than
// four parts costs a few microseconds for each call, for it is put together each time.
func WithLimits(lookup func(ctx context.Context, key string) (Algorithm, error)) Option {
	return func(c *config) { c.lookup, c.lookupSet = lookup, true }
}

// An adopter makes a state of its own of one that another kernel of the same type
// left. Counts may lie above the limit then.
type adopter interface {
	adopt(from kernel, st []uint64, now instant) []uint64
}

// adopt returns what becomes of a state that from left, and whether it is another.
func (t *Transition) adopt(from *Transition, st []uint64, now instant) (_ []uint64, changed bool) {
	switch {
	case from == t || reflect.DeepEqual(from.alg, t.alg):
		return st, false
	case !alike(from.kernel, t.kernel):
		return make([]uint64, t.kernel.width()), true
	}
	return t.kernel.(adopter).adopt(from.kernel, st, now), true
}

// alike reports whether a state of one kernel can become one of the other.
func alike(a, b kernel) bool {
	if reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	of, ok := a.(*all)
	if !ok {
		return true
	}
	parts := b.(*all).parts
	if len(of.parts) != len(parts) {
		return false
	}
	for i, part := range of.parts {
		if !alike(part, parts[i]) {
			return false
		}
	}
	return true
}

// adopt keeps the events that are missing, now or at the latest reservation: the time
// until all have come back changes as the time that one takes. It is rounded up to
// the next unit.
func (k *gcra) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := gcraOf(from)
	next := make([]uint64, k.width())
	pivot := now
	if frontier := old.frontier(st); frontier > now {
		pivot = frontier
		next[len(next)-1] = frontier
	}
	missing := bigOf(old.load(st).Sub(uint128.Mul(pivot, old.unit)))
	if missing.Sign() == 0 && pivot == now {
		return next
	}
	missing.Mul(missing, new(big.Int).SetUint64(k.cost))
	missing.Add(missing, new(big.Int).SetUint64(old.cost-1))
	missing.Quo(missing, new(big.Int).SetUint64(old.cost))
	tat := missing.Add(missing, bigOf(uint128.Mul(pivot, k.unit)))
	most := uint128.Mul(1<<63, k.unit) // beyond the end of time, all the same
	switch {
	case k.split:
		most = uint128.Mul(3*portableMost, k.unit)
	case !k.wide:
		most = uint128.From(gone - 1)
	}
	if tat.Cmp(bigOf(most)) > 0 {
		tat = bigOf(most)
	}
	low := new(big.Int).And(tat, new(big.Int).SetUint64(math.MaxUint64))
	return k.store(next, uint128.Uint128{Hi: new(big.Int).Rsh(tat, 64).Uint64(), Lo: low.Uint64()})
}

func bigOf(x uint128.Uint128) *big.Int {
	b := new(big.Int).SetUint64(x.Hi)
	return b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(x.Lo))
}

func gcraOf(k kernel) *gcra {
	if l, ok := k.(*leaky); ok {
		return &l.gcra
	}
	return k.(*gcra)
}

// adopt counts the lumps from now on, if they come at another pace.
func (k *lumps) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*lumps)
	anchor, missing := st[0], st[1]
	if now > anchor {
		anchor, missing = old.refilled(st, now)
	}
	if old.per != k.per {
		anchor = max(anchor, now)
	}
	return []uint64{anchor, missing}
}

func (k *fixed) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*fixed)
	if old.length == k.length && old.aligned == k.aligned {
		return st
	}
	start, count := old.load(st)
	switch {
	case old.fresh(st) <= now:
		return make([]uint64, 2)
	case start <= now && k.aligned:
		start = now - now%k.length
	case start <= now:
		start = now
	} // else reservations are ahead: the window begins with them, wherever that is
	return []uint64{start, count}
}

// unpacked makes room for what a state has only if limits vary: counts above the
// limit, and the latest instant of a bucket.
func unpacked(k kernel) kernel {
	switch k := k.(type) {
	case *gcra, *leaky:
		gcraOf(k).keeps = true
	case *fixed:
		k.packed = 0
	case *all:
		k.fixed = 0
		for _, part := range k.parts {
			k.fixed += unpacked(part).width()
		}
	}
	return k
}

// adoptRing keeps the counts, or if the slots are others, what was used as one.
func (r *ring) adoptRing(old *ring, st []uint64, used uint64, now instant) []uint64 {
	if *old == *r {
		return st
	}
	next := make([]uint64, r.width())
	next[0] = st[0]
	cut := func(n uint64) uint64 {
		if r.narrow {
			return min(n, math.MaxUint32)
		}
		return n
	}
	if old.slots == r.slots && old.length == r.length {
		for place := range r.slots {
			r.set(next, place, cut(old.get(st, place)))
		}
		return next
	}
	at := max(r.frontier(st), now)
	next[0] = at | st[0]&touched
	r.set(next, at/r.length%r.slots, cut(used))
	return next
}

func (k *sliding) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*sliding)
	full, oldest := old.counts(st, max(old.frontier(st), now)/old.length)
	return k.adoptRing(&old.ring, st, full+oldest, now)
}

func (k *rolling) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*rolling)
	before, in := old.counts(st, max(old.frontier(st), now)/old.length)
	return k.adoptRing(&old.ring, st, before+in, now)
}

func (k *log) adopt(_ kernel, st []uint64, _ instant) []uint64 { return st }

func (k *warming) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*warming)
	at := old.ready(st, now, 1)
	share := old.warmth(st, at) / old.Stored
	return k.store(make([]uint64, k.width()), min(share, 1)*k.Stored, max(old.free(st), now*k.form.tick))
}

func (k *all) adopt(from kernel, st []uint64, now instant) []uint64 {
	var lengths, fixed, growing []uint64
	i := 0
	for old, st := range from.(*all).states(st) {
		part := k.parts[i]
		i++
		st = part.(adopter).adopt(old, st, now)
		if part.width() > 0 {
			fixed = append(fixed, st...)
		} else {
			lengths, growing = append(lengths, uint64(len(st))), append(growing, st...)
		}
	}
	return append(append(lengths, fixed...), growing...)
}

// lenient is a kernel whose states may have counts above the limit.
type lenient struct{ kernel }

// mostCounted is what counts may reach: their sums must not overflow.
const mostCounted = 1 << 62

func (l lenient) valid(st []uint64) bool {
	switch k := l.kernel.(type) {
	case *log:
		unlimited := *k
		unlimited.most = math.MaxInt64
		return unlimited.valid(st)
	case *all:
		of := *k
		of.parts = nil
		for _, part := range k.parts {
			of.parts = append(of.parts, lenient{part})
		}
		return of.valid(st)
	case *gcra, *leaky:
		of := gcraOf(k)
		return of.frontier(st) <= maxInstant && !uint128.Mul(1<<63, of.unit).Less(of.load(st))
	case *fixed, *lumps:
		return st[0] <= maxInstant && st[1] <= mostCounted
	case *sliding:
		return k.sane(st)
	case *rolling:
		return k.sane(st)
	}
	return l.kernel.valid(st)
}

// sane reports whether the counts can be added up.
func (r *ring) sane(st []uint64) bool {
	var sum uint64
	for place := range r.slots {
		n := r.get(st, place)
		if n > mostCounted-sum {
			return false
		}
		sum += n
	}
	return r.frontier(st) <= maxInstant
}

// limits is what a limiter knows of the limits of its keys.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *Transition

	mu         sync.RWMutex        // protects what follows
	young, old map[any]*Transition // by keyOf
}

// manyLimits bounds the memory of a limits: it knows at most twice as many
// transitions. When young has reached that number it becomes old, and what was old
// is dropped, except for what was used meanwhile.
const manyLimits = 8192

// of returns the transition for key.
func (l *limits) of(ctx context.Context, key string) (*Transition, error) {
	alg, err := l.lookup(ctx, key)
	if err == nil && alg == nil {
		return l.base, nil
	}
	var t *Transition
	if err == nil {
		t, err = l.transition(alg)
	}
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	return t, nil
}

// transition returns the one for alg, which a user gave.
func (l *limits) transition(alg Algorithm) (*Transition, error) {
	alg, err := value(alg)
	if err != nil {
		return nil, err
	}
	key, ok := keyOf(alg)
	if ok {
		if t := l.known(key); t != nil {
			return t, nil
		}
	}
	t, err := newVarying(alg, inMemory)
	if err == nil && ok {
		l.keep(key, t)
	}
	return t, err
}

// known returns the transition that was kept for key, if it still is.
func (l *limits) known(key any) *Transition {
	t, young := l.find(key)
	if t != nil && !young {
		l.keep(key, t)
	}
	return t
}

func (l *limits) find(key any) (t *Transition, young bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if t = l.young[key]; t != nil {
		return t, true
	}
	return l.old[key], false
}

func (l *limits) keep(key any, t *Transition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.young == nil || len(l.young) >= manyLimits {
		l.young, l.old = make(map[any]*Transition), l.young
	}
	l.young[key] = t
}

// keyOf returns what equals that of another algorithm if that has the same
// parameters, unless alg is an All of many parts, or of another All.
func keyOf(alg Algorithm) (key any, ok bool) {
	of, isAll := alg.(All)
	if !isAll {
		return alg, true
	}
	var parts [4]Algorithm
	if len(of) > len(parts) {
		return nil, false
	}
	for i, part := range of {
		part, err := value(part)
		if _, nested := part.(All); nested || err != nil {
			return nil, false
		}
		parts[i] = part
	}
	return parts, true
}
