package memory

import (
	"context"
	"runtime"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/line"
)

// States are those of all limiters with one name. One of Tables and Logs is not nil.
type States struct {
	Limit  *limit.Limit
	Store  *Store
	Tables *Tables // if the width of states is fixed, or keys have limits of their own
	Logs   *Logs   // if states grow with use

	waiters line.Lines // who waits for keys of these limiters
}

// Open returns states of l, whose users take overhead bytes. If they leave, the states are dropped once
// nobody uses them.
func (s *Store) Open(l *limit.Limit, overhead uint64, leave bool) *States {
	sp := &States{Limit: l, Store: s}
	overhead += sizeOf[States]() + bytesOf(l)
	switch {
	case l.Varies:
		single := l.Single()
		if single.Word() != nil { // else it is not kept
			overhead += sizeOf[limit.Limit]() + single.Size()
		}
		sp.Tables = s.OpenVaried(single.Compiled, l.Compiled, overhead)
		l.InMemory.Store(sp.Tables.Base())
	case l.Word() != nil:
		loose := l.Loose()
		overhead += sizeOf[limit.Limit]() + loose.Size()
		sp.Tables = s.OpenTables(l.Compiled, loose.Compiled, overhead)
	case l.Width() > 0:
		sp.Tables = s.OpenTables(l.Compiled, l.Compiled, overhead)
	default:
		sp.Logs = s.OpenLogs(overhead)
	}
	if leave {
		tables, logs := sp.Tables, sp.Logs
		runtime.AddCleanup(sp, func(overhead uint64) {
			if tables != nil {
				s.DropTables(tables, overhead)
			} else {
				s.DropLogs(logs, overhead)
			}
		}, overhead)
	}
	return sp
}

// tagBytes is roughly the memory of a [limit.Limit.Tag].
const tagBytes = 60

// bytesOf returns roughly the memory of l.
func bytesOf(l *limit.Limit) uint64 {
	const known = 40 // bytes of an algorithm as users know it
	sum := sizeOf[limit.Limit]() + l.Size() + known + uint64(len(l.Spec.Parts))*(sizeOf[limit.Spec]()+16+known)
	if l.Varies {
		sum += tagBytes
	}
	return sum
}

// Share returns the states for another limiter, of l.
func (sp *States) Share(l *limit.Limit) *States {
	if l.Varies {
		l.InMemory.Store(sp.Tables.Base())
	}
	return sp
}

// Lines implements [limit.States].
func (sp *States) Lines() *line.Lines { return &sp.waiters }

// Apply implements [limit.States].
func (sp *States) Apply(_ context.Context, key string, l *limit.Limit, req kernel.Request) (a kernel.Answer, _ error) {
	sp.Decide(key, l, &req, &a)
	return a, nil
}

// Decide is Apply, which cannot fail.
func (sp *States) Decide(key string, l *limit.Limit, req *kernel.Request, a *kernel.Answer) {
	if sp.Tables != nil {
		sp.Tables.Apply(key, sp.LimitOf(l), req, a)
	} else {
		sp.Logs.Apply(key, sp.Limit.Compiled, req, a)
	}
}

// LimitOf returns the limit of keys with l, if states are in tables.
func (sp *States) LimitOf(l *limit.Limit) *Limit {
	if !sp.Limit.Varies {
		return sp.Tables.Base()
	}
	if lim, _ := l.InMemory.Load().(*Limit); lim != nil && lim.Of(sp.Tables) {
		return lim
	}
	tag := l.Asked
	if tag == nil {
		tag = l.Known
	}
	lim := sp.Tables.Limit(tag, l.Single().Compiled, l.Compiled)
	l.InMemory.Store(lim)
	return lim
}

// State returns the kernel and a copy of the state of a key. open says that it has open holds: then, both are nil.
func (sp *States) State(key string) (by *kernel.Compiled, st []uint64, open bool) {
	if sp.Tables != nil {
		by, st = sp.Tables.State(key)
	} else {
		by, st = sp.Logs.State(key)
	}
	switch {
	case by == nil:
		by = sp.Limit.Loose().Compiled
		return by, by.NewState(), false
	case by.OpenHolds(st) > 0:
		return nil, nil, true
	}
	return by, st, false
}

// Reset implements [limit.States].
func (sp *States) Reset(_ context.Context, key string) error {
	if sp.Tables != nil {
		sp.Tables.Reset(key)
	} else {
		sp.Logs.Reset(key)
	}
	return nil
}
