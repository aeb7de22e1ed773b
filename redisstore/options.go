package redisstore

import (
	"fmt"
	"reflect"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// An Option changes how a [Store] works.
type Option func(*config)

type config struct {
	prefix       string
	timeout      time.Duration
	denialAge    time.Duration
	lease        int
	leaseAge     time.Duration
	breaker      Breaker
	breakers     func() Breaker
	limiterClock bool
}

// WithPrefix begins the names of the store's keys with prefix. The default is
// "ratelimit:". Limiters in stores of different prefixes share nothing. A {tag} in it
// puts all keys into one slot of a cluster.
func WithPrefix(prefix string) Option {
	return func(c *config) { c.prefix = prefix }
}

// WithTimeout bounds how long a call waits for Redis; then the limiter's
// [ratelimit.FailurePolicy] decides. The default is 50 milliseconds. Time is counted in
// tenths of d, in which this process must have run, and counts a quarter while goroutines
// wait for a processor: so a busy process may wait up to 4·d. The caller's context always
// ends the wait.
func WithTimeout(d time.Duration) Option {
	return func(c *config) { c.timeout = d }
}

// WithDenialCache says for how long, at the most, a denial is repeated without
// asking Redis again. The default is a second; 0 turns it off. See the package's
// documentation for what it can be wrong about.
func WithDenialCache(age time.Duration) Option {
	return func(c *config) { c.denialAge = age }
}

// WithLease lets this process take up to events of a key at once, if the key is in
// much demand and far from its limit, and hand them out without asking Redis
// again, for at most age. What is not handed out is given back then, and by
// [Store.Close]. With n processes, any span of time may see min(n·events, what the
// limit lets through in age) more than the limit: see the package's documentation.
// The default is no leases.
func WithLease(events int, age time.Duration) Option {
	return func(c *config) { c.lease, c.leaseAge = events, age }
}

// WithBreaker keeps commands from Redis while b says so, from all servers if there are
// several; nil turns it off. It replaces WithBreakers.
func WithBreaker(b Breaker) Option {
	return func(c *config) { c.breaker, c.breakers = b, nil }
}

// WithBreakers keeps commands from a server while its breaker says so: create makes one
// for each server of a [Cluster], and one for any other Conn. Modules goredis and rueidis
// set it. It replaces WithBreaker.
func WithBreakers(create func() Breaker) Option {
	return func(c *config) { c.breaker, c.breakers = nil, create }
}

// WithLimiterClock makes the store decide by the clock of each limiter, see
// [ratelimit.WithClock], instead of that of Redis. It is for tests: then the clocks
// of all processes must agree, and Redis forgets a key an hour late.
func WithLimiterClock() Option {
	return func(c *config) { c.limiterClock = true }
}

func newConfig(opts []Option) (*config, error) {
	c := &config{prefix: "ratelimit:", timeout: 50 * time.Millisecond, denialAge: time.Second}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid(fmt.Sprintf("option %d of New", i), nil, "must be one of the With functions' results")
		}
		opt(c)
	}
	switch {
	case c.timeout <= 0:
		return nil, invalid("WithTimeout's duration", c.timeout, "must be positive")
	case c.denialAge < 0:
		return nil, invalid("WithDenialCache's duration", c.denialAge, "must be positive, or 0 for no cache")
	case c.lease < 0:
		return nil, invalid("WithLease's events", c.lease, "must be at least 1, or 0 for no leases")
	case c.lease > 0 && c.leaseAge <= 0:
		return nil, invalid("WithLease's duration", c.leaseAge, "must be positive")
	}
	if isNil(c.breaker) {
		c.breaker = nil
	}
	return c, nil
}

// isNil reports whether v is nil, or an interface with a nil pointer in it.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}

// An invalidError says which option cannot be used. It matches
// [ratelimit.ErrInvalid].
type invalidError struct{ text string }

func invalid(what string, value any, want string) error {
	return &invalidError{fmt.Sprintf("redisstore: %s is %v: it %s", what, value, want)}
}

func (e *invalidError) Error() string { return e.text }

func (e *invalidError) Is(target error) bool { return target == ratelimit.ErrInvalid }
