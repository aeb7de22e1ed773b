package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// idleKeys times decisions on keys that are idle when they are used: their events have come
// back. The first three rounds are not timed: limiters that forget idle keys may by then have
// found out that these come back.
func idleKeys(r *round) error {
	for _, row := range []struct {
		keys            int
		alone, together string
	}{
		{few, "I1k", "I1kp"},
		{r.sizes.live, "I100k", "I100kp"},
		{r.sizes.many, "I1M", ""},
	} {
		if !r.wanted(row.alone) && !r.wanted(row.together) {
			continue
		}
		allow, _, err := r.limiter(contenders.Quick, contenders.Allowed)
		if err != nil {
			return err
		}
		order := shuffled(row.keys)
		for range 3 {
			r.results.addWrong(row.alone, r.contender.Name, walk(allow, r.keys, order))
		}
		s, at := r.sizes, 0
		next := func(n int) (wrong int) { // decides on the next n keys, in turn
			for n > 0 {
				part := order[at:min(at+n, len(order))]
				wrong += walk(allow, r.keys, part)
				n -= len(part)
				at = (at + len(part)) % len(order)
			}
			return wrong
		}
		r.batches(row.alone, s.aloneBatches, s.alone, func(int) int { return next(s.alone) })
		share := len(order) / cores()
		rounds := max(1, s.together/share)
		r.batches(row.together, s.togetherBatches, rounds*share*cores(), func(int) int {
			return parallel(cores(), func(core int) (wrong int) {
				for range rounds {
					wrong += walk(allow, r.keys, order[core*share:(core+1)*share])
				}
				return wrong
			})
		})
		if r.contender.Stop != nil {
			r.contender.Stop()
		}
	}
	return nil
}
