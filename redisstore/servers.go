package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// servers holds what the store knows about each server.
type servers struct {
	mu    sync.RWMutex // protects known
	known map[string]*server
}

// A server may have a breaker, and decides which failures the breaker gets. Any number of commands
// may be in progress when a server stalls or a connection is lost. They all fail then, but
// that is one failure: the breaker gets that of the first of them, and the next one only of a
// command that was sent later.
type server struct {
	name     string
	breaker  Breaker                // or nil
	outage   atomic.Pointer[Outage] // nil if the latest command succeeded
	answered atomic.Int64           // the tick that follows its latest answer

	mu        sync.Mutex    // protects the fields below
	failed    time.Duration // when the latest failure was counted, by the store's clock
	redialing bool          // whether a connection is being given up
	redialed  time.Duration // when one was last given up, by the store's clock
}

// maxServers bounds the memory of a servers, because the names of servers may change.
const maxServers = 4096

// serverOf returns the server of a key. If all servers share a breaker, they are one server here.
func (s *Store) serverOf(ctx context.Context, key string) *server {
	name := ""
	if cluster, ok := s.conn.(Cluster); ok && s.breaker == nil {
		name = cluster.Server(ctx, key)
	}
	all := &s.servers
	all.mu.RLock()
	srv := all.known[name]
	all.mu.RUnlock()
	if srv != nil {
		return srv
	}
	made := &server{name: name, breaker: s.breaker}
	if s.breakers != nil {
		made.breaker = s.breakers()
	}
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

// allow asks the breaker of a server whether a command may be sent, and returns the function to
// report the command's outcome to.
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
// the client returned about a command that was abandoned before.
func (srv *server) explain(err error) {
	outage := srv.outage.Load()
	if outage != nil && errors.Is(outage.Cause, ErrTimeout) && err != nil && !errors.Is(err, context.Canceled) {
		srv.blame(err)
	}
}

// timeoutError returns the error of a call on a key of srv, or of an unknown server if that is nil,
// that was not answered in time.
func (s *Store) timeoutError(srv *server) error {
	name, from := "", ""
	if srv != nil && srv.name != "" {
		name, from = srv.name, " from "+srv.name
	}
	if dialer, ok := s.conn.(Dialer); ok {
		if err := dialer.DialError(name); err != nil {
			return fmt.Errorf("redisstore: no connection in time: %v passed: %w", s.timeout, err)
		}
	}
	return fmt.Errorf("%w%s: %v passed", ErrTimeout, from, s.timeout)
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

// redial gives up a connection to srv, on which key is, after a reply to a command that was sent at
// the given time. It does nothing if a connection has been given up since, because the reply may
// have come through that one. It returns when ctx ends, whatever the client does.
func (s *Store) redial(ctx context.Context, srv *server, key string, sent time.Duration) {
	redialer, ok := s.conn.(Redialer)
	if !ok || !srv.beginRedial(sent) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { srv.endRedial(s.elapsed()) }()
		redialer.Redial(ctx, key)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// redialIfUnwilling gives up a connection if the reply to a group's command says that the server
// carries out none. Callers do so before they answer the calls, so that the next ones find a new
// connection.
func (s *Store) redialIfUnwilling(g *group) {
	if isUnwilling(g.err) {
		s.redial(g.ctx, g.server, g.calls[0].name.text, g.begin)
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
	s.servers.mu.RLock()
	known := maps.Clone(s.servers.known) // State is called without the lock
	s.servers.mu.RUnlock()
	for name, srv := range known {
		add(name, srv.breaker)
		if outage := srv.outage.Load(); outage != nil {
			stats.Outages[name] = *outage
		}
	}
}
