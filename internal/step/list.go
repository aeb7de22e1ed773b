package step

import (
	"sync/atomic"
)

// This file has what states with open holds and states with turns ahead share: a list in front.

// A list is what states with open holds and those with turns ahead share: it describes them by what
// is behind the list. Requests are applied to that, by the key's own kernel.
type list struct {
	of   *Machine // the machine whose states have the list
	base *Machine // that of the states without it
}

func (k *list) Limit() int { return k.base.Limit() }

func (k *list) Width() int { return 0 }

// listing returns the machine that at has. If at has none yet, listing makes one of the states of c
// with a list, whose kernel add makes.
func (c *Machine) listing(at *atomic.Pointer[Machine], add func(l list)) *Machine {
	if k := at.Load(); k != nil {
		return k
	}
	k := &Machine{Encoding: c.Encoding, denials: c.denials, leaves: c.leaves, base: c}
	add(list{of: k, base: c})
	at.CompareAndSwap(nil, k)
	return at.Load()
}
