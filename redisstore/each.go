package redisstore

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file decides on many keys, each for itself, as TakeEach asks: it queues all calls, and waits
// for all answers.

// maxEach bounds the calls of an ApplyEach that are in progress at once, so that the last of
// them does not wait for the others until its timeout has passed.
const maxEach = 512

// ApplyEach implements [limit.EachStates]. It queues the calls of all keys before it
// sends the first command, so that those on one key share a command, and then waits for all
// of them. Leases, the denial cache, timeouts and breakers are those of single calls.
func (s *states) ApplyEach(ctx context.Context, calls []limit.Call) {
	bounded, cancel := within(ctx, s.timeout)
	defer cancel()
	asked := make([]*call, min(len(calls), maxEach)) // nil for those that need no command
	for len(calls) > 0 {
		n := min(len(calls), maxEach)
		s.prepareEach(bounded, calls[:n], asked[:n])
		s.enqueueAll(asked[:n])
		s.awaitEach(bounded, calls[:n], asked[:n])
		for i := range calls[:n] {
			s.counts.tally(ctx, &calls[i].Request, calls[i].Err)
		}
		calls = calls[n:]
	}
}

// prepareEach makes the calls for the keys that need a command. Nothing is queued before it
// returns, because it may call a user's clock, which may panic.
func (s *states) prepareEach(ctx context.Context, calls []limit.Call, asked []*call) {
	for i := range calls {
		e := &calls[i]
		asked[i] = nil
		prog, err := s.programs.get(e.Limit)
		if err == nil {
			err = ctx.Err() // since the calls before these
		}
		if err != nil {
			e.Err = err
			continue
		}
		name := s.name(e.Key)
		if d, ok := s.known(name, prog, e.Request); ok {
			e.Answer = step.Answer{Decision: d, Unasked: true}
			continue
		}
		asked[i] = s.newCall()
		asked[i].name, asked[i].prog, asked[i].req = name, prog, e.Request
	}
}

// awaitEach waits for the calls.
func (s *states) awaitEach(ctx context.Context, calls []limit.Call, asked []*call) {
	for i, c := range asked {
		e := &calls[i]
		if c != nil {
			e.Err = c.await(ctx)
			if e.Err == nil {
				e.Answer, e.Err = c.res, c.unread
				s.free(c)
			}
		}
	}
}
