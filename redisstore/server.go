package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

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

// A server may have a breaker, and decides which failures the breaker gets. Any number of batches
// may be in progress when a server stalls or a connection is lost. They all fail then, but that is
// one failure: the breaker gets that of the first of them, and the next one only of a batch that
// was sent later.
type server struct {
	name     string
	breaker  Breaker                // or nil
	outage   atomic.Pointer[Outage] // nil if the latest batch succeeded
	answered atomic.Int64           // the tick that follows its latest answer

	mu        sync.Mutex    // protects the fields below
	failed    time.Duration // when the latest failure was counted, by the store's clock
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
	made := &outbox{store: s, server: s.newServer(name), apart: !known}
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
		maps.DeleteFunc(all.byPlace, func(_ place, o *outbox) bool { return o.isIdle() })
	}
	all.byPlace[at] = made
	return made
}

// newServer returns a server that has not been used yet.
func (s *Store) newServer(name string) *server {
	breaker := s.breaker
	if s.breakers != nil {
		breaker = s.breakers()
	}
	return &server{name: name, breaker: breaker}
}

// allow asks the breaker of a server whether a batch may be sent, and returns the function that is
// told the outcome.
func (s *Store) allow(srv *server) (done func(error), err error) {
	report := func(error) {}
	if srv.breaker != nil {
		if report, err = srv.breaker.Allow(); err != nil {
			return nil, &openError{err, srv.outage.Load()}
		}
	}
	sent := s.elapsed()
	return func(err error) {
		now := s.elapsed()
		switch {
		case err == nil:
			if srv.outage.Load() != nil {
				srv.outage.Store(nil)
			}
		case errors.Is(err, context.Canceled):
		case srv.fail(sent, now):
			srv.blame(err)
			if srv.isHalfOpen() && now-sent < s.timeout/2 {
				time.AfterFunc(testAgain, func() { report(context.Canceled) })
				return
			}
		default:
			err = context.Canceled
		}
		report(err)
	}, nil
}

// testAgain is how soon a server is tested again if the client fails at once. Its error may be
// older than the return of the server, if it is that of a connection from before, or one that it
// gives without trying to connect again. If there is no answer, the breaker opens for the cooldown.
const testAgain = 50 * time.Millisecond

// isHalfOpen reports whether the breaker tests the server, as far as it says so.
func (srv *server) isHalfOpen() bool {
	b, ok := srv.breaker.(interface{ State() string })
	return ok && b.State() == "half-open"
}

// blame makes err the cause of the server's outage, which may begin with it.
func (srv *server) blame(err error) {
	since := time.Now()
	if known := srv.outage.Load(); known != nil {
		since = known.Since
	}
	srv.outage.Store(&Outage{Since: since, Cause: err})
}

// explain replaces the cause of an outage, if it is only that there was no answer in time, by what
// the client returned about a batch that was abandoned before.
func (srv *server) explain(err error) {
	outage := srv.outage.Load()
	if outage != nil && errors.Is(outage.Cause, ErrTimeout) && err != nil && !errors.Is(err, context.Canceled) {
		srv.blame(err)
	}
}

// timeoutError returns the error of a call on a key of srv that was not answered in time.
func (s *Store) timeoutError(srv *server) error {
	from := ""
	if srv.name != "" {
		from = " from " + srv.name
	}
	if err := s.conn.DialError(srv.name); err != nil {
		return fmt.Errorf("redisstore: no connection in time: %v passed: %w", s.timeout, err)
	}
	return fmt.Errorf("%w%s: %v passed", ErrTimeout, from, s.timeout)
}

// fail reports whether the failure of a batch that was sent at the given time is a new one.
func (srv *server) fail(sent, now time.Duration) bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if sent < srv.failed {
		return false
	}
	srv.failed = now
	return true
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

// look sets what stats say of each server: the state of its breaker, if that reports one, and
// its outage.
func (s *Store) look(stats *Stats) {
	stats.Breakers, stats.Outages = map[string]string{}, map[string]Outage{}
	add := func(name string, b Breaker) {
		if b, ok := b.(interface{ State() string }); ok {
			stats.Breakers[name] = b.State()
		}
	}
	add("", s.breaker)
	for _, o := range s.allOutboxes() { // State is called without a lock
		srv := o.server
		if s.breaker == nil {
			add(srv.name, srv.breaker)
		}
		if outage := srv.outage.Load(); outage != nil {
			stats.Outages[srv.name] = *outage
		}
	}
}

// allOutboxes returns the outboxes of all servers.
func (s *Store) allOutboxes() []*outbox {
	s.outboxes.mu.RLock()
	defer s.outboxes.mu.RUnlock()
	return slices.Collect(maps.Values(s.outboxes.byPlace))
}
