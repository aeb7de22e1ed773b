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
)

// The first call on a key is sent at once. Calls on that key that come while its
// command is under way gather behind it, and make up the next one. So a process has one
// command for a key under way at a time, however many ask for it, and a call that is
// alone waits for nothing. Commands on different keys do not wait for each other: to
// put them into one round trip is the client's part.
//
// The command has a goroutine of its own, so that its callers can leave when their
// time is over, whatever the client does with a context.

// flights are those under way, by key and limit: one command is for calls of one
// limit.
type flights [shards]flightShard

type flightShard struct {
	mu    sync.Mutex // protects what follows, and the fields of each flight
	under map[flightID]*flight
}

type flightID struct {
	key  string
	prog *program
	own  *call // for a command of its own
}

// A flight is what is under way on a key, one command after the other until nobody
// waits any more.
type flight struct {
	shard *flightShard
	id    flightID
	group *group  // whose command is under way, nil if it was given up
	next  []*call // that have come since
}

// A group is the calls that one command is for.
type group struct {
	calls []*call
	cmd   Command
	reply string
	err   error
	base  ratelimit.Request // has the time of all of them, if it was told
	told  bool
	epoch uint64 // of what is known of the key

	begin  time.Duration   // when it was sent
	ticks  int64           // the store's when it departed
	ctx    context.Context // ends when the command is given up
	cancel context.CancelFunc
	done   func(error) // tells the breaker, once; protected by the lock of the flight's shard
}

// A call is one request on its way, and its answer.
type call struct {
	name name              // of the key in Redis
	prog *program          // nil for one that is a command of its own
	cmd  Command           // if so
	from *script           // which that runs, if any
	req  ratelimit.Request // else
	res  ratelimit.Result  // the answer
	text string            // the reply to a command of its own

	extra bool        // whether it is for a lease, and nobody waits for it
	ticks int64       // the store's when it came
	over  atomic.Bool // whether somebody has claimed it
	done  chan error  // the answer's; has room for it
}

// most bounds the calls that one command is for, and so how long a script runs.
const most = 1024

func (s *Store) newCall() *call {
	if c, ok := s.calls.Get().(*call); ok {
		return c
	}
	return &call{done: make(chan error, 1)}
}

// free takes back a call that was answered.
func (s *Store) free(c *call) {
	*c = call{done: c.done}
	s.calls.Put(c)
}

// claim reports whether the caller still waits. It is then up to the one that asked
// to answer.
func (c *call) claim() bool { return !c.extra && c.over.CompareAndSwap(false, true) }

// answer tells the caller, if it still waits.
func (c *call) answer(err error) {
	if c.claim() {
		c.done <- err
	}
}

// ask makes a call, and waits for its answer as long as there is time.
func (s *Store) ask(ctx context.Context, c *call) error {
	s.board(c)
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if c.claim() {
			return ctx.Err()
		}
		return <-c.done // just in time
	}
}

// board puts a call on the flight of its key, which begins with it if there is none.
// A command of its own has a flight of its own.
func (s *Store) board(c *call) {
	c.ticks = s.ticks.Load()
	shard := &s.flights[c.name.shard()]
	id := flightID{key: c.name.text, prog: c.prog}
	if c.prog == nil {
		id.own = c
	}
	shard.mu.Lock()
	f := shard.under[id]
	if f != nil {
		f.next = append(f.next, c)
		shard.mu.Unlock()
		return
	}
	f = &flight{shard: shard, id: id, next: []*call{c}}
	if shard.under == nil {
		shard.under = make(map[flightID]*flight)
	}
	shard.under[id] = f
	shard.mu.Unlock()
	s.launch(f)
	s.startTicking()
}

// fly sends one command after the other, until nobody waits any more.
func (s *Store) fly(f *flight) {
	for {
		g := s.depart(f)
		if g == nil || !s.send(f, g) {
			return
		}
	}
}

// depart returns the next group, or ends the flight if nobody waits.
func (s *Store) depart(f *flight) *group {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	for len(f.next) > 0 {
		n := min(len(f.next), most)
		calls := slices.DeleteFunc(f.next[:n:n], func(c *call) bool { return c.over.Load() })
		if f.next = f.next[n:]; len(calls) > 0 {
			f.group = &group{calls: calls, ticks: s.ticks.Load()}
			f.group.ctx, f.group.cancel = context.WithCancel(context.Background())
			return f.group
		}
	}
	delete(f.shard.under, f.id)
	return nil
}

// send sends a group's command and answers its calls. It reports false if the command
// was given up meanwhile, and somebody else flies.
func (s *Store) send(f *flight, g *group) bool {
	defer g.cancel()
	done, err := s.allow(g.ctx, g.calls[0].name.text)
	if err != nil {
		return f.finish(g, err)
	}
	f.shard.mu.Lock()
	g.done = done
	f.shard.mu.Unlock()
	script := s.prepare(f, g)
	g.begin = s.elapsed()

	s.transmit(g, script)

	received := s.elapsed()
	f.shard.mu.Lock()
	done, g.done = g.done, nil
	f.shard.mu.Unlock()
	if done != nil {
		done(s.verdict(g.err, received-g.begin, s.ticks.Load()-g.ticks))
	}
	if first := g.calls[0]; first.prog == nil {
		first.text, err = g.reply, g.err
	} else {
		err = s.conclude(g, received)
	}
	if errors.Is(err, errOther) {
		return s.adopt(f, g, err)
	}
	return f.finish(g, err)
}

// finish answers a group's calls, if its command was not given up before.
func (f *flight) finish(g *group, err error) bool {
	if !f.land(g, nil) {
		return false
	}
	for _, c := range g.calls {
		c.answer(err)
	}
	return true
}

// land takes a group off the flight. Its calls are about to be answered, except those to
// send again. It reports false if its command was given up before.
func (f *flight) land(g *group, again []*call) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.group != g {
		return false
	}
	f.group = nil
	f.next = append(again, f.next...)
	return true
}

// prepare makes a group's command, and returns the script that it runs, if any.
func (s *Store) prepare(f *flight, g *group) *script {
	first := g.calls[0]
	if first.prog == nil {
		g.cmd = first.cmd
		return first.from
	}
	s.counts.coalesced.Add(uint64(len(g.calls) - 1))
	if lease := s.wanted(first.name, first.prog); lease != nil {
		f.shard.mu.Lock()
		g.calls = append(g.calls, lease)
		f.shard.mu.Unlock()
		s.returns.begin() // until it is known what came of it
	}
	g.epoch = s.denials.epoch(first.name)
	args := []string{s.request(g), first.prog.tag}
	if first.prog.tag == "" {
		args = args[:1]
	}
	g.cmd = first.prog.script.command(first.name.text, args...)
	return first.prog.script
}

// resends is how often a command is sent again of which a server said that it did
// nothing: once because of a script, and while a slot moves.
const resends = 3

// transmit sends a group's command, and sends it again if nothing was done: with its
// script in full if the server did not know that, and what a client gave up to redirect.
func (s *Store) transmit(g *group, script *script) {
	for range 1 + resends {
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

// conclude finds the answers to a group's calls in the reply, and keeps what it tells.
func (s *Store) conclude(g *group, received time.Duration) error {
	if g.calls[len(g.calls)-1].extra {
		defer s.returns.end()
	}
	name, prog := g.calls[0].name, g.calls[0].prog
	left, err := decide(prog, g)
	if errors.Is(err, errOther) {
		s.denials.forget(name)
	}
	if err != nil {
		return err
	}
	left.sent, left.received = g.begin, received
	s.note(name, g.epoch, g.calls, left)
	s.learn(name, g.epoch, g.calls, left)
	return nil
}

// adopt answers a group on a key whose state was left by another limit, or on which the
// script failed: the first call replaces it, and the others are sent again.
func (s *Store) adopt(f *flight, g *group, err error) bool {
	var waits []*call
	for _, c := range g.calls {
		if !c.extra && !c.over.Load() {
			waits = append(waits, c)
		}
	}
	if len(waits) == 0 {
		return f.land(g, nil)
	}
	first := waits[0]
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	var why error // not to rewrite a state that can be read
	if e, ok := errors.AsType[*scriptError](err); ok {
		why = e.error
	}
	res, err := s.rewrite(ctx, first.name, first.prog, first.req, why)
	if !f.land(g, waits[1:]) {
		return false
	}
	first.res = res
	first.answer(err)
	return true
}

// run sends a command of its own, and returns the reply.
func (s *Store) run(ctx context.Context, name name, cmd Command, of *script) (string, error) {
	c := s.newCall()
	c.name, c.cmd, c.from = name, cmd, of
	if err := s.ask(ctx, c); err != nil {
		return "", err
	}
	reply := c.text
	s.free(c)
	return reply, nil
}
