package httplimit

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/logvalve"
)

// logInterval is the least time between two lines of a limitedLog.
const logInterval = time.Second

// A limitedLog logs errors that requests cause, at most one line a second, so that
// clients cannot fill the log. Each line says how many were omitted since the previous
// one.
type limitedLog struct{ valve logvalve.Valve }

// warn logs a line, or counts it as omitted.
func (l *limitedLog) warn(ctx context.Context, text string, err error) {
	leftOut, ok := l.valve.Pass(time.Now(), logInterval)
	switch {
	case !ok:
	case leftOut > 0:
		slog.WarnContext(ctx, text, "error", err, "left_out", leftOut)
	default:
		slog.WarnContext(ctx, text, "error", err)
	}
}
