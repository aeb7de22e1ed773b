package rules

import (
	"context"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// A verdict is what a rule decides on a call.
type verdict struct {
	ratelimit.Decision
	err error
}

// refused reports whether the rule refuses: an error alone is no refusal.
func (v verdict) refused() bool { return !v.Allowed && (v.err == nil || v.Degraded) }

// takeAll takes n events of a subject from several rules, of which the shadows come
// last: from all of them, or from none if one refuses. It returns the verdicts, without
// those of the shadows if the call is refused, and the number of the strictest.
//
// To spend nothing if one refuses, it looks first. Other calls of the subject may use
// up between the look and the take what there was; then rules that were asked before
// the one that refuses have been spent for nothing. No rule is ever passed by.
func (s *Set) takeAll(ctx context.Context, subject string, n int, rules []*compiled) (verdicts []verdict, strictest int) {
	verdicts = make([]verdict, len(rules))
	taken := make([]bool, len(rules))
	take := func(i int) verdict {
		d, err := limiterOf{set: s, rule: rules[i]}.Take(ctx, subject, n)
		verdicts[i], taken[i] = verdict{d, err}, true
		return verdicts[i]
	}
	real := slices.IndexFunc(rules, func(r *compiled) bool { return r.Shadow })
	if real < 0 {
		real = len(rules)
	}
	strictest = -1
	for i := range real {
		d, err := limiterOf{set: s, rule: rules[i]}.Peek(ctx, subject)
		if verdicts[i] = (verdict{d, err}); err == nil && d.Remaining >= n {
			continue
		}
		if v := take(i); !v.Allowed && (strictest < 0 || v.RetryAfter > verdicts[strictest].RetryAfter) {
			strictest = i
		}
	}
	if strictest >= 0 {
		return verdicts[:real], strictest
	}
	strictest = 0
	for i := range rules {
		if !taken[i] {
			take(i)
		}
		v, least := verdicts[i], verdicts[strictest]
		switch {
		case i < real && !v.Allowed:
			return verdicts[:real], i
		case real > 0 && i >= real: // the strictest of those that could refuse counts
		case v.refused() && !least.refused() || v.refused() == least.refused() && v.Remaining < least.Remaining:
			strictest = i
		}
	}
	return verdicts, strictest
}
