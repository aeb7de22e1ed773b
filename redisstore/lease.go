package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A lease is events of a key that were taken in advance. Its fields are protected
// by the lock of its shard.
type lease struct {
	prog  *program
	from  ratelimit.Request  // one of the limiter whose it is
	left  int                // events that may be handed out
	taken time.Time          // by the server's clock
	until time.Duration      // by the store's clock
	last  ratelimit.Decision // the answer that it was taken with
	told  time.Duration      // when that was
	timer *time.Timer        // ends it
}

// A demand is what was asked of a key lately, to know whether more of it should be
// taken in advance.
type demand struct {
	asked, before int           // events, in this span and in the one before
	since         time.Duration // when this span began
	room          int           // what remained when the server was asked last
}

// leases are kept by key, as demands are.
type leases [shards]struct {
	mu      sync.Mutex
	held    map[string]*lease
	demands recent[*demand]
	closed  bool
}

// Leases are of no use if fewer events than few are taken at once, and a danger if
// there is not enough times as much room: near the limit, nothing is leased.
const (
	few    = 8
	enough = 8
)

// fromLease answers req from events that were taken in advance.
func (s *Store) fromLease(name name, prog *program, req ratelimit.Request) (d ratelimit.Decision, ok bool) {
	if s.lease == 0 || !prog.leasable || req.N < 1 || req.N > prog.limit {
		return d, false
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.elapsed()
	of, known := shard.demands.get(name.text)
	if !known {
		of = &demand{since: now}
		shard.demands.put(name.text, of, now, 2*s.leaseAge)
	}
	if span := now - of.since; span >= s.leaseAge {
		of.before, of.asked, of.since = of.asked, 0, now
		if span >= 2*s.leaseAge {
			of.before = 0
		}
	}
	of.asked = min(of.asked+req.N, s.lease)

	l := shard.held[name.text]
	if l == nil || l.prog != prog || l.left < req.N || now >= l.until {
		return d, false
	}
	l.left -= req.N
	s.counts.leased.Add(uint64(req.N))
	d = l.last
	d.Remaining += l.left
	d.ResetAfter = max(0, d.ResetAfter-(now-l.told))
	return d, true
}

// wanted returns the call that takes a lease of a key along with others, or nil if
// there is to be none.
func (s *Store) wanted(name name, prog *program) *call {
	if s.lease == 0 || !prog.leasable {
		return nil
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if l := shard.held[name.text]; l != nil && l.left > 0 || shard.closed || len(shard.held) >= manyRecent {
		return nil
	}
	of, known := shard.demands.get(name.text)
	if !known {
		return nil
	}
	n := min(s.lease, max(of.asked, of.before), of.room/enough)
	if n < few {
		return nil
	}
	return &call{name: name, prog: prog, req: ratelimit.Request{Op: ratelimit.OpTake, N: n}, extra: true}
}

// learn notes what calls have told of a key, and begins the lease that was taken
// along, if there is one; unless the key was reset since the epoch.
func (s *Store) learn(name name, epoch uint64, calls []*call, left left) {
	last := calls[len(calls)-1]
	if s.lease == 0 || !last.prog.leasable {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if of, known := shard.demands.get(name.text); known {
		of.room = last.res.Decision.Remaining
	}
	if !last.extra || !last.res.Decision.Allowed || s.denials.epoch(name) != epoch {
		return
	}
	l := &lease{
		prog: last.prog, from: calls[0].req, left: last.req.N, taken: left.time,
		until: left.sent + s.leaseAge, last: last.res.Decision, told: left.received,
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
		old.timer.Stop() // it is spent
	}
	l.timer = time.AfterFunc(s.leaseAge, func() { s.expire(name, l) })
	if shard.held == nil {
		shard.held = make(map[string]*lease)
	}
	shard.held[name.text] = l
}

// end takes a lease out of those that are held, and reports whether it was.
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
		_ = s.giveBack(context.Background(), name, l) // nobody is there to be told
	}
}

// giveBack returns what is left of a lease that has ended. If that fails, it counts
// as used. It ends with the timeout.
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

// dropLease forgets what was taken of a key that is reset.
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
				s.returns.note(s.giveBack(ctx, nameOf(text), l))
			}()
		}
	}
	return s.returns.wait(ctx)
}

// returns counts the leases that are being taken or given back.
type returns struct {
	mu    sync.Mutex // protects what follows
	count int
	none  chan struct{} // closed when there are none; nil if nobody waits for that
	err   error         // of one that Close could not give back
}

func (r *returns) note(err error) {
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

// wait waits until there are none.
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
