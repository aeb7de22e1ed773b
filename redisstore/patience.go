package redisstore

import (
	"context"
	"fmt"
	"runtime/metrics"
	"time"
)

// A timeout is to measure the server, and not this process, which may be stopped for a
// while, or have more to do than its processors can: then answers have arrived long
// before they are read. So time is counted in ticks of a timer, a part of the timeout
// each. A tick that is late counts as much as any other, and one that finds goroutines
// waiting for a processor, perhaps the one that has the answer, counts a quarter.
//
// There is one timer for a store, which ticks while commands are under way.
const (
	parts    = 10 // ticks in a timeout
	idle     = 4  // what a tick counts
	busy     = 1  // what it counts while goroutines wait for a processor
	patience = parts * idle
)

// backlog reports whether goroutines wait for a processor.
func backlog() bool {
	sample := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Kind() == metrics.KindUint64 && sample[0].Value.Uint64() > 0
}

// startTicking sees to it that the timer runs.
func (s *Store) startTicking() {
	if s.ticking.CompareAndSwap(false, true) {
		time.AfterFunc(s.timeout/parts, s.tick)
	}
}

// tick answers the calls whose time is over. It gives up a command whose time is: the
// calls that wait behind it are sent without it.
func (s *Store) tick() {
	s.ticking.Store(false) // before it looks, as flights call startTicking after they are there to see
	counts := int64(idle)
	if s.backlog() {
		counts = busy
	}
	now := s.ticks.Add(counts)
	under := false
	for i := range s.flights {
		under = s.tickShard(&s.flights[i], now) || under
	}
	if under {
		s.startTicking()
	}
}

// tickShard does so for a shard, and reports whether anything is under way there.
func (s *Store) tickShard(shard *flightShard, now int64) bool {
	var late []*call
	var lost []func(error)
	var given []*flight
	note := func(calls []*call) {
		for _, c := range calls {
			if now-c.ticks >= patience && c.claim() {
				late = append(late, c)
			}
		}
	}
	shard.mu.Lock()
	under := len(shard.under) > 0
	for _, f := range shard.under {
		note(f.next)
		g := f.group
		if g == nil {
			continue
		}
		note(g.calls)
		if now-g.ticks >= patience {
			if g.done != nil {
				lost = append(lost, g.done)
				g.done = nil
			}
			g.cancel()
			f.group = nil
			given = append(given, f)
		}
	}
	shard.mu.Unlock()
	for _, f := range given {
		s.launch(f)
	}
	if len(late) > 0 || len(lost) > 0 {
		err := fmt.Errorf("%w: %v passed", ErrTimeout, s.timeout)
		for _, done := range lost {
			done(err)
		}
		for _, c := range late {
			c.done <- err
		}
	}
	return under
}

// verdict returns what the breaker is told of a command that took so long, in which so
// many ticks were counted.
func (s *Store) verdict(err error, took time.Duration, ticks int64) error {
	counted := time.Duration(ticks/idle+1) * (s.timeout / parts)
	switch {
	case err == nil || aboutKey(err):
		return nil
	case took-counted > took/2:
		return context.Canceled // for most of the time this process did not run, or was busy
	}
	return err
}
