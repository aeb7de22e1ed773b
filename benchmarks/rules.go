package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// throttledCalls times a call that no rule of a table names, and one that a rule names.
func throttledCalls(r *round) error {
	for id, path := range map[string]string{"rules-none": contenders.UnnamedCall, "rules-one": contenders.NamedCall} {
		allow, _, err := r.limiter(contenders.Plenty, contenders.Allowed)
		if err != nil {
			return err
		}
		repeat(allow, path, r.sizes.alone/10, contenders.Allowed) // not timed: warms up caches and branch predictors
		r.batches(r.sizes.aloneBatches, r.sizes.alone, row{id, func(int) int {
			return repeat(allow, path, r.sizes.alone, contenders.Allowed)
		}})
	}
	return nil
}
