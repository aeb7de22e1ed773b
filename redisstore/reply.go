package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// This file computes the answers of a group from the reply to its command. The script has decided
// and spent. Its reply has the state before that, as far as the decisions depend on it, and the
// time. The kernels apply the same requests to this state: so the answers are those of package
// ratelimit, and the script need not make them.

// The outcomes that a reply may report, besides 0.
const (
	replyOther = 1 // the script could not use the value
	replyHolds = 4 // holds are open or turns ahead, and the script does not know them
	replyOpen  = 5 // it is the state of a key with open holds
	replyAhead = 6 // and of one with turns ahead
	// Turns of one of several keys have come, which only a command of its own can let happen.
	replyDue = 7
	// The value of one of several keys is no state of its limit, and is in the reply.
	replyForeign = 8
)

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
	if slices.ContainsFunc(g.calls, (*call).takesLease) {
		s.grantWaiting(g)
	}
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
	mayHaveChanged := granted > 0 || ended > 0 || g.mayChangeSilently()
	state := prog.State(reply[17:])
	switch reply[8] {
	case replyOpen:
		state = append([]byte(prog.OpenTag), reply[17:]...)
	case replyAhead:
		state = append([]byte(prog.AheadTag), reply[17:]...)
	}
	found := state
	s.expect(prog, found)
	after.time = timeIn(reply)
	prog.Follow(after.time)
	base := g.base
	if !s.limiterClock {
		base = base.At(after.time)
	}
	for _, c := range g.calls {
		req := c.req.AsOf(&base)
		t, unread := prog.Limit.Apply(state, req)
		switch {
		case unread != nil && mayHaveChanged:
			return after, &damagedError{unread}
		case unread != nil:
			return after, errOther
		}
		state, c.res = t.State, t.Answer
		if c.res.Allowed && c.told().Spends() {
			granted -= c.told().Counted(c.res.Granted)
		}
	}
	if granted != 0 {
		if damage := prog.Limit.Check(found); damage != nil {
			return after, &damagedError{damage}
		}
		return after, fmt.Errorf("redisstore: the script granted %v more requests than package "+
			"ratelimit would: this is a defect of the store, please report it", granted)
	}
	s.counts.ended.Add(ended)
	s.expect(prog, state)
	after.state, after.ends = state, prog.FirstEnd(state)
	return after, nil
}

// mayChangeSilently reports whether the script may have changed the state and not said so: it tells
// neither of what it has charged, settled or extended, nor of denied events that count, nor of
// turns that have come.
func (g *group) mayChangeSilently() bool {
	prog := g.calls[0].prog
	if g.reply[8] == replyAhead || prog.NotesDenials() {
		return true
	}
	return slices.ContainsFunc(g.calls, func(c *call) bool {
		op := c.op()
		return op == script.OpCharge || op == script.OpSettle || op == script.OpExtend
	})
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

// timeIn returns the server's time, with which the reply of a script begins.
func timeIn(reply string) time.Time { return time.UnixMicro(int64(double(reply))) }
