package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ascii"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// WithAlso adds a limiter that must grant a request as well, under a key of its own: a request
// counts for its user and for the user's organisation. It passes if all limiters grant it, and
// otherwise spends nothing. WithAlso may be given several times.
//
// The limiters are asked in order, that of Middleware first. If one refuses, the others give
// back what they have granted, see [ratelimit.Reservation.Settle]. So another request may be
// refused in this moment that would have passed otherwise. No limiter grants more than it
// would alone.
//
// All limits are reported in one set of header fields, as for the parts of a [ratelimit.All].
// name is that of the limit; [WithPolicyName] sets that of Middleware's limiter. In the decision that [DecisionOf] and [WithShadow] report, Part is the
// index of the limiter that decided; that of Middleware is 0.
//
// [WithCost] and [WithSettle] apply to all limiters. WithAlso cannot be combined with
// [WithShaping].
func WithAlso(l ratelimit.Limiter, key KeyFunc, name string) Option {
	return func(c *config) { c.also = append(c.also, &limit{limiter: l, key: key, name: name}) }
}

// check returns what is wrong with the arguments of WithAlso.
func (l *limit) check() error {
	switch {
	case param.IsNil(l.limiter):
		return invalid("WithAlso's limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	case l.key == nil:
		return invalid("WithAlso's function", nil, "must be a KeyFunc, such as ClientIP()")
	case !ascii.IsPrintable(l.name):
		return invalid("WithAlso's name", fmt.Sprintf("%q", l.name), "must be one or more printable ASCII characters")
	}
	return nil
}

// A limit is one of the limiters of a middleware.
type limit struct {
	limiter  ratelimit.Limiter
	key      KeyFunc
	name     string
	policies *policies   // of all keys
	perKey   bool        // whether each key may have its own, see policiesOf
	own      policyCache // for policiesOf
}

// describe sets the policies. status is that of a refusal.
func (l *limit) describe(status int) {
	alg := ratelimit.AlgorithmOf(l.limiter)
	l.policies, l.perKey = newPolicies(l.name, status, alg), alg == nil
}

// policiesOf returns the policies of key.
func (l *limit) policiesOf(ctx context.Context, key string, status int) *policies {
	if !l.perKey {
		return l.policies
	}
	alg, err := ratelimit.AlgorithmFor(ctx, l.limiter, key)
	if err != nil || alg == nil {
		return l.policies // not known
	}
	return l.own.policies(l.name, status, alg)
}

// keyOf returns the key of r.
func (l *limit) keyOf(r *http.Request) (string, error) {
	key, err := l.key(r)
	if err == nil && key == "" {
		return "", fmt.Errorf("%w: the key is empty", ErrNoKey) // clients must not share a key by mistake
	}
	return key, err
}

// holdAll holds n events of each of the keys, or none if one of them refuses. The Decision is
// like that of an All, except that Part is the index in of; part is the Part of the Decision
// by that limiter.
func holdAll(ctx context.Context, n int, of []ratelimit.Bound) (_ held, d ratelimit.Decision, part int, err error) {
	var granted holds
	for i, b := range of {
		h, next, failed := b.Hold(ctx, n)
		err = errors.Join(err, failed)
		if !next.Allowed {
			if _, also := granted.Settle(context.WithoutCancel(ctx), 0); also != nil {
				err = errors.Join(err, also)
			}
			part, next.Part = next.Part, i
			return nil, next, part, err
		}
		if h != nil {
			granted = append(granted, h)
		}
		if i == 0 {
			d, d.Part, part = next, 0, next.Part
			continue
		}
		if next.Remaining < d.Remaining {
			d.Remaining, d.Part, part = next.Remaining, i, next.Part
		}
		d.Limit = min(d.Limit, next.Limit)
		d.ResetAfter, d.Delay = max(d.ResetAfter, next.ResetAfter), max(d.Delay, next.Delay)
		d.Degraded = d.Degraded || next.Degraded
	}
	return granted, d, part, err
}

// holds are the reservations that a request has.
type holds []*ratelimit.Reservation

// Settle settles all of them. The Decision has only Degraded, which is set if each error was
// that of a store.
func (h holds) Settle(ctx context.Context, n int) (d ratelimit.Decision, err error) {
	d.Degraded = true
	for _, r := range h {
		one, failed := r.Settle(ctx, n)
		if failed != nil {
			err = errors.Join(err, failed)
			d.Degraded = d.Degraded && one.Degraded
		}
	}
	return d, err
}
