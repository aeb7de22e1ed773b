package grpclimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// logInterval is the least time between two lines of a limitedLog.
const logInterval = time.Second

// A limitedLog logs errors that calls cause, at most one line a second, so that clients cannot
// fill the log. Each line says how many were omitted since the previous one.
type limitedLog struct {
	mu      sync.Mutex // protects the fields below
	next    time.Time  // when the next line may be logged
	leftOut int
}

// warn logs a line, or counts it as omitted.
func (l *limitedLog) warn(ctx context.Context, text string, err error) {
	now := time.Now()
	l.mu.Lock()
	if now.Before(l.next) {
		l.leftOut++
		l.mu.Unlock()
		return
	}
	leftOut := l.leftOut
	l.next, l.leftOut = now.Add(logInterval), 0
	l.mu.Unlock()
	if leftOut > 0 {
		slog.WarnContext(ctx, text, "error", err, "left_out", leftOut)
	} else {
		slog.WarnContext(ctx, text, "error", err)
	}
}
