package ratelimit

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// An Algorithm is the kind of a limit together with its parameters. It is
// implemented by [TokenBucket], [LeakyBucket], [FixedWindow], [SlidingWindow],
// [SlidingLog], [RollingWindow], [WarmingUp] and [All], which are plain data:
// they hold no state, can be copied and printed, and but for All compared.
type Algorithm interface {
	// normalized returns the algorithm with its zero fields replaced by what they
	// stand for. Nothing else knows what that is. What a zero field leaves out, as
	// RollingWindow's PeriodLimit, stays left out.
	normalized() Algorithm

	// compile checks the parameters, which are normalized, and returns the kernel
	// that they ask for.
	compile(kernel.Form) (kernel.Kernel, error)

	// share returns the algorithm, which is normalized, with a part of its limit.
	share(divisor) Algorithm

	// kind is the number of the algorithm in stored states; see storedKinds.
	kind() uint64

	// fields calls visit with pointers to the fields of a copy, which it returns. The
	// places of fields in stored states never change: a new one comes last.
	fields(visit func(fields ...any)) Algorithm
}

// compile checks alg, which a user gave, and returns it as plain values that
// nobody can change later, with its kernel. An All becomes a list of its leaves.
func compile(alg Algorithm, f kernel.Form) (Algorithm, *kernel.Compiled, error) {
	alg, err := value(alg)
	if err != nil {
		return nil, nil, err
	}
	if a, ok := alg.(All); ok {
		if alg, err = a.leaves(nil, f, "All", 1); err != nil {
			return nil, nil, err
		}
	}
	alg = alg.normalized()
	k, err := alg.compile(f)
	if err != nil {
		return nil, nil, err
	}
	return alg, kernel.Compile(k, f), nil
}

// value returns alg, or what it points at.
func value(alg Algorithm) (Algorithm, error) {
	v := reflect.ValueOf(alg)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return nil, param.Invalid("Algorithm", nil, "must be one such as TokenBucket{Rate: PerSecond(10)}")
	}
	if slices.ContainsFunc(storedKinds, func(kind Algorithm) bool { return reflect.TypeOf(kind) == v.Type() }) {
		return v.Interface().(Algorithm), nil
	}
	// It embeds one, and so has its methods. Nothing is known of its other fields.
	return nil, param.Invalid("Algorithm", fmt.Sprintf("a %v", v.Type()), "must be one of this package's own, such as TokenBucket, not a type that embeds one")
}

// Share returns alg with an n-th of its limit, for one of n processes that divide it
// among them; for the [Fallback] of a store that they share, say. Rates are divided
// exactly (if a span of n times Per can be told), numbers of events are rounded down,
// but never to 0: n shares of a limit below n are more than it. An n below 1 is 1.
//
// What is no algorithm stays none: nil, or an All that contains itself.
func Share(alg Algorithm, n int) Algorithm { return share(alg, divisor{n: max(n, 1), depth: 1}) }

func share(alg Algorithm, by divisor) Algorithm {
	alg, err := value(alg)
	if err != nil || by.depth > maxDepth {
		return nil
	}
	return alg.normalized().share(by)
}

// A divisor is what a limit is divided by.
type divisor struct {
	n     int
	depth int // of the All that a part is in
}

// events returns a part of a number of events.
func (by divisor) events(whole int) int {
	if whole < 1 {
		return whole // 0 may stand for no limit, and less than that is an error elsewhere
	}
	return max(1, whole/by.n)
}

// rate returns a part of a rate, exactly if it can be told.
func (by divisor) rate(r Rate) Rate {
	if r.Events%by.n == 0 {
		return Rate{r.Events / by.n, r.Per}
	}
	if r.Per > Never/time.Duration(by.n) {
		return Rate{by.events(r.Events), r.Per}
	}
	return Rate{r.Events, r.Per * time.Duration(by.n)}
}
