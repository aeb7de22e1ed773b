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
// one. The first that is omitted is logged a second later, unless another is by then.
type limitedLog struct{ valve logvalve.Valve }

// warn logs a line, or counts it as omitted.
func (l *limitedLog) warn(ctx context.Context, text string, err error) {
	switch held, ok := l.valve.Pass(time.Now(), logInterval); {
	case ok:
		warn(ctx, text, err, held)
	case held == 1:
		ctx = context.WithoutCancel(ctx)
		time.AfterFunc(logInterval, func() {
			if held, ok := l.valve.Flush(time.Now(), logInterval); ok {
				logvalve.Safely("a log handler", func() { warn(ctx, text, err, held-1) })
			}
		})
	}
}

func warn(ctx context.Context, text string, err error, leftOut int) {
	if leftOut > 0 {
		slog.WarnContext(ctx, text, "error", err, "left_out", leftOut)
	} else {
		slog.WarnContext(ctx, text, "error", err)
	}
}
