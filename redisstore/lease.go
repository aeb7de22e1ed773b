package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A lease is a number of events of a key that were taken in advance. The lock of its shard
// protects its fields.
type lease struct {
	prog  *program
	from  ratelimit.Request  // a request of the limiter, to give events back with
	left  int                // events that can still be granted
	taken time.Time          // when it was taken, by the server's clock
	until time.Duration      // when it ends, by the store's clock
	last  ratelimit.Decision // the decision that took it
	since time.Duration      // when that was received, by the store's clock
	timer *time.Timer        // ends it
}

// A demand counts the events requested of a key lately, to decide on the size of its next
// lease. A span has the duration of a lease.
type demand struct {
	current, previous int           // events requested in this span and in the previous one
	since             time.Duration // when this span began
	remaining         int           // the Remaining of the latest reply
}

// leases are the leases and the demands, by key.
type leases [shards]struct {
	mu      sync.Mutex // protects the fields below
	held    map[string]*lease
	demands recent[*demand]
	closed  bool
}

// A lease of fewer events than minLease saves too few calls. One of more than 1/minRoom of
// what remains would keep too much from other processes; so near the limit, nothing is
// leased.
const (
	minLease = 8
	minRoom  = 8
)

// fromLease grants req from the key's lease, if that has enough events left.
func (s *Store) fromLease(name name, prog *program, req ratelimit.Request) (decision ratelimit.Decision, ok bool) {
	if s.lease == 0 || !prog.leasable || req.N < 1 || req.N > prog.limit {
		return decision, false
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.elapsed()
	d, known := shard.demands.get(name.text)
	if !known {
		d = &demand{since: now}
		shard.demands.put(name.text, d, now, 2*s.leaseAge)
	}
	if span := now - d.since; span >= s.leaseAge {
		d.previous, d.current, d.since = d.current, 0, now
		if span >= 2*s.leaseAge {
			d.previous = 0
		}
	}
	d.current = min(d.current+req.N, s.lease)

	l := shard.held[name.text]
	if l == nil || l.prog != prog || l.left < req.N || now >= l.until {
		return decision, false
	}
	l.left -= req.N
	s.counts.leased.Add(uint64(req.N))
	decision = l.last
	decision.Remaining += l.left
	decision.ResetAfter = max(0, decision.ResetAfter-(now-l.since))
	return decision, true
}

// leaseCall returns a call that takes a lease of a key, to append to a group, or nil if the
// key should not be leased now.
func (s *Store) leaseCall(name name, prog *program) *call {
	if s.lease == 0 || !prog.leasable {
		return nil
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if l := shard.held[name.text]; l != nil && l.left > 0 || shard.closed || len(shard.held) >= maxRecent {
		return nil
	}
	d, known := shard.demands.get(name.text)
	if !known {
		return nil
	}
	n := min(s.lease, max(d.current, d.previous), d.remaining/minRoom)
	if n < minLease {
		return nil
	}
	return &call{name: name, prog: prog, req: ratelimit.Request{Op: ratelimit.OpTake, N: n}, forLease: true}
}

// updateLease records what remains of a key after calls, and begins the lease that the last
// of them took, if any, unless the key was reset since the epoch.
func (s *Store) updateLease(name name, epoch uint64, calls []*call, left left) {
	last := calls[len(calls)-1]
	if s.lease == 0 || !last.prog.leasable {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if d, known := shard.demands.get(name.text); known {
		d.remaining = last.res.Decision.Remaining
	}
	if !last.forLease || !last.res.Decision.Allowed || s.denials.epoch(name) != epoch {
		return
	}
	l := &lease{
		prog: last.prog, from: calls[0].req, left: last.req.N, taken: left.time,
		until: left.sent + s.leaseAge, last: last.res.Decision, since: left.received,
	}
	old := shard.held[name.text]
	if old != nil && old.left > 0 || shard.closed { // another command was faster, or Close
		s.returns.begin()
		go func() {
			defer s.returns.end()
			_ = s.giveBack(context.Background(), name, l)
		}()
		return
	}
	if old != nil {
		old.timer.Stop() // all its events were granted
	}
	l.timer = time.AfterFunc(s.leaseAge, func() { s.expire(name, l) })
	if shard.held == nil {
		shard.held = make(map[string]*lease)
	}
	shard.held[name.text] = l
}

// end removes a lease from those held, and reports whether it was held.
func (s *Store) end(name name, l *lease) bool {
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if l == nil || shard.held[name.text] != l {
		return false
	}
	l.timer.Stop()
	delete(shard.held, name.text)
	return true
}

func (s *Store) expire(name name, l *lease) {
	s.returns.begin()
	defer s.returns.end()
	if s.end(name, l) {
		_ = s.giveBack(context.Background(), name, l) // no caller waits for the error
	}
}

// giveBack gives back the unused events of a lease that has ended. If that fails, they stay
// spent. It takes no longer than the timeout.
func (s *Store) giveBack(ctx context.Context, name name, l *lease) error {
	if l.left == 0 {
		return nil
	}
	defer s.denials.forget(name)
	req := l.from
	req.Op, req.N, req.Taken = ratelimit.OpReturn, l.left, l.taken
	_, err := s.rewrite(ctx, name, l.prog, req, nil)
	return err
}

// dropLease forgets the lease of a key that was reset.
func (s *Store) dropLease(name name) {
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	l := shard.held[name.text]
	shard.mu.Unlock()
	s.end(name, l)
}

func (s *Store) closeLeases(ctx context.Context) error {
	for i := range s.leases {
		shard := &s.leases[i]
		shard.mu.Lock()
		shard.closed = true
		held := shard.held
		shard.held = nil
		shard.mu.Unlock()
		for text, l := range held {
			l.timer.Stop()
			s.returns.begin()
			go func() {
				defer s.returns.end()
				s.returns.addErr(s.giveBack(ctx, nameOf(text), l))
			}()
		}
	}
	return s.returns.wait(ctx)
}

// returns counts the leases that are being taken or given back, for Close to wait for.
type returns struct {
	mu    sync.Mutex // protects the fields below
	count int
	none  chan struct{} // closed when count becomes 0; nil if no Close waits for that
	err   error         // of leases that Close could not give back
}

func (r *returns) addErr(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = errors.Join(r.err, err)
}

func (r *returns) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
}

func (r *returns) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count--; r.count == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// wait waits until the count is 0, and returns the errors of addErr.
func (r *returns) wait(ctx context.Context) error {
	r.mu.Lock()
	if r.none == nil {
		r.none = make(chan struct{})
	}
	none := r.none
	if r.count == 0 {
		close(none)
		r.none = nil
	}
	r.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	r.err = nil
	return err
}
