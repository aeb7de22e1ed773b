package redisstore

import (
	"context"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// If Redis does not answer within the timeout, 50 ms by default, the call fails, and the limiter's
// FailurePolicy decides: FailOpen, the default, allows it and marks the Decision as Degraded. After
// five such failures in a row, the circuit breaker (breaker.go) fails all calls at once for half a
// second. options.go and doc.go say what users can choose.
//
// The timeout should measure the server and not this process, which may be stopped for a
// while, or have more runnable goroutines than processors. In both cases an answer can
// arrive long before it is read. So the store does not compare clock readings; it counts
// ticks of a timer. A timeout is ticksPerTimeout ticks. A late tick counts the same as
// any other, and a tick that finds goroutines waiting for a processor counts a quarter,
// because one of them may have the answer. If the server has answered other commands since
// the tick before, it counts a quarter of that: the server works, and this process, which may
// have only a part of its processors, is behind.
//
// A store has one timer, which runs while commands are in progress.
const (
	ticksPerTimeout    = 10
	tickWeight         = 16 // the weight of a tick
	busyTickWeight     = 4  // its weight while goroutines wait for a processor
	answeredTickWeight = 1  // and answers arrive
	timeoutWeight      = ticksPerTimeout * tickWeight
)

// backlog reports whether goroutines wait for a processor.
func backlog() bool {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Kind() == metrics.KindUint64 && sample[0].Value.Uint64() > 0
}

// startTicking starts the timer if it is not running.
func (s *Store) startTicking() {
	if !s.ticking.Load() && s.ticking.CompareAndSwap(false, true) {
		time.AfterFunc(s.timeout/ticksPerTimeout, s.tick)
	}
}

// tick fails the calls whose timeout has passed. It abandons batches whose timeout has passed, so
// that the calls queued behind them are sent.
func (s *Store) tick() {
	// Before looking at the outboxes: enqueue adds a call first and calls startTicking second, so
	// either this tick sees the call or startTicking sees false.
	s.ticking.Store(false)
	if !s.inTick.TryLock() { // the tick before is held up, which counts once
		s.startTicking()
		return
	}
	defer s.inTick.Unlock()
	backlog := s.backlog()
	now := s.ticks.Add(1)
	active := false
	for _, o := range s.allOutboxes() {
		answered := o.server.answered.Load() >= now
		if o.tick(weigh(backlog, answered), answered) {
			active = true
		}
	}
	if active {
		s.startTicking()
	}
}

// answered notes that a server has answered.
func (s *Store) answered(srv *server) {
	next := s.ticks.Load() + 1
	if srv.answered.Load() != next {
		srv.answered.Store(next)
	}
}

// weigh returns what a tick counts, if goroutines wait for a processor or not, and if the server
// has answered since the tick before or not.
func weigh(backlog, answered bool) int {
	switch {
	case backlog && answered:
		return answeredTickWeight
	case backlog:
		return busyTickWeight
	}
	return tickWeight
}

// tick does the work of a tick of a weight for one outbox, and reports whether it has calls. If the
// server has answered since the tick before, a sender returns for what waits. Otherwise one is
// started.
func (o *outbox) tick(weight int, answered bool) (active bool) {
	over, active := o.age(weight)
	if !answered {
		o.mu.Lock()
		o.startSenderNow()
		o.mu.Unlock()
	}
	if len(over.sent)+len(over.unsent)+len(over.abandoned) == 0 {
		return active
	}
	err := o.store.timeoutError(o.server)
	now := o.store.elapsed()
	// The breaker first, so that the next call of a caller who is told meets it open.
	for _, b := range over.abandoned {
		for _, g := range b.groups {
			o.store.counts.failLeft(g, err)
		}
		o.server.breaker.report(b.tests, b.sent, now, err)
	}
	for _, c := range over.sent {
		c.done <- err
	}
	for _, c := range over.unsent {
		c.done <- limit.NotExecuted(err)
	}
	return active
}

// overdue is what has waited for as long as its timeout.
type overdue struct {
	sent      []*call  // which the server may execute
	unsent    []*call  // which were not sent, nor will be
	abandoned []*batch // of which the breaker is to be told
}

// age counts a tick of a weight. It returns what is overdue then. Whether a call was sent, it asks
// under the lock under which nextGroup asks whether the call was claimed.
func (o *outbox) age(weight int) (over overdue, active bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waited += weight
	for _, q := range o.queues {
		for c := range q.inProgress {
			switch {
			case o.waited-c.born < timeoutWeight || !c.claim():
			case c.inGroup.Load():
				over.sent = append(over.sent, c)
			default:
				over.unsent = append(over.unsent, c)
			}
		}
	}
	for _, b := range slices.Clone(o.batches) {
		if b.state == batchGathered || o.waited-b.born < timeoutWeight {
			continue
		}
		if b.state == batchSent {
			b.state = batchReported
			over.abandoned = append(over.abandoned, b)
		}
		o.abandon(b)
	}
	return over, len(o.queues) > 0
}

// abandon lets others send the calls queued behind those of b, whose replies are not awaited any
// more. The caller holds o.mu.
func (o *outbox) abandon(b *batch) {
	o.end(b)
	for _, g := range b.groups {
		q := g.queue
		if q.group == g {
			q.group = nil
			o.makeReady(q)
		}
	}
}

// outcome returns what to report to the breaker about a batch that failed with err after took,
// during which a total weight of age was counted.
func (s *Store) outcome(err error, took time.Duration, age int) error {
	counted := time.Duration(age/tickWeight+1) * (s.timeout / ticksPerTimeout)
	switch {
	case err == nil:
		return nil
	case took-counted > took/2:
		return context.Canceled // for most of the time this process did not run, or was busy
	}
	return err
}
