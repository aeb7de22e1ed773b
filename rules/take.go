package rules

import (
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// A verdict is the decision of a rule on a call.
type verdict struct {
	ratelimit.Decision
	err error
}

// refused reports whether the rule refuses the call. An error alone is not a refusal.
func (v verdict) refused() bool { return !v.Allowed && (v.err == nil || v.Degraded) }

// takeAll takes n events of a subject from all rules, or from none if one refuses. The
// shadows are last in rules. It returns the verdicts, without those of the shadows if
// the call is refused, and the index of the strictest.
//
// To spend nothing if a rule refuses, it peeks at all of them first. Other calls of the
// subject may use the events between the peek and the take; then the rules that were
// asked before the one that refuses have been spent needlessly. No rule is ever
// bypassed.
func (s *Set) takeAll(ctx context.Context, subject string, n int, rules []*compiled) (verdicts []verdict, strictest int) {
	verdicts = make([]verdict, len(rules))
	taken := make([]bool, len(rules))
	take := func(i int) verdict {
		d, err := limiterOf{set: s, rule: rules[i]}.Take(ctx, subject, n)
		verdicts[i], taken[i] = verdict{d, err}, true
		return verdicts[i]
	}
	enforced := slices.IndexFunc(rules, func(r *compiled) bool { return r.Shadow })
	if enforced < 0 {
		enforced = len(rules)
	}
	strictest = -1
	for i := range enforced {
		d, err := limiterOf{set: s, rule: rules[i]}.Peek(ctx, subject)
		if verdicts[i] = (verdict{d, err}); err == nil && d.Remaining >= n {
			continue
		}
		if v := take(i); !v.Allowed && (strictest < 0 || v.RetryAfter > verdicts[strictest].RetryAfter) {
			strictest = i
		}
	}
	if strictest >= 0 {
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
			return verdicts[:enforced], i
		case enforced > 0 && i >= enforced: // a shadow is not the strictest if there is another rule
		case v.refused() && !least.refused() || v.refused() == least.refused() && v.Remaining < least.Remaining:
			strictest = i
		}
	}
	return verdicts, strictest
}
