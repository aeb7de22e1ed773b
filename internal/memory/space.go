package memory

import "github.com/ratelimit-go/ratelimit/internal/step"

// This file knows the limits of the keys of a space.

// mostNumbers is the most limits of a space that have a number.
const mostNumbers = 1 << numberBits

// Base returns the limit of keys without one of their own. Its tag is nil.
func (sp *Space) Base() *Limit { return sp.base }

// Limit returns a limit. Limits with the same tag, which must be comparable and not nil,
// must have the same kernels: k for states of one word, and loose for others.
func (sp *Space) Limit(tag any, k, loose *step.Machine) *Limit {
	lim := &Limit{space: sp.serial, loose: loose}
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

// limitAt returns the limit of a slot of t, and so of its state, if that is one word.
func (sp *Space) limitAt(t *table, at slot) *Limit {
	return (*sp.limits.Load())[t.limitNumber(at)]
}
