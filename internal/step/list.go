package step

import (
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file has what states with open holds and states with turns ahead share: a list in front.

// listKernel is what the kernels of states with a list in front share: the methods of a Kernel that
// stores call for whatever state they have. The embedded Kernel is nil: requests are applied to the
// states behind the list, by the key's own kernel.
type listKernel struct {
	kernel.Kernel
	of   *Machine // the kernel itself
	base *Machine // the kernel of the states without a list
}

func (k *listKernel) Limit() int { return k.base.Limit() }

func (k *listKernel) Width() int { return 0 }

// listing returns the machine that at has. If at has none yet, listing makes one of the states of c
// with a list, whose kernel add makes.
func (c *Machine) listing(at *atomic.Pointer[Machine], add func(l listKernel)) *Machine {
	if k := at.Load(); k != nil {
		return k
	}
	k := &Machine{Encoding: c.Encoding, denials: c.denials, leaves: c.leaves, base: c}
	add(listKernel{of: k, base: c})
	at.CompareAndSwap(nil, k)
	return at.Load()
}
