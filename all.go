package ratelimit

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An All grants what each of its parts grants, and then spends it in all of
// them at once; if one part refuses, nothing is spent in any. So
//
//	All{TokenBucket{Rate: PerSecond(10)}, FixedWindow{Limit: 1000, Window: 24 * time.Hour}}
//
// is 10 a second and 1,000 a day. Parts may be of any kind and number, two of
// the same included; an All within an All stands for its parts.
//
// Limit and Remaining are the least over the parts, RetryAfter, ResetAfter and
// Delay the greatest; [Decision].Part says which part decided. Reserve waits
// until the parts grant, but not for room in a [LeakyBucket] among them: it
// fails with [ErrQueueFull] if there is none when the others grant. A refusal by any part enters the log of every
// [SlidingLog] with CountDenied. Its state is the states of its parts.
type All []Algorithm

func (a All) normalized() Algorithm { return a } // leaves has seen to its parts

func (a All) share(by divisor) Algorithm {
	by.depth++
	shares := make(All, len(a))
	for i, part := range a {
		shares[i] = share(part, by)
	}
	return shares
}

func (All) kind() uint64 { return allKind }

func (a All) fields(func(...any)) Algorithm { return a } // its parts are stored instead

func (a All) compile(f kernel.Form) (kernel.Kernel, error) {
	parts := make([]kernel.Kernel, len(a))
	for i, alg := range a { // which compile has made a list of leaves
		var err error
		if parts[i], err = alg.compile(f); err != nil {
			return nil, err
		}
	}
	return kernel.NewAll(parts, f), nil
}

// Bounds on what a user may put together, by mistake: an All that contains
// itself, for one.
const (
	maxDepth = 16
	maxParts = 1024
)

// leaves appends the parts of a that are no Alls themselves, checked, as values.
func (a All) leaves(to All, f kernel.Form, name string, depth int) (All, error) {
	switch {
	case len(a) == 0:
		return nil, param.Invalid(name, "empty", "must have at least one part")
	case depth > maxDepth:
		return nil, param.Invalid(name, "too deep", fmt.Sprintf("must not be nested more than %d times", maxDepth))
	}
	for i, alg := range a {
		field := fmt.Sprintf("%s[%d]", name, i)
		alg, err := value(alg)
		if err != nil {
			return nil, param.Within(field, err)
		}
		if nested, ok := alg.(All); ok {
			if to, err = nested.leaves(to, f, field, depth+1); err != nil {
				return nil, err
			}
			continue
		}
		alg = alg.normalized()
		if _, err := alg.compile(f); err != nil {
			return nil, param.Within(field, err)
		}
		if to = append(to, alg); len(to) > maxParts {
			return nil, param.Invalid("All", "too long", fmt.Sprintf("must have at most %d parts", maxParts))
		}
	}
	return to, nil
}
