package httplimit

import (
	"fmt"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Option changes what [Middleware] does.
type Option interface{ set(c *config) }

type option func(*config)

func (set option) set(c *config) { set(c) }

// A CostOption says what requests cost: [WithCost], [WithSettle] or [WithSettleAtEnd]. It is an
// option of Middleware and of a limiter of [WithAlso].
type CostOption interface {
	Option
	isOfCost()
}

type costOption func(*config)

func (set costOption) set(c *config) { set(c) }
func (costOption) isOfCost()         {}

// WithKey sets the function that returns the key of a request. The default is [clientip.Of].
func WithKey(key key.Func) Option {
	return option(func(c *config) {
		c.requireKey("WithKey's function", key)
		c.key = key
	})
}

// WithCost sets the function that returns how many events a request counts as. The
// default is 1 for every request. A request that costs 0, with [WithAlso] in all limiters, passes
// without asking them. A negative cost is handled like an error of the key, see [WithRefusal].
func WithCost(cost func(*http.Request) int) CostOption {
	return costOption(func(c *config) {
		c.require(cost != nil, "WithCost's function", nil,
			"must return how many events a request counts as")
		c.cost = cost
	})
}

// WithStatus sets the status code of the response to a request over the limit, from 400 to 599. The
// default is 429, Too Many Requests. If no limit was checked, because the store has failed and
// [ratelimit.FailClosed] refuses the request, the client did nothing wrong: the status is 503,
// whatever WithStatus says, with the Retry-After of the policy. A [ratelimit.Fallback] that refuses
// has checked a limit, and so has the limit of [ratelimit.New] if the lookup of
// [ratelimit.WithLimits] has failed: see [ratelimit.Decision.Checked].
func WithStatus(code int) Option {
	return option(func(c *config) {
		c.require(code >= 400 && code <= 599, "WithStatus's code", code, "must be from 400 to 599")
		c.status = code
	})
}

// WithRefusal makes h answer the requests that are refused. h gets the [Admission] from
// [VerdictOf]: its Status is that of the default answer, and its Err tells requests over the
// limit from others, which are refused because their key or cost cannot be determined, or because
// their context has ended. The header fields are set before h is called, and those that an outer
// handler has set for another body, such as Content-Length and ETag, are removed.
//
// By default, the body of a request over the limit is a problem document (RFC 9457), or a sentence
// for clients that prefer plain text. A request without a key is answered with 400, Bad Request,
// and what [Verdict.Explain] says: to limit such requests together, return one key for all of
// them from the [key.Func] instead of an error, and to let them pass, use [WithSkip]. A request
// whose context has ended is answered with 503, Service Unavailable, without a body.
func WithRefusal(h http.Handler) Option {
	return option(func(c *config) {
		c.require(!param.IsNil(h), "WithRefusal's handler", nil,
			"must be a handler; omit the option for the default response")
		c.refusal = h
	})
}

// WithStoreError calls f with the error when the limiter's store has failed, or when a
// request cannot be settled or released, see [WithSettle] and [WithInFlight]. The
// limiter's [ratelimit.FailurePolicy] decides whether the request passes. The limiter
// logs such errors whether f is set or not; see [ratelimit.WithFailureLog]. Without
// WithStoreError, the middleware logs only errors of a limiter that does not mark its
// decision as Degraded, at most one line a second; the attribute left_out is the number
// of errors omitted since the previous line.
func WithStoreError(f func(*http.Request, error)) Option {
	return option(func(c *config) {
		c.require(f != nil, "WithStoreError's function", nil,
			"must be a function to call with the error")
		c.storeError = f
	})
}

// WithSkip lets requests for which skip returns true pass without asking the limiter, such as
// health checks and internal requests. Without it every request counts, also the preflight requests
// (OPTIONS) of browsers. To let these pass, put the CORS middleware, which answers them, outside,
// as the example does. Do not skip them: any client can send OPTIONS with the header fields of a
// preflight request, as often as it likes. They would reach handlers that do not check the method,
// which then do their work without a limit.
func WithSkip(skip func(*http.Request) bool) Option {
	return option(func(c *config) {
		c.require(skip != nil, "WithSkip's function", nil,
			"must report which requests pass without a limit")
		c.skip = skip
	})
}

// WithHeaders chooses the header fields that report how much is left: [Standard],
// the default, [Draft7], [Legacy] or [None]. In each case a refusal has Retry-After, unless no
// wait helps because the request costs more than the limit.
func WithHeaders(h Headers) Option {
	return option(func(c *config) {
		c.require(h >= Standard && h <= Draft7, "WithHeaders's choice", int(h),
			"must be Standard, Draft7, Legacy or None")
		c.headers = h
	})
}

// WithJitter adds a random time, from 0 to the given maximum, to the time that a refusal tells
// the client to wait: Retry-After, and the t of RateLimit. So clients that were refused together
// do not return together. None is told to return earlier than without WithJitter. The decision
// that [VerdictOf] and [WithShadow] report stays exact.
func WithJitter(most time.Duration) Option {
	return option(func(c *config) {
		c.require(most >= 0, "WithJitter's maximum", most, "must not be negative")
		c.jitter = most
	})
}

// WithPolicyName sets the name of the limit in header fields and bodies. The default
// is "default". The parts of a [ratelimit.All] have a number after the name:
// "default-1", "default-2". The name must consist of printable ASCII characters.
//
// Clients tell limits apart by their names. So if several middlewares are around a handler, give
// each another name, such as "site" to the outer one and "login" to the inner one: their limits are
// listed together. Within a middleware, two limits of one name are a mistake.
func WithPolicyName(name string) Option {
	return option(func(c *config) {
		c.requireName("WithPolicyName's name", name)
		c.name = name
	})
}

// WithShadow lets the requests of a share of the keys pass, from 0 to 1, and calls report for those
// that would have been refused, to try a limit before enforcing it: a share of 1, and then 0.95,
// 0.5 and 0, introduces the limit step by step. No header fields are sent for the keys in shadow.
// If the key or the cost cannot be determined, report gets a zero Decision, and the request passes
// unless the share is 0. WithShadow cannot be combined with [WithShaping].
//
// A key is on the same side in all processes, and stays enforced when the share gets smaller. With
// [WithAlso], the key is that of [WithKey].
//
// The limiter does not know that its denials refuse nobody, and its observers see them like all
// others. So that metrics and logs tell them apart, give it a name of its own, as in the
// example: [ratelimit.WithName]("api, shadow").
func WithShadow(share float64, report func(*http.Request, ratelimit.Decision)) Option {
	return option(func(c *config) {
		c.require(share >= 0 && share <= 1, "WithShadow's share", share, "must be from 0 to 1")
		c.require(report != nil, "WithShadow's function", nil,
			"must be a function to call for requests that would have been refused")
		c.shadow, c.enforced = report, 1-share
	})
}

// WithShaping holds a request until its turn instead of refusing it, if its turn
// comes within maxDelay, measured by the limiter's clock, and before the deadline of
// the request's context. With a [ratelimit.LeakyBucket], requests leave at its rate.
// A refused request spends nothing, and its Retry-After says when a retry would be
// held or pass. Requests do not wait for the end of a [ratelimit.Lockout]: they are refused at
// once, and Retry-After says when the lock ends. Where events are held ([WithSettle],
// [WithInFlight]), they wait up to maxDelay, because an event that is taken back may end the lock.
// After a wait, the limiter is asked once more for what is left.
//
// Requests of a key wait in line, in the order of arrival: see Waiting in package ratelimit.
// [ratelimit.WithMaxWaiters] bounds how many; then others are refused at once. Where nobody knows
// when a turn comes, in stores that are not in memory and with a [ratelimit.InFlight] or
// [WithInFlight], a request is refused after maxDelay.
//
// If the client disconnects while its request is held, the request leaves the line, and those
// behind it move up. It is answered as after maxDelay if the limiter is in memory and has no lookup
// ([ratelimit.WithLimits]): the client may have closed its side of the connection only. For a
// request with a body over HTTP/1, net/http notices a disconnect only after the body is read. The
// server's ReadTimeout goes on while a request is held. After it, the handler may be unable to read
// the body, so it should exceed maxDelay by the time that a body may take.
func WithShaping(maxDelay time.Duration) Option {
	return option(func(c *config) {
		c.require(maxDelay >= 0, "WithShaping's delay", maxDelay, "must not be negative")
		c.shaping = maxDelay
	})
}

// A config is what the options make. Functions that are nil were not given.
type config struct {
	err error // the first mistake in an option

	key key.Func
	costing
	status     int
	refusal    http.Handler               // nil for the default response
	storeError func(*http.Request, error) // nil to log errors
	skip       func(*http.Request) bool
	headers    Headers
	name       string
	shadow     func(*http.Request, ratelimit.Decision)
	enforced   float64       // the share of keys that are not in shadow
	shaping    time.Duration // the longest delay, or 0
	also       []*namedLimit
	inFlight   bool
	isTold     bool          // whether handlers get the Verdict
	jitter     time.Duration // the most that is added to RetryAfter
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		key:    clientip.Of(),
		status: http.StatusTooManyRequests,
		name:   "default",
	}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid(fmt.Sprintf("option %d of Middleware", i), nil,
				"must be the result of a With function")
		}
		opt.set(c)
	}
	switch {
	case c.err != nil:
		return nil, c.err
	case c.shaping > 0 && c.shadow != nil:
		return nil, invalid("WithShaping's delay", c.shaping,
			"must be 0 with WithShadow: remove one of the two")
	case c.shaping > 0 && c.also != nil:
		return nil, invalid("WithShaping's delay", c.shaping,
			"must be 0 with WithAlso: remove one of the two")
	}
	return c, nil
}

// invalid returns the error of an invalid argument.
func invalid(what string, value any, want string) error {
	return param.InvalidIn("httplimit", what, value, want)
}

// fail says that an option is invalid, for [NewGate] to return err or for [Middleware] to panic.
func (c *config) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// require fails unless ok. The other parameters are those of invalid.
func (c *config) require(ok bool, what string, value any, want string) {
	if !ok {
		c.fail(invalid(what, value, want))
	}
}

func (c *config) requireKey(what string, key key.Func) {
	c.require(key != nil, what, nil, "must be a function, such as clientip.Of() returns")
}

func (c *config) requireName(what, name string) {
	c.require(ascii.IsPrintable(name), what, fmt.Sprintf("%q", name),
		"must be one or more printable ASCII characters")
}
