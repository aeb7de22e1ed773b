package main

import (
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// The flood of keys that are used once, in the time of a simulated clock, and the trickle of
// other keys that follows it.
const (
	floodRate    = 100_000 // keys a second
	trickleRate  = 10
	shortTrickle = time.Minute
	longTrickle  = 10 * time.Minute // of which shortTrickle is the first part
)

// trickling returns how many keys come in a part of the trickle.
func trickling(d time.Duration) int { return int(d.Seconds()) * trickleRate }

// usedOnce sends new keys, one event of each, whose events come back at once, and measures the
// heap: repeatedly during the flood, twice during the trickle, and after Shrink.
func usedOnce(r *round) error {
	empty := heap()
	allow, store, tick, err := contenders.Simulated()
	if err != nil {
		return err
	}
	wrong, at := 0, 0
	meet := func(n, rate int) {
		const step = time.Millisecond // of the clock
		due := 0.0
		for n > 0 {
			tick(step)
			for due += float64(rate) * step.Seconds(); due >= 1 && n > 0; due-- {
				if allow(r.keys.at(at)) != contenders.Allowed {
					wrong++
				}
				at++
				n--
			}
		}
	}
	grown := func() float64 { return (heap() - empty) / (1 << 20) }
	most := 0.0
	for range r.sizes.samples {
		meet(r.sizes.flood/r.sizes.samples, floodRate)
		most = max(most, grown())
	}
	r.add("once-peak", most, 0)
	meet(trickling(shortTrickle), trickleRate)
	r.add("once-1m", grown(), 0)
	meet(trickling(longTrickle-shortTrickle), trickleRate)
	r.add("once-10m", grown(), 0)
	tick(time.Minute) // all keys are idle
	store.Shrink()
	r.add("once-shrunk", grown(), 0)
	r.results.addWrong("once-shrunk", r.contender.Name, store.Len()) // keys that it has not forgotten
	r.results.addWrong("once-peak", r.contender.Name, wrong)
	runtime.KeepAlive(allow)
	return nil
}
