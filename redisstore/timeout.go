package redisstore

import (
	"context"
	"runtime/metrics"
	"time"
)

// If Redis does not answer within the timeout, 50 ms by default, the call fails, and the
// limiter's FailurePolicy decides: FailOpen, the default, allows it and marks the Decision
// as Degraded. After five such failures in a row, the circuit breaker (goredis.New and
// rueidis.New set one) fails all calls at once for half a second. options.go and doc.go say what
// users can choose.
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
	if !s.inTick.TryLock() { // the tick before is held up, which counts once
		s.startTicking()
		return
	}
	defer s.inTick.Unlock()
	weight := tickWeight
	if s.backlog() {
		weight = busyTickWeight
	}
	now := s.ticks.Add(1)
	active := false
	for i := range s.queues {
		active = s.tickShard(&s.queues[i], now, weight) || active
	}
	if active {
		s.startTicking()
	}
}

// answered notes that a server has answered a command.
func (s *Store) answered(srv *server) {
	if next := s.ticks.Load() + 1; srv.answered.Load() != next {
		srv.answered.Store(next)
	}
}

// weighs returns what a tick counts for a command to srv, or to an unknown server if that is nil.
func (srv *server) weighs(tick int64, weight int) int {
	if weight == busyTickWeight && srv != nil && srv.answered.Load() >= tick {
		return answeredTickWeight
	}
	return weight
}

// tickShard does the work of tick for one shard, and reports whether the shard has any
// queue.
func (s *Store) tickShard(shard *queueShard, tick int64, weight int) bool {
	late := map[*server][]func(error){} // what waits for their answers: calls and breakers
	var abandoned []*queue
	age := func(calls []*call, srv *server, weight int) {
		for _, c := range calls {
			if c.age += weight; c.age >= timeoutWeight && c.claim() {
				late[srv] = append(late[srv], func(err error) { c.done <- err })
			}
		}
	}
	shard.mu.Lock()
	active := len(shard.active) > 0
	for _, q := range shard.active {
		g := q.group
		if g == nil {
			age(q.next, nil, weight)
			continue
		}
		weight := g.server.weighs(tick, weight)
		age(q.next, g.server, weight)
		age(g.calls, g.server, weight)
		if g.age += weight; g.age >= timeoutWeight {
			if g.done != nil {
				late[g.server] = append(late[g.server], g.done)
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
	for srv, tell := range late {
		err := s.timeoutError(srv)
		for _, done := range tell {
			done(err)
		}
	}
	return active
}

// outcome returns what to report to the breaker about a command that returned err after
// took, during which the store counted ticks of a total weight of age.
func (s *Store) outcome(err error, took time.Duration, age int) error {
	counted := time.Duration(age/tickWeight+1) * (s.timeout / ticksPerTimeout)
	switch {
	case err == nil || aboutKey(err):
		return nil
	case took-counted > took/2:
		return context.Canceled // for most of the time this process did not run, or was busy
	}
	return err
}
