package grpclimit

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A ClientOption changes what a [Client] does. The options of a [Server] are those of package
// httplimit.
type ClientOption func(*clientConfig)

// WithKey sets the function that returns the key of a call. The default is Target().
func WithKey(key KeyFunc) ClientOption {
	return func(c *clientConfig) {
		c.require(key != nil, "WithKey's function", "must be a KeyFunc, such as Target()")
		c.key = key
	}
}

// WithCost sets the function that returns how many events a call, or with [WithPerMessage] a
// message, counts as. The default is 1. A call that costs 0 passes without asking the limiter. A
// call of a negative cost fails.
func WithCost(cost func(*Call) int) ClientOption {
	return func(c *clientConfig) {
		c.require(cost != nil, "WithCost's function",
			"must return how many events a call counts as")
		c.cost = cost
	}
}

// WithSkip lets calls for which skip returns true pass without asking the limiter. A stream is
// skipped as a whole, when it begins.
func WithSkip(skip func(*Call) bool) ClientOption {
	return func(c *clientConfig) {
		c.require(skip != nil, "WithSkip's function",
			"must report which calls pass without a limit")
		c.skip = skip
	}
}

// WithPerMessage lets each message that the client sends on a stream wait for its turn, instead of
// the stream. With a [ratelimit.InFlight], a message is in flight until the next one is sent or the
// stream ends.
func WithPerMessage() ClientOption { return func(c *clientConfig) { c.perMessage = true } }

// WithInFlight is for a limiter whose keys have limits of their own ([ratelimit.WithLimits]), if
// some of these are a [ratelimit.InFlight] or have one in them, and for a wrapper of a limiter that
// does not tell its algorithm (see [ratelimit.Limiter]). It makes the client hold each call until
// the call ends, and then release it. Without it, such a call counts for the Timeout. It is not
// needed if the algorithm is known. It costs one more call of the store for each call, whatever its
// key.
func WithInFlight() ClientOption { return func(c *clientConfig) { c.inFlight = true } }

// A clientConfig is what the options make. Functions that are nil were not given.
type clientConfig struct {
	err error // the first mistake in an option

	key        KeyFunc
	cost       func(*Call) int
	skip       func(*Call) bool
	perMessage bool
	inFlight   bool
}

// newClientConfig returns what the options make.
func newClientConfig(opts []ClientOption) (*clientConfig, error) {
	c := &clientConfig{key: Target()}
	for i, opt := range opts {
		if opt == nil {
			what := fmt.Sprintf("option %d of NewClient", i)
			return nil, &invalidError{what + " is nil: it must be the result of a With function"}
		}
		opt(c)
	}
	return c, c.err
}

// require makes newClientConfig return an error about a function that an option was given, unless
// ok. want completes the sentence "it …".
func (c *clientConfig) require(ok bool, what, want string) {
	if !ok && c.err == nil {
		c.err = &invalidError{what + " is nil: it " + want}
	}
}

// An invalidError is a mistake in the arguments of NewClient.
type invalidError struct{ text string }

func (e *invalidError) Error() string        { return "grpclimit: " + e.text }
func (e *invalidError) Is(target error) bool { return target == ratelimit.ErrInvalid }

// question returns the key of call, and how many events it counts as. If that is 0, there is no
// key.
func (c *clientConfig) question(call *Call) (k string, n int, err error) {
	n = 1
	if c.cost != nil {
		n = c.cost(call)
	}
	switch {
	case n < 0:
		return "", 0, fmt.Errorf("grpclimit: the cost of the call is %d: it must be at least 0", n)
	case n == 0:
		return "", 0, nil
	}
	k, err = c.key(call)
	if err == nil && k == "" { // servers must not share a key by mistake
		err = fmt.Errorf("%w: the key is empty", key.ErrNone)
	}
	return k, n, err
}
