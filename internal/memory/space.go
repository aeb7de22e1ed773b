package memory

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has the states of one limiter, and the limits that its keys have.

// A Space is the states of one limiter.
type Space struct {
	store  *Store
	base   *Limit       // of keys without a limit of their own
	word   kernel.Word  // that of base, if all keys have that limit; else nil
	varies bool         // whether keys have limits of their own
	width  uint64       // words of a slot's state
	serial uint64       // see serials
	keys   atomic.Int64 // keys held, if the store has a bound

	dropped atomic.Bool // whether the limiter is gone: then no key enters any more

	limits atomic.Pointer[[]*Limit] // by number; only appended to
	mu     sync.Mutex               // protects against another Limit
	byTag  map[any]*Limit           // those with a number, except the base

	directory
}

// A Limit is a limit of keys of a Space. A limit with a number exists once, so that pointers can be
// compared.
type Limit struct {
	space   *Space
	tag     any           // what the caller knows it by; nil for the base
	number  uint64        // 0 for the base, and for limits without a number
	decider               // for states of one word; zero if there are none of this limit
	loose   *step.Machine // for states in the arena
}

// mostNumbers is the most limits of a space that have a number.
const mostNumbers = 1 << numberBits

// newSpace returns a space in which all keys have one limit: k if a state is one word, and loose
// otherwise. If it varies, that is the limit of the keys without one of their own.
func newSpace(s *Store, k, loose *step.Machine, varies bool) *Space {
	sp := &Space{store: s, varies: varies, width: 1, serial: serials.Add(1)}
	sp.base = &Limit{space: sp, loose: loose}
	if word := k.Word(); word != nil {
		sp.base.decider = decider{k, word}
	}
	if !varies {
		sp.word = sp.base.word
		sp.width = max(1, uint64(k.Width()))
	}
	sp.limits.Store(&[]*Limit{sp.base})
	if sp.width > 1 {
		sp.limits.Store(&[]*Limit{sp.base, reference: sp.base})
	}
	sh := &shard{space: sp}
	sp.init(s, sh.newTable(0))
	return sp
}

// Base returns the limit of keys without one of their own. Its tag is nil.
func (sp *Space) Base() *Limit { return sp.base }

// Limit returns a limit. Limits with the same tag, which must be comparable and not nil,
// must have the same kernels: k for states of one word, and loose for others.
func (sp *Space) Limit(tag any, k, loose *step.Machine) *Limit {
	lim := &Limit{space: sp, loose: loose}
	word := k.Word()
	if word == nil {
		return lim
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if known := sp.byTag[tag]; known != nil {
		return known
	}
	all := *sp.limits.Load()
	if len(all) == mostNumbers {
		return lim
	}
	lim.tag, lim.number, lim.k, lim.word = tag, uint64(len(all)), k, word
	if sp.byTag == nil {
		sp.byTag = make(map[any]*Limit)
	}
	sp.byTag[tag] = lim
	all = append(all, lim) // may append in place: readers keep their length
	sp.limits.Store(&all)
	return lim
}

// limitAt returns the limit of the slot at p, and so of its state, if that is one word.
func (sp *Space) limitAt(t *table, p place) *Limit { return (*sp.limits.Load())[t.number(p)] }

func (sp *Space) lock(id identity) (*shard, *table) {
	for {
		sh := sp.at(id).shard
		sh.mu.Lock()
		if t := sp.at(id); t.shard == sh { // guarantee 1
			return sh, t
		}
		sh.mu.Unlock()
	}
}
