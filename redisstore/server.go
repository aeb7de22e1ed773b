package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file has what the store knows about each server: its outbox, its breaker, and when a
// connection to it was given up.

// outboxes has the outbox of each server.
type outboxes struct {
	mu      sync.RWMutex // protects byPlace
	byPlace map[place]*outbox
}

// A place is where a key is.
type place struct {
	server string // its name
	apart  bool   // whether the client does not know the server
}

// A server is what the store knows about a server.
type server struct {
	name     string
	breaker  breaker
	answered atomic.Int64 // the tick that follows its latest answer

	mu        sync.Mutex    // protects the fields below
	redialing bool          // whether a connection is being given up
	redialed  time.Duration // when one was last given up, by the store's clock
}

// maxServers bounds the outboxes without calls, because the names of servers may change.
const maxServers = 4096

// outboxOf returns the outbox of a key.
func (s *Store) outboxOf(key string) *outbox {
	name, known := s.conn.Server(key)
	at := place{server: name, apart: !known}
	all := &s.outboxes
	all.mu.RLock()
	o := all.byPlace[at]
	all.mu.RUnlock()
	if o != nil {
		return o
	}
	made := &outbox{store: s, server: &server{name: name}, apart: !known}
	made.server.breaker = breaker{limit: s.failures, cooldown: s.cooldown, soon: s.timeout / 2}
	made.queues = map[queueID]*queue{}
	all.mu.Lock()
	defer all.mu.Unlock()
	o = all.byPlace[at]
	if o != nil {
		return o // another goroutine was faster
	}
	if all.byPlace == nil {
		all.byPlace = map[place]*outbox{}
	}
	if len(all.byPlace) >= maxServers {
		maps.DeleteFunc(all.byPlace, func(_ place, o *outbox) bool { return o.retire() })
	}
	all.byPlace[at] = made
	return made
}

// retire lets o accept no more calls, if it has none. It reports whether that is so.
func (o *outbox) retire() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.retired = len(o.queues)+len(o.batches) == 0
	return o.retired
}

// timeoutError returns the error of a call on a key of srv that was not answered in time.
func (s *Store) timeoutError(srv *server) error {
	from := ""
	if srv.name != "" {
		from = " from " + srv.name
	}
	if err := s.conn.NoAnswer(srv.name); err != nil {
		return fmt.Errorf("redisstore: no connection in time: %v passed: %w", s.timeout, err)
	}
	return fmt.Errorf("%w%s: %v passed", ErrTimeout, from, s.timeout)
}

// redial gives up a connection to srv, on which key is, after a reply to a command that was sent at
// the given time. It does nothing if a connection has been given up since, because the reply may
// have come through that one. It returns when ctx ends, whatever the client does.
func (s *Store) redial(ctx context.Context, srv *server, key string, sent time.Duration) {
	if !srv.beginRedial(sent) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { srv.endRedial(s.elapsed()) }()
		s.conn.Redial(ctx, key)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// beginRedial reports whether to give up a connection because of a command that was sent at the
// given time.
func (srv *server) beginRedial(sent time.Duration) bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.redialing || sent < srv.redialed {
		return false
	}
	srv.redialing = true
	return true
}

// endRedial notes that a connection has been given up.
func (srv *server) endRedial(now time.Duration) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.redialing, srv.redialed = false, now
}

// unusedAge is the time after which a server of several that is not asked any more is forgotten: it
// is no node of the cluster any more.
const unusedAge = time.Minute

// forgetServers forgets servers that are not asked any more, while others are.
func (s *Store) forgetServers() {
	now, latest := s.elapsed(), time.Duration(0)
	for _, o := range s.allOutboxes() {
		latest = max(latest, o.lastUsed())
	}
	if now-latest > unusedAge {
		return
	}
	s.outboxes.mu.Lock()
	defer s.outboxes.mu.Unlock()
	maps.DeleteFunc(s.outboxes.byPlace, func(_ place, o *outbox) bool {
		return now-o.lastUsed() > unusedAge && o.retire()
	})
}

// lastUsed returns when the latest batch was to be sent, by the store's clock.
func (o *outbox) lastUsed() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.used
}

// look sets what stats say of each server: the state of its breaker and its outage.
func (s *Store) look(stats *Stats) {
	s.forgetServers()
	stats.Breakers, stats.Outages = map[string]string{}, map[string]Outage{}
	for _, o := range s.allOutboxes() {
		state, outage := o.server.breaker.look(s.elapsed())
		if state != "" {
			stats.Breakers[o.server.name] = state
		}
		if outage != nil {
			stats.Outages[o.server.name] = *outage
		}
	}
}

// allOutboxes returns the outboxes of all servers.
func (s *Store) allOutboxes() []*outbox {
	s.outboxes.mu.RLock()
	defer s.outboxes.mu.RUnlock()
	return slices.Collect(maps.Values(s.outboxes.byPlace))
}
