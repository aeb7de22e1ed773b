package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
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
// if the deadlines of all callers are short.
//
// The first decision of the store a second or more after the latest failure is logged as well: the
// store answers again. The line has the time after which it did, from the first failure on, and the
// number of all decisions in between without the store. Such a line, too, comes at most every ten
// seconds: an outage that ends sooner is told of with the next one. While a store answers some
// requests and fails others, there is no such line, nor does one come of requests that need no call
// of the store, such as those that a lease of package redisstore grants.
//
// Lookups of [WithLimits] that failed have lines of their own, with their error and number, and so
// have lookups that succeed again. The default is [slog.Default] at the time of the line. A nil
// logger turns the log off.
func WithFailureLog(logger *slog.Logger) Option {
	return func(c *config) { c.failureLog, c.failureLogSet = logger, true }
}

// failureLogInterval is the least time between two lines of one kind of a limiter.
const failureLogInterval = 10 * time.Second

// outageQuiet is the time without a failure after which an answer ends an outage. An earlier answer
// may be that of another server, or of a call that began before the store failed.
const outageQuiet = time.Second

// A failureLog logs failures of one kind: those of the store, or those of lookups.
type failureLog struct {
	logger *slog.Logger // nil for the default one
	off    bool
	words  *failureWords
	lines  logvalve.Valve
	ends   logvalve.Valve         // the lines that say that an outage is over
	outage atomic.Pointer[outage] // nil if no failure was since the latest of these lines
}

// failureWords are the words of a failureLog.
type failureWords struct {
	fails string // what happens instead
	over  string // what is well again
	count string // the attribute that says how often
}

// policyWords is what the log says that a policy does.
var policyWords = [...]failureWords{
	failOpen:   storeWords("requests are allowed without it"),
	failClosed: storeWords("requests are denied"),
	fallback:   storeWords("the fallback decides"),
}

func storeWords(instead string) failureWords {
	return failureWords{
		"ratelimit: the store failed, and " + instead,
		"ratelimit: the store answers again",
		"decisions",
	}
}

// lookupWords is what the log says about lookups.
var lookupWords = failureWords{
	"ratelimit: a lookup failed, and the limit of New decides",
	"ratelimit: lookups succeed again",
	"lookups",
}

func (c *config) newFailureLog(words *failureWords) *failureLog {
	return &failureLog{
		logger: c.failureLog,
		off:    c.failureLogSet && c.failureLog == nil,
		words:  words,
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
	now := clk.Now()
	to.noteFailure(now)
	switch held, ok := to.lines.Pass(now, failureLogInterval); {
	case ok:
		to.logFailures(ctx, l.name, err, held+1)
	case held == 1:
		ctx = context.WithoutCancel(ctx)
		clk.AfterFunc(failureLogInterval, func() {
			if held, ok := to.lines.Flush(clk.Now(), failureLogInterval); ok {
				logvalve.Safely("a log handler", func() { to.logFailures(ctx, l.name, err, held) })
			}
		})
	}
}

// logFailures logs a line about failures of the limiter of a name.
func (f *failureLog) logFailures(ctx context.Context, name string, err error, count int) {
	f.warn(ctx, f.words.fails, "limiter", name, "error", err, f.words.count, count)
}

// warn logs a line. The end of an outage has the level of its failures, so that whoever sees one
// sees the other.
func (f *failureLog) warn(ctx context.Context, message string, attributes ...any) {
	logger := f.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.WarnContext(ctx, message, attributes...)
}

// logAnswer notes that what to is about has not failed in a call. It logs the end of an outage.
func (l *limiter) logAnswer(ctx context.Context, to *failureLog) {
	if o := to.outage.Load(); o != nil {
		l.logAnswerIn(ctx, to, o)
	}
}

// logAnswerIn is logAnswer in an outage.
func (l *limiter) logAnswerIn(ctx context.Context, to *failureLog, o *outage) {
	after, failures, isOver := to.noteAnswer(o, l.timeline.Clock().Now())
	if !isOver {
		return
	}
	to.lines.Forget() // the failures held back, of which this line tells
	// The answer stands, whatever the handler does.
	logvalve.Safely("a log handler", func() {
		to.warn(ctx, to.words.over,
			"limiter", l.name, "after", roundForReaders(after), to.words.count, failures)
	})
}

// An outage is the time from a failure until the line that says that it is over.
type outage struct {
	mu       sync.Mutex // protects the fields below
	isOver   bool       // then nothing changes any more
	began    time.Time  // when the first failure was
	latest   time.Time  // when the latest failure was
	answered time.Time  // when the first answer since was; zero if there was none
	failures int
}

// noteFailure notes a failure, with which an outage may begin.
func (f *failureLog) noteFailure(now time.Time) {
	for {
		o := f.outage.Load()
		if o == nil {
			o = &outage{began: now}
			if !f.outage.CompareAndSwap(nil, o) {
				continue
			}
		}
		if o.noteFailure(now) {
			return
		}
	}
}

// noteFailure returns false if the outage is over.
func (o *outage) noteFailure(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isOver {
		return false
	}
	o.latest, o.answered = now, time.Time{}
	o.failures++
	return true
}

// noteAnswer notes an answer in an outage. If that is over, and a line may say so, noteAnswer
// returns true to one caller, and after how long the first answer came, and the number of failures.
func (f *failureLog) noteAnswer(
	o *outage,
	now time.Time,
) (after time.Duration, failures int, isOver bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isOver {
		return 0, 0, false
	}
	if o.answered.IsZero() {
		o.answered = now
	}
	if now.Sub(o.latest).Abs() < outageQuiet { // by its amount: the clock may have been set back
		return 0, 0, false
	}
	if _, ok := f.ends.Pass(now, failureLogInterval); !ok {
		return 0, 0, false
	}
	o.isOver = true
	f.outage.Store(nil)
	return max(0, o.answered.Sub(o.began)), o.failures, true
}
