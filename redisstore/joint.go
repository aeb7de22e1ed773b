package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A decision on several keys is one call of a script (joint.lua) if the keys are on one
// server: a command of its own, which does not pass through the queues of the keys. As for a
// single key, the script decides and spends, and replies with the states from before, from
// which the kernels compute the Decisions. If another limit left a state that the script can use
// once it knows that limit, it is sent again. If the script cannot use a state at all, it changes
// nothing, and the limiters ask for one key after the other, which resolves that.

// A sharing is a group of keys that can share a command.
type sharing struct {
	store *Store
	tag   string // of the names, or "" if the server has all keys
}

// Group implements [limit.JointStates]. Keys are on one server of a cluster, and in one slot,
// if their names have the same hash tag.
func (s *states) Group(key string) any {
	if s.conn.OneServer() {
		return sharing{s.Store, ""}
	}
	if tag := hashTag(s.name(key).text); tag != "" {
		return sharing{s.Store, tag}
	}
	return nil
}

// A member is a key of a joint call.
type member struct {
	name  name
	prog  *program
	epoch uint64 // of the key's cached denials, before sending
}

// errApart means that the keys can only be decided on one after the other. Nothing was spent.
var errApart = errors.New("redisstore: no decision on these keys together")

// ApplyAll implements [limit.JointStates].
func (s *states) ApplyAll(ctx context.Context, calls []limit.Call) (decided bool, err error) {
	members, timeout, ok := membersOf(calls)
	if !ok {
		return false, nil
	}
	bounded, cancel := within(ctx, timeout)
	defer cancel()
	if s.knownJointly(calls, members) {
		return true, nil
	}
	err = s.applyAll(bounded, calls, members)
	if errors.Is(err, errApart) {
		return false, nil
	}
	for i := range calls {
		c := &calls[i]
		s.counts.tally(ctx, &c.Request, err)
	}
	return true, marked(err)
}

// membersOf returns the members for calls, and the shortest of their timeouts. ok is false if no
// command can have all of them.
func membersOf(calls []limit.Call) (members []member, timeout time.Duration, ok bool) {
	members = make([]member, len(calls))
	seen := make(map[string]bool, len(calls))
	for i := range calls {
		c := &calls[i]
		of, ok := c.States.(*states)
		if !ok { // a wrapper
			return nil, 0, false
		}
		prog, err := of.programs.get(c.Limit)
		if err != nil || !prog.HasScript() {
			return nil, 0, false // Apply returns the error
		}
		m := member{name: of.name(c.Key), prog: prog}
		if seen[m.name.text] { // limiters that share their states
			return nil, 0, false
		}
		seen[m.name.text] = true
		members[i] = m
		if of.timeout > 0 && (timeout == 0 || of.timeout < timeout) {
			timeout = of.timeout
		}
	}
	return members, timeout, true
}

// knownJointly sets the results of the keys that are known to refuse, and reports whether there
// are any, so that no call is needed. A denial that a key counts needs one, and so does one that
// another key never grants, because it must say so.
func (s *Store) knownJointly(calls []limit.Call, members []member) (known bool) {
	for i, m := range members {
		if m.prog.NotesDenials() {
			return false
		}
		if calls[i].Request.N <= m.prog.Most {
			continue
		}
		if _, ok := s.denied(m.name, m.prog, calls[i].Request); !ok {
			return false
		}
	}
	for i := range calls {
		c, m := &calls[i], &members[i]
		d, ok := s.denied(m.name, m.prog, c.Request)
		if ok {
			s.counts.cached.Add(1)
			c.Answer = step.Answer{Decision: d, Unasked: true}
			c.Answered, known = true, true
		}
	}
	return known
}

// applyAll sends the command and sets the results of the calls.
func (s *Store) applyAll(ctx context.Context, calls []limit.Call, members []member) error {
	var kinds []byte
	for i := range members {
		m := &members[i]
		kinds = append(kinds, m.prog.Kinds...)
		m.epoch = s.denials.epoch(m.name)
	}
	base, now := calls[0].Request, -1.0 // the server's
	if s.limiterClock {
		var t time.Time
		base, t = base.Read()
		followTogether(members, t)
		now = float64(t.UnixMicro())
	}
	v := script.Plain
	for i := range calls {
		if calls[i].Request.Hold.ID != 0 || s.opened(members[i].prog) {
			v |= script.Holding
		}
	}
	for range 2 + 3*len(calls) {
		runs := script.ForKeys(kinds, v)
		keys, args := s.encodeJoint(calls, members, now, v)
		cmd := running(runs, keys, args)
		got, err := s.run(ctx, members[0].name, cmd, runs)
		if err != nil {
			if isApart(err) || isScriptError(err) {
				// Commands on one key have no such error, or resolve it.
				return errApart
			}
			return err
		}
		at := snapshot{sent: got.sent, received: got.received}
		reply := got.text
		if v&script.Holding == 0 && len(reply) == 9 && reply[8] == replyHolds {
			v |= script.Holding
			continue
		}
		if len(reply) >= 13 && (reply[8] == replyDue || reply[8] == replyForeign) {
			i := int(binary.LittleEndian.Uint32([]byte(reply[9:]))) - 1
			if i < 0 || i >= len(calls) {
				return errShort
			}
			if reply[8] == replyForeign {
				if !s.meet(members[i].prog, reply[13:]) {
					return errApart
				}
				continue
			}
			come := calls[i].Request
			come.Op, come.N, come.Hold = step.OpCharge, 0, step.Handle{}
			if _, err := s.ask(ctx, members[i].name, members[i].prog, come); err != nil {
				return err
			}
			continue
		}
		if len(reply) == 9 && reply[8] == replyOther && followTogether(members, timeIn(reply)) {
			continue // the script lacked a window of a calendar, and gets that now
		}
		damaged, err := s.decideJointly(calls, members, base, at, reply)
		if err != nil {
			return err
		}
		s.restore(ctx, members, damaged)
		return nil
	}
	return errApart
}

// followTogether lets the programs of all members follow the server's clock, and reports whether
// that has changed the constants of one.
func followTogether(members []member, now time.Time) (changed bool) {
	for i := range members {
		if members[i].prog.Follow(now) {
			changed = true
		}
	}
	return changed
}

// encodeJoint returns the names of the keys, and the arguments of the script.
func (s *Store) encodeJoint(
	calls []limit.Call, members []member, now float64, v script.Variant,
) (keys, args []string) {
	head := append(script.AppendDouble(nil, now), jointOp(calls, members))
	args = append(make([]string, 0, 1+2*len(calls)), string(head))
	for i := range calls {
		prog := members[i].prog
		keys = append(keys, members[i].name.text)
		n := min(calls[i].Request.N, prog.Most)
		params := prog.Params()
		b := make([]byte, 1, 64+len(params))
		if prog.All {
			b[0] = 1
		}
		b = script.AppendDouble(b, float64(n))
		if v&script.Holding != 0 {
			told := script.Request{Request: &calls[i].Request}
			b = script.AppendDouble(script.AppendDouble(b, float64(told.Hold.ID)), told.Lasts())
			b = append(b, told.Flags())
		}
		b = prog.AppendCosts(append(b, params...), n)
		if v&script.Holding != 0 {
			b = prog.AppendCosts(b, 1)
		}
		args = append(args, string(b), prog.Tag)
	}
	for i := range members {
		for _, other := range s.met(members[i].prog) {
			index := binary.LittleEndian.AppendUint32(nil, uint32(i+1))
			args = append(args, string(index)+other)
		}
	}
	return keys, args
}

// jointOp returns the operation that the script executes. Like a request on a single key, one
// that can never be granted only peeks, and so does one of no events in any key.
func jointOp(calls []limit.Call, members []member) byte {
	op := byte(script.OpPeek)
	for i := range calls {
		switch req := &calls[i].Request; {
		case req.N > members[i].prog.Most:
			return script.OpPeek
		case req.N > 0: // of a Hold, too
			op = script.OpTake
		}
	}
	return op
}

// decideJointly sets the results of the calls from the reply, and updates the cached denials. If
// the script has spent the events, also of keys whose states are damaged, it sets the results of
// the others, and returns the damaged states by the indexes of their keys.
func (s *Store) decideJointly(
	calls []limit.Call, members []member, base step.Request, at snapshot, reply string,
) (damaged map[int][]byte, err error) {
	switch {
	case len(reply) < 9:
		return nil, errShort
	case reply[8] == replyOther || reply[8] == replyHolds:
		return nil, errApart
	case len(reply) < 17:
		return nil, errShort
	}
	at.time = timeIn(reply)
	if !s.limiterClock {
		base = base.At(at.time)
	}
	followTogether(members, at.time)
	found, ok := s.statesIn(reply[17:], members)
	if !ok {
		return nil, errShort
	}
	delay, next := time.Duration(0), make([][]byte, len(calls))
	apply := func(i int, req step.Request) (unread error) {
		t, unread := members[i].prog.Limit.Apply(found[i], req.AsOf(&base))
		next[i], calls[i].Answer = t.State, t.Answer
		return unread
	}
	damaged = map[int][]byte{}
	for i := range calls {
		if apply(i, calls[i].Request) != nil {
			damaged[i] = found[i]
			continue
		}
		delay = max(delay, calls[i].Answer.Delay)
	}
	op := jointOp(calls, members)
	taken, ended := grantedIn(reply)
	spent := taken == 1
	granted := grantsAll(calls, damaged)
	agrees := func() bool { return spent == (granted && op != script.OpPeek) }
	if !agrees() {
		for i := range members {
			if members[i].prog.Limit.Check(found[i]) != nil {
				damaged[i] = found[i]
			}
		}
		granted = grantsAll(calls, damaged)
	}
	switch {
	case len(damaged) > 0 && !spent:
		return nil, errApart
	case !agrees():
		return nil, fmt.Errorf("redisstore: the script grants %d keys together: %t, unlike package "+
			"ratelimit: this is a defect of the store, please report it", len(calls), spent)
	}
	s.counts.ended.Add(ended)
	for i := range calls {
		if damaged[i] != nil {
			calls[i].Answer = step.Answer{} // which was made of nothing
			continue
		}
		again := calls[i].Request
		switch {
		case !granted:
			again.Refused, again.Notes = true, op != script.OpPeek
		case again.Op == step.OpHold && calls[i].Answer.Delay < delay:
			again.Delay = delay
		}
		if !granted || again.Delay > 0 {
			_ = apply(i, again) // which could be read
		}
		calls[i].Answered = true
		after := at
		after.state = next[i]
		s.expect(members[i].prog, after.state)
		s.cacheJointly(&calls[i], &members[i], after)
	}
	return damaged, nil
}

// grantsAll reports whether all keys have granted that are not damaged.
func grantsAll(calls []limit.Call, damaged map[int][]byte) bool {
	for i := range calls {
		if damaged[i] == nil && !calls[i].Answer.Allowed {
			return false
		}
	}
	return true
}

// restore puts damaged states back that a script has used. They are left to the next commands on
// their keys, which report them: so the limiters ask for these keys alone, and not again for those
// that have spent the events.
//
// What another process has done with the key meanwhile is lost, as everything is that a damaged key
// has counted: the key begins afresh. Without an answer, the state is what the script has made of
// the damaged one. The other keys have been decided on, so that it is no failure of the call.
func (s *Store) restore(ctx context.Context, members []member, damaged map[int][]byte) {
	for i, state := range damaged {
		name := members[i].name
		words := []string{"PSETEX", name.text, damagedFor, string(state)}
		_, _ = s.run(ctx, name, Command{Words: words, Key: 1}, nil)
	}
}

// damagedFor is for how many milliseconds a damaged state is kept at most.
const damagedFor = "60000"

// statesIn returns the states of the keys in a reply.
func (s *Store) statesIn(reply string, members []member) (found [][]byte, ok bool) {
	for _, m := range members {
		if len(reply) < 4 {
			return nil, false
		}
		head := binary.LittleEndian.Uint32([]byte(reply[:4]))
		n, form := int(head&(1<<30-1)), head>>30
		reply = reply[4:]
		if n > len(reply) {
			return nil, false
		}
		state := m.prog.State(reply[:n])
		if form > 0 {
			state = append([]byte([]string{m.prog.AheadTag, m.prog.OpenTag}[form/2]), reply[:n]...)
			s.opens(m.prog)
		}
		found = append(found, state)
		reply = reply[n:]
	}
	return found, true
}

// cacheJointly is cacheDenial for a key of a joint call.
func (s *Store) cacheJointly(c *limit.Call, m *member, after snapshot) {
	alone := &call{name: m.name, prog: m.prog, req: c.Request, res: c.Answer}
	s.cacheDenial(m.name, m.epoch, []*call{alone}, after)
}
