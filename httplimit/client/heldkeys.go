package client

import (
	"context"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
)

// heldKeys are the keys that servers have asked to hold back, and those that come back from such a
// rest. All times are by clk.
//
// After a rest, one request goes first. Each success lets another one be under way, so that the
// others follow by twos and fours, up to as many as the server granted after the rest before. What
// comes then is spread, at first over the length of the rest, and with each success a fifth faster,
// unless it comes alone.
type heldKeys struct {
	clk clock.Clock

	mu     sync.Mutex // protects what follows
	keys   map[string]*heldKey
	epochs uint64 // how many rests there have been
}

// A heldKey is what is known of a key since its latest rest began.
type heldKey struct {
	epoch   uint64        // differs for each rest
	until   time.Time     // when the rest ends
	rest    time.Duration // how long it is
	most    int           // how many requests may be under way afterwards
	out     int           // how many are
	granted int           // how many succeeded, up to quota
	quota   int           // how many did after an earlier rest; 0 if it is not known
	gap     time.Duration // between requests, once quota is granted
	next    time.Time     // when the next one may go then, and without a gap if nobody has been answered
	waiting int           // requests that wait

	first   chan struct{} // has an element while a request is the first of those that wait
	changed chan struct{} // wakes the first one
}

// Bounds on how long, and how many, keys are held back.
const (
	maxRetryAfter = 24 * time.Hour
	maxHeldKeys   = 4096 // further keys are not held back
	freely        = 64   // requests under way with which the way back from a rest ends
)

// spent reports whether nobody needs k, and nothing that it knows is of use for much longer.
func (k *heldKey) spent(now time.Time, memory time.Duration) bool {
	return k.out == 0 && k.waiting == 0 && !now.Before(k.until.Add(memory))
}

// hold holds key back for d, at most for maxRetryAfter, unless it is already held back for longer.
func (h *heldKeys) hold(key string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clk.Now()
	d = min(d, maxRetryAfter)
	k := h.keys[key]
	until := now.Add(d)
	if d <= 0 || k != nil && !until.After(k.until) {
		return
	}
	if k == nil {
		if k = h.room(now); k == nil {
			return
		}
		h.keys[key] = k
	}
	if !now.Before(k.until) && k.granted > 0 { // otherwise it is one of several refusals
		if k.quota == 0 || k.granted < k.quota {
			k.quota = k.granted
		}
	}
	h.epochs++
	k.epoch, k.until, k.rest = h.epochs, until, d
	k.most, k.out, k.granted, k.gap = 1, 0, 0, 0
	k.wake()
}

// room returns a new key, or nil if there is no room for it. It forgets keys to make room.
func (h *heldKeys) room(now time.Time) *heldKey {
	if len(h.keys) >= maxHeldKeys {
		for other, k := range h.keys {
			if k.spent(now, 0) {
				delete(h.keys, other)
			}
		}
	}
	if len(h.keys) >= maxHeldKeys {
		return nil
	}
	if h.keys == nil {
		h.keys = make(map[string]*heldKey)
	}
	return &heldKey{first: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// full reports whether those under way may be all that the server grants for now.
func (k *heldKey) full() bool {
	return k.out >= k.most || k.quota > 0 && k.granted+k.out >= k.quota
}

func (k *heldKey) wake() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// enter waits until a request with the key may go, and fails at once if that is known to be after the
// deadline of ctx. If it succeeds, the caller calls over with the epoch that it returns.
func (h *heldKeys) enter(ctx context.Context, key string) (epoch uint64, err error) {
	k, epoch, wait := h.ask(key, nil)
	if wait == 0 {
		return epoch, nil
	}
	defer h.leave(k)
	if err := h.before(ctx, key); err != nil {
		return 0, err
	}
	select {
	case k.first <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-k.first }()
	for {
		if _, epoch, wait = h.ask(key, k); wait == 0 {
			return epoch, nil
		}
		if err := h.before(ctx, key); err != nil {
			return 0, err
		}
		timer := h.clk.Timer(wait)
		if _, epoch, wait = h.ask(key, k); wait == 0 { // a mock clock was moved just before the timer was set
			timer.Stop()
			return epoch, nil
		}
		select {
		case <-timer.C:
		case <-k.changed:
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		}
		timer.Stop()
	}
}

// before returns an error if the deadline of ctx is before the end of the key's rest. What comes after it
// may take less time than ask says.
func (h *heldKeys) before(ctx context.Context, key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := h.keys[key]; k != nil {
		deadline, ok := ctx.Deadline()
		if rest := k.until.Sub(h.clk.Now()); ok && rest > 0 && h.clk.Until(deadline) < rest {
			return tooLong(rest)
		}
	}
	return nil
}

// ask returns how long a request with the key waits, as far as is known, or 0 if it goes now, which it
// then counts. first is not nil if the request is the first of those that wait for it.
func (h *heldKeys) ask(key string, first *heldKey) (k *heldKey, epoch uint64, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.clk.Now()
	k = h.keys[key]
	if k == nil || k.spent(now, backoffMemory) {
		delete(h.keys, key)
		return nil, 0, 0
	}
	switch {
	case now.Before(k.until):
		wait = k.until.Sub(now)
	case first == nil && k.waiting > 0:
		wait = 1 // others are before it
	case k.gap > 0 && now.Before(k.next) && (first != nil || k.out > 0): // one alone is no crowd
		wait = k.next.Sub(now)
	case k.gap == 0 && k.full() && now.Before(k.next):
		wait = k.next.Sub(now)
	default:
		k.out++
		k.next = now.Add(k.gap)
		if k.gap == 0 {
			k.next = now.Add(min(max(k.rest, firstBackoff), longestBackoff))
		}
		return k, k.epoch, 0
	}
	if first == nil {
		k.waiting++
	}
	return k, 0, wait
}

// leave counts a request less that waits.
func (h *heldKeys) leave(k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.waiting--
}

// current reports whether no rest has begun since the epoch.
func (h *heldKeys) current(key string, epoch uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[key]
	return k == nil || k.epoch == epoch
}

// over notes that a request which entered in the epoch is over. granted says whether the server has
// answered it; if it has refused it, a new rest has begun.
func (h *heldKeys) over(key string, epoch uint64, granted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[key]
	if k == nil || k.epoch != epoch {
		return
	}
	k.out = max(0, k.out-1)
	if granted {
		k.most++
		switch {
		case k.gap > 0:
			k.gap -= k.gap / 5
		case k.granted+1 == k.quota:
			k.granted++
			k.gap = max(1, k.rest/time.Duration(k.quota))
			k.next = h.clk.Now().Add(k.gap)
		default:
			k.granted++
		}
		if k.gap == 0 && k.most >= freely || k.gap > 0 && k.gap < k.rest/freely/time.Duration(k.quota) {
			delete(h.keys, key)
		}
	}
	k.wake()
}
