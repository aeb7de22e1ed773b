package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A value may be the state of another limit: the limit was changed, or processes disagree about it
// while it changes. A script uses the states that limits left which differ from its own only in how
// much they grant, if it knows them. Otherwise, it replies with the value. Then the process
// applies the requests itself, with the arithmetic of package ratelimit, and a script replaces the
// value by the result. If another process was faster, that script replies with the present value
// instead, and the process begins again with it.
//
// A value that cannot be read is replaced in the same way. So is one with turns ahead, if a request
// is of a rare kind: see ahead.lua. And so is one for which a script needs a window of a
// calendar that its arguments lack: see calendar.lua.

// similars are the limits whose states a program has met and can use.
type similars struct {
	mu     sync.Mutex // held while latest is replaced
	latest atomic.Pointer[[]similar]
}

// A similar is the prefix of the states of such a limit.
type similar struct {
	tag string
	met time.Duration // when a state with it was last met, by the store's clock
}

const (
	maxSimilars = 8                // limits that a program remembers
	similarAge  = 10 * time.Second // how long it remembers them after it has met one
)

// met returns the prefixes of the states that commands of prog should be able to use as well.
func (s *Store) met(prog *program) (tags []string) {
	latest := prog.similars.latest.Load()
	if latest == nil {
		return nil
	}
	for _, known := range *latest {
		if s.elapsed()-known.met < similarAge {
			tags = append(tags, known.tag)
		}
	}
	return tags
}

// meet remembers the limit that left value, if prog can use its states. It reports whether value is
// one that a script can use then.
func (s *Store) meet(prog *program, value string) (isUsable bool) {
	from, err := prog.Limit.Origin(prog.StateOf(value))
	if err != nil || from == nil || string(from.Tag()) == prog.Tag {
		return false
	}
	if !prog.Limit.ReadsStatesOf(from.Machine) {
		return false
	}
	known := &prog.similars
	known.mu.Lock()
	defer known.mu.Unlock()
	latest := []similar{{string(from.Tag()), s.elapsed()}}
	if old := known.latest.Load(); old != nil {
		for _, other := range *old {
			if other.tag != latest[0].tag && len(latest) < maxSimilars {
				latest = append(latest, other)
			}
		}
	}
	known.latest.Store(&latest)
	return strings.HasPrefix(value, latest[0].tag) // and is in no other form
}

// getText is a script that replies with the time, 1 and a value, or nothing if there is none. What
// is computed from a value is as of when it was read: another process may have used it just before.
const getText = `local t = redis.call('TIME')
return struct.pack('<d', t[1] * 1000000 + t[2]) .. '\1' .. (redis.call('GET', KEYS[1]) or '')`

// getCommand returns the command that runs getText on a key.
func getCommand(key string) Command {
	return Command{Words: []string{"EVAL", getText, "1", key}, Key: 3}
}

// replaceText is a script that replaces the value ARGV[1], if it is still there, by ARGV[2] for
// ARGV[3] milliseconds. It replies with the time and 0, or with the time, 1 and the present value.
const replaceText = `local t = redis.call('TIME')
local head = struct.pack('<d', t[1] * 1000000 + t[2])
local value = redis.call('GET', KEYS[1]) or ''
if value ~= ARGV[1] then return head .. '\1' .. value end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return head .. '\0'`

var replace = script.Of(replaceText)

// resolve answers a group's calls after the script could not use the value, for a reason. Meanwhile
// the group is the one of its queue whose command is in progress, and the commands of resolve are
// raw ones.
func (o *outbox) resolve(g *group, reason error) {
	s, first := o.store, g.calls[0]
	reply, err := s.found(g)
	if err != nil {
		o.finish(g, err)
		return
	}
	s.meet(first.prog, reply.text[9:])
	failed, _ := errors.AsType[*scriptError](reason)
	var damage error // why the key begins afresh, whatever the value is now
	if used, ok := errors.AsType[*damagedError](reason); ok {
		damage = used.error
	}
	for s.elapsed()-g.sent < mostBusy*s.timeout && g.isAwaited() {
		value, at := reply.text[9:], timeIn(reply.text)
		if !s.limiterClock {
			first.prog.Follow(at)
		}
		after, res, changed, unread := s.compute(g, value, at, damage)
		if failed != nil && !unread {
			contradiction := first.prog.Limit.Check(first.prog.StateOf(value))
			if contradiction == nil {
				o.finish(g, failed.error) // the value is not the reason
				return
			}
			after, res, changed, unread = s.compute(g, value, at, contradiction)
		}
		after.sent, after.received = reply.sent, reply.received
		if changed {
			reply, err = s.replace(first.name, value, string(after.state), s.ttl(&res))
			if err != nil {
				o.finish(g, err)
				return
			}
			if reply.text[8] == replyOther { // another process has changed the value
				o.renew(g)
				continue
			}
			after.sent, after.received = reply.sent, reply.received
		}
		if unread {
			s.counts.unreadable.Add(1)
		}
		s.counts.ended.Add(uint64(res.Ended))
		s.expect(first.prog, after.state)
		s.cacheDenial(first.name, g.epoch, g.calls, after)
		o.finish(g, nil)
		return
	}
	o.finish(g, o.store.timeoutError(o.server))
}

// isAwaited reports whether a caller of g waits.
func (g *group) isAwaited() bool {
	return slices.ContainsFunc(g.calls, func(c *call) bool { return !c.claimed.Load() })
}

// mostBusy is how many times the timeout a call may take at most, because other processes change
// the value again and again. The server answers, so the policy has nothing to decide.
const mostBusy = tickWeight / answeredTickWeight

// renew lets the timeout of a group's calls, and of those that wait for it, begin again.
func (o *outbox) renew(g *group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	q := g.queue
	if q.group != g {
		return
	}
	for c := range q.inProgress {
		c.born = o.waited
	}
}

// found returns a reply with the value. The script's has it unless the arithmetic of this process
// has found what the script has not.
func (s *Store) found(g *group) (rawReply, error) {
	if g.err == nil && g.reply[8] == replyOther {
		return rawReply{g.reply, g.sent, g.received}, nil
	}
	name := g.calls[0].name
	return s.runReply(name, getCommand(name.text), nil)
}

// replace replaces the value of a key by another one, which expires after ttl milliseconds, if
// nobody else has changed the value.
func (s *Store) replace(name name, value, by, ttl string) (rawReply, error) {
	cmd := running(replace, []string{name.text}, []string{value, by, ttl})
	return s.runReply(name, cmd, replace)
}

// runReply is run for a script whose reply has a head, of nine bytes.
func (s *Store) runReply(name name, cmd Command, runs *script.Script) (rawReply, error) {
	reply, err := s.run(context.Background(), name, cmd, runs)
	if err == nil && len(reply.text) < 9 {
		err = errShort
	}
	return reply, err
}

// ttl returns for how many milliseconds the state of a result is kept.
func (s *Store) ttl(res *step.Answer) string {
	ttl := res.IdleAfter()/time.Millisecond + 1
	if s.limiterClock {
		ttl += time.Hour / time.Millisecond // because the limiter's time is not the server's
	}
	return strconv.FormatInt(min(int64(ttl), script.TooLong/1000), 10)
}

// compute applies the requests of a group to a value, at the time of the server's clock, or to a
// key that begins afresh because of damage, if that is not nil. It returns the state after them,
// the last answer, with the number of holds that have ended in all, and whether the value could not
// be read.
func (s *Store) compute(
	g *group, value string, at time.Time, damage error,
) (after snapshot, last step.Answer, changed, unread bool) {
	prog := g.calls[0].prog
	base := g.base
	if !s.limiterClock {
		base = base.At(at)
	}
	after.time, after.state = at, prog.StateOf(value)
	ended := 0
	for _, c := range g.calls {
		if c.takesLease() || c.claimed.Load() {
			continue
		}
		req := c.req.AsOf(&base)
		var t limit.Transition
		if damage != nil {
			t, c.unread, damage = prog.Limit.Afresh(req), damage, nil
		} else {
			t, c.unread = prog.Limit.Apply(after.state, req)
		}
		after.state, c.res = t.State, t.Answer
		last, changed, unread = c.res, changed || t.Changed, unread || c.unread != nil
		ended += c.res.Ended
	}
	last.Ended = ended
	return after, last, changed, unread
}
