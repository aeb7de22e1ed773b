package fakeredis

import (
	"math"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// endedUnit is what a script adds to the number of requests granted for each hold that has ended
// without a request.
const endedUnit = 1 << 16

// upToUnit divides what an opUpTo has granted; a script adds the remainder likewise.
const upToUnit = 32

// decide does what lua/take.lua and lua/main.lua do.
func (s *Server) decide(run script, key string, args []string) (string, error) {
	l, err := s.limits.of(args[1])
	if err != nil {
		return "", err
	}
	arg := reader{args[0]}
	c := arg.constants(l)
	now := arg.timeOr(s.now())
	if run.holds {
		arg.skipCosts(c)
	}
	value := s.Values[key]
	has := run.find(value, c, args[1:])
	switch {
	case has.outcome == replyHolds:
		return headOf(now, replyHolds), nil
	case has.outcome == replyOther || !c.knows(now):
		return headOf(now, replyOther) + value, nil
	}
	state, changed := has.state, false
	granted, requests := 0, 0
	for len(arg.rest) > 0 {
		op, times, req := arg.run(c, now)
		if op == opNothing && dependsOnRequest(state, args[1], now) {
			return headOf(now, replyOther) + value, nil
		}
		for range times {
			t, unread := l.Apply(state, req)
			if unread != nil {
				return headOf(now, replyOther) + value, nil
			}
			state, changed = t.State, changed || t.Changed
			requests++
			if t.Answer.Allowed && spends(op) {
				granted += 1 + t.Answer.Granted%upToUnit
			}
			if t.Changed {
				granted += endedUnit * t.Answer.Ended
			}
		}
	}
	if changed {
		s.Values[key] = valueOf(state, c, args[1], now)
	}
	s.Batches = append(s.Batches, requests)
	reply := appendDouble([]byte(headOf(now, has.outcome)), float64(granted))
	return string(reply) + has.tells, nil
}

// dependsOnRequest reports whether what an opNothing changes depends on the request that it stands
// for, so that a script leaves the request to the process. A Take of no events lowers the mark of a
// hold that was open before turns came, or that a turn has become. A Charge of no events does not.
func dependsOnRequest(state []byte, tag string, now time.Time) bool {
	if len(state) <= len(tag) || state[0] != aheadVersion {
		return false
	}
	list, readable := turnsOf(string(state[len(tag):]))
	return readable && list.leavesHolds(now)
}

// spends reports whether an operation spends events if it is granted.
func spends(op byte) bool {
	return op == opTake || op == opReserve || op == opHold || op == opUpTo
}

// run reads a run of equal requests.
func (r *reader) run(c constants, now time.Time) (op byte, times int, req step.Request) {
	op, times = r.byte(), r.uint32()
	req.N, req.MaxWait = r.events(), r.ticks()
	req.N = r.costs(c, req.N)
	switch op {
	case opTake:
		req.Op = step.OpTake
	case opUpTo:
		req.Op, req.UpTo = step.OpTake, true
	case opPeek:
		req.Op = step.OpPeek
	case opCharge:
		req.Op = step.OpCharge
	case opNothing:
		req.Op, req.N = step.OpCharge, 0
	case opSettle:
		req.Op, req.Hold.ID, req.Of = step.OpSettle, uint64(r.double()), r.events()
		req.N = min(req.N, math.MaxInt-req.Of) + req.Of
		r.byte() // no flags
	case opReserve, opHold, opExtend:
		req.Op = map[byte]step.Op{
			opReserve: step.OpReserve, opHold: step.OpHold, opExtend: step.OpExtend,
		}[op]
		req.Hold.ID, req.Hold.For = uint64(r.double()), r.ticks()
		flags := r.byte()
		req.Hold.Back, req.Yields = flags&flagBack != 0, flags&flagYields != 0
	}
	return op, times, req.At(now)
}
