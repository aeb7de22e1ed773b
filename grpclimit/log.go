package grpclimit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A limitedLog logs errors that calls cause, at most one line a second, so that clients cannot
// fill the log. Each line says how many were omitted since the previous one.
type limitedLog struct {
	lines   ratelimit.Limiter
	leftOut atomic.Int64
}

func newLimitedLog() *limitedLog {
	return &limitedLog{lines: ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(time.Second)}))}
}

// warn logs a line, or counts it as omitted.
func (l *limitedLog) warn(ctx context.Context, text string, err error) {
	if !l.lines.Allow("") {
		l.leftOut.Add(1)
		return
	}
	attrs := []any{"error", err}
	if leftOut := l.leftOut.Swap(0); leftOut > 0 {
		attrs = append(attrs, "left_out", leftOut)
	}
	slog.WarnContext(ctx, text, attrs...)
}
