package redisstore

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
)

// A program is a limit for the scripts, and what the store has met of the limit's states.
type program struct {
	*script.Program
	similars similars     // the limits whose states it has met lately
	opened   atomic.Int64 // when the store last met open holds, by its clock; 0 if never
}

func newProgram(l *limit.Limit) (*program, error) {
	p, err := script.New(l)
	if err != nil {
		return nil, err
	}
	return &program{Program: p}, nil
}

// equals reports whether p and q are for the same limit.
func (p *program) equals(q *program) bool { return p == q || p.Tag == q.Tag }

// programs caches the programs of limits.
type programs struct {
	mu    sync.RWMutex     // protects known
	known map[any]*program // by limit, or by its tag if it varies
}

// maxPrograms bounds the memory of a programs.
const maxPrograms = 4096

// get returns the program of l.
func (p *programs) get(l *limit.Limit) (*program, error) {
	var id any = l
	if l.Varies { // l may have been made for this call
		id = string(l.Tag())
	}
	p.mu.RLock()
	prog := p.known[id]
	p.mu.RUnlock()
	if prog != nil {
		return prog, nil
	}
	made, err := newProgram(l)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	prog = p.known[id]
	if prog != nil {
		return prog, nil // another goroutine was faster
	}
	if p.known == nil || len(p.known) >= maxPrograms {
		p.known = make(map[any]*program)
	}
	p.known[id] = made
	return made, nil
}
