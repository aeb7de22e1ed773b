package memory

import (
	"context"
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// States are the states of all limiters with one name.
type States struct {
	Limit *limit.Limit
	Space *Space

	waiters line.Lines // the callers that wait for keys of these limiters
}

// Open returns states of l. If temporary is true, they are dropped once nobody uses them. If they
// are to be saved, there is room for what a file has of another limit.
func (s *Store) Open(l *limit.Limit, temporary, saved bool) *States {
	single, loose := l, l
	switch {
	case l.Varies:
		single = l.Single()
	case l.Word() != nil:
		loose = l.Loose()
	case saved:
		loose = l.Loose()
		single = loose // so that slots are as wide as its states
	}
	ss := &States{Limit: l, Space: s.OpenSpace(single.Machine, loose.Machine, l.Varies)}
	if temporary {
		runtime.AddCleanup(ss, s.Drop, ss.Space)
	}
	return ss.Share(l)
}

// Share returns the states for another limiter, of l.
func (ss *States) Share(l *limit.Limit) *States {
	if l.Varies {
		l.InMemory.Store(ss.Space.Base())
	}
	return ss
}

// Lines implements [limit.States].
func (ss *States) Lines() *line.Lines { return &ss.waiters }

// Timeout implements [limit.States].
func (*States) Timeout() time.Duration { return 0 }

// Strays implements [limit.States].
func (ss *States) Strays() *limit.Strays { return nil }

// Apply implements [limit.States].
func (ss *States) Apply(
	_ context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (a step.Answer, _ error) {
	ss.Space.Apply(key, ss.LimitOf(l), &req, &a)
	runtime.KeepAlive(ss) // else the states might be dropped meanwhile
	return a, nil
}

// LimitOf returns the limit of keys with l.
func (ss *States) LimitOf(l *limit.Limit) *Limit {
	if !ss.Limit.Varies {
		return ss.Space.Base()
	}
	if lim, _ := l.InMemory.Load().(*Limit); lim != nil && lim.space == ss.Space.serial {
		return lim
	}
	tag := l.Asked
	if tag == nil {
		tag = l.Known
	}
	lim := ss.Space.Limit(tag, l.Single().Machine, l.Machine)
	l.InMemory.Store(lim)
	return lim
}

// Reset implements [limit.States].
func (ss *States) Reset(_ context.Context, key string) error {
	ss.Space.Reset(key) // it makes no difference whether the states are dropped meanwhile
	return nil
}

// Group implements [limit.JointStates]. It is nil: the limiters know that all keys in memory are a
// group, whatever their stores, and which of them are the same. If it is asked behind another
// store, the keys are asked alone.
func (ss *States) Group(string) any { return nil }

// ApplyAll implements [limit.JointStates], for any number of calls. It does not decide if a store
// that refuses new keys is full, because only a request of a single key makes room there, or is
// denied.
func (ss *States) ApplyAll(_ context.Context, calls []limit.Call) (decided bool, err error) {
	j := newJoint()
	defer j.close()
	for i := range calls {
		c := &calls[i]
		states := c.States.(*States)
		j.add(states.Space, states.LimitOf(c.Limit), c)
	}
	return j.decide(), nil
}
