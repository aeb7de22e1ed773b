package main

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// The numbers of calls, out of a hundred of the mixed load, for new keys and for exhausted
// hot keys. The others use the live keys in turn.
const (
	newOfHundred    = 1
	deniedOfHundred = 9
)

// mixedLoad times every call of a mixed load, from all cores at once and from at least two
// goroutines. Each worker uses its own live keys, so that the number of calls per key is
// known and the answers can be checked.
func mixedLoad(r *round) error {
	s := r.sizes
	allow, _, err := r.limiter(contenders.Hundred, contenders.Allowed)
	if err != nil {
		return err
	}
	// The order of the keys is: hot ones, live ones, new ones.
	wrong := 0
	for range contenders.Hundred.Burst {
		wrong += fill(allow, r.keys, hotKeys) // until they are exhausted
	}
	for i := range s.live {
		if allow(r.keys.at(hotKeys+i)) != contenders.Allowed {
			wrong++
		}
	}
	runtime.GC()

	workers := max(2, cores())
	calls := s.mixed / workers
	newKeys := (calls/100 + 1) * newOfHundred // for each worker
	order := shuffled(s.live)
	loads := make([]*load, workers)
	for w := range loads {
		share := s.live / workers
		loads[w] = &load{
			allow:    allow,
			keys:     r.keys,
			live:     order[w*share : (w+1)*share],
			nextNew:  hotKeys + s.live + w*newKeys,
			calls:    calls,
			calendar: calendar(uint64(w)),
			took:     make([]uint32, 0, calls),
		}
	}
	var wg sync.WaitGroup
	for _, l := range loads {
		wg.Go(l.run)
	}
	wg.Wait()

	var took []uint32
	for _, l := range loads {
		took = append(took, l.took...)
		wrong += l.wrong
	}
	slices.Sort(took)
	at := func(share float64) float64 { return float64(took[int(share*float64(len(took)-1))]) }
	r.add("mixed-p50", at(0.5), wrong)
	r.add("mixed-p99", at(0.99), 0)
	r.add("mixed-p99.9", at(0.999), 0)
	r.add("mixed-max", at(1)/1e6, 0)
	return nil
}

// The kinds of calls of the mixed load.
const (
	forLive = iota
	forDenied
	forNew
)

// calendar returns the kind of each of a hundred calls.
func calendar(seed uint64) (kinds [100]uint8) {
	for i := range kinds {
		switch {
		case i < newOfHundred:
			kinds[i] = forNew
		case i < newOfHundred+deniedOfHundred:
			kinds[i] = forDenied
		default:
			kinds[i] = forLive
		}
	}
	r := rand.New(rand.NewPCG(3, seed))
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	return kinds
}

// A load is the load of one worker.
type load struct {
	allow    contenders.Allow
	keys     keys
	live     []uint32 // the live keys that it uses in turn
	nextNew  int      // the next new key
	calls    int
	calendar [100]uint8

	took  []uint32 // nanoseconds of each call
	wrong int
}

func (l *load) run() {
	base := time.Now()
	liveAt := 0
	for i := range l.calls {
		want := contenders.Allowed
		var key string
		switch l.calendar[i%len(l.calendar)] {
		case forLive:
			key = l.keys.at(hotKeys + int(l.live[liveAt]))
			liveAt = (liveAt + 1) % len(l.live)
		case forDenied:
			key, want = l.keys.at(i%hotKeys), contenders.Denied
		case forNew:
			key = l.keys.at(l.nextNew)
			l.nextNew++
		}
		start := time.Since(base)
		a := l.allow(key)
		took := time.Since(base) - start
		if a != want {
			l.wrong++
		}
		l.took = append(l.took, uint32(min(took, math.MaxUint32)))
	}
}
