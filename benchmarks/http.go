package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// middlewares times requests of one client that pass, and then requests that are refused.
func middlewares(r *round) error {
	for _, s := range []struct {
		id    string
		limit contenders.Limit
		usual contenders.Answer
	}{
		{"http", contenders.Plenty, contenders.Allowed},
		{"http-denied", contenders.Once, contenders.Denied},
	} {
		allow, real, err := r.limiter(s.limit, s.usual)
		if err != nil {
			return err
		}
		if real && s.usual == contenders.Denied {
			r.results.addWrong(s.id, r.contender.Name, repeat(allow, "", s.limit.Burst, contenders.Allowed))
		}
		repeat(allow, "", r.sizes.alone/10, s.usual) // not timed: warms up caches and branch predictors
		r.batches(r.sizes.aloneBatches, r.sizes.alone/4, row{s.id, func(int) int {
			return repeat(allow, "", r.sizes.alone/4, s.usual)
		}})
	}
	return nil
}

// requestsByKey times requests whose keys are short and long.
func requestsByKey(r *round) error {
	allow, _, err := r.limiter(contenders.Plenty, contenders.Allowed)
	if err != nil {
		return err
	}
	n := r.sizes.alone / 4
	by := func(id, key string) row {
		repeat(allow, key, n, contenders.Allowed) // not timed, as above
		return row{id, func(int) int { return repeat(allow, key, n, contenders.Allowed) }}
	}
	r.batches(r.sizes.aloneBatches, n, by("http-16", r.keys.at(0)), by("http-36", r.uuids.at(0)))
	return nil
}

// hostileRequests times refused requests that the client makes as expensive as it can.
func hostileRequests(r *round) error {
	allow, real, err := r.limiter(contenders.Once, contenders.Denied)
	if err != nil {
		return err
	}
	const id = "http-hostile"
	if real {
		r.results.addWrong(id, r.contender.Name, repeat(allow, "", contenders.Once.Burst, contenders.Allowed))
	}
	n := max(10, r.sizes.alone/500) // each takes longer than all calls of another scenario
	repeat(allow, "", n, contenders.Denied)
	r.batches(r.sizes.aloneBatches, n, row{id, func(int) int { return repeat(allow, "", n, contenders.Denied) }})
	return nil
}
