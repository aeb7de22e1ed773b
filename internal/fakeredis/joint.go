package fakeredis

// This file does in Go what redisstore/internal/script/lua/joint.lua does in Redis: it decides
// on several keys in one call.

import (
	"encoding/binary"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// A member is one key of a call on several keys.
type member struct {
	key, tag string
	limit    *limit.Limit
	constants
	found
	req step.Request
}

// The bits that are added to the length of a state in a reply.
const (
	openBit  = 1 << 31
	aheadBit = 1 << 30
)

// decideJointly does what lua/joint.lua does.
func (s *Server) decideJointly(run script, keys, args []string) (string, error) {
	head := reader{args[0]}
	now, op := head.timeOr(s.now()), head.byte()
	members, granted, delay := make([]member, len(keys)), op == opTake, time.Duration(0)
	for i, key := range keys {
		m, err := s.member(run, key, args[1+2*i], tagsOf(i, len(keys), args), now)
		if err != nil {
			return "", err
		}
		index := string(binary.LittleEndian.AppendUint32(nil, uint32(i+1)))
		due, readable := false, true
		if m.outcome == replyAhead {
			var list turnList
			list, readable = turnsOf(m.tells)
			due = readable && list.isDue(now)
		}
		switch {
		case m.outcome == replyHolds:
			return headOf(now, replyHolds), nil
		case m.outcome == replyOther:
			return headOf(now, replyForeign) + index + s.Values[key], nil
		case !m.knows(now):
			return headOf(now, replyOther), nil
		case !readable || m.outcome == replyAhead && m.notes:
			return headOf(now, replyOther), nil
		case due:
			return headOf(now, replyDue) + index, nil
		}
		t, unread := m.limit.Apply(m.state, m.req)
		if unread != nil {
			return headOf(now, replyOther), nil
		}
		granted, delay = granted && t.Answer.Allowed, max(delay, t.Answer.Delay)
		members[i] = m
	}
	spent := 0
	if granted {
		spent = 1
	}
	var states []byte
	for i := range members {
		m := &members[i]
		states = m.appendTo(states)
		m.req.Refused, m.req.Notes, m.req.Delay = !granted, op == opTake, delay
		t, _ := m.limit.Apply(m.state, m.req)
		writes := op == opTake && (m.req.N > 0 || !granted && m.notes)
		if writes && t.Changed {
			s.Values[m.key] = valueOf(t.State, m.constants, m.tag, now)
			spent += endedUnit * t.Answer.Ended
		}
	}
	s.Batches = append(s.Batches, len(keys))
	reply := appendDouble([]byte(headOf(now, replyDone)), float64(spent))
	return string(append(reply, states...)), nil
}

// member reads the arguments and the value of a key.
func (s *Server) member(
	run script, key, arg string, tags []string, now time.Time,
) (m member, err error) {
	m.key, m.tag = key, tags[0]
	m.limit, err = s.limits.of(m.tag)
	if err != nil {
		return m, err
	}
	r := reader{arg}
	r.byte() // whether it is an All, which the tag says
	m.req = step.Request{Op: step.OpTake, N: r.events()}.At(now)
	if run.holds {
		m.req.Hold.ID, m.req.Hold.For = uint64(r.double()), r.ticks()
		m.req.Hold.Back = r.byte()&flagBack != 0
	}
	if m.req.Hold.ID > 0 {
		m.req.Op = step.OpHold
	}
	m.constants = r.constants(m.limit)
	m.found = run.find(s.Values[key], m.constants, tags)
	return m, nil
}

// tagsOf returns the prefixes of the states that the i-th of so many keys can use, its own first.
func tagsOf(i, keys int, args []string) []string {
	tags := []string{args[2+2*i]}
	for _, arg := range args[1+2*keys:] {
		other := reader{arg}
		if other.uint32() == i+1 {
			tags = append(tags, other.rest)
		}
	}
	return tags
}

// appendTo appends the state of a key to a reply.
func (m *member) appendTo(states []byte) []byte {
	length := uint32(len(m.tells))
	switch m.outcome {
	case replyOpen:
		length |= openBit
	case replyAhead:
		length |= aheadBit
	}
	return append(binary.LittleEndian.AppendUint32(states, length), m.tells...)
}
