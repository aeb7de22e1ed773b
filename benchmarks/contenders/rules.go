package contenders

import (
	"context"
	"fmt"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/rules"
)

// The calls that are looked up in tables of rules: one for which each table has a rule, and
// one for which none has.
const (
	NamedCall   = "/service-7/42/x7"
	UnnamedCall = "/another/42/x7"
)

// The names of contenders that others are compared with.
const (
	LimitAlone = "(the limit alone)"
	FewRules   = "rules, 10 of them"
)

// rulesOf is a table of n rules of three segments each. Its keys are paths.
func rulesOf(name string, role Role, n int) Contender {
	return Contender{
		Name:   name,
		Role:   role,
		Rules:  true,
		Module: ModulePath + "/rules",
		Setup:  fmt.Sprintf("`Set.Take` by one subject, with %d rules such as `/service-7/#/x7`, token buckets", n),
		New: func(l Limit) (Allow, error) {
			var table []rules.Rule
			for i := range n {
				table = append(table, rules.Rule{
					ID: fmt.Sprint(i), Call: fmt.Sprintf("/service-%d/#/x%d", i%100, i),
					Limit: 1, Window: l.Every, Burst: l.Burst, Algorithm: "token-bucket",
				})
			}
			set, err := rules.New(context.Background(), rules.Static(table...), rules.WithInterval(0))
			if err != nil {
				return nil, err
			}
			return func(path string) Answer {
				a, err := set.Take(context.Background(), "192.0.2.1", "GET", path, 1)
				switch {
				case err != nil, (a.Rule == nil) != (path == UnnamedCall):
					return Failed
				}
				return answer(a.Allowed)
			}, nil
		},
	}
}

// limitAlone decides on a key by the limit of a rule, without a table.
func limitAlone() Contender {
	return Contender{
		Name:   LimitAlone,
		Role:   Bound,
		Rules:  true,
		Module: ModulePath,
		Setup:  "`Take` of a `TokenBucket` by one key: the cost of a decision on a key in memory",
		New: func(l Limit) (Allow, error) {
			limiter, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: l.Every}, Burst: l.Burst})
			if err != nil {
				return nil, err
			}
			return func(string) Answer {
				d, err := limiter.Take(context.Background(), "192.0.2.1", 1)
				if err != nil {
					return Failed
				}
				return answer(d.Allowed)
			}, nil
		},
	}
}
