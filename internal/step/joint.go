package step

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides on one key as one of several that must all grant.

// Grants reports whether req, whose time is fixed, would be granted. It changes nothing.
func (c *Machine) Grants(st []uint64, req *Request) bool {
	if c.base == nil { // no holds are open and no turns ahead, as in most states
		v := c.view(req)
		return v.ready(st, req.N) <= v.now
	}
	h := heldState{view: c.view(req)}
	h.read(c, st)
	h.shared = true
	h.advance(h.now)
	return h.readyAfter(req.N) <= h.now
}

// DelayIfGranted returns how long the events of req are delayed, if it is granted. Its time is
// fixed.
func (c *Machine) DelayIfGranted(st []uint64, req *Request) time.Duration {
	if req.N == 0 {
		return 0
	}
	h := heldState{view: c.view(req)}
	h.read(c, st)
	h.shared = true
	h.advance(h.now)
	return kernel.UntilIn(kernel.After(h.now, h.Delay(h.inner(), h.now)), h.now, 0, h.Tick)
}

// Notes reports whether a denial may change a state.
func (c *Machine) Notes() bool { return c.denials }
