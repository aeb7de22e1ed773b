package redisstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A request is decided on from a lease or a cached denial, if that is possible. Otherwise, it is a call in the queue of its
// key, whose commands command.go makes.

// Apply implements [limit.States].
func (s *states) Apply(ctx context.Context, key string, l *limit.Limit, req step.Request) (step.Answer, error) {
	bounded, cancel := within(ctx, s.timeout)
	defer cancel()
	res, err := s.apply(bounded, key, l, req)
	s.counts.tally(ctx, &req, err)
	return res, err
}

func (s *states) apply(ctx context.Context, key string, l *limit.Limit, req step.Request) (step.Answer, error) {
	prog, err := s.programs.get(l)
	if err != nil {
		return step.Answer{}, err
	}
	name := s.name(key)
	switch req.Op {
	case step.OpCharge, step.OpHold:
		s.endLease(name)
	case step.OpReserve:
		if req.Hold.For > 0 {
			s.endLease(name)
		}
	case step.OpSettle:
		if req.N > req.Of {
			s.endLease(name)
		}
	}
	switch req.Op {
	case step.OpSettle, step.OpExtend:
		return s.settle(ctx, s.queue(name, prog, req), prog, req)
	}
	if d, ok := s.known(name, prog, req); ok {
		return step.Answer{Decision: d}, nil
	}
	return s.ask(ctx, name, prog, req)
}

// known returns the decision on req if it needs no call.
func (s *Store) known(name name, prog *program, req step.Request) (d step.Decision, ok bool) {
	if req.Op == step.OpTake {
		if d, ok := s.fromLease(name, prog, req); ok {
			return d, true
		}
	}
	if d, ok = s.denied(name, prog, req); ok {
		s.counts.cached.Add(1)
	}
	return d, ok
}

// ask queues a request and waits for its result.
func (s *Store) ask(ctx context.Context, name name, prog *program, req step.Request) (step.Answer, error) {
	return s.result(ctx, s.queue(name, prog, req))
}

// queue queues a request.
func (s *Store) queue(name name, prog *program, req step.Request) *call {
	c := s.newCall()
	c.name, c.prog, c.req = name, prog, req
	s.enqueue(c)
	return c
}

// result waits for the result of a request.
func (s *Store) result(ctx context.Context, c *call) (step.Answer, error) {
	if err := c.await(ctx); err != nil {
		return step.Answer{}, err
	}
	res, unread := c.res, c.unread
	s.free(c)
	return res, unread
}

// settle waits until c, for a request about a hold, has settled it. If that fails, it counts what was not
// given back as lost: it stays spent, unless the command was executed and only its reply was lost.
func (s *Store) settle(ctx context.Context, c *call, prog *program, req step.Request) (step.Answer, error) {
	// Cached denials are forgotten when the reply was read, or in case there is none.
	defer s.denials.forget(c.name)
	res, err := s.result(ctx, c)
	if err != nil && req.Op == step.OpSettle {
		s.counts.lost.Add(uint64(prog.givesBack(req)))
	}
	return res, err
}

// givesBack returns how many events an OpSettle gives back.
func (p *program) givesBack(req step.Request) int {
	if slices.Contains(p.kinds, flightKind) {
		return req.Of // they are released, whatever happened
	}
	return max(0, req.Of-req.N)
}

// within returns ctx with a timeout, if that is not 0.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}

// The first call on a key is sent at once. Calls on that key that arrive while its
// command is in progress are queued, and form the next command. So a process has one
// command in progress for each key, no matter how many callers there are, and a single
// call never waits. Commands on different keys do not wait for each other; sharing a
// round trip is left to the client.
//
// Callers that call again as soon as they are answered, such as workers, share the next command
// with the calls that were queued meanwhile. If that command were sent before they call, they
// would have to wait for it, and each decision would take two round trips.
//
// A command is sent by a goroutine of its own, so that callers can return when their
// time is over, even if the client ignores contexts.

// queues are the active queues. A command holds calls of one key and one limit, so there
// is a queue for each of these pairs.
type queues [shards]queueShard

type queueShard struct {
	mu     sync.Mutex // protects the fields below, and the fields of each queue
	active map[queueID]*queue
}

type queueID struct {
	key  string
	prog *program
	own  *call // for a raw command
}

// A queue holds the calls on one key. It sends one command after another until no call
// is left, and is then removed from its shard.
type queue struct {
	shard *queueShard
	id    queueID
	group *group  // the group whose command is in progress; nil if it was abandoned
	next  []*call // the calls that have arrived since
}

// A group is the calls that share a command.
type group struct {
	calls   []*call
	cmd     Command
	script  *script // that cmd runs, if any
	reply   string
	err     error
	base    step.Request // provides the time of all calls, with WithLimiterClock
	epoch   uint64       // of the key's cached denials, before sending
	variant variant      // of the script

	begin  time.Duration   // when it was sent
	age    int             // the weight of the ticks since it left the queue; protected by the lock of the queue's shard
	ctx    context.Context // ends when the command is abandoned
	cancel context.CancelFunc
	server *server     // nil until it is known; protected by the lock of the queue's shard
	done   func(error) // reports to the server, once; protected by the same lock
}

// maxGroup bounds the calls that share a command, and so the run time of a script.
const maxGroup = 1024

// do queues a call and waits for its outcome, or until ctx ends.
func (s *Store) do(ctx context.Context, c *call) error {
	s.enqueue(c)
	return c.await(ctx)
}

// await waits for the outcome of a call, or until ctx ends.
func (c *call) await(ctx context.Context) error {
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if c.claim() {
			return ctx.Err()
		}
		return <-c.done // another goroutine is about to answer
	}
}

// enqueue adds a call to the queue of its key, and starts the queue if it is new.
func (s *Store) enqueue(c *call) {
	if q := s.add(c); q != nil {
		s.startSender(q)
		s.startTicking()
	}
}

// add adds a call to the queue of its key. It returns a queue that is new: the caller must
// start it. A raw command has a queue of its own.
func (s *Store) add(c *call) *queue {
	shard := &s.queues[c.name.shard()]
	id := queueID{key: c.name.text, prog: c.prog}
	if c.prog == nil {
		id.own = c
	}
	shard.mu.Lock()
	q := shard.active[id]
	if q != nil {
		q.next = append(q.next, c)
		shard.mu.Unlock()
		return nil
	}
	q = &queue{shard: shard, id: id, next: []*call{c}}
	if shard.active == nil {
		shard.active = make(map[queueID]*queue)
	}
	shard.active[id] = q
	shard.mu.Unlock()
	return q
}

// drain sends one command after another until the queue is empty.
func (s *Store) drain(q *queue) {
	for {
		g := s.nextGroup(q)
		if g == nil || !s.send(q, g) {
			return
		}
		if len(g.calls) >= gatherFrom {
			s.gather(q, g)
		}
	}
}

const (
	gatherFrom = 8 // the calls in a command after which gather is called
	maxYields  = 4 // how often gather lets others run in vain
)

// gather lets the callers of a group run that were answered just now, as long as more of them call
// again, and for at most a quarter of the time that the command took. While all processors are
// busy, that may take longer once, so it is not done for a few calls.
func (s *Store) gather(q *queue, g *group) {
	begin := s.elapsed()
	end := begin + (begin-g.begin)/4
	for yields, most := 0, 0; most < len(g.calls) && yields < maxYields && s.elapsed() <= end; yields++ {
		runtime.Gosched()
		q.shard.mu.Lock()
		waiting := len(q.next)
		q.shard.mu.Unlock()
		if waiting > most {
			yields, most = 0, waiting
		}
	}
}

// nextGroup returns the next group to send. If no call waits, it removes the queue and
// returns nil.
func (s *Store) nextGroup(q *queue) *group {
	q.shard.mu.Lock()
	defer q.shard.mu.Unlock()
	for len(q.next) > 0 {
		n := min(len(q.next), maxGroup)
		calls := slices.DeleteFunc(q.next[:n:n], func(c *call) bool { return c.claimed.Load() })
		if q.next = q.next[n:]; len(calls) > 0 {
			q.group = &group{calls: calls}
			q.group.ctx, q.group.cancel = context.WithCancel(context.Background())
			return q.group
		}
	}
	delete(q.shard.active, q.id)
	return nil
}

// finish answers a group's calls, unless its command was abandoned.
func (q *queue) finish(g *group, err error) bool {
	if !q.detach(g) {
		return false
	}
	for _, c := range g.calls {
		c.answer(err)
	}
	return true
}

// detach ends the group in progress. It returns false if the command was abandoned before.
func (q *queue) detach(g *group) bool {
	q.shard.mu.Lock()
	defer q.shard.mu.Unlock()
	if q.group != g {
		return false
	}
	q.group = nil
	return true
}
