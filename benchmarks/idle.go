package main

import "github.com/ratelimit-go/ratelimit/benchmarks/contenders"

// idleRounds is how often all keys are visited before the measurement: limiters that forget
// idle keys may by then have found out that these come back.
const idleRounds = 3

// An idling is a limiter whose keys are idle when they are used: their events have come back.
type idling struct {
	allow  contenders.Allow
	keys   keys
	tour   tour
	shared func(workers, n int) (wrong int) // the call of all cores
}

// idle returns a limiter that has met n of ks, with limits of their own if own is true. It has
// met them in another order than that in which they come later, as in a service: limiters that
// allocate states have them in memory in the order of their first events.
func (r *round) idle(id string, ks keys, n int, own bool) (idling, error) {
	var allow contenders.Allow
	var err error
	if own {
		allow, err = r.contender.Own(contenders.Quick)
	} else {
		allow, _, err = r.limiter(contenders.Quick, contenders.Allowed)
	}
	if err != nil {
		return idling{}, err
	}
	i := idling{allow, ks, tour{order: shuffled(n)}, r.shared(allow, ks, n)}
	r.results.addWrong(id, r.contender.Name, fill(allow, ks, n))
	for range idleRounds {
		r.results.addWrong(id, r.contender.Name, walk(allow, ks, i.tour.order))
	}
	return i, nil
}

// visit decides on the next n keys.
func (i *idling) visit(n int) (wrong int) {
	return i.tour.visit(n, func(part []uint32) int { return walk(i.allow, i.keys, part) })
}

// fromAll times decisions of all cores, and of a crowd.
func (i *idling) fromAll(r *round, together, crowded string) {
	if !r.contender.Stale {
		r.fromAll(together, crowded, r.sizes.together, i.shared)
	}
}

// idleFew times decisions on a thousand idle keys: short ones, long ones, and short ones with
// limits of their own.
func idleFew(r *round) error {
	plain, err := r.idle("I1k", r.keys, few, false)
	if err != nil {
		return err
	}
	long, err := r.idle("I1k-36", r.uuids, few, false)
	if err != nil {
		return err
	}
	s := r.sizes
	rows := []row{
		{"I1k", func(int) int { return plain.visit(s.alone) }},
		{"I1k-36", func(int) int { return long.visit(s.alone) }},
	}
	if r.contender.Own != nil {
		own, err := r.idle("I1k-own", r.keys, few, true)
		if err != nil {
			return err
		}
		rows = append(rows, row{"I1k-own", func(int) int { return own.visit(s.alone) }})
	}
	r.batches(s.aloneBatches, s.alone, rows...)
	plain.fromAll(r, "I1kp", "")
	return nil
}

func idleMany(r *round) error {
	i, err := r.idle("I100k", r.keys, r.sizes.live, false)
	if err != nil {
		return err
	}
	r.batches(r.sizes.aloneBatches, r.sizes.alone, row{"I100k", func(int) int { return i.visit(r.sizes.alone) }})
	i.fromAll(r, "I100kp", "I100k-64")
	return nil
}

func idleMillion(r *round) error {
	i, err := r.idle("I1M", r.keys, r.sizes.many, false)
	if err != nil {
		return err
	}
	r.batches(r.sizes.aloneBatches, r.sizes.alone, row{"I1M", func(int) int { return i.visit(r.sizes.alone) }})
	return nil
}
