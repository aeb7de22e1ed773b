package memory

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// Group implements [limit.JointStates]. It is nil: the limiters know that all keys in memory are a group, whatever their
// stores, and which of them are the same. If it is asked behind another store, the keys are asked alone.
func (sp *States) Group(string) any { return nil }

// ApplyAll implements [limit.JointStates], for any number of calls. An error is ErrTooMany.
func (sp *States) ApplyAll(_ context.Context, calls []limit.Call) (decided bool, err error) {
	j := joints.Get().(*joint)
	defer j.close()
	for i := range calls {
		c := &calls[i]
		of := c.States.(*States)
		j.add(of.Space, of.LimitOf(c.Limit), c)
		c.Told = true
	}
	_, err = j.decide()
	return true, err
}
