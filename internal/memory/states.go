package memory

import (
	"context"
	"runtime"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// States are those of all limiters with one name.
type States struct {
	Limit *limit.Limit
	Space *Space

	waiters line.Lines // who waits for keys of these limiters
}

// Open returns states of l. If they leave, they are dropped once nobody uses them.
func (s *Store) Open(l *limit.Limit, leave bool) *States {
	single, loose := l, l
	switch {
	case l.Varies:
		single = l.Single()
	case l.Word() != nil:
		loose = l.Loose()
	}
	sp := &States{Limit: l, Space: s.OpenSpace(single.Machine, loose.Machine, l.Varies)}
	if leave {
		runtime.AddCleanup(sp, s.Drop, sp.Space)
	}
	return sp.Share(l)
}

// Share returns the states for another limiter, of l.
func (sp *States) Share(l *limit.Limit) *States {
	if l.Varies {
		l.InMemory.Store(sp.Space.Base())
	}
	return sp
}

// Lines implements [limit.States].
func (sp *States) Lines() *line.Lines { return &sp.waiters }

// Apply implements [limit.States].
func (sp *States) Apply(
	_ context.Context,
	key string,
	l *limit.Limit,
	req step.Request,
) (a step.Answer, _ error) {
	sp.Space.Apply(key, sp.LimitOf(l), &req, &a)
	runtime.KeepAlive(sp) // else they might be dropped meanwhile
	return a, nil
}

// LimitOf returns the limit of keys with l.
func (sp *States) LimitOf(l *limit.Limit) *Limit {
	if !sp.Limit.Varies {
		return sp.Space.Base()
	}
	if lim, _ := l.InMemory.Load().(*Limit); lim != nil && lim.space == sp.Space {
		return lim
	}
	tag := l.Asked
	if tag == nil {
		tag = l.Known
	}
	lim := sp.Space.Limit(tag, l.Single().Machine, l.Machine)
	l.InMemory.Store(lim)
	return lim
}

// Reset implements [limit.States].
func (sp *States) Reset(_ context.Context, key string) error {
	sp.Space.Reset(key) // it makes no difference whether they are dropped meanwhile
	return nil
}
