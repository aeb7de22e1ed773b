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

// exhaust spends the events that a new key has, and returns the number of wrong answers.
func (r *round) exhaust(allow contenders.Allow, l contenders.Limit, key string) (wrong int) {
	return repeat(allow, key, r.contender.Exhausts(l), contenders.Allowed)
}

// hot times decisions on one key whose answer is want: by one caller, also with a long key,
// from all cores, and from a crowd, if crowded is not empty.
func (r *round) hot(allow contenders.Allow, want contenders.Answer, alone, long, together, crowded string) {
	s := r.sizes
	calls := func(key string) func(int) int {
		return func(int) int { return repeat(allow, key, s.alone, want) }
	}
	short, uuid := calls(r.keys.at(0)), calls(r.uuids.at(0))
	for _, row := range []struct {
		id   string
		call func(int) int
	}{{alone, short}, {long, uuid}} {
		if r.wanted(row.id) {
			row.call(0) // not timed: warms up caches and branch predictors
		}
	}
	r.batches(s.aloneBatches, s.alone, row{alone, short}, row{long, uuid})
	shared := func(workers, n int) int {
		return parallel(workers, func(int) int { return repeat(allow, r.keys.at(0), n, want) })
	}
	r.fromAll(together, crowded, s.together, shared)
}

func hotAllowed(r *round) error {
	allow, _, err := r.limiter(contenders.Plenty, contenders.Allowed)
	if err != nil {
		return err
	}
	r.hot(allow, contenders.Allowed, "S1", "S1-36", "S5", "S5-64")
	return nil
}

func hotDenied(r *round) error {
	allow, real, err := r.limiter(contenders.Spent, contenders.Denied)
	if err != nil {
		return err
	}
	if real {
		r.results.addWrong("S2", r.contender.Name, r.exhaust(allow, contenders.Spent, r.keys.at(0)))
		r.results.addWrong("S2-36", r.contender.Name, r.exhaust(allow, contenders.Spent, r.uuids.at(0)))
	}
	r.hot(allow, contenders.Denied, "S2", "S2-36", "S2p", "")
	return nil
}

// fewKeys times decisions on keys whose states are in the caches, with one limit for all, and
// with a limit of each key's own.
func fewKeys(r *round) error {
	order := shuffled(few)
	plain, real, err := r.limiter(contenders.Few, contenders.Allowed)
	if err != nil {
		return err
	}
	if real {
		r.results.addWrong("S3", r.contender.Name, fill(plain, r.keys, few))
	}
	walk(plain, r.keys, order) // not timed, as above
	var own contenders.Allow
	if r.contender.Own != nil {
		if own, err = r.contender.Own(contenders.Few); err != nil {
			return err
		}
		r.results.addWrong("S3-own", r.contender.Name, fill(own, r.keys, few))
		walk(own, r.keys, order)
	}
	rounds := max(1, r.sizes.alone/few)
	through := func(allow contenders.Allow) func(int) int {
		return func(int) (wrong int) {
			for range rounds {
				wrong += walk(allow, r.keys, order)
			}
			return wrong
		}
	}
	rows := []row{{"S3", through(plain)}}
	if own != nil {
		rows = append(rows, row{"S3-own", through(own)})
	}
	r.batches(r.sizes.aloneBatches, rounds*few, rows...)
	r.fromAll("S3p", "S3-64", r.sizes.together, r.shared(plain, r.keys, few))
	if own != nil {
		r.fromAll("S3p-own", "", r.sizes.together, r.shared(own, r.keys, few))
	}
	return nil
}
