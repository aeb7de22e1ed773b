package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Callers put their calls into a queue. A few couriers take what is there, send it
// together, answer, and come back for more; when there is none left, they end. So
// calls on one key that meet become one, in their order, calls on others share a
// round trip, and a caller can leave whenever its time is over: the courier does not
// need it.

// A queue is the calls that wait to be sent.
type queue struct {
	mu       sync.Mutex // protects what follows, and of calls: batch, gone
	waiting  []*call
	couriers int // under way, but for those that were given up
}

// most bounds the calls that are sent together.
const most = 128

// manyCouriers is how many batches are under way at once: enough for a server not to
// wait for the next one, and few enough for calls to meet.
func manyCouriers() int { return max(4, runtime.GOMAXPROCS(0)) }

// pauses is how often a courier lets others run before it leaves, above all the
// callers that were just answered: what they ask next can come along.
const pauses = 4

// A batch is the calls that travel together.
type batch struct {
	groups []group
	back   bool // whether its courier is
	lost   bool // whether its time was over before that
}

// A group is the calls of a batch that one command is for.
type group struct {
	calls []*call
	cmd   *Command
	base  ratelimit.Request // has the time of all of them, if it was told
	told  bool
	epoch uint64 // of what is known of the key
}

// A call is one request on its way, and its answer.
type call struct {
	name name              // of the key in Redis
	prog *program          // nil for one that is a command of its own
	cmd  *Command          // if so
	from *script           // of which that is, if of any
	req  ratelimit.Request // else
	res  ratelimit.Result
	err  error

	extra bool // whether it is for a lease
	batch *batch
	gone  bool // whether nobody waits for it any more
	done  chan struct{}
}

// timer returns one that fires after the timeout.
func (s *Store) timer() *time.Timer {
	if t, ok := s.timers.Get().(*time.Timer); ok {
		t.Reset(s.timeout)
		return t
	}
	return time.NewTimer(s.timeout)
}

// ask makes a call, and waits for its answer, if a breaker allows it and for as long
// as there is time.
func (s *Store) ask(ctx context.Context, by Breaker, c *call) error {
	done := func(error) {}
	if by != nil {
		var err error
		if done, err = by.Allow(); err != nil {
			return &openError{err}
		}
	}
	begin := s.elapsed()
	s.put(c)
	timer := s.timer()
	var err error
	select {
	case <-c.done:
		err = c.err
	case <-timer.C:
		err = s.giveUp(c, fmt.Errorf("%w: %v passed", ErrTimeout, s.timeout))
	case <-ctx.Done():
		err = s.giveUp(c, ctx.Err())
	}
	timer.Stop()
	s.timers.Put(timer)
	switch {
	case err == nil || aboutKey(err) && !errors.Is(err, ErrTimeout):
		done(nil)
	case errors.Is(err, ctx.Err()) && s.elapsed()-begin < s.timeout/2:
		// The caller did not give the server much time; it may be well. This is what
		// breakers are not to count.
		done(context.Canceled)
	default:
		done(err)
	}
	return err
}

func (s *Store) newCall() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{done: make(chan struct{}, 1)}
}

// free takes back a call that was answered, and that nobody else knows any more.
func (s *Store) free(c *call) {
	*c = call{done: c.done}
	s.calls.Put(c)
}

// put puts a call into the queue, and sends a courier if there is none.
func (s *Store) put(c *call) {
	q := &s.queue
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	send := q.couriers < s.couriers
	if send {
		q.couriers++
	}
	q.mu.Unlock()
	if send {
		go s.carry() // which ends when the queue is empty
	}
}

// giveUp takes back a call whose time is over, if it was not sent, and returns why. A
// batch that it was sent with is not waited for any more: its courier may be stuck.
func (s *Store) giveUp(c *call, why error) error {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-c.done:
		return c.err // just in time
	default:
	}
	c.gone = true
	if b := c.batch; b != nil && !b.back && !b.lost && errors.Is(why, ErrTimeout) {
		b.lost = true
		if len(q.waiting) > 0 {
			go s.carry() // in its place
		} else {
			q.couriers--
		}
	}
	return why
}

// carry sends batch after batch, until there is nothing left to send.
func (s *Store) carry() {
	q := &s.queue
	for {
		for range pauses {
			runtime.Gosched()
		}
		q.mu.Lock()
		b := q.take(s.apart)
		if b == nil {
			q.couriers--
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		s.send(b)
		q.mu.Lock()
		b.back = true
		lost := b.lost
		q.mu.Unlock()
		if lost {
			return // another has come in its place
		}
	}
}

// take returns the next batch, nil if nobody waits: as many as wait, or if those on
// different keys are to travel apart, those on the key of the first.
func (q *queue) take(apart bool) *batch {
	b := &batch{}
	rest, sent := q.waiting[:0], 0
	for _, c := range q.waiting {
		switch {
		case c.gone:
		case sent == most || apart && sent > 0 && !b.groups[0].calls[0].meets(c):
			rest = append(rest, c)
		default:
			sent++
			c.batch = b
			b.add(c)
		}
	}
	clear(q.waiting[len(rest):])
	q.waiting = rest
	if sent == 0 {
		return nil
	}
	return b
}

// add puts c to those that are for the same key and have the same limit.
func (b *batch) add(c *call) {
	for i := range b.groups {
		if b.groups[i].calls[0].meets(c) {
			b.groups[i].calls = append(b.groups[i].calls, c)
			return
		}
	}
	b.groups = append(b.groups, group{calls: []*call{c}})
}

// meets reports whether one command may do for c and d.
func (c *call) meets(d *call) bool {
	return c.prog != nil && c.name.hash == d.name.hash && c.name == d.name && c.prog == d.prog
}

// send sends a batch, and answers its calls.
func (s *Store) send(b *batch) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	commands := make([]*Command, len(b.groups))
	for i := range b.groups {
		commands[i] = s.prepare(&b.groups[i])
	}
	sent := s.elapsed()
	s.counts.calls.Add(uint64(len(commands)))
	s.conn.Do(ctx, commands)
	s.sendAgain(ctx, b)
	received := s.elapsed()
	for i := range b.groups {
		g := &b.groups[i]
		if g.cmd.Err != nil && ctx.Err() != nil {
			g.cmd.Err = fmt.Errorf("%w: %v passed: %w", ErrTimeout, s.timeout, g.cmd.Err)
		}
		if first := g.calls[0]; first.prog == nil {
			first.err = g.cmd.Err
			first.done <- struct{}{}
			continue
		}
		s.answer(g, sent, received)
	}
}

// prepare returns the command of a group.
func (s *Store) prepare(g *group) *Command {
	first := g.calls[0]
	if first.prog == nil {
		g.cmd = first.cmd
		return g.cmd
	}
	s.counts.coalesced.Add(uint64(len(g.calls) - 1))
	if lease := s.wanted(first.name, first.prog); lease != nil {
		g.calls = append(g.calls, lease)
		s.returns.begin() // until it is known what came of it
	}
	g.epoch = s.denials.epoch(first.name)
	args := []string{s.request(g), first.prog.tag}
	if first.prog.tag == "" {
		args = args[:1]
	}
	g.cmd = first.prog.script.command(first.name.text, args...)
	return g.cmd
}

// resends is how often commands are sent again of which a server said that it did
// nothing: once because of a script, and while a slot moves.
const resends = 3

// sendAgain sends commands again of which nothing was done: scripts that a server did
// not know, in full now, and what a client gave up to redirect.
func (s *Store) sendAgain(ctx context.Context, b *batch) {
	for range resends {
		if ctx.Err() != nil {
			return
		}
		var again []*Command
		for i := range b.groups {
			g := &b.groups[i]
			if g.cmd.Err == nil {
				continue
			}
			switch code, _, _ := strings.Cut(g.cmd.Err.Error(), " "); code {
			case "NOSCRIPT":
				g.script().inFull(g.cmd)
			case "MOVED", "ASK":
				g.cmd.Err = nil
			default:
				continue
			}
			again = append(again, g.cmd)
		}
		if len(again) == 0 {
			return
		}
		s.counts.calls.Add(uint64(len(again)))
		s.conn.Do(ctx, again)
	}
}

// script returns the one that a group's command is for.
func (g *group) script() *script {
	first := g.calls[0]
	if first.prog == nil {
		return first.from
	}
	return first.prog.script
}

// answer answers the calls of a group.
func (s *Store) answer(g *group, sent, received time.Duration) {
	name, prog := g.calls[0].name, g.calls[0].prog
	if g.calls[len(g.calls)-1].extra {
		defer s.returns.end()
	}
	left, err := decide(prog, g)
	if errors.Is(err, errOther) {
		s.denials.forget(name)
		go s.adopt(g.calls, err) // which takes calls of its own, and as long as they may
		return
	}
	if err == nil {
		left.sent, left.received = sent, received
		s.note(name, g.epoch, g.calls, left)
		s.learn(name, g.epoch, g.calls, left)
	}
	for _, c := range g.calls {
		if err != nil {
			c.res, c.err = ratelimit.Result{}, err
		}
		if !c.extra {
			c.done <- struct{}{}
		}
	}
}

// adopt answers calls on a key whose state was left by another limit, or on which the
// script failed.
func (s *Store) adopt(calls []*call, err error) {
	var why error // not to rewrite a state that can be read
	if e, ok := errors.AsType[*scriptError](err); ok {
		why = e.error
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	for _, c := range calls {
		if c.extra {
			continue
		}
		if c.res, c.err = s.rewrite(ctx, nil, c.name, c.prog, c.req, why); c.err != nil && ctx.Err() != nil {
			c.err = fmt.Errorf("%w: %w", ErrTimeout, c.err)
		}
		if c.err == nil {
			why = nil // the others find a state that can be read
		}
		c.done <- struct{}{}
	}
}

// run sends a command of its own, and returns the reply.
func (s *Store) run(ctx context.Context, by Breaker, cmd *Command, of *script) (string, error) {
	c := s.newCall()
	c.cmd, c.from = cmd, of
	if err := s.ask(ctx, by, c); err != nil {
		return "", err
	}
	return cmd.Reply, nil
}
