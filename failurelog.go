package ratelimit

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/logvalve"
)

// WithFailureLog sets the logger that the limiter warns when its [FailurePolicy] has
// decided because the store failed. The first such decision is logged at once, and then
// one in ten seconds, by the limiter's clock; the last ones of an outage within ten seconds. A line has the limiter's name, the store's
// error, and the number of decisions without the store since the previous line. The
// default is [slog.Default] at the time of the line. A nil logger turns the log off.
//
// Limiters with the same logger have a line each. Otherwise, nothing is logged.
func WithFailureLog(logger *slog.Logger) Option {
	return func(c *config) { c.failureLog, c.failureLogSet = logger, true }
}

// failureLogInterval is the least time between two lines of a limiter.
const failureLogInterval = 10 * time.Second

// A failureLog logs the decisions of a failure policy.
type failureLog struct {
	logger *slog.Logger // nil for the default one
	off    bool
	valve  logvalve.Valve
}

// decided is what the log says that a policy did.
var decided = [...]string{
	failOpen:   "ratelimit: the store failed, and requests are allowed without it",
	failClosed: "ratelimit: the store failed, and requests are denied",
	fallback:   "ratelimit: the store failed, and the fallback decides",
}

// failing logs that the policy decides because the store failed with err.
func (l *limiter) failing(ctx context.Context, err error) {
	failures := &l.failures
	if failures.off {
		return
	}
	clk := l.timeline.Clock()
	switch held, ok := failures.valve.Pass(clk.Now(), failureLogInterval); {
	case ok:
		l.logFailure(ctx, err, held+1)
	case held == 1:
		ctx = context.WithoutCancel(ctx)
		clk.AfterFunc(failureLogInterval, func() {
			if held, ok := failures.valve.Flush(clk.Now(), failureLogInterval); ok {
				l.logFailure(ctx, err, held)
			}
		})
	}
}

func (l *limiter) logFailure(ctx context.Context, err error, decisions int) {
	logger := l.failures.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.WarnContext(ctx, decided[l.policy.kind], "limiter", l.name, "error", err, "decisions", decisions)
}
