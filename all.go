package ratelimit

import (
	"fmt"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An All grants events if each of its parts grants them, and spends them in all parts at once. If
// any part refuses, nothing is spent in any part. For example,
//
//	All{TokenBucket{Rate: PerSecond(10)}, FixedWindow{Limit: 1000, Window: 24 * time.Hour}}
//
// allows 10 a second and 1,000 a day. Parts may be of any kind, and several may be equal. An All
// within an All is replaced by its parts. There may be 1,024 parts in total.
//
// Limit and Remaining are the least of the parts; RetryAfter, ResetAfter and Delay are the
// greatest. [Decision].Part is the part that decided. A refusal by any part enters the log of every
// [SlidingLog] with CountDenied. The state consists of the states of the parts.
//
// The turn of a Wait or a Reserve comes when all parts grant the events. Neither waits for room in
// the queue of a [LeakyBucket]: if the queue has no room at the time when the other parts grant,
// Wait fails with [ErrQueueFull], and Reserve denies.
//
// An [Unlimited] part has no effect. With a [Blocked] part, nothing is granted, and nothing is
// counted in the other parts, not even by Charge.
type All []Algorithm

// String returns the words of all parts, such as "10/s, and 1,000 in each day".
func (a All) String() string { return limit.AllInWords(a.partsInWords(nil, 1)) }

// partsInWords appends the parts of a in words, with nested Alls flattened. Of an All that leaves
// refuses, because it is too long, too deep or contains itself, it appends the beginning, and "…".
func (a All) partsInWords(to []string, depth int) []string {
	switch {
	case len(a) == 0:
		return append(to, "nothing")
	case depth > maxDepth:
		return append(to, "…")
	}
	for _, part := range a {
		nested, isAll := part.(All)
		switch {
		case len(to) > maxParts:
			return to
		case len(to) == maxParts:
			return append(to, "…")
		case isAll:
			to = nested.partsInWords(to, depth+1)
		case isPlain(part):
			to = append(to, part.String())
		default: // it may have no String that can be called, as a nil pointer
			to = append(to, fmt.Sprintf("%T", part))
		}
	}
	return to
}

func (a All) normalized() Algorithm { return a } // leaves normalizes the parts

func (a All) share(by divisor) Algorithm {
	by.depth++
	shares := make(All, len(a))
	for i, part := range a {
		shares[i] = shareOf(part, by)
	}
	return shares
}

func (a All) spec() limit.Spec {
	s := limit.Spec{Kind: limit.All, Parts: make([]limit.Spec, len(a))}
	for i, part := range a { // a list of leaves: see newLimit
		s.Parts[i] = part.spec()
	}
	return s
}

func (All) of(s *limit.Spec) Algorithm {
	a := make(All, len(s.Parts))
	for i := range a {
		a[i] = algorithmOf(&s.Parts[i])
	}
	return a
}

// Bounds that stop mistakes, such as an All that contains itself.
const (
	maxDepth = 16
	maxParts = limit.MostParts
)

// leaves appends the parts of a, checked and normalized, with nested Alls flattened.
func (a All) leaves(to All, enc kernel.Encoding, name string, depth int) (All, error) {
	switch {
	case len(a) == 0:
		return nil, param.Invalid(name, "empty", "must have at least one part")
	case depth > maxDepth:
		return nil, param.Invalid(
			name,
			"too deep",
			fmt.Sprintf("must not be nested more than %d times", maxDepth),
		)
	}
	for i, alg := range a {
		field := fmt.Sprintf("%s[%d]", name, i)
		err := checkKind(alg)
		if err != nil {
			return nil, param.Within(field, err)
		}
		if nested, ok := alg.(All); ok {
			to, err = nested.leaves(to, enc, field, depth+1)
			if err != nil {
				return nil, err
			}
			continue
		}
		alg = alg.normalized()
		if spec := alg.spec(); err == nil {
			_, err = spec.Kernel(enc)
		}
		if err != nil {
			return nil, param.Within(field, err)
		}
		to = append(to, alg)
		if len(to) > maxParts {
			return nil, param.Invalid(
				"All",
				"too long",
				fmt.Sprintf("must have at most %d parts", maxParts),
			)
		}
	}
	return to, nil
}
