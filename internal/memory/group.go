package memory

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// Group implements [limit.JointStates]. It is nil: the limiters know that all keys in memory are a group, whatever their
// stores, and which of them are the same. If it is asked behind another store, the keys are asked alone.
func (sp *States) Group(string) any { return nil }

// ApplyAll implements [limit.JointStates] with a Joint, for any number of calls. An error is ErrTooMany.
func (sp *States) ApplyAll(_ context.Context, calls []limit.Call) (decided bool, err error) {
	j := NewJoint()
	defer j.Close()
	for i := range calls {
		j.add(&calls[i])
	}
	if _, err := j.Decide(calls[0].Request.Op); err != nil {
		return true, err
	}
	for i := range calls {
		calls[i].Answer = j.Asked[i].Answer
		calls[i].Told = true
	}
	return true, nil
}

// add adds the key of a call.
func (j *Joint) add(c *limit.Call) {
	e, of := j.Add(), c.States.(*States)
	e.Space, e.Limit = of.Space, of.LimitOf(c.Limit)
	e.Key, e.N, e.Clock, e.Hold = c.Key, c.Request.N, c.Request.Clock, c.Request.Hold
	j.Delay = max(j.Delay, c.Delay)
}
