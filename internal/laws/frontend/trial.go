package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A trial checks one law of a front end, and keeps the faults that it finds.
type trial struct {
	frontEnd FrontEnd
	faults   []string
	stops    []func() // what is to be called at the end
}

// errNoServer ends a trial whose front end starts no server.
var errNoServer = errors.New("there is no server to call")

// faults returns what is wrong with f by the law.
func (l *law) faults(f FrontEnd) []string {
	t := &trial{frontEnd: f}
	func() {
		defer func() {
			for _, stop := range t.stops {
				stop()
			}
			if p := recover(); p != nil && p != any(errNoServer) {
				panic(p)
			}
		}()
		l.check(t)
	}()
	return t.faults
}

// require notes a fault unless ok.
func (t *trial) require(ok bool, format string, args ...any) {
	if !ok {
		t.faults = append(t.faults, fmt.Sprintf(format, args...))
	}
}

// A place is a server as both its client and its program see it.
type place struct {
	*trial
	server Server
	clk    *clock.Mock

	// Handle handles calls; the default does nothing.
	handle func(ctx context.Context) error

	handled     int                  // the calls that the handler has got
	decided     int                  // the decisions that observers have seen
	denied      int                  // those that were denials
	storeErrors []error              // what the function of WithStoreError was told
	shadowed    []ratelimit.Decision // what the function for calls in shadow was told
}

// start starts the front end with a limit. Each change changes how.
func (t *trial) start(
	alg ratelimit.Algorithm, changes ...func(*Config, *place),
) (*place, error) {
	p := &place{trial: t, clk: clock.NewMock()}
	p.clk.Set(time.Now())
	c := &Config{
		Algorithm: alg,
		Clock:     p.clk,
		Limiter: []ratelimit.Option{
			ratelimit.WithName("laws"),
			ratelimit.WithFailureLog(nil),
			ratelimit.WithStoreTimeout(time.Hour),
			ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
				p.decided++
				if o.Outcome == ratelimit.Denied {
					p.denied++
				}
			}),
		},
		Options: []httplimit.Option{byUser, httplimit.WithStoreError(
			func(_ *http.Request, err error) { p.storeErrors = append(p.storeErrors, err) },
		)},
		AtEnd: func(stop func()) { t.stops = append(t.stops, stop) },
		Handle: func(ctx context.Context) error {
			p.handled++
			if p.handle == nil {
				return nil
			}
			return p.handle(ctx)
		},
	}
	for _, change := range changes {
		change(c, p)
	}
	err := p.startWith(c)
	return p, err
}

// startWith sets the server. It returns the error with which the front end panics, if it does.
func (p *place) startWith(c *Config) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			mistake, isError := panicked.(error)
			if !isError {
				mistake = fmt.Errorf("a panic without an error: %v", panicked)
			}
			err = mistake
		}
	}()
	p.server, err = p.frontEnd(c)
	return err
}

// serve is start for a config without a mistake.
func (t *trial) serve(alg ratelimit.Algorithm, changes ...func(*Config, *place)) *place {
	p, err := t.start(alg, changes...)
	if err != nil || p.server == nil {
		t.require(false, "the server does not start: %v", err)
		panic(errNoServer)
	}
	return p
}

// with adds options of the front end.
func with(opts ...httplimit.Option) func(*Config, *place) {
	return func(c *Config, _ *place) { c.Options = append(c.Options, opts...) }
}

// withLimiter adds options of the limiter.
func withLimiter(opts ...ratelimit.Option) func(*Config, *place) {
	return func(c *Config, _ *place) { c.Limiter = append(c.Limiter, opts...) }
}

// inShadow lets all calls pass.
func inShadow(c *Config, p *place) {
	c.Shadow = func(d ratelimit.Decision) { p.shadowed = append(p.shadowed, d) }
}

// call makes a call of a user, which must have the given outcome. The handler must have got it if,
// and only if, the outcome is that of a handler.
func (p *place) call(want Outcome, user, when string) Answer {
	return p.callWithin(context.Background(), want, user, when)
}

// callWithin is call with a context.
func (p *place) callWithin(ctx context.Context, want Outcome, user, when string) Answer {
	before := p.handled
	a := p.server(Call{Context: ctx, User: user})
	p.require(a.Outcome == want, "%s: the call is %s, and not %s", when, a.Outcome, want)
	isHandled := want == Handled || want == Failed
	p.require(
		p.handled > before == isHandled, "%s: a call that is %s: the handler got %d calls",
		when, want, p.handled-before,
	)
	if isHandled {
		p.require(
			a.RetryAfter == 0 && a.Fields.Get("Retry-After") == "",
			"%s: a call that passes tells its client to wait for %v", when, a.RetryAfter,
		)
	} else {
		p.require(a.Text != "" || want == Ended, "%s: the client is not told why", when)
	}
	return a
}

// callHandled makes a call that gets to the handler, whatever its client is told.
func (p *place) callHandled(ctx context.Context, user, when string) {
	before := p.handled
	p.server(Call{Context: ctx, User: user})
	p.require(p.handled == before+1, "%s: the handler got %d calls", when, p.handled-before)
}

// endOf makes a call, and returns the value with which it panics, if it does.
func (p *place) endOf(call Call) (panicked any) {
	defer func() { panicked = recover() }()
	p.server(call)
	return nil
}

// noFields requires that the client is not told of any limit.
func (p *place) noFields(a Answer, when string) {
	for _, name := range []string{
		"Ratelimit", "Ratelimit-Policy", "Retry-After",
		"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset",
	} {
		p.require(a.Fields.Get(name) == "", "%s: the client is told %s: %s",
			when, name, a.Fields.Get(name))
	}
}
