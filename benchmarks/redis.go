package main

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// redisMany uses keys chosen at random, all of which Redis knows.
func redisMany(r *round) error {
	allow, err := r.inRedis(contenders.Lavish)
	if err != nil {
		return err
	}
	n := r.sizes.shared
	r.results.addWrong("R1", r.contender.Name, r.visit(allow, n, 1))
	r.calls("R1", allow, contenders.Allowed, func(random *rand.Rand) string { return r.keys.at(random.IntN(n)) })
	return nil
}

func redisAllowed(r *round) error {
	allow, err := r.inRedis(contenders.Lavish)
	if err != nil {
		return err
	}
	r.calls("R2", allow, contenders.Allowed, r.oneKey)
	return nil
}

func redisDenied(r *round) error {
	allow, err := r.inRedis(contenders.Once)
	if err != nil {
		return err
	}
	r.results.addWrong("R3", r.contender.Name, fill(allow, r.keys, 1))
	r.calls("R3", allow, contenders.Denied, r.oneKey)
	return nil
}

func (r *round) oneKey(*rand.Rand) string { return r.keys.at(0) }

// inRedis returns a new limiter in an empty Redis.
func (r *round) inRedis(l contenders.Limit) (contenders.Allow, error) {
	if err := r.server.flush(); err != nil {
		return nil, err
	}
	allow, _, err := r.limiter(l, contenders.Allowed)
	return allow, err
}

// visit spends the given number of events of each of the first n keys, each key from one
// caller, and returns how many were not allowed.
func (r *round) visit(allow contenders.Allow, n, events int) int {
	return parallel(callers, func(caller int) (wrong int) {
		for range events {
			for i := caller; i < n; i += callers {
				if allow(r.keys.at(i)) != contenders.Allowed {
					wrong++
				}
			}
		}
		return wrong
	})
}

// calls times how many calls all callers together make in a fixed time, because the time of
// a call differs by a factor of thousands. The first batch, in which connections are made
// and scripts loaded, is not timed.
func (r *round) calls(id string, allow contenders.Allow, want contenders.Answer, next func(random *rand.Rand) string) {
	_, wrong := r.batch(allow, want, next, 0)
	r.results.addWrong(id, r.contender.Name, wrong)
	before, all := mallocs(), 0
	for b := range r.sizes.spans {
		start := time.Now()
		n, wrong := r.batch(allow, want, next, b+1)
		r.add(id, float64(time.Since(start))/float64(n), wrong)
		all += n
	}
	r.results.addAllocs(id, r.contender.Name, float64(mallocs()-before)/float64(all))
}

// batch makes all callers call until the time is up, and returns the number of calls and of
// wrong answers. Each caller makes at least one call.
func (r *round) batch(allow contenders.Allow, want contenders.Answer, next func(random *rand.Rand) string, seed int) (n, wrong int) {
	var up atomic.Bool
	var made atomic.Int64
	time.AfterFunc(time.Duration(r.sizes.span)*time.Millisecond, func() { up.Store(true) })
	wrong = parallel(callers, func(caller int) (wrong int) {
		random := rand.New(rand.NewPCG(uint64(seed), uint64(caller)))
		for n := 1; ; n++ {
			if allow(next(random)) != want {
				wrong++
			}
			if up.Load() {
				made.Add(int64(n))
				return wrong
			}
		}
	})
	return int(made.Load()), wrong
}

// redisMemory measures the memory of keys in Redis.
func redisMemory(r *round) error {
	if err := r.server.flush(); err != nil {
		return err
	}
	empty, err := r.server.memory()
	if err != nil {
		return err
	}
	allow, err := r.inRedis(contenders.Lavish)
	if err != nil {
		return err
	}
	events := max(1, r.contender.Events)
	n := r.sizes.shared / events
	wrong := r.visit(allow, n, events)
	r.stop()
	full, err := r.server.memory()
	if err != nil {
		return err
	}
	r.add("R-bytes", float64(full-empty)/float64(n), wrong)
	return nil
}
