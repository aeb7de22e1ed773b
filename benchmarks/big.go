package main

import (
	"runtime"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// collections is how many forced collections are timed in a pass.
const collections = 3

// bigTable grows a limiter to very many keys, times each call, and then measures the cost
// of these keys in bytes and in work for the garbage collector.
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
	full := heap() // also collects the garbage of the growth
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
		// Every key is exhausted by now. A key that is allowed has been forgotten, which
		// saved its bytes and its time.
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
