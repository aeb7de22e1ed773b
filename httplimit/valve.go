package httplimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// between is the least time between two lines of a valve.
const between = time.Second

// A valve logs what fails for each request: at most one line a second, which says how
// many were left out since the one before. Whoever makes requests cannot fill the log.
type valve struct {
	mu      sync.Mutex // protects what follows
	last    time.Time  // when a line was logged
	leftOut int        // since then
}

// warn logs a line, or counts it.
func (v *valve) warn(ctx context.Context, text string, err error) {
	leftOut, ok := v.pass(time.Now())
	switch {
	case !ok:
	case leftOut > 0:
		slog.WarnContext(ctx, text, "error", err, "left_out", leftOut)
	default:
		slog.WarnContext(ctx, text, "error", err)
	}
}

// pass reports whether a line may be logged now, and how many were left out.
func (v *valve) pass(now time.Time) (leftOut int, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.last.IsZero() && now.Sub(v.last) < between {
		v.leftOut++
		return 0, false
	}
	leftOut, v.last, v.leftOut = v.leftOut, now, 0
	return leftOut, true
}
