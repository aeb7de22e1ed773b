package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A round is the run of one contender in one pass of a group.
type round struct {
	sizes     sizes
	keys      keys // of keyLength
	uuids     keys // few of uuidLength
	orders    orders
	contender contenders.Contender
	wanted    func(id string) bool
	results   *results

	// For limiters in Redis:
	server  *server
	wire    *wire         // to the server
	addr    string        // to connect to
	timeout time.Duration // of this library's store; 0 means the default
	close   func()        // closes the client, if not nil
}

// limiter returns a new limiter of the contender. If real is false, it always answers usual
// and needs no preparation.
func (r *round) limiter(l contenders.Limit, usual contenders.Answer) (allow contenders.Allow, real bool, err error) {
	if r.contender.Role == contenders.Floor {
		return r.contender.Always(usual), false, nil
	}
	if r.contender.Dial != nil {
		allow, r.close, err = r.contender.Dial(r.addr, l, r.timeout)
	} else {
		allow, err = r.contender.New(l)
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot make %s with a burst of %d that refills by one every %v: %w (change its configuration in benchmarks/contenders)", r.contender.Name, l.Burst, l.Every, err)
	}
	return allow, true, nil
}

// limiterEach is like limiter, and also returns the limiter's call for many keys, or nil if
// that is not measured.
func (r *round) limiterEach(l contenders.Limit, usual contenders.Answer) (allow contenders.Allow, each contenders.Each, real bool, err error) {
	if r.contender.Each == nil {
		allow, real, err = r.limiter(l, usual)
		return allow, nil, real, err
	}
	allow, each, err = r.contender.Each(l)
	return allow, each, true, err
}

// stop stops the contender's background work and closes its client.
func (r *round) stop() {
	if r.close != nil {
		r.close()
		r.close = nil
	}
	if r.contender.Stop != nil {
		r.contender.Stop()
	}
}

// add records a figure of scenario id, and the number of wrong answers in its measurement.
func (r *round) add(id string, value float64, wrong int) {
	if r.wanted(id) {
		r.results.add(id, r.contender.Name, value, wrong)
	}
}

// A row is the measurement of a scenario. call runs a batch of decisions and returns the
// number of wrong answers.
type row struct {
	id   string
	call func(batch int) (wrong int)
}

// batches times count batches of n decisions each of every row, and records the time and the
// allocations per decision. The rows take turns, so that they can be compared with each other.
func (r *round) batches(count, n int, rows ...row) {
	allocs := make(map[string]uint64)
	for b := range count {
		for _, row := range rows {
			if !r.wanted(row.id) {
				continue
			}
			before := mallocs()
			start := time.Now()
			wrong := row.call(b)
			took := time.Since(start)
			allocs[row.id] += mallocs() - before
			r.add(row.id, float64(took)/float64(n), wrong)
		}
	}
	for id, all := range allocs {
		r.results.addAllocs(id, r.contender.Name, float64(all)/float64(count*n))
	}
}

// The callers of a crowd, and how many processors the scheduler has for each core, so that
// the operating system stops some callers while they decide.
const (
	crowd     = 64
	oversized = 4
)

// fromAll times batches of n decisions for each core: from all cores at once, and, if crowded
// is not empty, from a crowd. call makes each of the workers decide n times, and returns the
// number of wrong answers.
func (r *round) fromAll(together, crowded string, n int, call func(workers, n int) (wrong int)) {
	total, count := n*cores(), r.sizes.togetherBatches
	r.batches(count, total, row{together, func(int) int { return call(cores(), n) }})
	if crowded == "" || !r.wanted(crowded) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(oversized * cores()))
	each := max(1, total/crowd)
	for range count {
		start := time.Now()
		wrong := call(crowd, each)
		r.add(crowded, float64(time.Since(start))/float64(crowd*each), wrong)
	}
}

// shared returns a call for fromAll: each worker decides n times on the first size of ks, in an
// order of its own, so that all workers use all keys.
func (r *round) shared(allow contenders.Allow, ks keys, size int) func(workers, n int) (wrong int) {
	orders := r.orders.of(max(crowd, cores()), size)
	return func(workers, n int) int {
		return parallel(workers, func(worker int) int {
			t := tour{order: orders[worker]}
			return t.visit(n, func(part []uint32) int { return walk(allow, ks, part) })
		})
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// heap returns the bytes of live objects.
func heap() float64 {
	var m runtime.MemStats
	settle()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// cores returns the number of callers that use all cores at once.
func cores() int { return runtime.GOMAXPROCS(0) }

// parallel runs f in the given number of goroutines, and returns the number of wrong
// answers.
func parallel(workers int, f func(worker int) (wrong int)) int {
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for worker := range workers {
		wg.Go(func() {
			wrong.Add(int64(f(worker)))
		})
	}
	wg.Wait()
	return int(wrong.Load())
}

// fill spends one event of each of the first n keys, and returns how many were not allowed.
func fill(allow contenders.Allow, ks keys, n int) (wrong int) {
	for i := range n {
		if allow(ks.at(i)) != contenders.Allowed {
			wrong++
		}
	}
	return wrong
}
