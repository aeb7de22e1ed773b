package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// If keys have limits of their own, a value may be the state of another limit: the limit
// has changed, or processes disagree about it while it changes. Then the script replies with
// the value, which names that limit, and the command is sent again with the constants of that
// limit. The script now adopts the state, decides, and stores the new
// state in the same call. That depends on the limit and not on the value, so it succeeds
// no matter how often other processes change the state in the meantime.
//
// A program remembers the limits that it has met. For a while, its commands are for the
// adopting variant of the script, and have the constants of these limits. So as long as
// processes disagree, and if a limit changes for many keys, decisions take one call each.
//
// A value that cannot be read is handled in the same way: the command is sent again with that
// value, and the script ignores it if it is still there.

// A foreign is another limit that has left a state.
type foreign struct {
	tag    string // the prefix of its states
	params string // its constants; "" if keys start afresh, because its kind is another
}

// foreigns are the limits whose states a program has met.
type foreigns struct {
	mu     sync.Mutex                // held while latest is replaced
	latest atomic.Pointer[[]foreign] // the latest first; the slice never changes
	met    atomic.Int64              // when a state of one of them was met, by the store's clock
}

const (
	maxForeigns = 8                // limits that a program remembers
	foreignAge  = 10 * time.Second // how long it remembers them after it has met one

	// maxAgain bounds how often a call is sent again. Each time, the value is a state of
	// a limit that the command did not name, and the next one names it. (A damaged value is
	// rare.) So that is enough unless more than maxForeigns other limits are in use on one
	// key at once.
	maxAgain = maxForeigns
)

// expected returns the limits whose states a command of prog should be able to adopt.
func (s *Store) expected(prog *program) []foreign {
	latest := prog.foreigns.latest.Load()
	if latest == nil || s.elapsed()-time.Duration(prog.foreigns.met.Load()) > foreignAge {
		return nil
	}
	return *latest
}

// resolve sends a group's calls again after the script could not use the value, because it
// is the state of another limit or because it cannot be read. The next command tells the
// script how to use that value: with the constants of the other limit, or as no value.
func (s *Store) resolve(q *queue, g *group, why error) bool {
	if errors.Is(why, errReset) {
		return s.sendWithout(q, g)
	}
	if origin := g.origin(); origin != nil {
		s.meet(g.calls[0].prog, origin)
		return s.sendAgain(q, g, origin, "")
	}
	first := g.calls[0]
	value, err := s.run(g.ctx, first.name, Command{Words: []string{"EVAL", getText, "1", first.name.text}, Key: 3})
	if err != nil {
		return q.finish(g, err)
	}
	peek := ratelimit.Request{Op: ratelimit.OpPeek, N: 1}.At(time.UnixMicro(0))
	_, _, res, err := first.prog.t.Apply(first.prog.state(first.prog.tag, value), peek)
	if err != nil {
		return q.finish(g, err)
	}
	if res.StateErr() != nil {
		return s.sendAgain(q, g, nil, value)
	}
	if failed, ok := errors.AsType[*scriptError](why); ok {
		return q.finish(g, failed.error)
	}
	return s.sendAgain(q, g, nil, "") // the value was replaced in the meantime
}

// getText is a script that returns a value, or the empty string if there is none. (To GET,
// clients give an error then.)
const getText = "return redis.call('GET', KEYS[1]) or ''"

// origin returns the program of the limit that left the value in a reply, or nil if the
// reply has no value or its limit cannot be read.
func (g *group) origin() *program {
	prog := g.calls[0].prog
	if g.err != nil || g.reply[8] != replyOther || len(g.reply) == 9 || prog.tag == "" {
		return nil
	}
	t, err := prog.t.Origin([]byte(g.reply[9:]))
	if err != nil {
		return nil
	}
	origin, err := newProgram(t)
	if err != nil {
		return nil
	}
	return origin
}

// meet remembers that a state which origin left was met under the limit of prog.
func (s *Store) meet(prog, origin *program) {
	f := &prog.foreigns
	f.mu.Lock()
	defer f.mu.Unlock()
	latest := []foreign{prog.foreign(origin)}
	for _, other := range s.expected(prog) {
		if other.tag != origin.tag && len(latest) < maxForeigns {
			latest = append(latest, other)
		}
	}
	f.latest.Store(&latest)
	f.met.Store(int64(s.elapsed()))
}

// alike reports whether p can adopt the states of another program.
func (p *program) alike(origin *program) bool {
	return origin.all == p.all && slices.Equal(origin.kinds, p.kinds)
}

// foreign returns what the script of p needs to adopt states that another program left.
func (p *program) foreign(origin *program) foreign {
	if !p.alike(origin) {
		return foreign{tag: origin.tag}
	}
	params := []byte(origin.params)
	for i, cost := range origin.costs {
		params = append(params, doubles(cost.units, p.costs[i].units)...)
	}
	return foreign{origin.tag, string(params)}
}

// sendAgain puts the calls of a group back at the head of the queue. The value is the state
// of origin, or damaged. Calls that take events back are not sent again: reservations of
// another limit give nothing back, and events to return are given back under origin, if it
// is of the same kind.
func (s *Store) sendAgain(q *queue, g *group, origin *program, damaged string) bool {
	var again, elsewhere []*call
	for _, c := range g.calls {
		switch {
		case c.forLease || c.claimed.Load():
		case c.op() == opCancel:
			c.res.Grant = &kernel.Undone{}
			c.answer(nil)
		case c.req.Op == ratelimit.OpSettle && origin != nil && c.again < maxAgain:
			c.again++
			elsewhere = append(elsewhere, c)
		case c.req.Op == ratelimit.OpSettle: // like those below
			again = appendAgain(again, c, damaged)
		case c.undoes() && (origin == nil || !c.prog.alike(origin)):
			c.answer(nil) // the key starts afresh
		case c.undoes() && c.again == maxAgain:
			s.counts.lost.Add(uint64(c.req.N))
			c.answer(nil)
		case c.undoes():
			if over := c.req.N - origin.limit; over > 0 { // no request may return more
				s.counts.lost.Add(uint64(over))
				c.req.N = origin.limit
			}
			c.again++
			elsewhere = append(elsewhere, c)
		default:
			again = appendAgain(again, c, damaged)
		}
	}
	if !q.detach(g, again) {
		return false
	}
	for _, c := range elsewhere {
		c.prog = origin
		s.enqueue(c)
	}
	return true
}

// appendAgain appends a call to those to send again, unless that was done too often.
func appendAgain(again []*call, c *call, damaged string) []*call {
	if c.again == maxAgain {
		c.answer(fmt.Errorf("redisstore: %d times, the state of %q was of another limit or unreadable: let all processes use the same limit", maxAgain, c.name.text))
		return again
	}
	c.again++
	c.damaged = damaged
	return append(again, c)
}
