package redisstore

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A queue has the calls on one key. One command of a key is in progress at a time. Calls that
// arrive meanwhile share the next one, which decides on them in the order in which they came. So a
// process has one command in progress for a key, no matter how many callers there are, and the
// callers of a key that is in demand share the cost of a call.
//
// The lock of its outbox protects the fields of a queue. The outbox forgets a queue without calls.
type queue struct {
	outbox *outbox
	id     queueID
	group  *group  // the calls whose command is in progress, or nil
	again  *group  // calls whose command is to be sent again, before those that wait, or nil
	next   []*call // the calls that wait
}

// A queueID identifies a queue of an outbox. A command decides on the calls on one key and for one
// limit, so that there is a queue for each of these pairs.
type queueID struct {
	key  string
	prog *program
	own  *call // for a raw command, which has a queue of its own
}

// queueOf returns the identity of the queue of a call.
func queueOf(c *call) queueID {
	id := queueID{key: c.name.text, prog: c.prog}
	if c.prog == nil {
		id.own = c
	}
	return id
}

// A group is the calls that share a command.
type group struct {
	queue   *queue
	calls   []*call
	cmd     Command
	script  *script.Script // that cmd runs, if any
	reply   string
	err     error
	base    step.Request   // provides the time of all calls, with WithLimiterClock
	epoch   uint64         // of the key's cached denials, before sending
	variant script.Variant // of the script
	moves   int            // how often a reply said that another server has the key

	sent, received time.Duration // when its command was, by the store's clock
}

// maxGroup bounds the calls that share a command, and so the run time of a script.
const maxGroup = 1024

// nextGroup makes the calls that wait the group whose command is in progress. It returns nil if no
// caller waits any more. The caller holds the outbox's lock, and q has no command in progress.
func (q *queue) nextGroup() *group {
	q.group, q.again = q.again, nil
	for q.group == nil && len(q.next) > 0 {
		n := min(len(q.next), maxGroup)
		calls := slices.DeleteFunc(q.next[:n:n], (*call).isLeftBehind)
		q.next = q.next[n:]
		if len(calls) > 0 {
			q.group = &group{queue: q, calls: calls}
		}
	}
	return q.group
}

// isLeftBehind reports whether no group takes c, because its caller does not wait any more. In
// this order, either the caller finds that c is in a group, or isLeftBehind that it has left.
func (c *call) isLeftBehind() bool {
	c.inGroup.Store(true)
	return c.claimed.Load()
}

// isBulky reports whether the calls that wait make a command that is sent by itself. The caller
// holds the outbox's lock.
func (q *queue) isBulky() bool { return len(q.next) > bulky }

// isBulky reports whether the command of g is sent by itself.
func (g *group) isBulky() bool { return len(g.calls) > bulky }

// waits reports whether q has calls for another command. The caller holds the outbox's lock.
func (q *queue) waits() bool { return q.again != nil || len(q.next) > 0 }

// inProgress returns the calls of q, those whose command is in progress first. The caller holds
// the outbox's lock.
func (q *queue) inProgress(yield func(*call) bool) {
	for _, g := range []*group{q.group, q.again} {
		if g == nil {
			continue
		}
		for _, c := range g.calls {
			if !yield(c) {
				return
			}
		}
	}
	for _, c := range q.next {
		if !yield(c) {
			return
		}
	}
}
