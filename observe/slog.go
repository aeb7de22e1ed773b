package observe

import (
	"context"
	"log/slog"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/byname"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
)

// Slog returns an [ratelimit.Observer] that logs denials, at level Info, and failures, at level
// Warn. For each name of a limiter, and for each of the two, it logs one line at most in every
// duration of the given length, by the system's clock: the first at once, and the first that
// comes too early when the duration is over. So each is told of within it, even if no other
// comes. The attribute left_out of a line is the number of those that were omitted since the
// previous line; it is absent if there are none. If every is not positive, nothing is omitted.
//
// The lines have the attributes limiter, call and n, and error if there was one. That of a denial
// has retry_after, if it is known, or never if the request can never be granted. That of a failure
// has allowed, which says what the [ratelimit.FailurePolicy] or the limit of New decided, and
// checked, which says whether a limit was ([ratelimit.Decision.Checked]).
//
// Keys may be personal data, so they are not logged, unless [WithLoggedKeys] says how. An error
// is logged as it is: that of a lookup of [ratelimit.WithLimits] contains the key.
//
// If logger is nil, Slog uses [slog.Default] at the time of a line. The limiter itself logs
// failures of its store, too, unless [ratelimit.WithFailureLog] turns that off. It takes some
// memory for each name of a limiter; names beyond the first thousand share their lines.
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

// WithLoggedKeys adds to each line the attribute key, which is what show returns for the key: the
// key itself, or a hash of it. No more than 128 bytes of it are logged. show is called only for
// lines that are logged, by several goroutines at once. If it is nil, keys are not logged.
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

// outcomeValves are those of one limiter.
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
	switch held, ok := valve.Pass(s.now(), s.every); {
	case ok:
		logger.LogAttrs(ctx, level, "ratelimit: "+o.Outcome.String(), s.attributes(&o, held)...)
	case held == 1:
		s.later(context.WithoutCancel(ctx), o, logger, level, valve)
	}
}

// later logs o when s.every has passed, unless another line is logged before. A timer has no
// goroutine until then.
func (s *slogObserver) later(
	ctx context.Context,
	o ratelimit.Observation,
	logger *slog.Logger,
	level slog.Level,
	valve *logvalve.Valve,
) {
	time.AfterFunc(s.every, func() {
		if held, ok := valve.Flush(s.now(), s.every); ok {
			logvalve.Safely(func() {
				logger.LogAttrs(
					ctx,
					level,
					"ratelimit: "+o.Outcome.String(),
					s.attributes(&o, held-1)...)
			})
		}
	})
}

// now reads one clock, where time.Now reads two.
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
		if err == nil { // a full store is not an error of Take
			err = ratelimit.ErrFull
		}
	case o.Decision.RetryAfter == ratelimit.Never: // which reads badly as a duration
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
