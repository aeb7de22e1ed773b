package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// This file decides whether a request passes. A response whose limit was checked, and is enforced,
// tells the client what is left: RateLimit-Policy and RateLimit, in headers.go. A refusal also has
// a status (429 by default, 503 if no limit was checked, 400 without a key), Retry-After unless the
// request is never granted, and a body that says why: refusal.go.

// A Gate decides whether requests may pass, as [Middleware] does. It is for handlers that know only
// after they have read a request what it counts as, such as the name in a login form or the cost of
// a query, and for servers of other protocols. Any number of goroutines may use a Gate at once.
//
//	admission := gate.Admit(r)
//	defer admission.Done(http.StatusOK, 0)
//	if !admission.Passed {
//		admission.Refuse(w, r)
//		return
//	}
//	admission.SetHeader(w.Header())
type Gate struct {
	*config
	// limits are those in which each request counts. Those of limitsOf come before them.
	limits []*namedLimit
	// Nil unless NewGateOf has made the Gate.
	limitsOf func(r *http.Request, key string) ([]Limit, error)
	known    limitCache // of limitsOf

	policies *policy.List // of limits, for all keys
	// Of what decides in the place of limits, of which only the names are known.
	standIns *policy.List

	warnings    limitedLog // of errors of the limiters, without WithStoreError
	keyWarnings limitedLog // of errors of keys and costs, see Explain

	variesByKey bool // whether keys may have limits of their own, see policiesOf
	flies       bool // whether all requests are held until they are done, and then released
	settles     bool // whether all requests are held until they are done, and then settled
	byStatus    bool // whether the settlement needs nothing but the status
	hasOwnCosts bool // whether a limit has a costing of its own

	answersIn time.Duration // of limits, see namedLimit
}

// NewGate returns a Gate of l. If l is nil, or an option is nil, has an invalid argument, or cannot
// be combined with another one, the error matches [ratelimit.ErrInvalid].
func NewGate(l ratelimit.Limiter, opts ...Option) (*Gate, error) {
	if param.IsNil(l) {
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	first := &namedLimit{limiter: l, key: c.key, name: c.name}
	return newGate(c, append([]*namedLimit{first}, c.also...), nil)
}

// NewGateOf is [NewGate] for requests that count in limits which depend on the request. limitsOf
// returns the limits of r, whose key by [WithKey] is key. If there are none, r passes, and those of
// [WithAlso] are not asked. If limitsOf returns an error, r is refused as a request without a key,
// see [WithRefusal].
//
// As with [WithAlso], which adds a limit to those of limitsOf, a request passes if all limits grant
// it, and otherwise spends nothing. [WithCost] and [WithSettle] apply to each of the limits.
// [WithShaping] applies to requests that count in one limit.
func NewGateOf(
	limitsOf func(r *http.Request, key string) ([]Limit, error),
	opts ...Option,
) (*Gate, error) {
	if limitsOf == nil {
		return nil, invalid("the function of NewGateOf", nil, "must return the limits of a request")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return newGate(c, c.also, limitsOf)
}

func newGate(
	c *config,
	limits []*namedLimit,
	limitsOf func(*http.Request, string) ([]Limit, error),
) (*Gate, error) {
	g := &Gate{
		config: c, limits: limits, limitsOf: limitsOf,
		flies: c.inFlight, settles: c.settle != nil,
		byStatus: c.settle == nil || c.byStatus,
	}
	for _, l := range limits {
		l.describe(c.status)
		g.variesByKey = g.variesByKey || l.info.Lookup != nil
		g.flies = g.flies || l.flies
		g.answersIn += l.answersIn
		g.settles = g.settles || l.settle != nil
		g.byStatus = g.byStatus && (l.settle == nil || l.byStatus)
		g.hasOwnCosts = g.hasOwnCosts || l.costs()
	}
	if len(limits) == 0 {
		return g, nil
	}
	policies, err := combinedPolicies(limits)
	if err != nil {
		return nil, err
	}
	g.policies, g.standIns = policies, combinedStandIns(limits)
	return g, nil
}

// Admit decides whether r may pass. It spends what r costs or, if the limit refuses r, nothing.
// With [WithSettle] or an [ratelimit.InFlight], or if the deadline of r may pass before all stores
// have answered, the events are held until [Admission.Done].
//
// The functions of the options get r: for a key in a form, parse the form before.
func (g *Gate) Admit(r *http.Request) Admission {
	var a Admission
	g.admit(r, &a)
	return a
}

// admit makes a the decision on r.
func (g *Gate) admit(r *http.Request, a *Admission) {
	a.gate, a.request = g, r
	if g.skip != nil && g.skip(r) {
		a.Passed = true
		return
	}
	err := g.ask(r, &a.question)
	switch {
	case err != nil && g.shadow != nil && g.enforced < 1:
		a.Passed = true
		g.shadow(r, ratelimit.Decision{})
		return
	case err != nil:
		a.Err = err
		return
	case a.isFree:
		a.Passed = true
		return
	}
	isComplete := false
	defer func() {
		// If a function of the program panics, nobody gets the Admission and calls Done.
		if !isComplete || !a.Passed {
			a.giveBack()
		}
	}()
	g.decide(a)
	isComplete = true
}

// decide asks the limits of a, and sets what follows from their decision.
func (g *Gate) decide(a *Admission) {
	if a.endIfOver(nil) {
		return
	}
	ctx := a.limitContext()
	if len(a.limits) == 0 { // those that the request counts in refuse nobody
		a.Passed = true
	} else {
		a.asked = a.now()
		err := g.take(ctx, a)
		a.answered = a.now()
		g.describe(a, err)
	}
	if !a.Passed {
		return
	}
	for i := range a.shadows {
		g.askShadow(ctx, a, &a.shadows[i])
	}
	if len(a.shadows) > 0 && a.endIfOver(nil) && !a.Passed {
		return
	}
	if g.settles && a.isHeld() {
		a.account = &account{outer: accountOf(a.request.Context()), held: a.n}
	}
}

// now reads the clock of the limits if a header field tells a time.
func (a *Admission) now() (now time.Time) {
	if a.gate.headers == Legacy {
		now = a.clock().Now()
	}
	return now
}

// take takes what a request costs from its limits. If they are in memory, they decide even if the
// request is cancelled: to net/http, a client that has sent all it has to send, and waits for the
// answer, looks like one that has left. But such a request does not wait.
func (g *Gate) take(ctx context.Context, a *Admission) error {
	if g.shapes(&a.question) {
		return g.wait(ctx, a.limits[0].limiter, a)
	}
	err := g.takeNow(ctx, a)
	if errors.Is(err, context.Canceled) && a.isLocal() {
		err = g.takeNow(context.WithoutCancel(ctx), a)
	}
	return err
}

// shapes reports whether requests with a question may wait for their turn.
func (g *Gate) shapes(q *question) bool { return g.shaping > 0 && q.bounds == nil }

// takeNow is take without waiting. It holds the events if the options need that. The error is that
// of the store, or of ctx.
func (g *Gate) takeNow(ctx context.Context, a *Admission) (err error) {
	first := a.limits[0].limiter
	switch {
	case a.bounds != nil && a.holds:
		a.turn, a.Decision, err = ratelimit.HoldAll(ctx, a.n, a.bounds...)
	case a.bounds != nil:
		a.Decision, err = ratelimit.TakeAll(ctx, a.n, a.bounds...)
	case a.holds:
		a.turn, a.Decision, err = first.Hold(ctx, a.key, a.n, g.hold...)
	default:
		a.Decision, err = first.Take(ctx, a.key, a.n)
	}
	return err
}

// askShadow asks a limit that refuses nobody.
func (g *Gate) askShadow(ctx context.Context, a *Admission, l *Limit) {
	var turn *ratelimit.Reservation
	var d ratelimit.Decision
	var err error
	if a.holds {
		turn, d, err = l.Limiter.Hold(ctx, l.Key, a.n, g.hold...)
	} else {
		d, err = l.Limiter.Take(ctx, l.Key, a.n)
	}
	if turn != nil {
		a.shadowTurns = append(a.shadowTurns, turn)
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	g.report(a.request, d, err)
	if !d.Allowed {
		l.Shadow(d)
	}
}

// describe sets what follows from the decision of a. err is its error.
func (g *Gate) describe(a *Admission, err error) {
	ctx := a.request.Context()
	if a.endIfOver(err) {
		return
	}
	g.report(a.request, a.Decision, err)
	if g.isInShadow(a.subject) {
		a.Passed = true
		if !a.Decision.Allowed {
			g.shadow(a.request, a.Decision)
		}
		return
	}
	a.Passed = a.Decision.Allowed
	a.policies = g.policiesOf(ctx, &a.question, a.Decision)
	a.told = a.Decision
	if a.Passed && g.headers == None { // nothing shows which part of a limiter has decided
		a.told.Part, _, _ = a.policies.PartsOf(a.Decision)
	} else {
		a.told = shown(ctx, a.policies, &a.question, a.Decision)
	}
	a.Policy = a.policies.Names[a.policies.Part(a.told)]
	quota := a.policies.Quota(a.told)
	if !a.Passed {
		a.told = g.hinted(a.told, a.policies)
		a.RetryAfter = a.told.RetryAfter
		a.Detail = a.detail(quota)
	}
}

// isInShadow reports whether requests of the key pass although the limit refuses them.
func (g *Gate) isInShadow(key string) bool {
	return g.shadow != nil && (g.enforced == 0 || positionOf(key) >= g.enforced)
}

// positionOf returns a number in [0, 1) that depends on key alone, and is uniform over keys: its
// FNV-1a hash, whose bits are mixed by the finalizer of SplitMix64, because FNV leaves the high
// bits of short keys alike.
func positionOf(key string) float64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	return float64(h>>11) / (1 << 53)
}

// report reports the error that came with d.
func (g *Gate) report(r *http.Request, d ratelimit.Decision, err error) {
	switch {
	case err == nil:
	case g.storeError != nil:
		g.storeError(r, err)
	case !d.Degraded || errors.Is(err, ratelimit.ErrDebt): // a limiter logs that a policy decided
		g.warnings.warn(r.Context(), "httplimit: the limiter failed", err)
	}
}
