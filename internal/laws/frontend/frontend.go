// Package frontend has the laws of front ends: of what asks a limiter about the calls of a server,
// and tells the client the answer. All of them stand on a [httplimit.Gate], and keep the same
// promises over net/http, gRPC and Connect, with Gin and Echo, and with a table of rules. The tests
// of each start a server with it, and call [Run]. Only tests import the package.
//
// A law sees a front end from both sides: as the client, what comes back; and as the program, which
// calls its handler handles, and what its functions and the observers of the limiter are told. The
// laws move the clock of the limiter. They make calls one after the other, or a call while the
// handler of another one runs.
package frontend

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A FrontEnd starts a server whose calls are limited as c says. Its error is that of a mistake in
// c. A FrontEnd may panic with it instead.
type FrontEnd func(c *Config) (Server, error)

// A Server makes a call, and returns when the front end is done with it. If the handler panics, so
// does the Server, with the same value. A Server does not look at the Context of the call: what
// comes back is told even to a client that has left.
type Server func(call Call) Answer

// A Config says what a server limits.
type Config struct {
	// The limit is a TokenBucket, a FixedWindow or an InFlight. It is nil if the law wants to see
	// that a front end without a limit is a mistake.
	Algorithm ratelimit.Algorithm

	Clock   *clock.Mock        // of the limiter
	Limiter []ratelimit.Option // further options of the limiter
	Options []httplimit.Option // all but WithShadow

	// Shadow, if it is not nil, is told of each call that would have been refused, and all calls
	// pass.
	Shadow func(ratelimit.Decision)

	// AtEnd calls stop when the law has been checked.
	AtEnd func(stop func())

	// Handle handles a call. The server tells the client of an error, but not which it is.
	Handle func(ctx context.Context) error
}

// NewLimiter returns the limiter. It is nil without an Algorithm.
func (c *Config) NewLimiter() (ratelimit.Limiter, error) {
	if c.Algorithm == nil {
		return nil, nil
	}
	return ratelimit.New(c.Algorithm, append(c.Limiter, ratelimit.WithClock(c.Clock))...)
}

// HTTPOptions returns the Options, and WithShadow if there is a Shadow.
func (c *Config) HTTPOptions() []httplimit.Option {
	if c.Shadow == nil {
		return c.Options
	}
	report := func(_ *http.Request, d ratelimit.Decision) { c.Shadow(d) }
	return append(c.Options, httplimit.WithShadow(1, report))
}

// user is the header or metadata field that has the key of a call.
const user = "User"

// A Call is what a client asks.
type Call struct {
	Context context.Context
	User    string // the value of the field "User"; without the field if it is empty
}

// Header returns the header of the call, or its metadata.
func (c *Call) Header() http.Header {
	h := make(http.Header)
	if c.User != "" {
		h.Set(user, c.User)
	}
	return h
}

// An Answer is what a client gets.
type Answer struct {
	Outcome    Outcome
	RetryAfter time.Duration // the time that it is told to wait; 0 if it is told none
	Policy     string        // the name of the limit that it has exceeded; empty if none is named
	Text       string        // why, in words for the client

	// Fields are the header fields or trailers of the answer, with names as in net/http.
	Fields http.Header
}

// An Outcome is what became of a call.
type Outcome string

// The outcomes.
const (
	Handled   Outcome = "handled"
	Failed    Outcome = "failed by its handler"
	Refused   Outcome = "over a limit"
	Unchecked Outcome = "refused without a limit" // because none could be checked
	NoKey     Outcome = "without a key"
	Ended     Outcome = "ended before it was handled"
)

// A law is a promise that all front ends make.
type law struct {
	name  string
	check func(t *trial)
}

// Run checks that a front end keeps all laws, except those of the given names. Each law runs in a
// bubble of testing/synctest: no call waits for a store in earnest.
func Run(t *testing.T, f FrontEnd, except ...string) {
	t.Helper()
	for _, name := range except {
		if !slices.ContainsFunc(laws, func(l law) bool { return l.name == name }) {
			t.Errorf("there is no law %q", name)
		}
	}
	for _, l := range laws {
		if !slices.Contains(except, l.name) {
			t.Run(l.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					for _, fault := range l.faults(f) {
						t.Error(fault)
					}
				})
			})
		}
	}
}

// byUser is the option that all servers have.
var byUser = httplimit.WithKey(key.Header(user))
