package ratelimit

import (
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file computes what a key will be like once all that stand in its line have been served.

// An endState is the state of a key after all turns of its line.
type endState struct {
	machine  *step.Machine // what has left the state
	state    step.State
	lastTurn kernel.Instant // when the turn of the last place comes
	// When the first turn comes that is a hold, or Forever if none is. Turns behind it come earlier
	// if its events do not happen.
	firstHold kernel.Instant
}

// reserve reserves events in the state. isHeld is whether their turn is a hold.
func (e *endState) reserve(
	lim *limit.Limit,
	n int,
	isHeld bool,
	maxWait time.Duration,
	now kernel.Instant,
) (ans step.Answer) {
	req := step.Request{Op: step.OpReserve, N: n, MaxWait: maxWait}
	req.Fixed = &step.Reading{Now: now, Own: true}
	e.machine, e.state, _ = lim.Loose().StepFrom(e.machine, e.state, &req, &ans)
	e.lastTurn = max(e.lastTurn, ans.Due)
	if isHeld && ans.Allowed {
		e.firstHold = min(e.firstHold, ans.Due)
	}
	return ans
}

// deny returns the answer to a Take that is denied because it would overtake the line. It leaves
// the state as it is.
func (e *endState) deny(lim *limit.Limit, n int, now kernel.Instant) (ans step.Answer) {
	req := step.Request{Op: step.OpTake, N: n, Refused: true}
	req.Fixed = &step.Reading{Now: now, Own: true}
	state := e.state.Clone() // StepFrom may change it in place
	lim.Loose().StepFrom(e.machine, state, &req, &ans)
	return ans
}

// endState returns the state of key after all turns of its line. It returns nil if that is not
// known, because the state is not in this process, or because events may be given back at any
// moment. lim is the present limit of the key.
func (l *limiter) endState(
	ln *line.Line,
	key string,
	lim *limit.Limit,
	now kernel.Instant,
) *endState {
	if end, ok := ln.EndState.(*endState); ok {
		return end
	}
	if l.local == nil {
		return nil
	}
	machine, state := l.local.Space.State(key)
	if machine == nil {
		return nil
	}
	end := &endState{machine: machine, state: state, firstHold: kernel.Forever}
	from := ln.From(now)
	for entrant := range ln.Turnless {
		by := entrant.By.(reserver)
		itsLimit := by.limit
		if by.l == l { // its caller will ask for its turn by lim
			itsLimit = lim
		}
		if itsLimit.Releases() {
			return nil
		}
		asked := max(from, min(entrant.Since, now))
		end.reserve(itsLimit, entrant.N, by.hold.isHeld, Never-1, asked)
		if end.firstHold <= now {
			return nil // the hold is as good as open
		}
	}
	ln.EndState = end
	return end
}
