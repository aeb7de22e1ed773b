package main

import (
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// collections is how many forced collections are timed in a pass.
const collections = 3

// bigTable grows a limiter to very many keys, each call timed, and then sees
// what it costs to have them: bytes, and work for the collector.
func bigTable(r *round) error {
	n := r.sizes.table
	empty := heap()
	allow, real, err := r.limiter(contenders.Once, contenders.Allowed)
	if err != nil {
		return err
	}
	wrong := 0
	var longest time.Duration
	base := time.Now()
	for i := range n {
		key := r.keys.at(i)
		start := time.Since(base)
		a := allow(key)
		longest = max(longest, time.Since(base)-start)
		if a != contenders.Allowed {
			wrong++
		}
	}
	r.add("longest", milli(longest), wrong)
	full := heap() // which also collects what the growth has left behind
	if real {
		r.add("heap-5M", (full-empty)/float64(n), 0)
	}
	if r.wanted("gc") {
		for range collections {
			start := time.Now()
			runtime.GC()
			r.add("gc", milli(time.Since(start)), 0)
		}
	}
	if real {
		// Every key is used up by now. One that is allowed has been forgotten,
		// and the bytes and the time of it saved by that.
		wrong := 0
		for i := 0; i < n; i += max(1, n/10_000) {
			if allow(r.keys.at(i)) != contenders.Denied {
				wrong++
			}
		}
		r.results.addWrong("heap-5M", r.contender.Name, wrong)
	}
	runtime.KeepAlive(allow)
	return nil
}

func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
