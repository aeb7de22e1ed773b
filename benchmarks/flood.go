package main

import (
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// flood sends new keys, one event of each, to a store with a bound in which some keys are
// exhausted. After each tenth of them it records the time of a call and the heap. In the
// end, the exhausted keys must still be denied.
func flood(r *round) error {
	s := r.sizes
	empty := heap()
	allow, err := contenders.Bounded(contenders.Hundred, s.bound)
	if err != nil {
		return err
	}
	wrong := 0
	for range contenders.Hundred.Burst {
		wrong += fill(allow, r.keys, s.exhausted)
	}
	at := s.exhausted
	for range 10 {
		start := time.Now()
		for range s.flood / 10 {
			if allow(r.keys.at(at)) != contenders.Allowed {
				wrong++
			}
			at++
		}
		r.add("flood", float64(time.Since(start))/float64(s.flood/10), 0)
		r.add("flood-heap", (heap()-empty)/float64(s.bound), 0)
	}
	for i := range s.exhausted {
		if allow(r.keys.at(i)) != contenders.Denied {
			wrong++
		}
	}
	r.results.addWrong("flood", r.contender.Name, wrong)
	runtime.KeepAlive(allow)
	return nil
}
