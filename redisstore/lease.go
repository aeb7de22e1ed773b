package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
)

// A lease is a hold of a key, whose events are granted without a call. When it ends, it is settled
// with what was granted. Each of its events is granted, given back, or counted as lost, unless the
// key is reset: then the hold is gone, and gives nothing back. If the process dies, its events stay
// spent. The lock of its shard protects the fields of a lease that is held or asked for. After
// that, it belongs to the goroutine that settles it.
type lease struct {
	prog  *program
	id    uint64             // of the hold
	clock *timeline.Timeline // of the limiter, to settle it with
	n     int                // its events
	left  int                // those that can still be granted
	// Whether it has to end at once, because events were charged or the key was reset since it was
	// asked for.
	over  bool
	until time.Duration // when it ends, by the store's clock
	last  step.Decision // the decision that took it
	since time.Duration // when that was received, by the store's clock
	timer *time.Timer   // ends it
}

// A demand counts the events requested of a key lately, to decide on the size of its next
// lease. A span has the duration of a lease.
type demand struct {
	prog              *program      // the limit that applied
	current, previous int           // events requested in this span and in the previous one
	since             time.Duration // when this span began
	remaining         int           // the Remaining of the latest reply
}

// leases are the leases and the demands, by key. A lease is asked for until the outcome of
// its command is known, and then held until it ends. A key has at most one of each, and a
// lease is asked for only when that held has no events left.
type leases [shards]leaseShard

type leaseShard struct {
	mu      sync.Mutex // protects the fields below
	asked   map[string]*lease
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
func (s *Store) fromLease(
	name name, prog *program, req step.Request,
) (decision step.Decision, ok bool) {
	if s.lease == 0 || !prog.leasable || req.N < 1 || req.N > prog.limit {
		return decision, false
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.elapsed()
	d, known := shard.demands.get(name.text)
	if !known || !d.prog.equals(prog) {
		// After a change of the limit, and while callers disagree about it, nothing is
		// leased.
		d = &demand{prog: prog, since: now}
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
	switch {
	case l == nil:
		return decision, false
	case !l.prog.equals(prog):
		shard.dropLocked(name, l)
		s.settleSoon(context.Background(), name, l)
		return decision, false
	case l.left < req.N || now >= l.until:
		return decision, false
	}
	l.left -= req.N
	s.counts.leased.Add(uint64(req.N))
	decision = l.last
	decision.Remaining += l.left
	decision.ResetAfter = max(0, decision.ResetAfter-(now-l.since))
	return decision, true
}

// leaseCalls returns calls to append to a group: one that settles the key's lease, if all its
// events were granted, so that no command of its own has to; and if takes is true and the key
// should be leased now, one that takes a lease. For the latter, the caller must call leaseOutcome.
func (s *Store) leaseCalls(name name, prog *program, takes bool) (calls []*call) {
	if s.lease == 0 || !prog.leasable {
		return nil
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	l := shard.held[name.text]
	if l != nil && l.left == 0 && l.prog.equals(prog) && shard.dropLocked(name, l) {
		calls = append(calls, &call{name: name, prog: prog, req: l.settlement(), forLease: true})
		l = nil
	}
	if !takes || l != nil || shard.asked[name.text] != nil {
		return calls
	}
	if shard.closed || len(shard.held) >= maxRecent {
		return calls
	}
	d, known := shard.demands.get(name.text)
	if !known || !d.prog.equals(prog) {
		return calls
	}
	n := min(s.lease, max(d.current, d.previous), d.remaining/minRoom)
	if n < minLease {
		return calls
	}
	if shard.asked == nil {
		shard.asked, shard.held = make(map[string]*lease), make(map[string]*lease)
	}
	l = &lease{prog: prog, id: 2*rand.Uint64N(1<<52) + 1, n: n, left: n}
	shard.asked[name.text] = l
	s.returns.begin() // until leaseOutcome
	hold := step.Handle{ID: l.id, For: s.leaseAge + leaseMargin}
	req := step.Request{Op: step.OpHold, N: n, Hold: hold}
	return append(calls, &call{name: name, prog: prog, req: req, forLease: true})
}

// leaseMargin is how long the hold of a lease stays open after it, until it is settled. Only a
// process that dies or cannot reach the server makes it last that long.
const leaseMargin = 10 * time.Second

// takesLease reports whether c takes a lease.
func (c *call) takesLease() bool { return c.forLease && c.req.Op == step.OpHold }

// settlement returns the request that settles a lease.
func (l *lease) settlement() step.Request {
	return step.Request{
		Op: step.OpSettle, N: l.n - l.left, Of: l.n, Hold: step.Handle{ID: l.id}, Clock: l.clock,
	}
}

// leaseOutcome records what remains of a key after the calls of a command, or the
// command's error, and begins the lease that the last of them asked for, if any.
func (s *Store) leaseOutcome(name name, calls []*call, after snapshot, err error) {
	last := calls[len(calls)-1]
	if s.lease == 0 || !last.prog.leasable {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if d, known := shard.demands.get(name.text); known && err == nil && d.prog.equals(last.prog) {
		d.remaining = last.res.Remaining
	}
	if !last.takesLease() {
		return
	}
	defer s.returns.end()
	l := shard.asked[name.text]
	delete(shard.asked, name.text)
	switch {
	case err != nil:
		if !refused(err) { // it may have been taken
			s.counts.lost.Add(uint64(l.left))
		}
		return
	case !last.res.Allowed:
		return
	}
	l.clock = calls[0].req.Clock
	l.until, l.last, l.since = after.sent+s.leaseAge, last.res.Decision, after.received
	if shard.closed || l.over {
		s.settleSoon(context.Background(), name, l)
		return
	}
	l.timer = time.AfterFunc(l.until-s.elapsed(), func() { s.expire(name, l) })
	shard.held[name.text] = l
}

// dropLocked removes a lease from those held, and reports whether it was held.
func (shard *leaseShard) dropLocked(name name, l *lease) bool {
	if l == nil || shard.held[name.text] != l {
		return false
	}
	l.timer.Stop()
	delete(shard.held, name.text)
	return true
}

func (s *Store) expire(name name, l *lease) {
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.dropLocked(name, l) {
		s.settleSoon(context.Background(), name, l)
	}
}

// endsLease reports whether the lease of a key has to end before a request on it.
func endsLease(req step.Request) bool {
	switch req.Op {
	case step.OpCharge, step.OpHold:
		return true
	case step.OpReserve:
		return req.Hold.For > 0
	case step.OpSettle:
		return req.N > req.Of
	}
	return false
}

// endLease ends the lease of a key before a request that charges events, or holds some: none that
// was leased before may be granted while there is a debt, and a hold is not denied what is only
// leased. It is settled before that, because the queue of a key and a limit is in order. HoldAll
// does not wait for that.
func (s *Store) endLease(name name) {
	if s.lease == 0 {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if l := shard.asked[name.text]; l != nil {
		l.over = true
	}
	if l := shard.held[name.text]; shard.dropLocked(name, l) {
		s.settleSoon(context.Background(), name, l)
	}
}

// settleSoon queues the settlement of a lease that has ended, and waits for it in a goroutine that
// Close waits for. If it fails, the events that were not granted stay spent. It takes no longer
// than the timeout.
func (s *Store) settleSoon(ctx context.Context, name name, l *lease) {
	s.returns.begin()
	req := l.settlement()
	c := s.queue(name, l.prog, req)
	go func() {
		defer s.returns.end()
		res, err := s.settle(ctx, c, l.prog, req)
		if err == nil && !res.Held && s.elapsed() >= l.until+leaseMargin {
			// It has ended by itself, unless the key was reset.
			s.counts.lost.Add(uint64(l.left))
		}
		if l.left > 0 {
			s.returns.addErr(err)
		}
	}()
}

// resetLease ends the leases of a key, asked for or held, after a Reset that returned err.
func (s *Store) resetLease(name name, err error) {
	if errors.Is(err, ErrOpen) {
		return // the key was not reset
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if l := shard.asked[name.text]; l != nil {
		l.over = true
	}
	if l := shard.held[name.text]; shard.dropLocked(name, l) && err != nil {
		// The key may not have been reset.
		s.settleSoon(context.Background(), name, l)
	}
}

func (s *Store) closeLeases(ctx context.Context) error {
	s.returns.close()
	for i := range s.leases {
		shard := &s.leases[i]
		shard.mu.Lock()
		shard.closed = true
		held := shard.held
		shard.held = nil
		shard.mu.Unlock()
		for text, l := range held {
			l.timer.Stop()
			s.settleSoon(ctx, nameOf(text), l)
		}
	}
	return s.returns.wait(ctx)
}

// returns counts the leases that are being taken or settled, for Close to wait for.
type returns struct {
	mu     sync.Mutex // protects the fields below
	count  int
	none   chan struct{} // closed when count becomes 0; nil if no Close waits for that
	closed bool          // whether Close was called
	err    error         // of leases that could not be given back since then
}

func (r *returns) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// addErr adds an error for wait to return. Before Close, there is no one to return it to.
func (r *returns) addErr(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.err = errors.Join(r.err, err)
	}
}

func (r *returns) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
}

func (r *returns) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	if r.count == 0 && r.none != nil {
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
