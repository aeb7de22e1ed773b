package memory

import (
	"context"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// Group implements [limit.JointStates]. It is nil: the limiters know that all keys in memory are a group, whatever their
// stores, and which of them are the same. If it is asked behind another store, the keys are asked alone.
func (sp *States) Group(string) any { return nil }

// ApplyAll implements [limit.JointStates], for any number of calls. It does not decide if a store that refuses new keys is
// full, because only a request of a single key makes room there, or is denied.
func (sp *States) ApplyAll(_ context.Context, calls []limit.Call) (decided bool, err error) {
	j := joints.Get().(*joint)
	defer j.close()
	for i := range calls {
		c := &calls[i]
		of := c.States.(*States)
		j.add(of.Space, of.LimitOf(c.Limit), c)
	}
	return j.decide(), nil
}
