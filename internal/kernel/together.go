package kernel

// This file decides on one key as one of several that must all grant.

// Grants reports whether req, whose time is fixed, would be granted. It changes nothing.
func (c *Compiled) Grants(st []uint64, req *Request) bool {
	h := holding{view: c.view(req)}
	h.read(c, st)
	h.lent = true
	h.advance(h.now)
	return h.ready(h.deciding(), req.N) <= h.now
}

// Notes reports whether a denial may change a state.
func (c *Compiled) Notes() bool { return c.denials }
