package redisstore

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// If keys have limits of their own, a value may be the state of another limit: the limit
// has changed, or processes disagree about it while it changes. Then the script replies with
// the beginning of the value, which names that limit, and the command is sent again with
// the constants of that limit. The script now adopts the state, decides, and stores the new
// state in the same call. That depends on the limit and not on the value, so it succeeds
// no matter how often other processes change the state in the meantime.
//
// A program remembers the limits that it has met. For a while, its commands are for the
// adopting variant of the script, and have the constants of these limits. So as long as
// processes disagree, and if a limit changes for many keys, decisions take one call each.

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
	// a limit that the command did not name, and the next one names it. So that is
	// enough unless more than maxForeigns other limits are in use on one key at once.
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

// learn returns the program of the limit that left the value, which it reads from a reply.
// It returns nil if it cannot, so that another attempt would not help: the value is damaged,
// or it begins with an All of so many parts that the reply does not have all of its
// parameters. Then repair replaces it.
func (s *Store) learn(g *group) (left *program) {
	prog := g.calls[0].prog
	if g.err != nil || g.reply[8] != replyOther || len(g.reply) == 9 || prog.tag == "" {
		return nil
	}
	from, err := prog.t.Origin([]byte(g.reply[9:]))
	if err != nil {
		return nil
	}
	if left, err = newProgram(from); err != nil {
		return nil
	}
	f := &prog.foreigns
	f.mu.Lock()
	defer f.mu.Unlock()
	latest := []foreign{prog.foreign(left)}
	for _, other := range s.expected(prog) {
		if other.tag != left.tag && len(latest) < maxForeigns {
			latest = append(latest, other)
		}
	}
	f.latest.Store(&latest)
	f.met.Store(int64(s.elapsed()))
	return left
}

// alike reports whether p can adopt the states of another program.
func (p *program) alike(left *program) bool {
	return left.all == p.all && slices.Equal(left.kinds, p.kinds)
}

// foreign returns what the script of p needs to adopt states that another program left.
func (p *program) foreign(left *program) foreign {
	if !p.alike(left) {
		return foreign{tag: left.tag}
	}
	params := []byte(left.params)
	for i, cost := range left.costs {
		params = append(params, doubles(cost.units, p.costs[i].units)...)
	}
	return foreign{left.tag, string(params)}
}

// sendAgain puts the calls of a group back at the head of the queue, to be sent with the
// limit that left the value, as learn has read it. Calls that take events back do not adopt
// the value: reservations of another limit give nothing back, and events to return are
// given back under the limit that left the value, if it is of the same kind.
func (s *Store) sendAgain(q *queue, g *group, left *program) bool {
	var again, elsewhere []*call
	for _, c := range g.calls {
		switch {
		case c.forLease || c.claimed.Load():
		case c.op() == opCancel:
			c.res.Grant = &kernel.Undone{}
			c.answer(nil)
		case c.undoes() && !c.prog.alike(left):
			c.answer(nil) // the key has started afresh
		case c.undoes() && c.again == maxAgain:
			s.counts.lost.Add(uint64(c.req.N))
			c.answer(nil)
		case c.undoes():
			if over := c.req.N - left.limit; over > 0 { // no request may return more
				s.counts.lost.Add(uint64(over))
				c.req.N = left.limit
			}
			c.again++
			elsewhere = append(elsewhere, c)
		case c.again == maxAgain:
			c.answer(fmt.Errorf("redisstore: %d other limits left the state of %q one after another: let all processes use the same limit", maxAgain, c.name.text))
		default:
			c.again++
			again = append(again, c)
		}
	}
	if !q.detach(g, again) {
		return false
	}
	for _, c := range elsewhere {
		c.prog = left
		s.enqueue(c)
	}
	return true
}
