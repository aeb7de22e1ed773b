package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// The first call on a key is sent at once. Calls on that key that arrive while its
// command is in progress are queued, and form the next command. So a process has one
// command in progress for each key, no matter how many callers there are, and a single
// call never waits. Commands on different keys do not wait for each other; sharing a
// round trip is left to the client.
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
	calls     []*call
	cmd       Command
	reply     string
	err       error
	base      ratelimit.Request // provides the time of all calls, if timeGiven
	timeGiven bool              // whether the limiter's clock counts, and not the server's
	epoch     uint64            // of the key's cached denials, before sending
	foreigns  []foreign         // the limits whose states the command can adopt
	undoes    bool              // whether a call takes events back

	begin  time.Duration   // when it was sent
	ticks  int64           // of the store when it left the queue
	ctx    context.Context // ends when the command is abandoned
	cancel context.CancelFunc
	done   func(error) // reports to the breaker, once; protected by the lock of the queue's shard
}

// A call is one request and its answer, or a raw command and its reply.
type call struct {
	name name              // of the key in Redis
	prog *program          // nil for a raw command
	req  ratelimit.Request // if prog is not nil
	res  ratelimit.Result  // the answer

	cmd    Command // the raw command
	script *script // that the raw command runs, if any
	reply  string  // to the raw command

	kept     bool        // whether events to return could not be given back
	forLease bool        // whether it takes a lease; then no caller waits
	again    int         // how often it was sent again because of another limit's state
	ticks    int64       // of the store when it was made
	claimed  atomic.Bool // whether the right to answer it was claimed
	done     chan error  // receives the outcome; buffered
}

// maxGroup bounds the calls that share a command, and so the run time of a script.
const maxGroup = 1024

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

// do queues a call and waits for its outcome, or until ctx ends.
func (s *Store) do(ctx context.Context, c *call) error {
	s.enqueue(c)
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

// enqueue adds a call to the queue of its key, and starts the queue if there is none. A
// raw command has a queue of its own.
func (s *Store) enqueue(c *call) {
	c.ticks = s.ticks.Load()
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
		return
	}
	q = &queue{shard: shard, id: id, next: []*call{c}}
	if shard.active == nil {
		shard.active = make(map[queueID]*queue)
	}
	shard.active[id] = q
	shard.mu.Unlock()
	s.startSender(q)
	s.startTicking()
}

// drain sends one command after another until the queue is empty.
func (s *Store) drain(q *queue) {
	for {
		g := s.nextGroup(q)
		if g == nil || !s.send(q, g) {
			return
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
			q.group = &group{calls: calls, ticks: s.ticks.Load()}
			q.group.ctx, q.group.cancel = context.WithCancel(context.Background())
			return q.group
		}
	}
	delete(q.shard.active, q.id)
	return nil
}

// send sends a group's command and answers its calls. It returns false if the command
// was abandoned in the meantime, and another sender has the queue.
func (s *Store) send(q *queue, g *group) bool {
	defer g.cancel()
	done, err := s.allow(g.ctx, g.calls[0].name.text)
	if err != nil {
		return q.finish(g, err)
	}
	q.shard.mu.Lock()
	g.done = done
	q.shard.mu.Unlock()
	script := s.prepare(q, g)
	g.begin = s.elapsed()

	s.transmit(g, script)

	received := s.elapsed()
	s.counts.observe(received-g.begin, g.err)
	q.shard.mu.Lock()
	done, g.done = g.done, nil
	q.shard.mu.Unlock()
	if done != nil {
		done(s.outcome(g.err, received-g.begin, s.ticks.Load()-g.ticks))
	}
	if first := g.calls[0]; first.prog == nil {
		first.reply, err = g.reply, g.err
	} else {
		err = s.readReply(g, received)
	}
	if errors.Is(err, errOther) {
		if left := s.learn(g); left != nil {
			return s.sendAgain(q, g, left)
		}
		return s.repair(q, g, err)
	}
	return q.finish(g, err)
}

// finish answers a group's calls, unless its command was abandoned.
func (q *queue) finish(g *group, err error) bool {
	if !q.detach(g, nil) {
		return false
	}
	for _, c := range g.calls {
		c.answer(err)
	}
	return true
}

// detach ends the group in progress, and puts the calls to send again back at the head of
// the queue. The caller answers the others. It returns false if the command was abandoned
// before.
func (q *queue) detach(g *group, again []*call) bool {
	q.shard.mu.Lock()
	defer q.shard.mu.Unlock()
	if q.group != g {
		return false
	}
	q.group = nil
	q.next = append(again, q.next...)
	return true
}

// prepare sets a group's command, and returns the script that it runs, if any.
func (s *Store) prepare(q *queue, g *group) *script {
	first := g.calls[0]
	if first.prog == nil {
		g.cmd = first.cmd
		return first.script
	}
	s.counts.coalesced.Add(uint64(len(g.calls) - 1))
	script := first.prog.script
	if g.undoes = slices.ContainsFunc(g.calls, (*call).undoes); g.undoes {
		script = first.prog.undoScript()
	} else if lease := s.leaseCall(first.name, first.prog); lease != nil {
		q.shard.mu.Lock()
		g.calls = append(g.calls, lease)
		q.shard.mu.Unlock()
	}
	g.epoch = s.denials.epoch(first.name)
	args := []string{s.request(g), first.prog.tag}
	if first.prog.tag == "" {
		args = args[:1]
	}
	if !g.undoes {
		g.foreigns = s.expected(first.prog)
	}
	if len(g.foreigns) > 0 {
		script = scriptFor(first.prog.all, adopting, first.prog.kinds)
		for _, f := range g.foreigns {
			args = append(args, f.tag, f.params)
		}
	}
	g.cmd = script.command(first.name.text, args...)
	return script
}

// maxResends bounds how often a command is sent again after a reply that says the server
// did not execute it: once because of a script, and the rest while a slot moves.
const maxResends = 3

// transmit sends a group's command. It sends the command again only if the server replied
// that it did not execute it: with the full script if the server did not know it, or after
// a redirection that the client did not follow.
func (s *Store) transmit(g *group, script *script) {
	for range 1 + maxResends {
		s.counts.calls.Add(1)
		if g.reply, g.err = s.conn.Do(g.ctx, g.cmd); g.err == nil || g.ctx.Err() != nil {
			return
		}
		switch code, _, _ := strings.Cut(g.err.Error(), " "); code {
		case "NOSCRIPT":
			g.cmd = script.inFull(g.cmd)
		case "MOVED", "ASK":
		default:
			return
		}
	}
}

// readReply sets the results of a group's calls from the reply, and updates the cached
// denials and leases.
func (s *Store) readReply(g *group, received time.Duration) error {
	name, prog := g.calls[0].name, g.calls[0].prog
	left, err := decide(prog, g)
	left.sent, left.received = g.begin, received
	s.leaseOutcome(name, g.calls, left, err)
	switch {
	case err == nil:
		if g.reply[8] == replyAdopted {
			prog.foreigns.met.Store(int64(received))
		}
		s.cacheDenial(name, g.epoch, g.calls, left)
	case errors.Is(err, errOther):
		s.denials.forget(name)
	}
	if g.undoes {
		s.denials.forget(name)
	}
	for _, c := range g.calls {
		if err == nil && c.kept {
			s.counts.lost.Add(uint64(c.req.N))
		}
	}
	return err
}

// repair answers a group on a key whose state the script cannot read, or on which it
// failed: it replaces the state for the first call, and puts the others back in the queue.
// Calls that take events back are answered without that.
func (s *Store) repair(q *queue, g *group, err error) bool {
	var why error // the script's error: then a readable state is not replaced
	if e, ok := errors.AsType[*scriptError](err); ok {
		why = e.error
	}
	var waiting []*call
	for _, c := range g.calls {
		switch {
		case c.undoes():
			if c.op() == opCancel {
				c.res.Grant = &kernel.Undone{}
			}
			c.answer(why)
		case !c.forLease && !c.claimed.Load():
			waiting = append(waiting, c)
		}
	}
	if len(waiting) == 0 {
		return q.detach(g, nil)
	}
	first := waiting[0]
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	res, err := s.rewrite(ctx, first.name, first.prog, first.req, why)
	if !q.detach(g, waiting[1:]) {
		return false
	}
	first.res = res
	first.answer(err)
	return true
}

// run sends a raw command, which runs the script of if it is not nil, and returns the
// reply.
func (s *Store) run(ctx context.Context, name name, cmd Command, of *script) (string, error) {
	c := s.newCall()
	c.name, c.cmd, c.script = name, cmd, of
	if err := s.do(ctx, c); err != nil {
		return "", err
	}
	reply := c.reply
	s.free(c)
	return reply, nil
}
