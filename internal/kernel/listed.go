package kernel

import (
	"sync/atomic"
)

// This file has what states with open holds and states with turns ahead share: a list in front.

// listed is what the kernels of states with a list in front share: the methods of a Kernel that
// stores call for whatever state they have. The embedded Kernel is nil: requests are applied to the
// states behind the list, by the key's own kernel.
type listed struct {
	Kernel
	of   *Compiled // the kernel itself
	base *Compiled // the kernel of the states without a list
}

func (k *listed) Limit() int { return k.base.Limit() }

func (k *listed) Width() int { return 0 }

func (k *listed) Ready(st []uint64, now Instant, n int) Instant {
	var h holding
	h.read(k.of, st)
	v, after := h.deciding()
	return v.Ready(after, max(now, v.lastTurn), n)
}

func (k *listed) Remaining(st []uint64, now Instant) int {
	var h holding
	h.read(k.of, st)
	h.now = now
	v, after := h.deciding()
	return v.remaining(after)
}

func (k *listed) Fresh(st []uint64) Instant {
	var h holding
	h.read(k.of, st)
	return h.fresh()
}

func (k *listed) frontier(st []uint64) Instant {
	var h holding
	h.read(k.of, st)
	v, after := h.deciding()
	return max(v.lastTurn, v.frontier(after))
}

// listing returns the kernel that at has or, if that is none, one of the states of c with a list,
// which complete completes.
func (c *Compiled) listing(at *atomic.Pointer[Compiled], complete func(l listed)) *Compiled {
	if k := at.Load(); k != nil {
		return k
	}
	k := &Compiled{Encoding: c.Encoding, denials: c.denials, leaves: c.leaves, base: c}
	complete(listed{of: k, base: c})
	at.CompareAndSwap(nil, k)
	return at.Load()
}
