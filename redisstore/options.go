package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option configures a [Store].
type Option func(*config)

type config struct {
	prefix       string
	keyTags      bool // whether a {tag} in a key chooses the slot
	timeout      time.Duration
	denialAge    time.Duration // of the oldest denial to repeat; 0 for no cache
	lease        int           // the most events in a lease; 0 for no leases
	leaseAge     time.Duration // the duration of a lease
	failures     int           // that open a breaker, or 0 for none
	cooldown     time.Duration // how long it stays open
	limiterClock bool
}

// WithPrefix sets the prefix of the names of the store's keys. The default is
// "rl:". Stores with different prefixes share no state. A prefix contains no @. A {tag} in it puts
// all keys into one slot of a cluster.
func WithPrefix(prefix string) Option {
	return func(c *config) { c.prefix = prefix }
}

// WithKeyTags lets a {tag} in a key choose the slot of a cluster, as Redis has it: what is between
// the first { and the next }. [ratelimit.TakeAll] decides on keys with the same tag in one call,
// such as {acme}:alice and {acme}, a user and her organisation.
//
// Without WithKeyTags, braces in keys have no effect, because whoever chooses keys could put all
// of them on one node. So use it if the tags are chosen by the service and not by its clients.
// All processes must agree: keys with a tag have other names in Redis without it, so that
// switching gives them their whole limit again.
func WithKeyTags() Option {
	return func(c *config) { c.keyTags = true }
}

// WithTimeout sets how long a call waits for Redis before the limiter's
// [ratelimit.FailurePolicy] decides, which allows everything unless WithFailurePolicy says
// otherwise. The default is 50 milliseconds. The store counts time
// in tenths of d. Time in which this process did not run does not count, and time in which
// its goroutines wait for a processor counts a quarter: a busy process may wait up to 4·d for a
// server that answers nothing, and up to 16·d while the server answers other commands.
// The end of the caller's context always ends the wait.
func WithTimeout(d time.Duration) Option {
	return func(c *config) { c.timeout = d }
}

// WithDenialCache sets the longest time for which a denial is repeated without a call to Redis. The
// default is one second; 0 turns the cache off. For that time, this process may not notice what
// another process has given back to the key: by returning a lease, by settling a hold, by
// cancelling a reservation, or by a Reset. See the section "Cached denials" of the package
// documentation.
func WithDenialCache(age time.Duration) Option {
	return func(c *config) { c.denialAge = age }
}

// WithLease lets this process take up to the given number of events of a key in advance,
// if the key is in demand and far from its limit. It grants them without a call to Redis
// for at most age, and then, or on [Store.Close], gives back the rest. Before they are all
// granted, it takes others, if the key still is in demand. With n processes,
// the events in any span of time may exceed the limit by min(n·events, what the limit
// grants in age); see the section "Leases" of the package documentation. By default there
// are no leases.
func WithLease(events int, age time.Duration) Option {
	return func(c *config) { c.lease, c.leaseAge = events, age }
}

// WithBreaker sets when the circuit breaker of a server opens, and for how long. It opens after the
// given number of failures in a row, such as timeouts and lost connections. Then calls fail at once
// with [ErrOpen] for the duration of cooldown. After that, one batch of commands tests the server.
// If all batches in progress fail together, that is one failure. The defaults are 5 failures and
// 500 milliseconds; 0 failures mean that there is no breaker. Each server that the [Conn] names has
// a breaker of its own.
func WithBreaker(failures int, cooldown time.Duration) Option {
	return func(c *config) { c.failures, c.cooldown = failures, cooldown }
}

// WithLimiterClock makes the store decide by the clock of each limiter (see
// [ratelimit.WithClock]) instead of the clock of Redis. It is for tests: the clocks of all
// processes must then agree, and Redis deletes each key an hour late.
func WithLimiterClock() Option {
	return func(c *config) { c.limiterClock = true }
}

func newConfig(opts []Option) (*config, error) {
	invalid := func(what string, value any, want string) (*config, error) {
		return nil, param.InvalidIn("redisstore", what, value, want)
	}
	c := &config{
		prefix: "rl:", timeout: 50 * time.Millisecond, denialAge: time.Second,
		failures: 5, cooldown: 500 * time.Millisecond,
	}
	for i, opt := range opts {
		if opt == nil {
			which := fmt.Sprintf("option %d of New", i)
			return invalid(which, nil, "must be the result of a With function")
		}
		opt(c)
	}
	switch {
	case strings.Contains(c.prefix, "@"):
		return invalid("WithPrefix's prefix", strconv.Quote(c.prefix),
			"must contain no @, which ends the name of a limiter")
	case c.timeout <= 0:
		return invalid("WithTimeout's duration", c.timeout, "must be positive")
	case c.denialAge < 0:
		return invalid("WithDenialCache's duration", c.denialAge, "must be positive, or 0 for no cache")
	case c.lease < 0:
		return invalid("WithLease's events", c.lease, "must be at least 1, or 0 for no leases")
	case c.lease > 0 && c.leaseAge <= 0:
		return invalid("WithLease's duration", c.leaseAge, "must be positive")
	case c.failures < 0:
		return invalid("WithBreaker's failures", c.failures, "must be at least 1, or 0 for no breaker")
	case c.failures > 0 && c.cooldown <= 0:
		return invalid("WithBreaker's cooldown", c.cooldown, "must be positive")
	}
	return c, nil
}
