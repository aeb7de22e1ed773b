package redisstore

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// This file makes the commands of groups: a script, and in its argument the constants of the limit
// and the requests of all calls. reply.go reads the replies.

// prepare makes the command of a group.
func (s *Store) prepare(g *group) {
	first := g.calls[0]
	prog := first.prog
	if prog == nil {
		g.cmd, g.script = first.cmd, first.script
		return
	}
	s.counts.coalesced.Add(uint64(max(0, g.requests()-1)))
	holds := slices.ContainsFunc(g.calls, func(c *call) bool { return c.told().Holds() })
	calls := s.leaseCalls(first.name, prog, first.req.Clock, !holds)
	if len(calls) > 0 {
		g.queue.outbox.join(g, calls)
		holds = true
	}
	v := script.Plain
	switch {
	case holds || s.opened(prog):
		v = script.Holding
	case slices.ContainsFunc(g.calls, func(c *call) bool { return c.op() == script.OpCharge }):
		v = script.Longer
	}
	g.epoch = s.denials.epoch(first.name)
	s.setCommand(g, v)
}

// requests returns how many calls of a group are requests, and not calls of leases.
func (g *group) requests() (n int) {
	for _, c := range g.calls {
		if !c.forLease {
			n++
		}
	}
	return n
}

// join adds calls to a group whose command is not made yet.
func (o *outbox) join(g *group, calls []*call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.calls = append(g.calls, calls...)
}

// setCommand sets a group's command to one of a variant of the script.
func (s *Store) setCommand(g *group, v script.Variant) {
	name, prog := g.calls[0].name.text, g.calls[0].prog
	g.variant = v
	if !prog.HasScript() {
		s.setBase(g)
		g.script, g.cmd = nil, getCommand(name)
		return
	}
	args := []string{s.encode(g), prog.Tag}
	if !slices.ContainsFunc(g.calls, (*call).stays) {
		args = append(args, s.met(prog)...)
	}
	g.script = prog.For(v)
	g.cmd = running(g.script, []string{name}, args)
}

// running returns the command that runs a script on keys.
func running(s *script.Script, keys, args []string) Command {
	return Command{Words: s.Words(keys, args), Key: script.Key}
}

// openAge is for how long a store expects open holds or turns in the keys of a limit after it has
// met some.
const openAge = 10 * time.Second

// opens notes that holds are open in a key of prog, or turns ahead.
func (s *Store) opens(prog *program) { prog.opened.Store(int64(max(1, s.elapsed()))) }

// expect notes that a key of prog has a state, so that the next command is one that can use it.
func (s *Store) expect(prog *program, state []byte) {
	if prog.IsOpen(state) {
		s.opens(prog)
	}
}

// opened reports whether that was so lately.
func (s *Store) opened(prog *program) bool {
	met := prog.opened.Load()
	return met > 0 && s.elapsed()-time.Duration(met) < openAge
}

// meetsHolds reports whether a group's command was not carried out because its script does not know
// holds, and makes one whose script does.
func (s *Store) meetsHolds(g *group) bool {
	if g.err != nil || g.variant&script.Holding != 0 || g.calls[0].prog == nil {
		return false
	}
	if len(g.reply) != 9 || g.reply[8] != replyHolds {
		return false
	}
	s.opens(g.calls[0].prog)
	s.setCommand(g, script.Holding)
	return true
}

// setBase sets g.base, and returns the time for the script: a negative one for that of the server.
func (s *Store) setBase(g *group) (now float64) {
	g.base = g.calls[0].req
	if !s.limiterClock {
		return -1
	}
	var t time.Time
	g.base, t = g.base.Read()
	g.calls[0].prog.Follow(t)
	return float64(t.UnixMicro())
}

// encode returns the first argument of the script: the constants of the limit, the time
// and the requests. It sets g.base.
func (s *Store) encode(g *group) string {
	calls, prog := g.calls, g.calls[0].prog
	now := s.setBase(g)
	usual := len(calls) == 1 && calls[0].told().TakesOne()
	if usual && !s.limiterClock && g.variant&script.Holding == 0 {
		return prog.TakesOne()
	}
	var room [256]byte // enough for most, and not allocated
	b := script.AppendDouble(append(room[:0], prog.Params()...), now)
	if g.variant&script.Holding != 0 {
		b = prog.AppendCosts(b, 1)
	}
	for i := 0; i < len(calls); {
		j := i + 1
		for j < len(calls) && calls[i].told().Equals(calls[j].told()) {
			j++
		}
		b = calls[i].told().AppendRun(b, j-i, g.variant)
		i = j
	}
	return string(b)
}
