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

func (k *listKernel) Ready(st []uint64, now kernel.Instant, n int) kernel.Instant {
	var h heldState
	h.read(k.of, st)
	v, after := h.afterTurns()
	return v.Ready(after, max(now, v.lastTurn), n)
}

func (k *listKernel) Remaining(st []uint64, now kernel.Instant) int {
	var h heldState
	h.read(k.of, st)
	h.now = now
	v, after := h.afterTurns()
	return v.remaining(after)
}

func (k *listKernel) Fresh(st []uint64) kernel.Instant {
	var h heldState
	h.read(k.of, st)
	return h.fresh()
}

func (k *listKernel) Frontier(st []uint64) kernel.Instant {
	var h heldState
	h.read(k.of, st)
	v, after := h.afterTurns()
	return max(v.lastTurn, v.Frontier(after))
}

// listing returns the kernel that at has or, if that is none, one of the states of c with a list,
// which complete completes.
func (c *Machine) listing(at *atomic.Pointer[Machine], complete func(l listKernel)) *Machine {
	if k := at.Load(); k != nil {
		return k
	}
	k := &Machine{Encoding: c.Encoding, denials: c.denials, leaves: c.leaves, base: c}
	complete(listKernel{of: k, base: c})
	at.CompareAndSwap(nil, k)
	return at.Load()
}
