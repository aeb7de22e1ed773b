package rules

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
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

// begin returns the cached result for a key, and perhaps starts a lookup in the background. If
// the caller has to wait for a lookup until its deadline, which may have passed already, begin
// returns that, too; the cached result is zero if there is none.
func (c *Cache) begin(ctx context.Context, key string, now time.Time) (f *flight, old found, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, known := c.known.get(key)
	failed, fails := c.failed.get(key)
	switch {
	case known && now.Before(old.until):
		c.stats.Hits++
		return nil, old, nil
	case !known && fails && now.Before(failed.until):
		c.stats.Hits++
		return nil, old, failed.err
	}
	c.stats.Misses++
	f = c.flights[key]
	if known && now.Sub(old.at) <= c.maxAge {
		c.stats.Stale++
		if f == nil && len(c.flights) < c.size { // which bounds the lookups in the background
			c.queueLocked(ctx, key, now)
		}
		return nil, old, nil
	}
	if f != nil && f.queued != nil && !now.Before(f.deadline) { // one in the background that never started
		c.dropLocked(f)
		f = nil
	}
	if f == nil && len(c.running) >= c.most && !slices.ContainsFunc(c.running, func(f *flight) bool { return now.Before(f.deadline) }) {
		c.stats.Failures++
		if c.stats.Err = (&flight{key: key}).late(); known {
			return nil, old, nil
		}
		return nil, old, c.stats.Err
	}
	if f == nil {
		f = c.queueLocked(ctx, key, now)
	}
	f.waiting++
	return f, old, nil
}

// leave says that a caller no longer waits for a flight.
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
	for len(c.running) < c.most && c.queue.Len() > 0 {
		f := c.queue.Front().Value.(*flight)
		c.queue.Remove(f.queued)
		f.queued = nil
		if left := f.deadline.Sub(now); left > 0 {
			c.running = append(c.running, f)
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
	c.running = slices.DeleteFunc(c.running, func(other *flight) bool { return other == f })
	c.endLocked(f, alg, err, now)
	c.startLocked(now)
	logs := isInvalid(err) && (c.logged.IsZero() || now.Sub(c.logged) >= time.Second)
	if logs {
		c.logged = now
	}
	c.mu.Unlock()
	if logs { // no caller gets this error
		logvalve.Safely(func() {
			slog.ErrorContext(f.ctx, "rules: invalid limit; the key's last valid one, or the limiter's own, is in force", "error", err)
		})
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
		if _, err = ratelimit.New(alg); err != nil {
			err = fmt.Errorf("rules: the limit of key %q: %w", f.key, err)
		}
	}
	return alg, err
}

// endLocked ends a flight with the result of its lookup. It caches the result, unless
// Forget was called for the key in the meantime.
func (c *Cache) endLocked(f *flight, alg ratelimit.Algorithm, err error, now time.Time) {
	if err != nil {
		c.stats.Err = err
	}
	next, known := c.known.get(f.key)
	next.at = now
	switch {
	case err == nil:
		next.alg, next.until = alg, now.Add(c.ttl)
	case isInvalid(err): // the store has answered, so it is not asked again for a TTL
		c.stats.Invalid++
		next.until = now.Add(c.ttl)
	default:
		c.stats.Failures++
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
		c.failed.put(f.key, failure{f.err, next.until})
		return
	}
	c.known.put(f.key, next)
	c.failed.remove(f.key)
}

// isInvalid reports whether err means that a limit is invalid, as opposed to a failed
// lookup.
func isInvalid(err error) bool {
	var field *FieldError
	return errors.As(err, &field) || errors.Is(err, ratelimit.ErrInvalid)
}
