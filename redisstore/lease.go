package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
	"github.com/ratelimit-go/ratelimit/redisstore/internal/script"
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
	over    bool
	renewed bool          // whether the next lease was asked for before this one was empty
	until   time.Duration // when it ends, by the store's clock
	timer   *time.Timer   // ends it
}

// A demand counts the events requested of a key lately, to decide on the size of its next
// lease. A span has the duration of a lease.
type demand struct {
	prog              *program      // the limit that applied
	current, previous int           // events requested in this span and in the previous one
	since             time.Duration // when this span began
	remaining         int           // the Remaining of the latest reply
}

// keyLeases are the leases of one key. The next lease is asked for when little is left of those
// that are held, so that callers need not wait for it. Until those are empty, their events are
// granted first.
type keyLeases struct {
	asked *lease   // that whose command has no outcome yet, or nil
	held  []*lease // in the order in which they were taken, until they end

	// A decision that grants events, as of the latest command on the key: its Remaining does not
	// include what is left of the leases.
	last  step.Decision
	since time.Duration // when the reply to that command was received, by the store's clock
}

// leases are the leases and the demands, by key.
type leases [shards]leaseShard

type leaseShard struct {
	mu      sync.Mutex            // protects the fields below
	keys    map[string]*keyLeases // those with leases
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

// A lease runs out when at most 1/lowMark of its events or of its duration is left. At a steady
// demand, that is enough for the round trip that takes the next one.
const lowMark = 4

// fromLease grants req from the key's leases, if they have enough events left. If they run out, it
// asks for the next one, and does not wait for that.
func (s *Store) fromLease(
	name name, prog *program, req step.Request,
) (decision step.Decision, ok bool) {
	if s.lease == 0 || !prog.Leasable || req.N < 1 || req.N > prog.Most {
		return decision, false
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.elapsed()
	d := s.countDemand(shard, name, prog, req.N, now)
	k := shard.keys[name.text]
	switch {
	case k == nil:
		return decision, false
	case k.isOfOther(prog):
		s.settleAllSoon(context.Background(), name, shard.endLocked(name))
		return decision, false
	case k.left(now) < req.N:
		return decision, false
	}
	decision = s.grantLeased(k, req.N, now)
	if latest := k.latest(); !latest.renewed && s.runsOut(k, now) {
		next := s.nextLease(shard, name, d, req.Clock, now)
		if next != nil {
			latest.renewed = true // once, even if that fails
			s.enqueue(next)
		}
	}
	return decision, true
}

// countDemand counts n requested events of a key, and returns the demand. The caller holds the
// shard's lock.
func (s *Store) countDemand(
	shard *leaseShard, name name, prog *program, n int, now time.Duration,
) *demand {
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
		shard.demands.put(name.text, d, now, 2*s.leaseAge) // so that it is not forgotten
	}
	d.current = min(d.current+n, s.lease)
	return d
}

// isOfOther reports whether the leases are for another limit.
func (k *keyLeases) isOfOther(prog *program) bool {
	other := func(l *lease) bool { return !l.prog.equals(prog) }
	return k.asked != nil && other(k.asked) || slices.ContainsFunc(k.held, other)
}

// left returns how many events of the leases can still be granted.
func (k *keyLeases) left(now time.Duration) (n int) {
	for _, l := range k.held {
		if now < l.until {
			n += l.left
		}
	}
	return n
}

// grantLeased grants n events, of those that are left.
func (s *Store) grantLeased(k *keyLeases, n int, now time.Duration) step.Decision {
	s.counts.leased.Add(uint64(n))
	for _, l := range k.held {
		if now < l.until {
			from := min(n, l.left)
			l.left -= from
			n -= from
		}
	}
	decision := k.last
	decision.Remaining += k.left(now)
	decision.ResetAfter = max(0, decision.ResetAfter-(now-k.since))
	return decision
}

// grantWaiting grants calls that wait in the queue of a group, whose command has taken a lease,
// from this lease. Otherwise, they would wait for another command.
func (s *Store) grantWaiting(g *group) {
	q, o := g.queue, g.queue.outbox
	o.mu.Lock()
	if q.group != g { // the command was abandoned, and perhaps another one is in progress
		o.mu.Unlock()
		return
	}
	waiting := q.next
	q.next = nil
	o.mu.Unlock()
	waiting = s.grantCalls(g.calls[0].name, g.calls[0].prog, waiting)
	o.mu.Lock()
	q.next = append(waiting, q.next...)
	o.mu.Unlock()
}

// grantCalls answers those calls on a key, for a limit, that its leases can grant, and returns the
// others.
func (s *Store) grantCalls(name name, prog *program, calls []*call) (others []*call) {
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	k, now := shard.keys[name.text], s.elapsed()
	if k == nil || k.isOfOther(prog) {
		return calls // the lease was denied, or had to end
	}
	return slices.DeleteFunc(calls, func(c *call) bool {
		if c.op() != script.OpTake || k.left(now) < c.req.N || !c.claim() {
			return false
		}
		c.res = step.Answer{Decision: s.grantLeased(k, c.req.N, now)}
		c.done <- nil
		return true
	})
}

// latest returns the lease that was taken last. There must be one.
func (k *keyLeases) latest() *lease { return k.held[len(k.held)-1] }

// runsOut reports whether little is left of the latest lease, or no lease is held.
func (s *Store) runsOut(k *keyLeases, now time.Duration) bool {
	if k == nil || len(k.held) == 0 {
		return true
	}
	latest := k.latest()
	return k.left(now) <= latest.n/lowMark || latest.until-now <= s.leaseAge/lowMark
}

// nextLease returns a call that takes a lease of a key, or nil if the key should not be leased
// now. With those that are held, a lease has no more events than were requested lately. For the
// call, leaseOutcome must be called. The caller of nextLease holds the shard's lock.
func (s *Store) nextLease(
	shard *leaseShard, name name, d *demand, clock *timeline.Timeline, now time.Duration,
) *call {
	k := shard.keys[name.text]
	if k == nil {
		k = &keyLeases{}
	}
	if shard.closed || k.asked != nil || len(k.held) == 0 && len(shard.keys) >= maxRecent {
		return nil
	}
	wanted := min(s.lease, max(d.current, d.previous)) - k.left(now)
	n := min(wanted, d.remaining/minRoom)
	if n < minLease {
		return nil
	}
	k.asked = &lease{prog: d.prog, id: 2*rand.Uint64N(1<<52) + 1, clock: clock, n: n, left: n}
	if shard.keys == nil {
		shard.keys = make(map[string]*keyLeases)
	}
	shard.keys[name.text] = k
	s.returns.begin() // until leaseOutcome
	hold := step.Handle{ID: k.asked.id, For: s.leaseAge + leaseMargin}
	req := step.Request{Op: step.OpHold, N: n, Hold: hold, Clock: clock}
	return &call{name: name, prog: d.prog, req: req, forLease: true}
}

// leaseCalls returns calls to append to a group: those that settle the key's leases whose events
// were all granted, so that no command of their own has to; and if takes is true and the key
// should be leased now, one that takes a lease. For the latter, leaseOutcome must be called.
func (s *Store) leaseCalls(
	name name, prog *program, clock *timeline.Timeline, takes bool,
) (calls []*call) {
	if s.lease == 0 || !prog.Leasable {
		return nil
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	isEmpty := func(l *lease) bool { return l.left == 0 && l.prog.equals(prog) }
	for _, l := range shard.dropLocked(name, isEmpty) {
		calls = append(calls, &call{name: name, prog: prog, req: l.settlement(), forLease: true})
	}
	now := s.elapsed()
	d, known := shard.demands.get(name.text)
	if !takes || !known || !d.prog.equals(prog) || !s.runsOut(shard.keys[name.text], now) {
		return calls
	}
	if next := s.nextLease(shard, name, d, clock, now); next != nil {
		calls = append(calls, next)
	}
	return calls
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
// command's error, and begins the lease that one of them asked for, if any.
func (s *Store) leaseOutcome(name name, calls []*call, after snapshot, err error) {
	last := calls[len(calls)-1]
	if s.lease == 0 || !last.prog.Leasable {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	d, known := shard.demands.get(name.text)
	if known && err == nil && d.prog.equals(last.prog) {
		d.remaining = last.res.Remaining
	}
	k := shard.keys[name.text]
	if k == nil {
		return
	}
	if err == nil && !k.isOfOther(last.prog) {
		k.note(last.res.Decision, after.received)
	}
	i := slices.IndexFunc(calls, (*call).takesLease)
	if i < 0 {
		return
	}
	defer s.returns.end()
	l := k.asked
	k.asked = nil
	defer shard.forgetLocked(name)
	switch {
	case err != nil:
		if !refused(err) { // it may have been taken
			l.until = s.elapsed() + s.leaseAge
			s.settleLater(name, l)
		}
		return
	case !calls[i].res.Allowed:
		return
	}
	l.until = after.sent + s.leaseAge
	if shard.closed || l.over {
		s.settleSoon(context.Background(), name, l)
		return
	}
	k.last = calls[i].res.Decision
	k.note(last.res.Decision, after.received)
	l.timer = time.AfterFunc(l.until-s.elapsed(), func() { s.expire(name, l) })
	k.held = append(k.held, l)
}

// note notes what remains of the key besides the leases, from a decision that was received at now.
func (k *keyLeases) note(d step.Decision, now time.Duration) {
	if d.Allowed {
		k.last = d
	}
	k.last.Remaining, k.last.ResetAfter, k.since = d.Remaining, d.ResetAfter, now
}

// dropLocked removes those of the key's leases that are held and for which drops returns true. It
// returns them.
func (shard *leaseShard) dropLocked(name name, drops func(*lease) bool) (dropped []*lease) {
	k := shard.keys[name.text]
	if k == nil {
		return nil
	}
	k.held = slices.DeleteFunc(k.held, func(l *lease) bool {
		if !drops(l) {
			return false
		}
		l.timer.Stop()
		dropped = append(dropped, l)
		return true
	})
	shard.forgetLocked(name)
	return dropped
}

// forgetLocked removes a key that has no leases.
func (shard *leaseShard) forgetLocked(name name) {
	if k := shard.keys[name.text]; k.asked == nil && len(k.held) == 0 {
		delete(shard.keys, name.text)
	}
}

// anyLease matches every lease.
func anyLease(*lease) bool { return true }

func (s *Store) expire(name name, l *lease) {
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	ended := shard.dropLocked(name, func(held *lease) bool { return held == l })
	s.settleAllSoon(context.Background(), name, ended)
}

// endsLease reports whether the lease of a key has to end before a request on it.
func endsLease(req step.Request) bool {
	switch req.Op {
	case step.OpTake:
		return req.UpTo
	case step.OpCharge, step.OpHold:
		return true
	case step.OpReserve:
		return req.Hold.For > 0
	case step.OpSettle:
		return req.N > req.Of
	}
	return false
}

// endLease ends the leases of a key before a request that charges events, holds some, or takes as
// many as remain: none that was leased before may be granted while there is a debt, and the others
// are not denied what is only leased. The leases are settled before that, because the queue of a
// key and a limit is in order. HoldAll does not wait for that.
func (s *Store) endLease(name name) {
	if s.lease == 0 {
		return
	}
	shard := &s.leases[name.shard()]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	ended := shard.endLocked(name)
	if len(ended) > 0 {
		s.denials.forget(name) // of a state without what the leases give back
	}
	s.settleAllSoon(context.Background(), name, ended)
}

// endLocked ends the leases of a key, asked for or held. It returns those that were held, which
// the caller has to settle.
func (shard *leaseShard) endLocked(name name) (held []*lease) {
	if k := shard.keys[name.text]; k != nil && k.asked != nil {
		k.asked.over = true
	}
	return shard.dropLocked(name, anyLease)
}

// settleAllSoon settles the leases of a key that have ended.
func (s *Store) settleAllSoon(ctx context.Context, name name, ended []*lease) {
	for _, l := range ended {
		s.settleSoon(ctx, name, l)
	}
}

// settleSoon queues the settlement of a lease that has ended, and waits for it in a goroutine that
// Close waits for. If it fails, it is repeated later. It takes no longer than the timeout.
func (s *Store) settleSoon(ctx context.Context, name name, l *lease) {
	s.returns.begin()
	c := s.queue(name, l.prog, l.settlement())
	go func() {
		defer s.returns.end()
		res, err := s.settle(ctx, c)
		if err == nil {
			s.noteEnd(l, res.Held)
			return
		}
		s.settleLater(name, l)
		if l.left > 0 {
			s.returns.addErr(err)
		}
	}()
}

// noteEnd notes that the server has settled a lease, unless its hold was not open any more: then it
// has ended by itself, or the key was reset, or the lease was never taken.
func (s *Store) noteEnd(l *lease, wasOpen bool) {
	if !wasOpen && s.elapsed() >= l.until+leaseMargin {
		s.counts.lost.Add(uint64(l.left))
	}
}

// settleLater settles a lease that has ended, and of which the server may not know that. If Close
// is called meanwhile, that is tried once more.
func (s *Store) settleLater(name name, l *lease) {
	answered := false
	end := func() (found bool, err error) {
		res, err := s.settle(context.Background(), s.queue(name, l.prog, l.settlement()))
		switch {
		case errors.Is(err, limit.ErrState): // the key has begun afresh
			return true, nil
		case err == nil && !answered:
			answered = true
			s.noteEnd(l, res.Held)
		}
		return res.Held, err
	}
	s.strays.Add(stray.Hold{ID: l.id, End: end, GivenUp: func() {
		s.counts.lost.Add(uint64(l.left))
	}})
}

// resetLease ends the leases of a key, asked for or held, after a Reset that returned err. They are
// settled, which does nothing if the hold is gone: one of them may have been taken after the reset,
// or the key may not have been reset.
func (s *Store) resetLease(name name, err error) {
	if !errors.Is(err, ErrOpen) { // else the key was not reset
		s.endLease(name)
	}
}

func (s *Store) closeLeases(ctx context.Context) error {
	s.returns.close()
	for i := range s.leases {
		shard := &s.leases[i]
		shard.mu.Lock()
		shard.closed = true
		for text := range shard.keys {
			name := nameOf(text)
			s.settleAllSoon(ctx, name, shard.endLocked(name))
		}
		shard.mu.Unlock()
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
