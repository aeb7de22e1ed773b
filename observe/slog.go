package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/byname"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
)

// Slog returns a [ratelimit.Observer] that logs denials, at level Info, and failures, at level
// Warn.
//
// For each name of a limiter, the observer logs at most one denial and one failure in an interval
// of the length every, by the system's clock. The first denial is logged at once. The next denial
// within the interval is logged at the end of the interval, even if no other denial follows.
// Failures are logged in the same way. The attribute left_out of a line is the number of denials or
// failures that were omitted since the previous line, if there were any. If every is not positive,
// nothing is omitted.
//
// The lines have the attributes limiter, call and n, and error if there was one. A denial has the
// attribute retry_after, if the time is known, or never if the request can never be granted. A
// failure has the attributes allowed and checked: what the [ratelimit.FailurePolicy] or the limit
// of New decided, and whether any limit was checked ([ratelimit.Decision.Checked]).
//
// Keys may be personal data or secrets. So they are logged only with [WithLoggedKeys]. The text of
// an error of a limiter has a hint of a key at most: see package keyhint.
//
// If logger is nil, each line goes to [slog.Default] as it is when the line is logged. The limiter
// itself also logs failures of its store, unless [ratelimit.WithFailureLog] turns that log off. The
// observer takes some memory for each name of a limiter. Names beyond the first thousand share
// their lines.
func Slog(logger *slog.Logger, every time.Duration, opts ...SlogOption) ratelimit.Observer {
	s := &slogObserver{logger: logger, every: every, start: time.Now()}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s.observe
}

// A SlogOption is an option of [Slog].
type SlogOption func(*slogObserver)

// WithLoggedKeys adds the attribute key to each line. Its value is what show returns for the key,
// such as a hint of the key (see package keyhint) or the key itself, cut to 128 bytes. show is
// called only for lines that are logged, by several goroutines at once. If show is nil, keys are
// not logged.
func WithLoggedKeys(show func(key string) string) SlogOption {
	return func(s *slogObserver) { s.show = show }
}

type slogObserver struct {
	logger *slog.Logger // nil for the default one
	every  time.Duration
	show   func(key string) string // nil if keys are not logged
	start  time.Time

	valves byname.Map[outcomeValves] // by the name of the limiter
	others outcomeValves             // of the limiters that are not in valves
}

// outcomeValves are the valves of the limiters of one name.
type outcomeValves struct{ denied, failed logvalve.Valve }

// maxLogged bounds the number of names in valves.
const maxLogged = 1000

func (s *slogObserver) observe(ctx context.Context, o ratelimit.Observation) {
	if o.Outcome != ratelimit.Denied && o.Outcome != ratelimit.Failed {
		return
	}
	logger := s.logger
	if logger == nil {
		logger = slog.Default()
	}
	level := slog.LevelInfo
	if o.Outcome == ratelimit.Failed {
		level = slog.LevelWarn
	}
	if !logger.Enabled(ctx, level) {
		return
	}
	valves := s.valvesOf(o.Limiter)
	valve := &valves.denied
	if o.Outcome == ratelimit.Failed {
		valve = &valves.failed
	}
	held, ok := valve.Pass(s.now(), s.every)
	switch {
	case ok:
		logger.LogAttrs(ctx, level, "ratelimit: "+o.Outcome.String(), s.attributes(&o, held)...)
	case held == 1:
		s.logLater(context.WithoutCancel(ctx), o, logger, level, valve)
	}
}

// logLater logs o once s.every has passed, unless another line is logged before. It waits with a
// timer, and without a goroutine.
func (s *slogObserver) logLater(
	ctx context.Context,
	o ratelimit.Observation,
	logger *slog.Logger,
	level slog.Level,
	valve *logvalve.Valve,
) {
	time.AfterFunc(s.every, func() {
		held, ok := valve.Flush(s.now(), s.every)
		if !ok {
			return
		}
		logvalve.Safely("a log handler", func() {
			attributes := s.attributes(&o, held-1)
			logger.LogAttrs(ctx, level, "ratelimit: "+o.Outcome.String(), attributes...)
		})
	})
}

// now returns the time. It reads only the monotonic clock, where time.Now also reads the wall
// clock.
func (s *slogObserver) now() time.Time { return s.start.Add(time.Since(s.start)) }

func (s *slogObserver) attributes(o *ratelimit.Observation, leftOut int) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("limiter", o.Limiter),
		slog.String("call", o.Call.String()),
		slog.Int("n", o.N),
	}
	if s.show != nil {
		attrs = append(attrs, slog.String("key", keptOf(s.show(o.Key))))
	}
	err := o.Err
	switch {
	case o.Outcome == ratelimit.Failed:
		attrs = append(attrs, slog.Bool("allowed", o.Decision.Allowed))
		if err == nil { // Take of a full store denies, and returns no error
			err = ratelimit.ErrFull
		}
	case o.Decision.RetryAfter == ratelimit.Never: // as a duration, it would be 292 years
		attrs = append(attrs, slog.Bool("never", true))
	case o.Decision.RetryAfter > 0:
		attrs = append(attrs, slog.Duration("retry_after", o.Decision.RetryAfter))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	if o.Decision.Degraded {
		attrs = append(attrs, slog.Bool("checked", o.Decision.Checked()))
	}
	if leftOut > 0 {
		attrs = append(attrs, slog.Int("left_out", leftOut))
	}
	return attrs
}

// valvesOf returns the valves of the limiters of a name.
func (s *slogObserver) valvesOf(name string) *outcomeValves {
	v := s.valves.GetOrAdd(name, maxLogged, func() *outcomeValves { return new(outcomeValves) })
	if v != nil {
		return v
	}
	return &s.others
}
