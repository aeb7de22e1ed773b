package redisstore

import (
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Taking events back, in an OpReturn, is a request like any other:
// the script carries it out, in one call, together with other requests on the key. So is an
// OpCharge. The scripts for commands with such requests are longer: see
// lua/undo.lua and lua/account.lua. While holds are open or turns ahead, the process takes the events
// back: foreign.go.

// undoes reports whether c may take events back.
func (c *call) undoes() bool {
	return c.prog != nil && c.req.Op == kernel.OpReturn
}

// stays reports whether the state that c finds stays that of the limit that left it.
func (c *call) stays() bool {
	return c.undoes() || c.req.Op == kernel.OpSettle || c.req.Op == kernel.OpExtend
}

// long reports whether c needs the longer script.
func (c *call) long() bool {
	switch c.op() {
	case opReturn, opCharge:
		return true
	}
	return false
}

// undo takes events back.
func (s *Store) undo(ctx context.Context, name name, prog *program, req kernel.Request) (kernel.Answer, error) {
	return s.undone(ctx, s.queue(name, prog, req), prog, req)
}

// undone waits until c, for a request, has taken events back. If that fails, it counts them as
// lost: they stay spent, unless the command was executed and only its reply was lost.
func (s *Store) undone(ctx context.Context, c *call, prog *program, req kernel.Request) (kernel.Answer, error) {
	// Cached denials are forgotten when the reply is read, and here in case there is none.
	defer s.denials.forget(c.name)
	res, err := s.result(ctx, c)
	if err != nil {
		s.counts.lost.Add(uint64(prog.takesBack(req)))
	}
	return res, err
}

// takesBack returns how many events req takes back.
func (p *program) takesBack(req kernel.Request) int {
	switch {
	case req.Op != kernel.OpSettle:
		return req.N
	case slices.Contains(p.kinds, flightKind):
		return req.Of // they are released, whatever happened
	}
	return max(0, req.Of-req.N)
}
