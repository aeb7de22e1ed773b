package ratelimit

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
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
//   - [TokenBucket] and [LeakyBucket] keep the instant at which the bucket would
//     be full (empty) again: half an hour's use of the old rate stays half an
//     hour's of the new one. With RefillInterval, the missing tokens stay missing.
//   - [FixedWindow], [SlidingWindow] and [RollingWindow] keep their counts, also
//     those above a new, lower limit. If the window's length changes, or its
//     Segments or Period, what the old window holds counts as used at once.
//   - [SlidingLog] keeps its events, and their instants; with CountDenied, no
//     more of them than Limit.
//   - [WarmingUp] keeps the next free time, and how warm it is, in proportion.
//   - [All] does so for each part, if they are as many as before and of the same
//     kinds in the same order.
//
// So a change grants nobody what the limit before it had already granted, and one
// that is taken back has changed nothing. Another kind of algorithm begins afresh.
// A [Reservation] that was made under other parameters gives nothing back.
//
// Such a limiter keeps its keys by name, in maps, as those with a [SlidingLog]
// are: that takes about 200 bytes a key. AlgorithmOf it is nil.
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
	case from == nil || from == t || reflect.DeepEqual(from.alg, t.alg):
		return st, false
	case from.kernel.fresh(st) <= now || !alike(from.kernel, t.kernel):
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

// adopt keeps the theoretical arrival time, to the next nanosecond if the units
// differ.
func (k *gcra) adopt(from kernel, st []uint64, _ instant) []uint64 {
	old := gcraOf(from)
	tat := old.load(st)
	if old.unit != k.unit {
		tat = uint128.Mul(tat.DivCeil(old.unit), k.unit)
	}
	if !k.wide && tat.Hi > 0 {
		tat = uint128.From(gone - 1) // centuries ahead, all the same
	}
	return k.store(make([]uint64, k.width()), tat)
}

func gcraOf(k kernel) *gcra {
	if l, ok := k.(*leaky); ok {
		return &l.gcra
	}
	return k.(*gcra)
}

// adopt counts the lumps that have come from the latest on.
func (k *lumps) adopt(from kernel, st []uint64, now instant) []uint64 {
	anchor, missing := st[0], st[1]
	if now > anchor {
		anchor, missing = from.(*lumps).refilled(st, now)
	}
	return []uint64{anchor, missing}
}

func (k *fixed) adopt(from kernel, st []uint64, now instant) []uint64 {
	old := from.(*fixed)
	if old.length == k.length && old.aligned == k.aligned {
		return st
	}
	at, count := old.load(st)
	if at = max(at, now); k.aligned {
		at -= at % k.length
	}
	return []uint64{at, count}
}

// unpacked makes room for counts above the limit.
func unpacked(k kernel) kernel {
	switch k := k.(type) {
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

// adopt keeps the counts, or all of them as one.
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
	at := max(st[1], now)
	share := old.warmth(st, at) / old.stored
	return []uint64{math.Float64bits(min(share, 1) * k.stored), at}
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
	case *warming:
		return k.valid(st)
	case *gcra, *leaky:
		return true
	}
	return st[0]&^touched <= maxInstant
}

// limits is what a limiter knows of the limits of its keys.
type limits struct {
	lookup func(ctx context.Context, key string) (Algorithm, error)
	base   *Transition

	mu    sync.RWMutex // protects known
	known map[Algorithm]*Transition
}

// manyLimits bounds the memory of a limits. There are rarely more than a few.
const manyLimits = 4096

// of returns the transition for key.
func (l *limits) of(ctx context.Context, key string) (*Transition, error) {
	alg, err := l.lookup(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	if alg == nil {
		return l.base, nil
	}
	if alg, err = value(alg); err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	comparable := reflect.TypeOf(alg).Comparable() // which an All is not
	if comparable {
		l.mu.RLock()
		t := l.known[alg]
		l.mu.RUnlock()
		if t != nil {
			return t, nil
		}
	}
	t, err := newVarying(alg)
	if err != nil {
		return nil, fmt.Errorf("ratelimit: the limit of key %q: %w", key, err)
	}
	if !comparable {
		return t, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil || len(l.known) >= manyLimits {
		l.known = make(map[Algorithm]*Transition)
	}
	l.known[alg] = t
	return t, nil
}

// newVarying is NewTransition for a limiter with WithLimits.
func newVarying(alg Algorithm) (*Transition, error) {
	t, err := NewTransition(alg)
	if err != nil {
		return nil, err
	}
	t.kernel = unpacked(t.kernel)
	if t.tag, err = tagOf(t.alg); err != nil {
		return nil, err
	}
	return t, nil
}

// Varies reports whether t comes from a limiter with [WithLimits]. Then each key's
// state is to be kept together with the transition that left it, or with what it
// encodes to: [Transition.Apply] does so by itself.
func (t *Transition) Varies() bool { return t.tag != nil }

// A tag precedes a state among bytes, if it varies: the algorithm that left it,
// in JSON, after the length of that.

type tagged struct {
	Kind   string
	Params json.RawMessage
}

var varyingKinds = []Algorithm{TokenBucket{}, LeakyBucket{}, FixedWindow{}, SlidingWindow{}, SlidingLog{}, RollingWindow{}, WarmingUp{}}

func tagOf(alg Algorithm) ([]byte, error) {
	var of []tagged
	parts, ok := alg.(All)
	if ok {
		of = append(of, tagged{Kind: "All"})
	} else {
		parts = All{alg}
	}
	for _, part := range parts {
		params, err := json.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("ratelimit: %+v cannot be stored: %w", part, err)
		}
		of = append(of, tagged{reflect.TypeOf(part).Name(), params})
	}
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	return append(binary.AppendUvarint(nil, uint64(len(text))), text...), nil
}

// untag splits a state that varies, and returns the transition that left it.
func (t *Transition) untag(state []byte) (from *Transition, words []byte, err error) {
	if len(state) == 0 {
		return t, nil, nil
	}
	if words, ok := bytes.CutPrefix(state, t.tag); ok {
		return t, words, nil
	}
	n, size := binary.Uvarint(state)
	if size <= 0 || n > uint64(len(state)-size) {
		return nil, nil, damaged(state, t.alg)
	}
	text, words := state[size:size+int(n)], state[size+int(n):]
	var of []tagged
	if err := json.Unmarshal(text, &of); err != nil || len(of) == 0 {
		return nil, nil, damaged(state, t.alg)
	}
	var parts All
	for _, part := range of {
		for _, kind := range varyingKinds {
			if typ := reflect.TypeOf(kind); typ.Name() == part.Kind {
				v := reflect.New(typ)
				if err := json.Unmarshal(part.Params, v.Interface()); err != nil {
					return nil, nil, damaged(state, t.alg)
				}
				parts = append(parts, v.Elem().Interface().(Algorithm))
			}
		}
	}
	var alg Algorithm = parts
	if of[0].Kind != "All" && len(parts) == 1 {
		alg = parts[0]
	}
	if from, err = newVarying(alg); err != nil {
		return nil, nil, damaged(state, t.alg)
	}
	return from, words, nil
}
