package rules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A flight is the lookup of one key, in a goroutine of its own. It waits for a slot until its
// deadline, or until its last caller leaves. Once it has a slot, it runs to its end.
type flight struct {
	key      string
	ctx      context.Context // the first caller's, with the deadline instead of its cancellation
	cancel   context.CancelFunc
	deadline time.Time
	refresh  bool // whether it was begun in the background

	// Protected by Cache.mu:
	waiting int  // callers
	started bool // whether it has had a slot

	done chan struct{} // closed when it has ended; then the fields below are set
	alg  ratelimit.Algorithm
	err  error
}

// refreshesPerSlot bounds how many lookups in the background there are, and so their goroutines
// while the store is slow. A key whose lookup is not begun now is looked up after a later call.
const refreshesPerSlot = 8

// late returns the error of a lookup that has missed its deadline.
func (f *flight) late() error {
	return fmt.Errorf(
		"rules: the limit of key %q: the lookup did not answer in time: %w",
		f.key,
		context.DeadlineExceeded,
	)
}

// begin returns the cached result for a key, and perhaps starts a lookup in the background. If
// the caller has to wait for a lookup until its deadline, which may have passed already, begin
// returns that, too; the cached result is zero if there is none.
func (c *Cache) begin(
	ctx context.Context,
	key string,
	now time.Time,
) (f *flight, old found, err error) {
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
		if f == nil && c.refreshes/refreshesPerSlot < c.most { // a product might overflow
			c.flyLocked(ctx, key, now, true)
		}
		return nil, old, nil
	}
	if f == nil && c.hangsLocked(now) {
		c.stats.Failures++
		c.stats.Err = (&flight{key: key}).late()
		if known {
			return nil, old, nil
		}
		return nil, old, c.stats.Err
	}
	if f == nil {
		f = c.flyLocked(ctx, key, now, false)
	}
	f.waiting++
	return f, old, nil
}

// hangsLocked reports whether all slots are taken by lookups that have missed their deadlines.
// Lookups start in the order of their deadlines, so that the last one to start has the latest.
func (c *Cache) hangsLocked(now time.Time) bool {
	return c.running == c.most && !now.Before(c.latest)
}

// leave says that a caller no longer waits for a flight.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.waiting--
	if f.waiting == 0 && !f.started && c.flights[f.key] == f {
		delete(c.flights, f.key)
		f.cancel()
	}
}

// flyLocked begins a flight.
func (c *Cache) flyLocked(ctx context.Context, key string, now time.Time, refresh bool) *flight {
	f := &flight{
		key:      key,
		deadline: now.Add(c.timeout),
		refresh:  refresh,
		done:     make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	c.flights[key] = f
	if refresh {
		c.refreshes++
	}
	go c.fly(f)
	return f
}

// fly looks up a key once there is a slot.
func (c *Cache) fly(f *flight) {
	defer f.cancel()
	var alg ratelimit.Algorithm
	err := f.late()
	if c.start(f) {
		alg, err = c.ask(f)
	}
	now := c.clk.Now()
	c.mu.Lock()
	if f.started {
		c.running--
		<-c.slots
	}
	if f.refresh {
		c.refreshes--
	}
	if f.started || c.flights[f.key] == f { // some caller waits, or it is a refresh
		c.endLocked(f, alg, err, now)
	}
	logs := isInvalid(err) && (c.logged.IsZero() || now.Sub(c.logged) >= time.Second)
	if logs {
		c.logged = now
	}
	c.mu.Unlock()
	if logs { // no caller gets this error
		logError(f.ctx,
			"rules: invalid limit; the key's last valid one, or the limiter's own, is in force",
			"error", err)
	}
}

// start waits for a slot, and reports whether the flight has got one. Flights get slots in the
// order in which they came.
func (c *Cache) start(f *flight) bool {
	select {
	case c.slots <- struct{}{}:
	default:
		select {
		case c.slots <- struct{}{}:
		case <-f.ctx.Done():
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flights[f.key] != f { // its last caller has left
		<-c.slots
		return false
	}
	f.started = true
	c.running++
	c.latest = f.deadline
	return true
}

// ask calls the lookup. It recovers from panics, because the caller of Limit cannot: the
// lookup runs in another goroutine.
func (c *Cache) ask(f *flight) (alg ratelimit.Algorithm, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rules: the lookup of key %q panicked: %v", f.key, p)
		}
	}()
	alg, err = c.lookup.Limit(f.ctx, f.key)
	if err == nil && alg != nil {
		_, err = ratelimit.New(alg)
		if err != nil {
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
