package step

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// This file decides on a single key that is one of several keys that must all grant. The stores
// bring the keys together: see internal/memory/joint.go.

// Grants reports whether req, whose time is fixed, would be granted. It changes nothing.
func (c *Machine) Grants(st State, req *Request) bool {
	if st.IsPlain() { // as most states are
		v := c.view(req)
		return v.ready(st.Words, req.N) <= v.now
	}
	h := heldState{view: c.view(req)}
	h.read(c, st)
	h.shared = true
	h.advance()
	return h.readyAfter(req.N) <= h.now
}

// DelayIfGranted returns how long the events of req are delayed if req is granted. The time of req
// is fixed.
func (c *Machine) DelayIfGranted(st State, req *Request) time.Duration {
	if req.N == 0 {
		return 0
	}
	h := heldState{view: c.view(req)}
	h.read(c, st)
	h.shared = true
	h.advance()
	return kernel.UntilIn(kernel.After(h.now, h.Delay(h.inner(), h.now)), h.now, 0, h.Tick)
}

// Notes reports whether a denial may change a state, as it does in a SlidingLog with CountDenied.
func (c *Machine) Notes() bool { return c.denials }
