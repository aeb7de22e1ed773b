package redisstore

import (
	"context"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Taking events back, in an OpReturn or an OpCancel, is a request like any other: the script
// carries it out, in one call, together with other requests on the key. The scripts for
// commands with such requests are longer: see lua/undo.lua.

// undoes reports whether c takes events back.
func (c *call) undoes() bool {
	return c.prog != nil && (c.req.Op == ratelimit.OpReturn || c.req.Op == ratelimit.OpCancel)
}

// undo takes events back. If that fails, it counts them as lost: they stay spent, unless the
// command was executed and only its reply was lost.
func (s *Store) undo(ctx context.Context, name name, prog *program, req ratelimit.Request) (ratelimit.Result, error) {
	// Cached denials are forgotten when the reply is read, and here in case there is none.
	defer s.denials.forget(name)
	res, err := s.ask(ctx, name, prog, req)
	if err != nil {
		s.counts.lost.Add(uint64(events(req)))
	}
	return res, err
}

// events returns how many events req takes back.
func events(req ratelimit.Request) int {
	if req.Op == ratelimit.OpCancel {
		return kernel.Asked(req.Grant)
	}
	return req.N
}
