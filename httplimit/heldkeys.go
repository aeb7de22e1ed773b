package httplimit

import (
	"sync"
	"time"
)

// heldKeys are the keys that servers have asked to hold back. Its zero value has none.
type heldKeys struct {
	mu    sync.Mutex // protects until
	until map[string]time.Time
}

// Bounds on how long, and how many, keys are held back.
const (
	maxRetryAfter = 24 * time.Hour
	maxHeldKeys   = 4096 // further keys are not held back
)

// hold holds key back for d from now, at most for maxRetryAfter, unless it is already held back
// for longer. It forgets the keys whose time has passed.
func (h *heldKeys) hold(key string, now time.Time, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, until := range h.until {
		if !until.After(now) {
			delete(h.until, k)
		}
	}
	if h.until == nil {
		h.until = make(map[string]time.Time)
	}
	until := now.Add(min(d, maxRetryAfter))
	held, known := h.until[key]
	if until.After(now) && until.After(held) && (known || len(h.until) < maxHeldKeys) {
		h.until[key] = until
	}
}

// left returns how much longer key is held back. It is at most 0 if it is not.
func (h *heldKeys) left(key string, now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.until[key]
	if !ok {
		return 0
	}
	left := until.Sub(now)
	if left <= 0 {
		delete(h.until, key)
	}
	return left
}
