package redisstore

import (
	"context"
	"time"
)

// A lone caller sends its command itself. To wake a sender and to be woken by it takes as long as
// Redis takes for the command, if both are on the same machine. With a PromptConn that is not
// needed:
//
//	enqueue → batch of this call → await → PromptConn → reply → this caller
//
// A caller is lone if no other command is about to be sent to the server, or in progress. What
// others queue meanwhile is sent by a sender.
//
// The caller is answered by its deadline all the same: the end of its context interrupts the
// PromptConn, and so does the tick that finds that the timeout has passed. Nobody but the caller
// needs the reply.

// loneContext returns ctx if a caller with that context may send a command itself, and otherwise
// nil. The caller must call await next.
//
// If the caller's deadline is near, or the command may take or settle a lease, a sender awaits the
// reply even after the caller has left. So the connection is not lost, nor is the lease.
func (s *Store) loneContext(ctx context.Context, prog *program) context.Context {
	if s.prompt == nil || s.lease > 0 && prog != nil && prog.Leasable {
		return nil
	}
	deadline, ok := ctx.Deadline()
	if ok && time.Until(deadline) < 2*s.timeout {
		return nil
	}
	return ctx
}

// isQuiet reports whether nobody sends, or is about to. The caller holds o.mu.
func (o *outbox) isQuiet() bool {
	return !o.apart && !o.gathering && len(o.batches)+len(o.ready) == 0
}

// answersLone reports whether a batch has one caller, who is likely to be lone when it calls again.
// Then its sender does not wait for that. The caller of answersLone holds o.mu.
func (o *outbox) answersLone(b *batch) bool {
	return o.store.prompt != nil && o.isQuiet() && len(b.groups) == 1 && len(b.groups[0].calls) == 1
}

// beginLone makes the calls of a queue a batch, which c's caller sends. The caller of beginLone
// holds o.mu.
func (o *outbox) beginLone(q *queue, c *call) {
	c.batch = o.begin(c.ctx, []*group{q.nextGroup()}, byCaller)
}

// sendLone sends the batch of a lone caller, in the goroutine of the caller.
func (o *outbox) sendLone(b *batch) {
	returned := false
	defer func() {
		if !returned {
			o.drop(b) // the client has panicked, or a clock, and the caller may recover
		}
	}()
	o.carry(b)
	returned = true
}

// doLone sends the command of a lone caller.
func (s *Store) doLone(ctx context.Context, command Command) Reply {
	reply := s.prompt.DoPromptly(ctx, command, s.timeout)
	if reply.Err != nil && ctx.Err() != nil {
		reply.Err = ctx.Err() // why it was interrupted
	}
	return reply
}

// drop gives up a batch about whose outcome nothing is known.
func (o *outbox) drop(b *batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b.state != batchReported {
		b.state = batchReported
		o.server.breaker.report(b.tests, b.sent, o.store.elapsed(), context.Canceled)
	}
	o.abandon(b)
}
