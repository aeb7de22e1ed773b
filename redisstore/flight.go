package redisstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/ratelimit-go/ratelimit"
)

// While a call on a key is under way, further ones on it wait, and then travel
// together: one flight a key at a time. The first caller of a key flies by itself,
// in its own goroutine; a flight of those that waited has one of its own, so that
// none of them depends on the patience of another.

// flights are the calls under way, by key.
type flights [shards]struct {
	mu      sync.Mutex
	waiting map[string][]*call // nil, but present, if nobody waits
}

// shards is the number of parts that what is kept by key is in.
const shards = 64

// most bounds the calls that travel together.
const most = 256

var seed = maphash.MakeSeed()

func shardOf(name string) int { return int(maphash.String(seed, name) % shards) }

// fly makes a call, by itself or with others.
func (s *Store) fly(ctx context.Context, name string, c *call) (ratelimit.Result, error) {
	f := &s.flights[shardOf(name)]
	f.mu.Lock()
	if _, busy := f.waiting[name]; busy && s.unwell.Load() {
		// The one under way may be the breaker's probe, of a server that hangs.
		f.mu.Unlock()
		s.alone(ctx, name, c)
		return c.res, c.err
	}
	if _, busy := f.waiting[name]; !busy {
		if f.waiting == nil {
			f.waiting = make(map[string][]*call)
		}
		f.waiting[name] = nil
		f.mu.Unlock()
		defer s.land(name)
		s.travel(ctx, name, []*call{c})
		return c.res, c.err
	}
	c.done = make(chan struct{})
	f.waiting[name] = append(f.waiting[name], c)
	f.mu.Unlock()
	s.counts.coalesced.Add(1)

	within, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	select {
	case <-c.done:
		return c.res, c.err
	case <-within.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-c.done: // just in time
		return c.res, c.err
	default:
	}
	c.sent = true // if it was not, nobody is to send it any more
	if ctx.Err() != nil {
		return ratelimit.Result{}, ctx.Err()
	}
	return ratelimit.Result{}, fmt.Errorf("%w: %v passed", ErrTimeout, s.timeout)
}

// land lets those that waited fly.
func (s *Store) land(name string) {
	f := &s.flights[shardOf(name)]
	f.mu.Lock()
	var next []*call
	waiting := f.waiting[name]
	for len(waiting) > 0 && len(next) < most {
		c := waiting[0]
		if !c.sent { // else it has given up
			if len(next) > 0 && c.prog != next[0].prog {
				break
			}
			c.sent = true
			next = append(next, c)
		}
		waiting = waiting[1:]
	}
	if len(next) == 0 {
		delete(f.waiting, name)
		f.mu.Unlock()
		return
	}
	f.waiting[name] = waiting
	f.mu.Unlock()
	go func() { // which ends when Redis has answered, or its time is over
		defer s.land(name)
		s.travel(context.Background(), name, next)
		for _, c := range next {
			close(c.done)
		}
	}()
}

// alone makes a call beside the one that is under way, and learns nothing from it:
// which of them was first is not known.
func (s *Store) alone(ctx context.Context, name string, c *call) {
	s.denials.forget(name)
	defer s.denials.forget(name)
	err := s.guarded(ctx, func(ctx context.Context) error {
		_, err := s.decide(ctx, name, []*call{c})
		if errors.Is(err, errOther) {
			c.res, err = s.rewrite(ctx, name, c.prog, c.req)
		}
		return err
	})
	if err != nil {
		c.res, c.err = ratelimit.Result{}, err
	}
}

// travel makes calls of one program at once, and answers them.
func (s *Store) travel(ctx context.Context, name string, calls []*call) {
	if lease := s.wanted(name, calls); lease != nil {
		calls = append(calls[:len(calls):len(calls)], lease)
	}
	epoch := s.denials.epoch(name)
	err := s.guarded(ctx, func(ctx context.Context) error {
		for first := 0; ; first = 1 {
			left, err := s.decide(ctx, name, calls[first:])
			if errors.Is(err, errOther) && first == 0 {
				s.denials.forget(name)
				calls[0].res, err = s.rewrite(ctx, name, calls[0].prog, calls[0].req)
				if err != nil || len(calls) == 1 {
					return err
				}
				continue
			}
			if err == nil {
				s.note(name, epoch, calls[first:], left)
				s.learn(name, epoch, calls[first:], left)
			}
			return err
		}
	})
	if err != nil {
		for _, c := range calls {
			c.res, c.err = ratelimit.Result{}, err
		}
	}
}
