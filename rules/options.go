package rules

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// An Option configures a [Set].
type Option func(*config)

// config is the configuration that options make. newConfig validates it.
type config struct {
	interval     time.Duration
	timeout      time.Duration
	initial      []Rule
	hasInitial   bool
	allOrNothing bool
	onError      func(error)
	onShadow     func(Answer)
	limiterOpts  []ratelimit.Option
	clk          clock.Clock
}

// WithInterval sets the time between loads. Each interval is chosen at random between
// 90 % and 110 % of d, so that many processes do not load at the same time, and begins with the end
// of the last load. The default is 30 s. With 0, rules are loaded only by [New] and [Set.Reload].
func WithInterval(d time.Duration) Option { return func(c *config) { c.interval = d } }

// WithTimeout sets how long a load may take. The default is 10 s.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithInitial sets rules that are in force until the first load succeeds.
func WithInitial(rules ...Rule) Option {
	return func(c *config) { c.initial, c.hasInitial = rules, true }
}

// WithAllOrNothing makes a load change nothing if any rule is invalid. The default is to
// keep the last valid version of that rule and to load the others.
func WithAllOrNothing() Option { return func(c *config) { c.allOrNothing = true } }

// WithOnError calls f with the error of each load that failed or had invalid rules
// ([BadRules]). The error is also logged with slog. f may be called by several goroutines at once,
// and must return soon. It may call the methods of the set.
func WithOnError(f func(error)) Option { return func(c *config) { c.onError = f } }

// WithOnShadow calls f for each call that a rule with Shadow set would have refused.
func WithOnShadow(f func(Answer)) Option { return func(c *config) { c.onShadow = f } }

// WithLimiter passes options, such as a store or a failure policy, to the limiter that
// the set uses. [ratelimit.WithLimits] has no effect, because the set uses it itself.
func WithLimiter(opts ...ratelimit.Option) Option {
	return func(c *config) { c.limiterOpts = append(c.limiterOpts, opts...) }
}

// WithClock sets the clock of the set and its limiter. The default is the system's.
func WithClock(clk clock.Clock) Option { return func(c *config) { c.clk = clk } }

func newConfig(opts []Option) (*config, error) {
	c := &config{interval: 30 * time.Second, timeout: 10 * time.Second, clk: clock.New()}
	for i, opt := range opts {
		if opt == nil {
			return nil, nilOption(i, "New")
		}
		before := len(c.limiterOpts)
		opt(c)
		isNil := func(o ratelimit.Option) bool { return o == nil }
		if n := slices.IndexFunc(c.limiterOpts[before:], isNil); n >= 0 {
			return nil, invalid("option %d of WithLimiter is nil: it must be the result of a With function of ratelimit",
				n)
		}
	}
	switch {
	case c.interval < 0:
		return nil, invalid("WithInterval(%v): must be positive, or 0 to load only on Reload",
			c.interval)
	case c.timeout <= 0:
		return nil, invalid("WithTimeout(%v): must be longer than 0", c.timeout)
	case isNil(c.clk):
		return nil, invalid("WithClock(nil): give a clock.Clock, such as clock.New()")
	}
	return c, nil
}

func nilOption(i int, function string) error {
	return invalid("option %d of %s is nil: it must be the result of a With function", i, function)
}

// invalid returns an error that matches [ratelimit.ErrInvalid].
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf("rules: "+format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == ratelimit.ErrInvalid }

// isNil reports whether v is nil, or an interface that holds a nil. (The root's function
// of that kind is internal, and this module may meet another version of the root.)
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Interface:
		return r.IsNil()
	}
	return false
}
