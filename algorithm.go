package ratelimit

import (
	"fmt"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// This file says what an algorithm is for users: a type with these methods, in a file of its own,
// and in the lists below. Its row in internal/limit/kinds.go has its name, its parameters and how a
// kernel is made of them; words.go and compile.go beside it have its words and what is refused; the
// kernel decides, in the file of internal/kernel with the same name, which says if the arithmetic
// is in another one (of an All, it is internal/step/all.go). CONTRIBUTING.md ("How to change
// things") has the list of these, with the tests, the model and, if it is to be fast in Redis, the
// script.

// An Algorithm is a kind of limit with its parameters: a [TokenBucket], [LeakyBucket],
// [FixedWindow], [CalendarWindow], [SlidingWindow], [SlidingLog], [RollingWindow], [WarmingUp],
// [InFlight], [Lockout], [All], [Unlimited] or [Blocked]. Algorithms are plain data. They hold no
// state, and can be copied, printed and (except All) compared. Pass them as values: a pointer to
// one, or a type that embeds one, is refused.
type Algorithm interface {
	// String returns the limit in words, with its parameters: "10/s, burst 20". Those at their
	// defaults are left out. Limits that decide differently have different words. The words are for
	// people, and may change.
	String() string

	// normalized returns the algorithm with its zero fields replaced by their defaults, which only
	// this method knows. A zero field that means no limit, such as RollingWindow's PeriodLimit,
	// stays zero.
	normalized() Algorithm

	// spec returns a normalized algorithm as numbers. The row of its kind (internal/limit/kinds.go)
	// makes a kernel of them, which decides.
	spec() limit.Spec

	// of returns the algorithm of this type that has such numbers: the reverse of spec.
	of(*limit.Spec) Algorithm

	// share returns a normalized algorithm with a part of its limit.
	share(divisor) Algorithm
}

// newLimit checks alg, which a user passed, and returns it ready to be applied, normalized, and as
// a copy that shares no memory with it. An All becomes a list of its leaves. The parameters are
// checked in internal/limit/compile.go, and the error names the one that is wrong.
func newLimit(alg Algorithm, enc kernel.Encoding) (*limit.Limit, error) {
	err := checkKind(alg)
	if err != nil {
		return nil, err
	}
	if a, ok := alg.(All); ok {
		alg, err = a.leaves(nil, enc, "All", 1)
		if err != nil {
			return nil, err
		}
	}
	alg = alg.normalized()
	return limit.New(alg.spec(), enc, alg)
}

// inWords returns an algorithm other than an All in words.
func inWords(alg Algorithm) string { return alg.normalized().spec().String() }

// known returns the algorithm of l, which newLimit has made, with defaults filled in and nested
// Alls flattened.
func known(lim *limit.Limit) Algorithm {
	if parts, ok := lim.Known.(All); ok {
		return slices.Clone(parts)
	}
	return lim.Known.(Algorithm)
}

// checkKind returns an error if alg is none of this package's algorithms: nil, a pointer to one, or
// a type that embeds one, which has its methods.
func checkKind(alg Algorithm) error {
	if _, ok := alg.(All); ok || isPlain(alg) {
		return nil
	}
	return param.Invalid(
		"Algorithm",
		fmt.Sprintf("%T", alg),
		"must be one of this package's own, such as TokenBucket{Rate: PerSecond(10)}, "+
			"and neither a pointer nor a type that embeds one",
	)
}

// plain are the algorithms that can be compared: all but All.
var plain = [...]Algorithm{
	TokenBucket{}, LeakyBucket{}, FixedWindow{}, CalendarWindow{}, SlidingWindow{}, SlidingLog{},
	RollingWindow{}, WarmingUp{}, InFlight{}, Lockout{}, Unlimited{}, Blocked{},
}

// isPlain reports whether alg is of one of these types. WithLimits asks it in each call: a switch
// finds the last one as fast as the first, which a loop over plain takes 15 ns for.
func isPlain(alg Algorithm) bool {
	switch alg.(type) {
	case TokenBucket, LeakyBucket, FixedWindow, CalendarWindow, SlidingWindow, SlidingLog,
		RollingWindow, WarmingUp, InFlight, Lockout, Unlimited, Blocked:
		return true
	}
	return false
}

// algorithmOf returns the algorithm that has such numbers.
func algorithmOf(s *limit.Spec) Algorithm {
	for _, zero := range plain {
		if zero.spec().Kind == s.Kind {
			return zero.of(s)
		}
	}
	return All{}.of(s)
}

// Stores tell of states by the algorithms of this package.
func init() { limit.AlgorithmOf = func(s *limit.Spec) any { return algorithmOf(s) } }
