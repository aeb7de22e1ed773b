package rules

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A verdict is the decision of a rule on a call.
type verdict struct {
	ratelimit.Decision
	held *ratelimit.Reservation // nil if nothing is held
	err  error
}

// refused reports whether the rule refuses the call. An error alone is not a refusal.
func (v verdict) refused() bool { return !v.Allowed && (v.err == nil || v.Degraded) }

// takeAll takes n events of a subject from all rules, or from none if one refuses. With hold,
// it holds them. The shadows are last in rules. It returns the verdicts, without those of the
// shadows if the call is refused, and the index of the strictest.
//
// To spend nothing if a rule refuses, it peeks at all of them first. Other calls of the
// subject may use the events between the peek and the take; then the rules that were
// asked before the one that refuses give back what they hold or, without hold, have been
// spent needlessly. No rule is ever bypassed.
func (s *Set) takeAll(ctx context.Context, subject string, n int, rules []*compiled, hold bool, opts ...ratelimit.HoldOption) (verdicts []verdict, strictest int) {
	verdicts = make([]verdict, len(rules))
	taken := make([]bool, len(rules))
	take := func(i int) verdict {
		verdicts[i], taken[i] = limiterOf{set: s, rule: rules[i]}.ask(ctx, subject, n, hold, opts...), true
		return verdicts[i]
	}
	enforced := slices.IndexFunc(rules, func(r *compiled) bool { return r.Shadow })
	if enforced < 0 {
		enforced = len(rules)
	}
	strictest = -1
	for i := range enforced {
		d, err := limiterOf{set: s, rule: rules[i]}.Peek(ctx, subject)
		if verdicts[i] = (verdict{Decision: d, err: err}); err == nil && d.Remaining >= n {
			continue
		}
		if v := take(i); !v.Allowed && (strictest < 0 || v.RetryAfter > verdicts[strictest].RetryAfter) {
			strictest = i
		}
	}
	if strictest >= 0 {
		giveBack(ctx, verdicts)
		return verdicts[:enforced], strictest
	}
	strictest = 0
	for i := range rules {
		if !taken[i] {
			take(i)
		}
		v, least := verdicts[i], verdicts[strictest]
		switch {
		case i < enforced && !v.Allowed:
			giveBack(ctx, verdicts)
			return verdicts[:enforced], i
		case enforced > 0 && i >= enforced: // a shadow is not the strictest if there is another rule
		case v.refused() && !least.refused() || v.refused() == least.refused() && v.Remaining < least.Remaining:
			strictest = i
		}
	}
	return verdicts, strictest
}

// giveBack settles what is held with 0, and sets what has changed in the decisions.
func giveBack(ctx context.Context, verdicts []verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		if v.held == nil {
			continue
		}
		if d, err := v.held.Settle(context.WithoutCancel(ctx), 0); err == nil {
			v.Remaining, v.ResetAfter = d.Remaining, d.ResetAfter
		}
		v.held = nil
	}
}

// A Hold has the events that a call holds in the limits of one rule or several. Its methods
// may be called by any number of goroutines. Those of a nil one, which comes with a refusal, do nothing.
type Hold struct{ held []*ratelimit.Reservation }

// Release says that the call is over: a call of an in-flight rule no longer counts, and other
// rules keep its events. See [ratelimit.Reservation.Release].
func (h *Hold) Release(ctx context.Context) error {
	return h.each(func(r *ratelimit.Reservation) error { return r.Release(ctx) })
}

// Settle says that the call is over, and has cost n events instead of those held. See
// [ratelimit.Reservation.Settle].
func (h *Hold) Settle(ctx context.Context, n int) error {
	return h.each(func(r *ratelimit.Reservation) error {
		_, err := r.Settle(ctx, n)
		return err
	})
}

// Extend makes the Hold end by itself d from now. See [ratelimit.Reservation.Extend].
func (h *Hold) Extend(ctx context.Context, d time.Duration) error {
	return h.each(func(r *ratelimit.Reservation) error { return r.Extend(ctx, d) })
}

// each returns the errors of f, called with what the rules hold.
func (h *Hold) each(f func(*ratelimit.Reservation) error) error {
	if h == nil {
		return nil
	}
	errs := make([]error, len(h.held))
	for i, r := range h.held {
		errs[i] = f(r)
	}
	return errors.Join(errs...)
}
