package rules

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// A flight is the lookup of one key, in a goroutine of its own. It waits for a slot until its
// deadline, or until its last caller leaves. Once it has a slot, it runs to its end.
type flight struct {
	key      string
	ctx      context.Context // the first caller's, with the deadline instead of its cancellation
	cancel   context.CancelFunc
	deadline time.Time
	share    *share // whose slot it needs
	refresh  bool   // whether it was begun in the background

	// Protected by Cache.mu:
	place   *list.Element // in the line of its share
	waiting int           // callers
	started bool          // whether it has had a slot

	turn chan struct{} // closed when it gets a slot
	done chan struct{} // closed when it has ended; then the fields below are set
	alg  ratelimit.Algorithm
	err  error
}

// refreshesPerSlot bounds how many lookups in the background each share has, and so their
// goroutines while the store is slow. A key whose lookup is not begun now is looked up after a
// later call.
const refreshesPerSlot = 8

// late returns the error of a lookup that has missed its deadline.
func (f *flight) late() error {
	return fmt.Errorf(
		"rules: the limit of key %s: the lookup did not answer in time: %w",
		keyhint.Of(f.key),
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
	old, cached := c.cachedLocked(key)
	failed, fails := c.failed.get(key)
	switch {
	case cached && now.Before(old.until):
		c.stats.Hits++
		return nil, old, nil
	case !cached && fails && now.Before(failed.until):
		c.stats.Hits++
		return nil, old, failed.err
	}
	c.stats.Misses++
	f = c.flights[key]
	s := &c.strangers
	if old.known {
		s = &c.customers
	}
	if cached && now.Sub(old.at) <= c.maxAge {
		c.stats.Stale++
		if f == nil && s.refreshes/refreshesPerSlot < c.most { // a product might overflow
			s.refreshes++
			c.flyLocked(ctx, key, now, s).refresh = true
		}
		return nil, old, nil
	}
	if f == nil && c.hangsLocked(s, now) {
		c.stats.Failures++
		c.stats.Err = (&flight{key: key}).late()
		if cached {
			return nil, old, nil
		}
		return nil, old, c.stats.Err
	}
	if f == nil {
		f = c.flyLocked(ctx, key, now, s)
	}
	f.waiting++
	return f, old, nil
}

// cachedLocked returns what was found for a key.
func (c *Cache) cachedLocked(key string) (found, bool) {
	if f, ok := c.known.get(key); ok {
		return f, true
	}
	return c.unknown.get(key)
}

// leave says that a caller no longer waits for a flight.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.waiting--
	if f.waiting == 0 && !f.started && c.flights[f.key] == f {
		delete(c.flights, f.key)
		f.share.line.Remove(f.place)
		f.cancel()
	}
}

// flyLocked begins a flight, which waits in the line of s.
func (c *Cache) flyLocked(ctx context.Context, key string, now time.Time, s *share) *flight {
	f := &flight{
		key:      key,
		deadline: now.Add(c.timeout),
		share:    s,
		turn:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	f.place = s.line.PushBack(f)
	c.flights[key] = f
	c.startLocked()
	go c.fly(f)
	return f
}

// fly looks up a key once there is a slot.
func (c *Cache) fly(f *flight) {
	defer f.cancel()
	var alg ratelimit.Algorithm
	err := f.late()
	if c.awaitSlot(f) {
		alg, err = c.ask(f)
	}
	now := c.clk.Now()
	c.mu.Lock()
	if f.started {
		f.share.running--
		c.startLocked()
	}
	if f.refresh {
		f.share.refreshes--
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
		logSafely(f.ctx, slog.LevelError,
			"rules: invalid limit; the key's last valid one, or the limiter's own, is in force",
			"error", err)
	}
}

// awaitSlot waits until the flight has a slot, and reports whether it has got one before its
// deadline, and before its last caller has left.
func (c *Cache) awaitSlot(f *flight) bool {
	select {
	case <-f.turn:
		return true
	case <-f.ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f.share.line.Remove(f.place) // does nothing if it has started, or its last caller has left
	return f.started
}

// ask calls the lookup. It recovers from panics, because the caller of Limit cannot: the
// lookup runs in another goroutine.
func (c *Cache) ask(f *flight) (alg ratelimit.Algorithm, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rules: the lookup of key %s panicked: %v", keyhint.Of(f.key), p)
		}
		if err != nil {
			err = keyhint.In(err, f.key) // Stats and the log show it
		}
	}()
	alg, err = c.lookup.Limit(f.ctx, f.key)
	if err == nil && alg != nil {
		_, err = ratelimit.New(alg)
		if err != nil {
			err = limitError(f.key, err)
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
	next, cached := c.cachedLocked(f.key)
	next.at = now
	switch {
	case err == nil:
		next.alg, next.known, next.until = alg, alg != nil, now.Add(c.ttl)
	case isInvalid(err): // the store has answered, so it is not asked again for a TTL
		c.stats.Invalid++
		next.known, next.until = true, now.Add(c.ttl)
	default:
		c.stats.Failures++
		next.until = now.Add(min(retryAfter, c.ttl))
		if !cached {
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
	in, notIn := &c.known, &c.unknown
	if !next.known {
		in, notIn = notIn, in
	}
	in.put(f.key, next)
	notIn.remove(f.key)
	c.failed.remove(f.key)
}

// isInvalid reports whether err means that a limit is invalid, as opposed to a failed
// lookup.
func isInvalid(err error) bool {
	var field *FieldError
	return errors.As(err, &field) || errors.Is(err, ratelimit.ErrInvalid)
}
