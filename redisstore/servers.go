package redisstore

import (
	"context"
	"sync"
)

// servers are the breakers of servers, by their names.
type servers struct {
	mu       sync.RWMutex // protects breakers
	breakers map[string]Breaker
}

// manyServers bounds the memory of a servers: their names may change.
const manyServers = 4096

// breakerOf returns the breaker of the server that key lives on, nil if there is none.
func (s *Store) breakerOf(ctx context.Context, key string) Breaker {
	if s.breakers == nil {
		return s.breaker
	}
	name := ""
	if cluster, ok := s.conn.(Cluster); ok {
		name = cluster.Server(ctx, key)
	}
	known := &s.servers
	known.mu.RLock()
	b := known.breakers[name]
	known.mu.RUnlock()
	if b != nil {
		return b
	}
	made := s.breakers()
	known.mu.Lock()
	defer known.mu.Unlock()
	if b = known.breakers[name]; b != nil {
		return b // another was faster
	}
	if known.breakers == nil || len(known.breakers) >= manyServers {
		known.breakers = make(map[string]Breaker)
	}
	known.breakers[name] = made
	return made
}

// allow asks the breaker of key's server whether a command may be sent, and returns what
// is to be told how it went.
func (s *Store) allow(ctx context.Context, key string) (done func(error), err error) {
	b := s.breakerOf(ctx, key)
	if b == nil {
		return func(error) {}, nil
	}
	if done, err = b.Allow(); err != nil {
		return nil, &openError{err}
	}
	return done, nil
}
