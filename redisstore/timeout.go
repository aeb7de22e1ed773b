package redisstore

import (
	"context"
	"fmt"
	"runtime/metrics"
	"time"
)

// If Redis does not answer within the timeout, 50 ms by default, the call fails, and the
// limiter's FailurePolicy decides: FailOpen, the default, allows it and marks the Decision
// as Degraded. After five such failures in a row, the circuit breaker (goredis.New and
// rueidis.New set one) fails all calls at once for a second. options.go and doc.go say what
// users can choose.
//
// The timeout should measure the server and not this process, which may be stopped for a
// while, or have more runnable goroutines than processors. In both cases an answer can
// arrive long before it is read. So the store does not compare clock readings; it counts
// ticks of a timer. A timeout is ticksPerTimeout ticks. A late tick counts the same as
// any other, and a tick that finds goroutines waiting for a processor counts a quarter,
// because one of them may have the answer.
//
// A store has one timer, which runs while commands are in progress.
const (
	ticksPerTimeout = 10
	tickWeight      = 4 // the weight of a tick
	busyTickWeight  = 1 // its weight while goroutines wait for a processor
	timeoutWeight   = ticksPerTimeout * tickWeight
)

// backlog reports whether goroutines wait for a processor.
func backlog() bool {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Kind() == metrics.KindUint64 && sample[0].Value.Uint64() > 0
}

// startTicking starts the timer if it is not running.
func (s *Store) startTicking() {
	if s.ticking.CompareAndSwap(false, true) {
		time.AfterFunc(s.timeout/ticksPerTimeout, s.tick)
	}
}

// tick fails the calls whose timeout has passed. It abandons commands whose timeout has
// passed, so that the calls queued behind them are sent.
func (s *Store) tick() {
	// Before looking at the queues: enqueue adds a queue first and calls startTicking
	// second, so either this tick sees the queue or startTicking sees false.
	s.ticking.Store(false)
	weight := int64(tickWeight)
	if s.backlog() {
		weight = busyTickWeight
	}
	now := s.ticks.Add(weight)
	active := false
	for i := range s.queues {
		active = s.tickShard(&s.queues[i], now) || active
	}
	if active {
		s.startTicking()
	}
}

// tickShard does the work of tick for one shard, and reports whether the shard has any
// queue.
func (s *Store) tickShard(shard *queueShard, now int64) bool {
	var late []*call
	var reports []func(error)
	var abandoned []*queue
	claimLate := func(calls []*call) {
		for _, c := range calls {
			if now-c.ticks >= timeoutWeight && c.claim() {
				late = append(late, c)
			}
		}
	}
	shard.mu.Lock()
	active := len(shard.active) > 0
	for _, q := range shard.active {
		claimLate(q.next)
		g := q.group
		if g == nil {
			continue
		}
		claimLate(g.calls)
		if now-g.ticks >= timeoutWeight {
			if g.done != nil {
				reports = append(reports, g.done)
				g.done = nil
			}
			g.cancel()
			q.group = nil
			abandoned = append(abandoned, q)
		}
	}
	shard.mu.Unlock()
	for _, q := range abandoned {
		s.startSender(q)
	}
	if len(late) > 0 || len(reports) > 0 {
		err := fmt.Errorf("%w: %v passed", ErrTimeout, s.timeout)
		for _, done := range reports {
			done(err)
		}
		for _, c := range late {
			c.done <- err
		}
	}
	return active
}

// outcome returns what to report to the breaker about a command that returned err after
// took, during which the store counted ticks.
func (s *Store) outcome(err error, took time.Duration, ticks int64) error {
	counted := time.Duration(ticks/tickWeight+1) * (s.timeout / ticksPerTimeout)
	switch {
	case err == nil || aboutKey(err):
		return nil
	case took-counted > took/2:
		return context.Canceled // for most of the time this process did not run, or was busy
	}
	return err
}
