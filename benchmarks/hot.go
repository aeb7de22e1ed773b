package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// repeat calls allow n times for one key, and returns the number of wrong answers.
func repeat(allow contenders.Allow, key string, n int, want contenders.Answer) (wrong int) {
	for range n {
		if allow(key) != want {
			wrong++
		}
	}
	return wrong
}

// hot times decisions on one key whose answer is want: by one caller, and from all cores.
func (r *round) hot(allow contenders.Allow, want contenders.Answer, alone, together string) {
	key := r.keys.at(0)
	s := r.sizes
	if r.wanted(alone) {
		repeat(allow, key, s.alone, want) // not timed: warms up caches and branch predictors
	}
	r.batches(alone, s.aloneBatches, s.alone, func(int) int {
		return repeat(allow, key, s.alone, want)
	})
	r.batches(together, s.togetherBatches, s.together*cores(), func(int) int {
		return parallel(cores(), func(int) int { return repeat(allow, key, s.together, want) })
	})
}

func hotAllowed(r *round) error {
	allow, _, err := r.limiter(contenders.Plenty, contenders.Allowed)
	if err != nil {
		return err
	}
	r.hot(allow, contenders.Allowed, "S1", "S5")
	return nil
}

func hotDenied(r *round) error {
	allow, real, err := r.limiter(contenders.Once, contenders.Denied)
	if err != nil {
		return err
	}
	if real {
		r.results.addWrong("S2", r.contender.Name, fill(allow, r.keys, 1))
	}
	r.hot(allow, contenders.Denied, "S2", "S2p")
	return nil
}

// fewKeys times decisions on keys whose states are in the caches.
func fewKeys(r *round) error {
	allow, real, err := r.limiter(contenders.Plenty, contenders.Allowed)
	if err != nil {
		return err
	}
	if real {
		r.results.addWrong("S3", r.contender.Name, fill(allow, r.keys, few))
	}
	order := shuffled(few)
	rounds := r.sizes.alone / few
	walk(allow, r.keys, order) // not timed, as above
	r.batches("S3", r.sizes.aloneBatches, rounds*few, func(int) (wrong int) {
		for range rounds {
			wrong += walk(allow, r.keys, order)
		}
		return wrong
	})
	return nil
}
