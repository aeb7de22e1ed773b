package redisstore

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"
)

// servers holds what the store knows about each server.
type servers struct {
	mu    sync.RWMutex // protects known
	known map[string]*server
}

// A server has a breaker, and decides which failures the breaker gets. Any number of commands
// may be in progress when a server stalls or a connection is lost. They all fail then, but
// that is one failure: the breaker gets that of the first of them, and the next one only of a
// command that was sent later.
type server struct {
	breaker Breaker

	mu     sync.Mutex    // protects failed
	failed time.Duration // when the breaker last got a failure, by the store's clock
}

// maxServers bounds the memory of a servers, because the names of servers may change.
const maxServers = 4096

// serverOf returns the server of a key, or nil if it has no breaker. If all servers share a
// breaker, they are one server here.
func (s *Store) serverOf(ctx context.Context, key string) *server {
	create := s.breakers
	name := ""
	switch cluster, ok := s.conn.(Cluster); {
	case create == nil && s.breaker == nil:
		return nil
	case create == nil:
		create = func() Breaker { return s.breaker }
	case ok:
		name = cluster.Server(ctx, key)
	}
	all := &s.servers
	all.mu.RLock()
	srv := all.known[name]
	all.mu.RUnlock()
	if srv != nil {
		return srv
	}
	made := &server{breaker: create()}
	all.mu.Lock()
	defer all.mu.Unlock()
	if srv = all.known[name]; srv != nil {
		return srv // another goroutine was faster
	}
	if all.known == nil || len(all.known) >= maxServers {
		all.known = make(map[string]*server)
	}
	all.known[name] = made
	return made
}

// allow asks the breaker of key's server whether a command may be sent, and returns the
// function to report the command's outcome to.
func (s *Store) allow(ctx context.Context, key string) (done func(error), err error) {
	srv := s.serverOf(ctx, key)
	if srv == nil {
		return func(error) {}, nil
	}
	report, err := srv.breaker.Allow()
	if err != nil {
		return nil, &openError{err}
	}
	sent := s.elapsed()
	return func(err error) {
		if err != nil && !errors.Is(err, context.Canceled) && !srv.fail(sent, s.elapsed()) {
			err = context.Canceled
		}
		report(err)
	}, nil
}

// fail reports whether the failure of a command that was sent at the given time is a new one.
func (srv *server) fail(sent, now time.Duration) bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if sent < srv.failed {
		return false
	}
	srv.failed = now
	return true
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
	s.servers.mu.RLock()
	known := maps.Clone(s.servers.known) // State is called without the lock
	s.servers.mu.RUnlock()
	for name, server := range known {
		add(name, server.breaker)
	}
	return states
}
