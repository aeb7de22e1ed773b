package kernel

// This file decides on one key as one of several that must all grant.

// Grants reports whether req, whose time is fixed, would be granted. It changes nothing.
func (c *Compiled) Grants(st []uint64, req *Request) bool {
	v := c.view(req)
	if a := c.ahead(); a != nil { // with turns that are ahead; see Meet
		t := a.read(st)
		v.Compiled = t.base
		return v.ready(t.after, req.N) <= v.now
	}
	if o := c.opened(); o != nil {
		v.Compiled, st = c.base, o.inner(o.asOf(st, v.now))
	}
	return v.ready(st, req.N) <= v.now
}

// Refuse answers req, an OpTake or OpHold whose time is fixed, of a state without open holds, if it is
// denied because another key refuses it. Allowed is whether this key would have granted it. With note, a kernel that
// notes denials notes it in any case, like a part of an All.
func (c *Compiled) Refuse(st []uint64, req *Request, note bool, a *Answer) (_ []uint64, changed bool) {
	v := c.view(req)
	*a = Answer{}
	at := v.ready(st, req.N)
	if note {
		st, at, changed = v.refuse(st, req.N, at)
	}
	if at > v.now {
		v.denial(st, req.N, at, a)
	} else {
		a.Allowed = true
		v.describe(st, 0, a)
	}
	return st, changed
}

// Notes reports whether a denial may change a state.
func (c *Compiled) Notes() bool { return c.denials != nil }

// RefuseFrom is Refuse for a state that from left, at any time of req. It also returns the kernel
// of the resulting state.
func (c *Compiled) RefuseFrom(from *Compiled, st []uint64, req *Request, note bool, a *Answer) (by *Compiled, _ []uint64, changed bool) {
	at, how := req.Fix(), denied // adoption and refusal are at one instant
	if note {
		how = noted
	}
	return c.stepFrom(from, st, &at, a, how)
}
