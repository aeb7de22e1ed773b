package rules

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
)

// A question is a call that rules are asked about.
type question struct {
	set     *Set
	ctx     context.Context // a matched one
	subject string
	n       int
	holds   bool // whether the events are held
	opts    []ratelimit.HoldOption
	held    []*ratelimit.Reservation // what has been granted
}

// ask decides on a call that counts against rules. The shadows are last in rules. The enforced
// rules decide together: one call spends the events in all of them, or nothing. If they let the
// call pass, each of the shadows is asked, and reported if it refuses.
func (q *question) ask(rules []*compiled) (Answer, error) {
	enforced := rules
	for i, rule := range rules {
		if rule.Shadow {
			enforced = rules[:i]
			break
		}
	}
	shadows := rules[len(enforced):]
	if len(enforced) == 0 {
		return q.askShadows(shadows)
	}
	answer, err := q.askEnforced(enforced)
	if answer.Allowed {
		_, _ = q.askShadows(shadows)
	}
	return answer, err
}

// askEnforced lets rules decide together. The Rule of the Answer is that which refuses for longest
// or, if all grant the call, that with the fewest events left.
func (q *question) askEnforced(rules []*compiled) (Answer, error) {
	if len(rules) == 1 {
		return q.askOne(rules[0])
	}
	ends, err := q.ends()
	if err != nil {
		return Answer{}, err
	}
	bounds := make([]ratelimit.Bound, len(rules))
	for i, rule := range rules {
		bounds[i] = ratelimit.For(q.set.limiter, rule.keyOf(q.subject), ends...)
	}
	var d ratelimit.Decision
	if q.holds {
		var r *ratelimit.Reservation
		r, d, err = ratelimit.HoldAll(q.ctx, q.n, bounds...)
		q.keep(r)
	} else {
		d, err = ratelimit.TakeAll(q.ctx, q.n, bounds...)
	}
	return answerOf(rules[d.Part], d, err), err
}

// ends returns the options as those of several keys.
func (q *question) ends() (ends []ratelimit.EndOption, err error) {
	for _, opt := range q.opts {
		end, ok := opt.(ratelimit.EndOption)
		if !ok && opt != nil { // HoldAll says that one is nil
			return nil, fmt.Errorf(
				"%w: the option Waiting of a call that several rules limit: nobody waits for several "+
					"keys; hold the events without it, or let one rule match",
				ratelimit.ErrInvalid,
			)
		}
		ends = append(ends, end)
	}
	return ends, nil
}

// askOne lets one rule decide.
func (q *question) askOne(rule *compiled) (Answer, error) {
	key := rule.keyOf(q.subject)
	var d ratelimit.Decision
	var err error
	if q.holds {
		var r *ratelimit.Reservation
		r, d, err = q.set.limiter.Hold(q.ctx, key, q.n, q.opts...)
		q.keep(r)
	} else {
		d, err = q.set.limiter.Take(q.ctx, key, q.n)
	}
	return answerOf(rule, d, err), err
}

// keep keeps r, which is nil if nothing is held.
func (q *question) keep(r *ratelimit.Reservation) {
	if r != nil {
		q.held = append(q.held, r)
	}
}

// giveBack gives back what is held.
func (q *question) giveBack() {
	for _, r := range q.held {
		_, _ = r.Settle(context.WithoutCancel(q.ctx), 0) // if this fails, the hold ends by itself
	}
}

// askShadows asks each of the shadows, and reports those that refuse. It returns the answer of the
// strictest.
func (q *question) askShadows(shadows []*compiled) (strictest Answer, err error) {
	for i, rule := range shadows {
		answer, failure := q.askOne(rule)
		answer.Allowed = answer.Allowed || answer.Refused
		if answer.Refused && q.set.onShadow != nil {
			q.set.onShadow(answer)
		}
		if i == 0 || answer.isStricter(strictest) {
			strictest, err = answer, failure
		}
	}
	return strictest, err
}

// answerOf returns the Answer of a rule that has decided d. err is the error of d: an error alone
// is not a refusal.
func answerOf(rule *compiled, d ratelimit.Decision, err error) Answer {
	return Answer{Decision: d, Rule: &rule.Rule, Refused: !d.Allowed && (err == nil || d.Degraded)}
}

// isStricter reports whether a leaves less to its subject than b.
func (a Answer) isStricter(b Answer) bool {
	if a.Refused != b.Refused {
		return a.Refused
	}
	return a.Remaining < b.Remaining
}
