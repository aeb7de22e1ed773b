package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A call is one request and its answer, or a raw command and its reply.
type call struct {
	name   name         // of the key in Redis
	prog   *program     // nil for a raw command
	req    step.Request // if prog is not nil
	res    step.Answer  // the answer
	unread error        // says that the state could not be read

	cmd      Command        // the raw command
	script   *script.Script // that it runs, if any, and if the server may not know it
	reply    string         // to the raw command
	sent     time.Duration  // when the raw command was sent, by the store's clock
	received time.Duration  // when its reply was received

	ctx   context.Context // of the caller if it may send the command itself, or nil
	batch *batch          // that the caller is to send, or nil

	forLease bool        // whether it takes or settles a lease, and no caller waits
	born     int         // outbox.waited when it was queued; protected by the outbox's lock
	inGroup  atomic.Bool // whether it is in a group, so that the server may execute it
	claimed  atomic.Bool // whether the right to answer it was claimed
	isLeft   atomic.Bool // whether the deadline of its caller has passed before it was answered
	done     chan error  // receives the outcome; buffered
}

func (s *Store) newCall() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{done: make(chan error, 1)}
}

// free makes an answered call available to newCall.
func (s *Store) free(c *call) {
	*c = call{done: c.done}
	s.calls.Put(c)
}

// claim reports whether the caller still waits and no other goroutine has claimed the call. The
// goroutine that gets true must answer it.
func (c *call) claim() bool { return !c.forLease && c.claimed.CompareAndSwap(false, true) }

// answer sends the outcome to the caller if it still waits.
func (c *call) answer(err error) {
	if c.claim() {
		c.done <- err
	}
}

// told returns the request of c as the scripts are told of it.
func (c *call) told() script.Request {
	return script.Request{By: c.prog.Program, Request: &c.req}
}

func (c *call) op() byte { return c.told().Operation() }

// stays reports whether the state that c finds stays that of the limit that left it.
func (c *call) stays() bool { return c.req.Op == step.OpSettle || c.req.Op == step.OpExtend }

// await waits for the outcome of a call, or until ctx ends. The caller first sends the command
// itself if nobody else does.
func (c *call) await(ctx context.Context) error {
	if c.batch != nil {
		c.batch.outbox.sendLone(c.batch)
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if c.claim() {
			// The cause, because Err of a front end's context says that it was cancelled.
			c.isLeft.Store(isDecided(ctx, &c.req) &&
				errors.Is(context.Cause(ctx), context.DeadlineExceeded))
			// If it is in no group now, it never will be: see nextGroup. If nextGroup leaves it
			// behind at this moment, it is said that the server may execute it, which is the safe
			// side.
			if !c.inGroup.Load() {
				return limit.NotExecuted(ctx.Err())
			}
			return ctx.Err()
		}
		return <-c.done // another goroutine is about to answer
	}
}

// A rawReply is the reply to a raw command.
type rawReply struct {
	text           string
	sent, received time.Duration // when the command was, by the store's clock
}

// run sends a raw command, and returns the reply. The script is the one that the command runs, if
// any, and if the server may not know it.
func (s *Store) run(
	ctx context.Context, name name, cmd Command, runs *script.Script,
) (rawReply, error) {
	c := s.newCall()
	c.name, c.cmd, c.script = name, cmd, runs
	c.ctx = s.loneContext(ctx, nil)
	s.enqueue(c)
	err := c.await(ctx)
	if err != nil {
		return rawReply{}, err
	}
	reply := rawReply{c.reply, c.sent, c.received}
	s.free(c)
	return reply, nil
}
