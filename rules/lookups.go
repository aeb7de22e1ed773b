package rules

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A flight is the lookup of one key. It is queued until one of the places for lookups is
// free. If nobody waits for it any more, it is taken out of the queue; once it runs, it
// runs to its end.
type flight struct {
	key      string
	ctx      context.Context // of the first caller, without its end
	deadline time.Time
	waiting  int           // callers
	queued   *list.Element // nil once it runs
	done     chan struct{} // closed when it has ended, and what follows is set

	alg ratelimit.Algorithm
	err error
}

// late returns the error of a lookup that has not ended by its deadline.
func (f *flight) late() error {
	return fmt.Errorf("rules: the limit of key %q: no answer in time: %w", f.key, context.DeadlineExceeded)
}

// refresh looks a key up in the background, unless that is being done. There are no
// more such lookups than keys are remembered.
func (c *Cache) refresh(ctx context.Context, key string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known.Peek(key); ok && now.Before(old.until) {
		return // it has just ended
	}
	if c.flights[key] == nil && len(c.flights) < c.size {
		c.queueLocked(ctx, key, now)
	}
}

// join returns the lookup of a key, to wait for until its deadline, which may be over.
func (c *Cache) join(ctx context.Context, key string, now time.Time) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.endedLocked(key, now); f != nil {
		return f
	}
	f := c.flights[key]
	if f != nil && f.queued != nil && !now.Before(f.deadline) { // of a refresh that never ran
		c.dropLocked(f)
		f = nil
	}
	if f == nil {
		f = c.queueLocked(ctx, key, now)
	}
	f.waiting++
	return f
}

// endedLocked returns a lookup that has just ended, or nil.
func (c *Cache) endedLocked(key string, now time.Time) *flight {
	k, known := c.known.Peek(key)
	failed, ok := c.failed.Peek(key)
	if !known && (!ok || !now.Before(failed.until)) {
		return nil
	}
	f := &flight{key: key, deadline: now.Add(c.timeout), done: make(chan struct{}), alg: k.alg}
	if !known {
		f.err = failed.err
	}
	close(f.done)
	return f
}

// leave takes back a join.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.waiting--; f.waiting == 0 && f.queued != nil {
		c.dropLocked(f)
	}
}

func (c *Cache) queueLocked(ctx context.Context, key string, now time.Time) *flight {
	f := &flight{key: key, ctx: context.WithoutCancel(ctx), deadline: now.Add(c.timeout), done: make(chan struct{})}
	f.queued = c.queue.PushBack(f)
	c.flights[key] = f
	c.startLocked(now)
	return f
}

// dropLocked takes a flight out of the queue.
func (c *Cache) dropLocked(f *flight) {
	c.queue.Remove(f.queued)
	f.queued = nil
	delete(c.flights, f.key)
}

// startLocked starts lookups while places are free.
func (c *Cache) startLocked(now time.Time) {
	for c.running < c.most && c.queue.Len() > 0 {
		f := c.queue.Front().Value.(*flight)
		c.queue.Remove(f.queued)
		f.queued = nil
		if left := f.deadline.Sub(now); left > 0 {
			c.running++
			go c.run(f, left)
		} else {
			c.endLocked(f, nil, f.late(), now)
		}
	}
}

// run looks a key up, and then lets the next one start.
func (c *Cache) run(f *flight, left time.Duration) {
	alg, err := c.ask(f, left)
	now := c.clk.Now()
	c.mu.Lock()
	c.running--
	c.endLocked(f, alg, err, now)
	c.startLocked(now)
	logs := isInvalid(err) && (c.logged.IsZero() || now.Sub(c.logged) >= time.Second)
	if logs {
		c.logged = now
	}
	c.mu.Unlock()
	if logs { // because no caller gets the error
		slog.ErrorContext(f.ctx, "rules: a limit that cannot be used; the last good one of the key, or the limiter's own, is in force", "error", err)
	}
}

// ask calls the lookup, which may panic in a goroutine that nobody else could save.
func (c *Cache) ask(f *flight, left time.Duration) (alg ratelimit.Algorithm, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rules: the lookup of key %q panicked: %v", f.key, p)
		}
	}()
	within, cancel := context.WithTimeout(f.ctx, left)
	defer cancel()
	alg, err = c.lookup.Limit(within, f.key)
	if err == nil && alg != nil {
		if _, err = ratelimit.NewTransition(alg); err != nil {
			err = fmt.Errorf("rules: the limit of key %q: %w", f.key, err)
		}
	}
	return alg, err
}

// endLocked ends a flight with what its lookup has found, and remembers that, unless
// the key was forgotten meanwhile.
func (c *Cache) endLocked(f *flight, alg ratelimit.Algorithm, err error, now time.Time) {
	if err != nil {
		c.err = err
	}
	next, known := c.known.Peek(f.key)
	switch {
	case err == nil:
		next = found{alg, now.Add(c.ttl)}
	case isInvalid(err): // it has answered
		c.invalid.Add(1)
		next.until = now.Add(c.ttl)
	default:
		c.failures.Add(1)
		next.until = now.Add(min(retryAfter, c.ttl))
		if !known {
			f.err = err
		}
	}
	f.alg = next.alg
	close(f.done)
	if c.flights[f.key] != f {
		return // forgotten
	}
	delete(c.flights, f.key)
	if f.err != nil {
		c.failed.Add(f.key, failure{f.err, next.until})
		return
	}
	c.known.Add(f.key, next)
	c.failed.Remove(f.key)
}

// isInvalid reports whether err says that a limit cannot be used, and not that the
// lookup has failed.
func isInvalid(err error) bool {
	var field *FieldError
	return errors.As(err, &field) || errors.Is(err, ratelimit.ErrInvalid)
}
