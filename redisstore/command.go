package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// The outcomes that a reply may report, besides 0.
const (
	replyOther = 1 // the script could not use the value
	replyHolds = 4 // holds are open or turns ahead, and the script does not know them
	replyOpen  = 5 // it is the state of a key with open holds
	replyAhead = 6 // and of one with turns ahead
	// Turns of one of several keys have come, which only a command of its own can let happen.
	replyDue = 7
)

// prepare makes the command of a group.
func (s *Store) prepare(g *group) {
	first := g.calls[0]
	prog := first.prog
	if prog == nil {
		g.cmd, g.script = first.cmd, first.script
		return
	}
	s.counts.coalesced.Add(uint64(len(g.calls) - 1))
	holds := slices.ContainsFunc(g.calls, (*call).holds)
	calls := s.leaseCalls(first.name, prog, !holds)
	if len(calls) > 0 {
		g.queue.outbox.join(g, calls)
		holds = true
	}
	v := plain
	switch {
	case holds || s.opened(prog):
		v = holding
	case slices.ContainsFunc(g.calls, func(c *call) bool { return c.op() == opCharge }):
		v = longer
	}
	g.epoch = s.denials.epoch(first.name)
	s.setCommand(g, v)
}

// join adds calls to a group whose command is not made yet.
func (o *outbox) join(g *group, calls []*call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	g.calls = append(g.calls, calls...)
}

// setCommand sets a group's command to one of a variant of the script.
func (s *Store) setCommand(g *group, v variant) {
	name, prog := g.calls[0].name.text, g.calls[0].prog
	g.variant = v
	args := []string{s.encode(g), prog.tag}
	if !slices.ContainsFunc(g.calls, (*call).stays) {
		args = append(args, s.met(prog)...)
	}
	g.script = prog.variantOf(v)
	g.cmd = g.script.command([]string{name}, args)
}

// openAge is for how long a store expects open holds or turns in the keys of a limit after it has
// met some.
const openAge = 10 * time.Second

// opens notes that holds are open in a key of prog, or turns ahead.
func (s *Store) opens(prog *program) { prog.opened.Store(int64(max(1, s.elapsed()))) }

// expect notes that a key of prog has a state, so that the next command is one that can use it.
func (s *Store) expect(prog *program, state []byte) {
	if prog.isOpen(state) {
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
	if g.err != nil || g.variant&holding != 0 || g.calls[0].prog == nil {
		return false
	}
	if len(g.reply) != 9 || g.reply[8] != replyHolds {
		return false
	}
	s.opens(g.calls[0].prog)
	s.setCommand(g, holding)
	return true
}

// encode returns the first argument of the script: the constants of the limit, the time
// and the requests. It sets g.base.
func (s *Store) encode(g *group) string {
	calls, prog := g.calls, g.calls[0].prog
	g.base = calls[0].req
	now := -1.0 // the server's
	if s.limiterClock {
		var t time.Time
		g.base, t = g.base.Read()
		now = float64(t.UnixMicro())
	} else if g.variant&holding == 0 && len(calls) == 1 && calls[0].takesOne() {
		return prog.one
	}
	var room [256]byte // enough for most, and not allocated
	b := appendDouble(append(room[:0], prog.params...), now)
	if g.variant&holding != 0 {
		b = prog.appendCosts(b, 1)
	}
	for i := 0; i < len(calls); {
		j := i + 1
		for j < len(calls) && calls[i].equals(calls[j]) {
			j++
		}
		b = calls[i].appendRun(b, j-i, g.variant)
		i = j
	}
	return string(b)
}

// A snapshot is the state of a key after a command, as far as its requests need it.
type snapshot struct {
	state []byte
	time  time.Time // by the server's clock
	ends  time.Time // when the first open hold ends, at the earliest; zero if none is open

	// When the command was sent and its reply received, by the store's clock. The server
	// read its clock between the two.
	sent, received time.Duration
}

// readReply sets the results of a group's calls from the reply, and updates the cached
// denials and leases.
func (s *Store) readReply(g *group) error {
	name := g.calls[0].name
	after, err := s.decide(g)
	after.sent, after.received = g.sent, g.received
	s.leaseOutcome(name, g.calls, after, err)
	switch {
	case err == nil:
		s.cacheDenial(name, g.epoch, g.calls, after)
	case errors.Is(err, errOther):
		s.denials.forget(name)
	}
	return err
}

// decide sets the results of a group's calls, by applying them to the state in the reply.
func (s *Store) decide(g *group) (after snapshot, err error) {
	prog, reply := g.calls[0].prog, g.reply
	switch {
	case isScriptError(g.err):
		return after, &scriptError{g.err}
	case g.err != nil:
		return after, g.err
	case len(reply) < 9:
		return after, errShort
	case reply[8] == replyOther || reply[8] == replyHolds:
		return after, errOther
	case len(reply) < 17:
		return after, errShort
	}
	granted, ended := grantedIn(reply)
	state := prog.state(reply[17:])
	switch reply[8] {
	case replyOpen:
		state = append([]byte(prog.openTag), reply[17:]...)
	case replyAhead:
		state = append([]byte(prog.aheadTag), reply[17:]...)
	}
	s.expect(prog, state)
	after.time = time.UnixMicro(int64(double(reply)))
	base := g.base
	if !s.limiterClock {
		base = base.At(after.time)
	}
	for _, c := range g.calls {
		req := c.req.AsOf(&base)
		t, unread := prog.l.Apply(state, req)
		if unread != nil {
			return after, errOther
		}
		state, c.res = t.State, t.Answer
		if c.res.Allowed && c.spends() {
			granted--
		}
	}
	if granted != 0 {
		return after, fmt.Errorf("redisstore: the script granted %v more requests than package "+
			"ratelimit would: this is a defect of the store, please report it", granted)
	}
	s.counts.ended.Add(ended)
	s.expect(prog, state)
	after.state, after.ends = state, prog.firstEnd(state)
	return after, nil
}

// grantedIn returns how many requests a script has granted, and how many holds have ended by
// themselves.
func grantedIn(reply string) (granted float64, ended uint64) {
	const unit = 1 << 16
	number := double(reply[9:])
	ended = uint64(max(0, number) / unit)
	return number - float64(ended*unit), ended
}

// double returns the number in the first 8 bytes of s.
func double(s string) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8])))
}
