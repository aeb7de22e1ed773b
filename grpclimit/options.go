package grpclimit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// An Option changes what a [Server] does.
type Option func(*config)

// WithKey sets the function that returns the key of a call. The default is PeerIP().
func WithKey(key KeyFunc) Option {
	return func(c *config) {
		c.require(key != nil, "WithKey's function", "must be a KeyFunc, such as PeerIP()")
		c.key = key
	}
}

// WithCost sets the function that returns how many events a call, or with [WithPerMessage] a
// message, counts as. The default is 1. A call that costs 0 passes without asking the limiter. A
// negative cost is handled like an error of the key, see [WithKeyError].
func WithCost(cost func(*Call) int) Option {
	return func(c *config) {
		c.require(cost != nil, "WithCost's function", "must return how many events a call counts as")
		c.cost = cost
	}
}

// WithKeyError makes f return the status of calls whose key or cost cannot be determined. The
// default is [codes.InvalidArgument]. It shows the client only an [ErrNoKey], and logs other
// errors with slog, at most one line a second; the attribute left_out is the number of errors
// omitted since the previous line. To let such calls pass, use [WithSkip]. If f returns nil, the
// default is used.
func WithKeyError(f func(*Call, error) error) Option {
	return func(c *config) {
		c.require(f != nil, "WithKeyError's function", "must return the status of a call")
		c.keyError, c.forServers = f, "WithKeyError"
	}
}

// WithStoreError calls f with the error when the limiter's store has failed, or when a call cannot
// be released, see [WithInFlight]. The limiter's [ratelimit.FailurePolicy] decides whether the call
// passes. The limiter logs such errors whether f is set or not; see [ratelimit.WithFailureLog].
// Without WithStoreError, the server logs only errors of a limiter that does not mark its decision
// as Degraded, at most one line a second; the attribute left_out is the number of errors omitted
// since the previous line.
func WithStoreError(f func(*Call, error)) Option {
	return func(c *config) {
		c.require(f != nil, "WithStoreError's function", "must be a function to call with the error")
		c.storeError, c.forServers = f, "WithStoreError"
	}
}

// WithSkip lets calls for which skip returns true pass without asking the limiter. Without it every
// call counts, also health checks, which then fail when the limit of the prober's address is exceeded.
// A stream is skipped as a whole, when it begins. With [HealthAndReflection] as skip, health checks and
// reflection pass.
func WithSkip(skip func(*Call) bool) Option {
	return func(c *config) {
		c.require(skip != nil, "WithSkip's function", "must report which calls pass without a limit")
		c.skip = skip
	}
}

// HealthAndReflection is a function for [WithSkip]. It returns true for calls of the services that
// grpc-go has for health checks and reflection: grpc.health.v1.Health,
// grpc.reflection.v1.ServerReflection and grpc.reflection.v1alpha.ServerReflection.
func HealthAndReflection(c *Call) bool {
	service, _, _ := strings.Cut(strings.TrimPrefix(c.Method, "/"), "/")
	return slices.Contains([]string{
		"grpc.health.v1.Health",
		"grpc.reflection.v1.ServerReflection",
		"grpc.reflection.v1alpha.ServerReflection",
	}, service)
}

// WithHeaders chooses the fields in the trailers: [httplimit.Standard], the default,
// [httplimit.Draft7], [httplimit.Legacy] or [httplimit.None]. In each case a refusal has
// retry-after and RetryInfo, unless no wait helps because the call costs more than the limit.
func WithHeaders(h httplimit.Headers) Option {
	return func(c *config) { c.headers, c.forServers = h, "WithHeaders" }
}

// WithPolicyName sets the name of the limit in trailers and details. The default is "default".
// The parts of a [ratelimit.All] have a number after the name: "default-1", "default-2". The name
// must consist of printable ASCII characters.
func WithPolicyName(name string) Option {
	return func(c *config) { c.name, c.forServers = name, "WithPolicyName" }
}

// WithShadow lets every call pass, and calls report for those that would have been refused, to try
// a limit before enforcing it. No trailers are sent. If the key or the cost cannot be determined,
// report gets a zero Decision.
//
// The limiter does not know that its denials refuse nobody, and its observers see them like all
// others. So that metrics and logs tell them apart, give it a name of its own:
// [ratelimit.WithName]("api, shadow").
func WithShadow(report func(*Call, ratelimit.Decision)) Option {
	return func(c *config) {
		c.require(report != nil, "WithShadow's function", "must be a function to call for calls that would have been refused")
		c.shadow, c.forServers = report, "WithShadow"
	}
}

// WithPerMessage limits each message that a client sends on a stream, instead of the stream. A
// message over the limit ends the stream: the handler's RecvMsg and the call fail with the
// refusal, whatever the handler returns. Messages that the server sends do not count, and unary
// calls count as without WithPerMessage. To limit streams as well, chain the interceptors of two
// Servers.
//
// With a [ratelimit.InFlight], a message is in flight until the handler asks for the next one, or
// returns.
func WithPerMessage() Option { return func(c *config) { c.perMessage = true } }

// WithInFlight is for a limiter whose keys have limits of their own ([ratelimit.WithLimits]), if
// some of these are a [ratelimit.InFlight] or have one in them, and for a wrapper of a limiter that
// does not tell its algorithm (see [ratelimit.Describe]). It makes the server hold each call
// until its handler returns or panics, and then release it. Without it, such a call counts for the
// Timeout. It is not needed if the algorithm is known. It costs one more call of the store for each
// call, whatever its key.
func WithInFlight() Option { return func(c *config) { c.inFlight = true } }

// WithInFlightRetry is [httplimit.WithInFlightRetry]: the time that a client is told to wait if a
// [ratelimit.InFlight] refuses its call, a second by default.
func WithInFlightRetry(d time.Duration) Option {
	return func(c *config) { c.flightRetry, c.forServers = d, "WithInFlightRetry" }
}

// A config is what the options make. Functions that are nil were not given.
type config struct {
	err error // the first mistake in an option

	key        KeyFunc
	cost       func(*Call) int
	keyError   func(*Call, error) error
	storeError func(*Call, error) // nil to log errors
	skip       func(*Call) bool
	shadow     func(*Call, ratelimit.Decision)
	headers    httplimit.Headers
	name       string
	perMessage bool
	inFlight   bool
	forServers string // an option that only servers have, if one was given

	flightRetry time.Duration
}

// newConfig returns what the options make. of is the function that they were given to.
func newConfig(of string, opts []Option) (*config, error) {
	c := &config{name: "default", headers: httplimit.Standard, keyError: invalidArgument(), flightRetry: time.Second}
	for i, opt := range opts {
		if opt == nil {
			return nil, invalid(fmt.Sprintf("option %d of %s", i, of), nil, "must be the result of a With function")
		}
		opt(c)
	}
	return c, c.err
}

// require makes newConfig return an error about a function that an option was given, unless ok. want
// completes the sentence "it …".
func (c *config) require(ok bool, what, want string) {
	if !ok && c.err == nil {
		c.err = invalid(what, nil, want)
	}
}

// noKeyText says why a call is refused that has no key.
const noKeyText = "cannot determine the client of this call"

// invalidArgument is the default of WithKeyError.
func invalidArgument() func(*Call, error) error {
	warnings := newLimitedLog()
	return func(c *Call, err error) error {
		if errors.Is(err, ErrNoKey) {
			return status.Errorf(codes.InvalidArgument, "%s: %v", noKeyText, err)
		}
		warnings.warn(c.Context, "grpclimit: "+noKeyText, err) // it may contain what the client must not see
		return status.Error(codes.InvalidArgument, noKeyText)
	}
}
