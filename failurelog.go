package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/logvalve"
	"github.com/ratelimit-go/ratelimit/keyhint"
)

// This file has the log of failures of the store and of lookups.

// WithFailureLog sets the logger that the limiter warns when its [FailurePolicy] has decided
// because the store failed. The first such decision is logged at once, and those that follow in one
// line every ten seconds, by the limiter's clock. A line has the limiter's name, the store's error,
// and the number of decisions without the store since the previous line. If the deadline of a call
// passes before the store's timeout, that is no failure. If the store then fails, or does not
// answer within its timeout, that is logged as one decision: a store that is away is found out even
// if the deadlines of all callers are short. Lookups of [WithLimits] that failed have lines of
// their own, with their error and number. The default is [slog.Default] at the time of the line. A
// nil logger turns the log off.
func WithFailureLog(logger *slog.Logger) Option {
	return func(c *config) { c.failureLog, c.failureLogSet = logger, true }
}

// failureLogInterval is the least time between two lines of a limiter.
const failureLogInterval = 10 * time.Second

// A failureLog logs failures of one kind: those of the store, or those of lookups.
type failureLog struct {
	logger  *slog.Logger // nil for the default one
	off     bool
	message string // what happens instead
	counts  string // the attribute that says how often
	valve   logvalve.Valve
}

// policyMessages is what the log says that a policy did.
var policyMessages = [...]string{
	failOpen:   "ratelimit: the store failed, and requests are allowed without it",
	failClosed: "ratelimit: the store failed, and requests are denied",
	fallback:   "ratelimit: the store failed, and the fallback decides",
}

// newStoreFailureLog returns the log of decisions that a policy has made.
func (c *config) newStoreFailureLog() *failureLog {
	return c.newFailureLog(policyMessages[c.policy.kind], "decisions")
}

// newLookupFailureLog returns the log of lookups that have failed.
func (c *config) newLookupFailureLog() *failureLog {
	return c.newFailureLog("ratelimit: a lookup failed, and the limit of New decides", "lookups")
}

func (c *config) newFailureLog(message, counts string) *failureLog {
	return &failureLog{
		logger:  c.failureLog,
		off:     c.failureLogSet && c.failureLog == nil,
		message: message,
		counts:  counts,
	}
}

// logStoreFailure logs that the policy decides because the store failed with err in a call for key,
// and returns the error that says so. If only the deadline of the caller has passed, it logs
// nothing.
func (l *limiter) logStoreFailure(ctx context.Context, key string, err error) error {
	err = keyhint.In(err, key)
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return fmt.Errorf(
			"ratelimit: limiter %q: the store did not answer by the deadline of the call: %w",
			l.name,
			err,
		)
	}
	l.logFailure(ctx, l.storeFailures, err)
	return l.storeError(key, err)
}

// logLateFailure logs that the store has failed with err in a call for key, although the policy has
// decided before: the deadline of the caller was shorter than the store's timeout.
func (l *limiter) logLateFailure(key string, err error) {
	logvalve.Safely("a log handler", func() {
		l.logFailure(context.Background(), l.storeFailures, keyhint.In(err, key))
	})
}

// logLookupFailure logs that a lookup failed with err, and returns the error that says so.
func (l *limiter) logLookupFailure(ctx context.Context, err error) error {
	l.logFailure(ctx, l.lookupFailures, err)
	return fmt.Errorf(
		"ratelimit: limiter %q: a lookup failed, and the limit of New decides: %w",
		l.name,
		err,
	)
}

// logFailure logs err, or counts it for the next line.
func (l *limiter) logFailure(ctx context.Context, to *failureLog, err error) {
	if to.off {
		return
	}
	clk := l.timeline.Clock()
	switch held, ok := to.valve.Pass(clk.Now(), failureLogInterval); {
	case ok:
		to.line(ctx, l.name, err, held+1)
	case held == 1:
		ctx = context.WithoutCancel(ctx)
		clk.AfterFunc(failureLogInterval, func() {
			if held, ok := to.valve.Flush(clk.Now(), failureLogInterval); ok {
				logvalve.Safely("a log handler", func() { to.line(ctx, l.name, err, held) })
			}
		})
	}
}

// line logs a line about the limiter of a name.
func (f *failureLog) line(ctx context.Context, name string, err error, count int) {
	logger := f.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.WarnContext(ctx, f.message, "limiter", name, "error", err, f.counts, count)
}
