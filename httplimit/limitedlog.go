package httplimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logInterval is the least time between two lines of a limitedLog.
const logInterval = time.Second

// A limitedLog logs errors that requests cause, at most one line a second, so that
// clients cannot fill the log. Each line says how many were omitted since the previous
// one.
type limitedLog struct {
	mu      sync.Mutex // protects the fields below
	last    time.Time  // of the last line
	leftOut int        // lines omitted since then
}

// warn logs a line, or counts it as omitted.
func (l *limitedLog) warn(ctx context.Context, text string, err error) {
	leftOut, ok := l.pass(time.Now())
	switch {
	case !ok:
	case leftOut > 0:
		slog.WarnContext(ctx, text, "error", err, "left_out", leftOut)
	default:
		slog.WarnContext(ctx, text, "error", err)
	}
}

// pass reports whether a line may be logged now, and how many were omitted before it.
func (l *limitedLog) pass(now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last.IsZero() && now.Sub(l.last) < logInterval {
		l.leftOut++
		return 0, false
	}
	leftOut, l.last, l.leftOut = l.leftOut, now, 0
	return leftOut, true
}
