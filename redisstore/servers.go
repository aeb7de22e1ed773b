package redisstore

import (
	"context"
	"maps"
	"sync"
)

// servers holds the breaker of each server.
type servers struct {
	mu       sync.RWMutex // protects breakers
	breakers map[string]Breaker
}

// maxServers bounds the memory of a servers, because the names of servers may change.
const maxServers = 4096

// breakerOf returns the breaker of key's server, or nil if there is none.
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
		return b // another goroutine was faster
	}
	if known.breakers == nil || len(known.breakers) >= maxServers {
		known.breakers = make(map[string]Breaker)
	}
	known.breakers[name] = made
	return made
}

// allow asks the breaker of key's server whether a command may be sent, and returns the
// function to report the command's outcome to.
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

// breakerStates returns the states of the breakers that report one, by the names of servers.
func (s *Store) breakerStates() map[string]string {
	states := map[string]string{}
	add := func(name string, b Breaker) {
		if b, ok := b.(interface{ State() string }); ok {
			states[name] = b.State()
		}
	}
	add("", s.breaker)
	known := &s.servers
	known.mu.RLock()
	breakers := maps.Clone(known.breakers) // State is called without the lock
	known.mu.RUnlock()
	for name, b := range breakers {
		add(name, b)
	}
	return states
}
