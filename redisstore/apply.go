package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A request is decided on from a lease or a cached denial, if that is possible. Otherwise, it is a
// call in the queue of its key (queue.go), which an outbox sends (outbox.go).

// Apply implements [limit.States].
func (s *states) Apply(
	ctx context.Context, key string, l *limit.Limit, req step.Request,
) (step.Answer, error) {
	bounded, cancel := within(ctx, s.timeout)
	defer cancel()
	res, err := s.apply(bounded, key, l, req)
	s.counts.tally(ctx, &req, err)
	return res, marked(err)
}

// marked returns err, and marks it if it says that a command was not executed.
func marked(err error) error {
	if err != nil && refused(err) {
		return limit.NotExecuted(err)
	}
	return err
}

func (s *states) apply(
	ctx context.Context, key string, l *limit.Limit, req step.Request,
) (step.Answer, error) {
	prog, err := s.programs.get(l)
	if err != nil {
		return step.Answer{}, err
	}
	name := s.name(key)
	if endsLease(req) {
		s.endLease(name)
	}
	switch req.Op {
	case step.OpSettle, step.OpExtend:
		res, err := s.settle(ctx, s.queueFor(ctx, name, prog, req))
		if err != nil && req.Op == step.OpSettle && !limit.Repeats(ctx) {
			s.counts.lost.Add(uint64(prog.givesBack(req)))
		}
		return res, err
	}
	if d, ok := s.known(name, prog, req); ok {
		return step.Answer{Decision: d, Unasked: true}, nil
	}
	return s.ask(ctx, name, prog, req)
}

// known returns the decision on req if no call is needed for it.
func (s *Store) known(name name, prog *program, req step.Request) (d step.Decision, ok bool) {
	if req.Op == step.OpTake && !req.UpTo {
		if d, ok := s.fromLease(name, prog, req); ok {
			return d, true
		}
	}
	d, ok = s.denied(name, prog, req)
	if ok {
		s.counts.cached.Add(1)
	}
	return d, ok
}

// ask queues a request and waits for its answer.
func (s *Store) ask(
	ctx context.Context, name name, prog *program, req step.Request,
) (step.Answer, error) {
	return s.result(ctx, s.queueFor(ctx, name, prog, req))
}

// queue queues a request.
func (s *Store) queue(name name, prog *program, req step.Request) *call {
	c := s.newRequest(name, prog, req)
	s.enqueue(c)
	return c
}

// queueFor queues a request of a caller with the given context, who waits for the answer next: it
// may leave it to result to send the request.
func (s *Store) queueFor(ctx context.Context, name name, prog *program, req step.Request) *call {
	c := s.newRequest(name, prog, req)
	c.ctx = s.loneContext(ctx, prog)
	s.enqueue(c)
	return c
}

func (s *Store) newRequest(name name, prog *program, req step.Request) *call {
	c := s.newCall()
	c.name, c.prog, c.req = name, prog, req
	return c
}

// result waits for the answer to a request.
func (s *Store) result(ctx context.Context, c *call) (step.Answer, error) {
	if err := c.await(ctx); err != nil {
		return step.Answer{}, err
	}
	res, unread := c.res, c.unread
	s.free(c)
	return res, unread
}

// settle waits until c, for a request about a hold, has settled it. Cached denials are forgotten
// when the reply was read, or in case there is none.
func (s *Store) settle(ctx context.Context, c *call) (step.Answer, error) {
	defer s.denials.forget(c.name)
	return s.result(ctx, c)
}

// givesBack returns how many events an OpSettle gives back.
func (p *program) givesBack(req step.Request) int {
	if p.Limit.Releases() {
		return req.Of // they are released, whatever happened
	}
	return max(0, req.Of-req.N)
}

// within returns ctx with a timeout, if that is not 0.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, errLimiterTimeout)
}

// errLimiterTimeout is why a call ends by the timeout of its limiter, which is a failure of the
// store, and not by the context of its caller.
var errLimiterTimeout = errors.New("redisstore: the timeout of the limiter has passed")
