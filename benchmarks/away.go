package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// The scenarios of limiters in Redis under real conditions: the server is a wire away, the
// cores of this process are busy, and limiters have their default timeouts.

// handlers is how many goroutines keep the cores busy: each uses a core for work after each
// call. They are not among the callers.
const (
	handlers = 8
	work     = 2 * time.Millisecond
)

// awayCallers are the numbers of callers that call all the time.
var awayCallers = []int{callers, 16 * callers}

// awayKeys is the number of keys of many.
const awayKeys = 2_000

// The names of the figures of an away scenario.
const (
	p50      = "p50"
	p99      = "p99"
	byPolicy = "policy"
)

// away returns the id of a figure.
func away(scenario string, callers int, figure string) string {
	return fmt.Sprintf("%s-%d-%s", scenario, callers, figure)
}

// awayIDs returns the ids of all figures of a scenario.
func awayIDs(scenario string) (ids []string) {
	for _, n := range awayCallers {
		ids = append(ids, away(scenario, n, p50), away(scenario, n, p99), away(scenario, n, byPolicy))
	}
	return ids
}

func awayMany(r *round) error {
	allow, err := r.farAway(contenders.Lavish)
	if err != nil {
		return err
	}
	n := min(awayKeys, r.sizes.shared)
	wrong := r.visit(r.sure(allow), n, 1)
	r.busy("R1", allow, contenders.Allowed, wrong, func(random *rand.Rand) string { return r.keys.at(random.IntN(n)) })
	return nil
}

func awayAllowed(r *round) error {
	allow, err := r.farAway(contenders.Lavish)
	if err != nil {
		return err
	}
	r.busy("R2", allow, contenders.Allowed, 0, r.oneKey)
	return nil
}

func awayDenied(r *round) error {
	allow, err := r.farAway(contenders.Once)
	if err != nil {
		return err
	}
	r.busy("R3", allow, contenders.Denied, fill(r.sure(allow), r.keys, 1), r.oneKey)
	return nil
}

// farAway returns a new limiter in an empty Redis that is a wire away.
func (r *round) farAway(l contenders.Limit) (contenders.Allow, error) {
	r.addr, r.timeout = r.wire.addr, 0
	return r.inRedis(l)
}

// sure returns an allow that asks again if the limiter fails, until its patience ends: only
// the failures of measured calls count.
func (r *round) sure(allow contenders.Allow) contenders.Allow {
	end := time.Now().Add(r.sizes.patience)
	return func(key string) contenders.Answer {
		for {
			if got := allow(key); got != contenders.Failed || time.Now().After(end) {
				return got
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// busy measures the time that callers wait, and counts the decisions that the limiter made
// without Redis. The first batch, in which connections are made, is shorter and not measured.
func (r *round) busy(scenario string, allow contenders.Allow, want contenders.Answer, wrong int, next func(*rand.Rand) string) {
	for _, n := range awayCallers {
		callers := min(n, r.sizes.most)
		_, _, bad := r.busyBatch(callers, allow, want, next, true)
		wrong += bad
		took, failed, bad := r.busyBatch(callers, allow, want, next, false)
		wrong += bad
		slices.Sort(took)
		all := len(took)
		r.add(away(scenario, n, p50), float64(took[all/2])/1e6, wrong)
		r.add(away(scenario, n, p99), float64(took[all*99/100])/1e6, wrong)
		r.add(away(scenario, n, byPolicy), 100*float64(failed)/float64(all), wrong)
	}
}

// busyBatch makes callers and handlers call until the time is up, each at least once. It
// returns the durations of all calls, how many failed, and how many of the others were answered wrongly.
func (r *round) busyBatch(callers int, allow contenders.Allow, want contenders.Answer, next func(*rand.Rand) string, warm bool) (took []time.Duration, failed, wrong int) {
	var up atomic.Bool
	span := time.Duration(r.sizes.busy) * time.Millisecond
	if warm {
		span /= 5
	}
	time.AfterFunc(span, func() { up.Store(true) })
	var mu sync.Mutex // protects took and failed
	wrong = parallel(handlers+callers, func(caller int) (wrong int) {
		random := rand.New(rand.NewPCG(1, uint64(caller)))
		var mine []time.Duration
		lost := 0
		for {
			start := time.Now()
			got := allow(next(random))
			mine = append(mine, time.Since(start))
			switch got {
			case want:
			case contenders.Failed:
				lost++
			default:
				wrong++
			}
			if up.Load() {
				break
			}
			if caller < handlers {
				spin(work)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, mine...)
		failed += lost
		return wrong
	})
	return took, failed, wrong
}

// spin uses a core for d.
func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}
