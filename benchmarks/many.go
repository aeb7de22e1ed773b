package main

import (
	"runtime"
	"sync/atomic"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// walk calls allow once for each key in order. All of them should be allowed.
func walk(allow contenders.Allow, ks keys, order []uint32) (wrong int) {
	for _, i := range order {
		if allow(ks.at(int(i))) != contenders.Allowed {
			wrong++
		}
	}
	return wrong
}

// walkWarm is like walk, but touches the bytes of each key some time before its use, as if a
// server had just parsed them. Only the limiter's own state is cold.
func walkWarm(allow contenders.Allow, ks keys, order []uint32) (wrong int) {
	var touched byte
	for at, i := range order {
		touched ^= ks.touch(int(order[min(at+ahead, len(order)-1)]))
		if allow(ks.at(int(i))) != contenders.Allowed {
			wrong++
		}
	}
	sink.Store(uint32(touched))
	return wrong
}

// sink keeps the compiler from removing loads whose result is not used.
var sink atomic.Uint32

// manyKeys fills a limiter with new keys, measures its heap, and then uses the keys in an
// order that defeats caches.
func manyKeys(r *round) error {
	s := r.sizes
	empty := 0.0
	if r.wanted("heap-1M") {
		empty = heap()
	}
	allow, each, real, err := r.limiterEach(contenders.Hundred, contenders.Allowed)
	if err != nil {
		return err
	}
	meet := func(int) int { return fill(allow, r.keys, s.many) }
	if r.wanted("S7") {
		r.batches(1, s.many, row{"S7", meet})
	} else {
		r.results.addWrong("S7", r.contender.Name, meet(0))
	}
	if real && r.contender.Role != contenders.Bound && r.wanted("heap-1M") {
		r.add("heap-1M", (heap()-empty)/float64(s.many), 0)
	} else {
		runtime.GC() // so that all continue with the same heap
	}

	order := shuffled(s.many)
	alone := func(id string, visit func(contenders.Allow, keys, []uint32) int, offset int) row {
		return row{id, func(batch int) int {
			return visit(allow, r.keys, part(order, batch, s.alone, offset))
		}}
	}
	together := func(id string, visit func(contenders.Allow, keys, []uint32) int, offset int) {
		share := min(s.together, s.many/cores())
		r.batches(s.togetherBatches, share*cores(), row{id, func(batch int) int {
			p := part(order, batch, share*cores(), offset)
			return parallel(cores(), func(core int) int {
				return visit(allow, r.keys, p[core*share:(core+1)*share])
			})
		}})
	}
	r.batches(s.aloneBatches, s.alone, alone("S4", walk, 0))
	warm := []row{alone("S4h", walkWarm, s.many/2)}
	if each != nil {
		// The keys are other ones than those of S4h, and as cold as these.
		warm = append(warm, row{"S4h-each", func(batch int) int {
			return walkEach(each, r.keys, part(order, batch, s.alone, 0))
		}})
	}
	r.batches(s.aloneBatches, s.alone, warm...)
	together("S6", walk, 0)
	together("S6h", walkWarm, s.many/2)
	runtime.KeepAlive(allow)
	return nil
}

// part returns n of the keys in order for a batch. Different batches have different keys
// until all have been used.
func part(order []uint32, batch, n, offset int) []uint32 {
	from := (batch*n + offset) % (len(order) - n + 1)
	return order[from : from+n]
}

// ownHeap measures the heap of a limiter whose keys have limits of their own.
func ownHeap(r *round) error {
	empty := heap()
	allow, err := r.contender.Own(contenders.Hundred)
	if err != nil {
		return err
	}
	n := r.sizes.many
	wrong := fill(allow, r.keys, n)
	r.add("heap-own", (heap()-empty)/float64(n), wrong)
	runtime.KeepAlive(allow)
	return nil
}

// growth measures the heap of a growing limiter after every 5 % of growth, because tables
// that grow in steps are largest right after a step.
func growth(r *round) error {
	empty := heap()
	allow, _, err := r.limiter(contenders.Hundred, contenders.Allowed)
	if err != nil {
		return err
	}
	wrong, most := 0, 0.0
	seen := 0
	for next := r.sizes.many / 16; seen < r.sizes.many; next = min(next+next/20, r.sizes.many) {
		for ; seen < next; seen++ {
			if allow(r.keys.at(seen)) != contenders.Allowed {
				wrong++
			}
		}
		most = max(most, (heap()-empty)/float64(seen))
	}
	r.add("heap-peak", most, wrong)
	runtime.KeepAlive(allow)
	return nil
}
