package kernel

import "time"

// This file decides on one key as one of several that must all grant.

// Grants reports whether req, whose time is fixed, would be granted. It changes nothing.
func (c *Compiled) Grants(st []uint64, req *Request) bool {
	if c.base == nil { // no holds are open and no turns ahead, as in most states
		v := c.view(req)
		return v.ready(st, req.N) <= v.now
	}
	h := holding{view: c.view(req)}
	h.read(c, st)
	h.lent = true
	h.advance(h.now)
	return h.readyAfter(req.N) <= h.now
}

// DelayIfGranted returns how long the events of req are delayed, if it is granted. Its time is fixed.
func (c *Compiled) DelayIfGranted(st []uint64, req *Request) time.Duration {
	if req.N == 0 {
		return 0
	}
	h := holding{view: c.view(req)}
	h.read(c, st)
	h.lent = true
	h.advance(h.now)
	return until(After(h.now, h.delay(h.inner(), h.now)), h.now, 0, h.Tick)
}

// Notes reports whether a denial may change a state.
func (c *Compiled) Notes() bool { return c.denials }
