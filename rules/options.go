package rules

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
)

// An Option changes how [New] makes a set.
type Option func(*config)

// config is what options choose. Every check of it is in newConfig.
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

// WithInterval sets how often the rules are loaded: on average, because each time is
// drawn from 10 % less to 10 % more, so that many processes do not ask at once. The
// default is 30 s; 0 means only when [Set.Reload] is called.
func WithInterval(d time.Duration) Option { return func(c *config) { c.interval = d } }

// WithTimeout sets how long a load may take. The default is 10 s.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithInitial gives rules to start with, in case the first load fails.
func WithInitial(rules ...Rule) Option {
	return func(c *config) { c.initial, c.hasInitial = rules, true }
}

// WithAllOrNothing makes a load in which one rule cannot be used change nothing. The
// default is to keep the last good version of that rule, and to load the others.
func WithAllOrNothing() Option { return func(c *config) { c.allOrNothing = true } }

// WithOnError calls f with the error of each load that has failed, or in which rules
// cannot be used ([BadRules]), besides logging it with slog. It must return soon.
func WithOnError(f func(error)) Option { return func(c *config) { c.onError = f } }

// WithOnShadow calls f for each call that a rule with Shadow would have refused.
func WithOnShadow(f func(Answer)) Option { return func(c *config) { c.onShadow = f } }

// WithLimiter passes options on to the limiter behind the set: a store, a failure
// policy. [ratelimit.WithLimits] is the set's own.
func WithLimiter(opts ...ratelimit.Option) Option {
	return func(c *config) { c.limiterOpts = append(c.limiterOpts, opts...) }
}

// WithClock makes the set, and its limiter, tell the time by clk.
func WithClock(clk clock.Clock) Option { return func(c *config) { c.clk = clk } }

func newConfig(opts []Option) (*config, error) {
	c := &config{interval: 30 * time.Second, timeout: 10 * time.Second, clk: clock.New()}
	for i, opt := range opts {
		if opt == nil {
			return nil, nilOption(i, "New")
		}
		opt(c)
	}
	switch {
	case c.interval < 0:
		return nil, fmt.Errorf("rules: WithInterval(%v): must be longer than 0, or 0 for no loads but those of Reload", c.interval)
	case c.timeout <= 0:
		return nil, fmt.Errorf("rules: WithTimeout(%v): must be longer than 0", c.timeout)
	case isNil(c.clk):
		return nil, errors.New("rules: WithClock(nil): give a clock.Clock, such as clock.New()")
	}
	return c, nil
}

func nilOption(i int, of string) error {
	return fmt.Errorf("rules: option %d of %s is nil: give the result of one of the With functions", i, of)
}

// isNil reports whether v is nil, or an interface with a nil in it.
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
