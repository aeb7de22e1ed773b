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

// A flight is the lookup of one key. It is queued until fewer than the maximum number of
// lookups are running. It is removed from the queue when no caller waits for it any
// more; once started, it runs to its end.
type flight struct {
	key      string
	ctx      context.Context // the first caller's, without its cancellation
	deadline time.Time
	waiting  int           // callers
	queued   *list.Element // nil once it runs
	done     chan struct{} // closed when it has ended; then the fields below are set

	alg ratelimit.Algorithm
	err error
}

// late returns the error of a lookup that has missed its deadline.
func (f *flight) late() error {
	return fmt.Errorf("rules: the limit of key %q: the lookup did not answer in time: %w", f.key, context.DeadlineExceeded)
}

// refresh looks up a key in the background, unless a lookup of it is queued or running.
// The number of such lookups is bounded by the size of the cache.
func (c *Cache) refresh(ctx context.Context, key string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known.Peek(key); ok && now.Before(old.until) {
		return // another lookup has just ended
	}
	if c.flights[key] == nil && len(c.flights) < c.size {
		c.queueLocked(ctx, key, now)
	}
}

// join returns the lookup of a key, for the caller to wait for until its deadline,
// which may have passed already.
func (c *Cache) join(ctx context.Context, key string, now time.Time) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.endedLocked(key, now); f != nil {
		return f
	}
	f := c.flights[key]
	if f != nil && f.queued != nil && !now.Before(f.deadline) { // a refresh that never started
		c.dropLocked(f)
		f = nil
	}
	if f == nil {
		f = c.queueLocked(ctx, key, now)
	}
	f.waiting++
	return f
}

// endedLocked returns a finished flight if a lookup of key has just ended, or nil.
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

// leave undoes a join.
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

// dropLocked removes a flight from the queue.
func (c *Cache) dropLocked(f *flight) {
	c.queue.Remove(f.queued)
	f.queued = nil
	delete(c.flights, f.key)
}

// startLocked starts queued lookups while fewer than the maximum are running.
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

// run looks up a key, and then starts the next lookup.
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
	if logs { // no caller gets this error
		slog.ErrorContext(f.ctx, "rules: invalid limit; the key's last valid one, or the limiter's own, is in force", "error", err)
	}
}

// ask calls the lookup. It recovers from panics, because the caller of Limit cannot: the
// lookup runs in another goroutine.
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

// endLocked ends a flight with the result of its lookup. It caches the result, unless
// Forget was called for the key in the meantime.
func (c *Cache) endLocked(f *flight, alg ratelimit.Algorithm, err error, now time.Time) {
	if err != nil {
		c.err = err
	}
	next, known := c.known.Peek(f.key)
	switch {
	case err == nil:
		next = found{alg, now.Add(c.ttl)}
	case isInvalid(err): // the store has answered, so it is not asked again for a TTL
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
		return // Forget was called
	}
	delete(c.flights, f.key)
	if f.err != nil {
		c.failed.Add(f.key, failure{f.err, next.until})
		return
	}
	c.known.Add(f.key, next)
	c.failed.Remove(f.key)
}

// isInvalid reports whether err means that a limit is invalid, as opposed to a failed
// lookup.
func isInvalid(err error) bool {
	var field *FieldError
	return errors.As(err, &field) || errors.Is(err, ratelimit.ErrInvalid)
}
