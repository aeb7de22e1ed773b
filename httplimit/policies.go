package httplimit

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
)

// This file finds the policies of the limits that have decided on a request: what the client is
// told of them. Package policy has what they say.

// policiesOf returns the policies of the keys of q, on which d was decided.
func (g *Gate) policiesOf(ctx context.Context, q *question, d ratelimit.Decision) *policy.List {
	isFixed := g.limitsOf == nil
	switch {
	case d.Degraded && isFixed:
		return g.standIns
	case d.Degraded:
		return combinedStandIns(q.limits)
	case isFixed && (!g.variesByKey || d.Allowed && g.headers == None):
		// Nothing else would be shown.
		return g.policies
	case q.bounds == nil:
		return q.limits[0].policiesOf(ctx, q.key, g.status)
	}
	all := make([]*policy.List, len(q.bounds))
	for i, b := range q.bounds {
		all[i] = q.limits[i].policiesOf(ctx, b.Key(), g.status)
	}
	return policy.Combined(all)
}

// combinedPolicies returns the policies of all keys of several limits. It returns an error if two
// limits have one name, so that a client could not tell them apart.
func combinedPolicies(limits []*namedLimit) (*policy.List, error) {
	all := make([]*policy.List, len(limits))
	for i, l := range limits {
		all[i] = l.policies
	}
	combined := policy.Combined(all)
	if name := combined.Twice(); name != "" {
		return nil, invalid("a limit's name", fmt.Sprintf("%q", name),
			"must not be that of another limit: give WithPolicyName or WithAlso another name")
	}
	return combined, nil
}

// combinedStandIns returns the policies of what decides in the place of several limits.
func combinedStandIns(limits []*namedLimit) *policy.List {
	all := make([]*policy.List, len(limits))
	for i, l := range limits {
		all[i] = l.standIns
	}
	return policy.Combined(all)
}

// shown returns d, a decision on q, with the Part that it has in p. That may take another call of
// the limiter that decided.
func shown(
	ctx context.Context, p *policy.List, q *question, d ratelimit.Decision,
) ratelimit.Decision {
	first, end, ok := p.PartsOf(d)
	if !ok {
		return d
	}
	decided := q.bounds[d.Part]
	d.Part = first
	if end-first == 1 || d.Degraded {
		return d
	}
	// Peek names the part with the least left, or one that refuses a single event. If d is a
	// refusal, that part refuses its events.
	if now, err := decided.Limiter().Peek(ctx, decided.Key()); err == nil {
		d.Part = min(first+now.Part, end-1)
	}
	return d
}
