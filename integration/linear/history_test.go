package linear_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A setting is a store and what else happens to it during a history, which must make no
// difference to the results.
type setting struct {
	maxKeys int // the bound of the store, or 0

	// keys is the number of keys in the store when the history begins.
	keys int

	// noise is called repeatedly during the history. The second limiter in the store, with
	// a limit of 1000, is for keys that the store evicts before any key of the history,
	// because their loss forgives less.
	noise func(l, second ratelimit.Limiter, s *ratelimit.MemoryStore, i int)

	seeds uint64
	holds bool // whether events are held, settled and charged
}

var settings = map[string]setting{
	"quiet": {seeds: 20},
	"growing": {seeds: 20, noise: func(l, _ ratelimit.Limiter, s *ratelimit.MemoryStore, i int) {
		l.Allow(fmt.Sprint("new ", i))
		if i%8 == 0 {
			s.Shrink() // replaces every table
		}
	}},
	"evicting": {seeds: 20, maxKeys: 8, // in one shard
		noise: func(_, second ratelimit.Limiter, _ *ratelimit.MemoryStore, i int) {
			second.Allow(fmt.Sprint("new ", i))
		}},
	// Each of the 64 shards has more than 4,096 keys, so that it is split when its table
	// is replaced.
	"splitting": {seeds: 1, keys: 64 * 4400, noise: func(_, _ ratelimit.Limiter, s *ratelimit.MemoryStore, i int) {
		if i > 20 {
			s.Shrink()
		}
	}},
}

// callers is how many goroutines make the calls of a history.
const callers = 4

// A history is the calls of a few goroutines on two keys of one limiter, and on a third one by
// TakeEach.
type history struct {
	*testing.T
	*recorder
	limits   []ratelimit.Algorithm
	set      setting
	store    *ratelimit.MemoryStore
	limiter  ratelimit.Limiter
	observed *tally // nil if the limiter has no observer
}

// newHistory returns an empty one. Every other seed has an observer: Allow takes another way then,
// and both are to be checked.
func newHistory(t *testing.T, limits []ratelimit.Algorithm, set setting, seed uint64) *history {
	h := &history{
		T:        t,
		recorder: newRecorder(newClock()),
		limits:   limits,
		set:      set,
		store:    &ratelimit.MemoryStore{MaxKeys: set.maxKeys},
	}
	opts := []ratelimit.Option{ratelimit.WithStore(h.store), ratelimit.WithName("test"), ratelimit.WithClock(h.clk)}
	if seed%2 == 1 {
		h.observed = newTally("a", "b", "c")
		opts = append(opts, ratelimit.WithObserver(h.observed.Observe))
	}
	h.limiter = newLimiter(limits, opts...)
	return h
}

func newClock() *storetest.Clock {
	return storetest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
}

// callAtOnce makes all calls, and returns when each has returned.
func (h *history) callAtOnce(seed uint64) {
	stop := h.set.disturb(h.limiter, h.store, h.clk)
	defer stop()
	var all sync.WaitGroup
	for id := range callers {
		c := caller{
			history: h,
			id:      id,
			rng:     rand.New(rand.NewPCG(seed, uint64(id))),
			held:    make(map[int]*ratelimit.Reservation),
		}
		all.Go(c.callAll)
	}
	all.Wait()
}

// A caller makes the calls of one goroutine.
type caller struct {
	*history
	id   int
	rng  *rand.Rand
	held map[int]*ratelimit.Reservation // by the number of the hold; nil if it was denied
	open []call                         // the holds that it has not settled
}

func (c *caller) callAll() {
	for i := range 25 {
		c.do(c.next(1000*c.id + i))
	}
}

// next chooses a call. If it is a hold, it gets the number.
func (c *caller) next(number int) call {
	next := c.nextOfTakes()
	if c.set.holds && next.op != "advance" && next.op != "peek" {
		next = c.nextOfHolds(next, number)
	}
	switch next.op {
	case "take", "each", "peek", "up to":
		next.limit = c.rng.IntN(len(c.limits))
	}
	return next
}

// nextOfTakes chooses a call that no hold comes from. One goroutine moves the clock.
func (c *caller) nextOfTakes() call {
	next := call{op: "take", key: []string{"a", "b"}[c.rng.IntN(2)], n: 1 + c.rng.IntN(2)}
	switch p := c.rng.IntN(20); {
	case p < 2:
		next.op = "peek"
	case p < 3:
		next.op = "reset"
	case p < 6 && c.id == 0:
		next.op, next.advance = "advance", time.Duration(c.rng.IntN(5))*100*time.Millisecond
	case p < 12:
		next.op = "allow"
	case p < 14:
		next.op = "each"
	case p < 16:
		next.op, next.n = "up to", 2+c.rng.IntN(4)
	}
	return next
}

// nextOfHolds replaces a call by a hold, a settlement or a charge, or leaves it. The more holds are
// open, the sooner one is settled.
func (c *caller) nextOfHolds(next call, number int) call {
	switch p := c.rng.IntN(20); {
	case len(c.open) > 0 && p < 4+2*len(c.open):
		i := c.rng.IntN(len(c.open))
		of := c.open[i]
		c.open = slices.Delete(c.open, i, i+1)
		return call{op: "settle", key: of.key, n: c.rng.IntN(4), hold: of.hold}
	case len(c.open) < 3 && p < 14:
		next.op, next.hold = "hold", number
		c.open = append(c.open, next)
	case p < 15:
		next.op = "charge"
	case next.op == "reset": // it could come while a hold is being settled, and count on neither side
		next.op = "take"
	}
	return next
}

// do makes a call, and records it.
func (c *caller) do(next call) {
	switch next.op {
	case "advance":
		c.advance(next.advance)
	case "each":
		c.takeEach(next)
	default:
		var result ratelimit.Decision
		ctx := withLimit(c.limits, next.limit)
		op, during := c.run(c.id, func() { result = c.result(ctx, next) })
		next.during = during
		op.Input, op.Output = next, result
		c.add(op)
	}
}

// each are the keys of TakeEach. The first is there twice, so that its state has changed when
// it is decided on again.
var each = []string{"a", "b", "c", "a"}

// takeEach calls TakeEach, and records it as a take of each key, by a caller of its own, because it
// decides on each for itself.
func (c *caller) takeEach(next call) {
	var results []ratelimit.Decision
	ctx := withLimit(c.limits, next.limit)
	op, during := c.run(c.id, func() {
		var err error
		results, err = c.limiter.TakeEach(ctx, each, next.n, nil)
		c.noError(err)
	})
	for i, result := range results {
		op.Input = call{op: "take", key: each[i], n: next.n, limit: next.limit, during: during}
		op.Output = result
		c.add(op)
	}
}

// result makes a call of the limiter.
func (c *caller) result(ctx context.Context, next call) (d ratelimit.Decision) {
	var err error
	l := c.limiter
	switch next.op {
	case "take":
		d, err = l.Take(ctx, next.key, next.n)
	case "up to": // the Decision tells how many are left, and with it how many were granted
		_, d, err = l.TakeUpTo(ctx, next.key, next.n)
	case "allow":
		d.Allowed = l.AllowN(next.key, next.n)
	case "peek":
		d, err = l.Peek(ctx, next.key)
	case "reset":
		err = l.Reset(ctx, next.key)
	case "hold":
		c.held[next.hold], d, err = l.Hold(ctx, next.key, next.n)
	case "settle":
		if r := c.held[next.hold]; r != nil {
			d, err = r.Settle(ctx, next.n)
		}
	case "charge":
		d, err = l.Charge(ctx, next.key, next.n)
	}
	c.noError(err)
	return d
}

func (h *history) noError(err error) {
	if err != nil {
		h.Error(err)
	}
}

// ownLimit is the key of a context whose value is the limit that the lookup returns.
type ownLimit struct{}

// newLimiter returns a limiter with the first of the limits, or with any of them: see withLimit.
func newLimiter(limits []ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	if len(limits) > 1 {
		opts = append(opts, ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			alg, _ := ctx.Value(ownLimit{}).(ratelimit.Algorithm)
			return alg, nil
		}))
	}
	return ratelimit.Must(ratelimit.New(limits[0], opts...))
}

// withLimit returns the context of calls that are decided on by one of the limits of newLimiter. A
// call without such a context, as an Allow, is decided on by the first.
func withLimit(limits []ratelimit.Algorithm, i int) context.Context {
	if i == 0 {
		return context.Background()
	}
	return context.WithValue(context.Background(), ownLimit{}, limits[i])
}

// disturb fills a store with keys, and then makes noise until stop is called. stop waits for the end
// of the noise.
func (set setting) disturb(
	l ratelimit.Limiter,
	store *ratelimit.MemoryStore,
	clk *storetest.Clock,
) (stop func()) {
	second := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)},
		ratelimit.WithStore(store), ratelimit.WithClock(clk), ratelimit.WithName("second")))
	for i := range set.keys {
		l.Allow(fmt.Sprint("old ", i))
	}
	if set.noise == nil {
		return func() {}
	}
	var stopped atomic.Bool
	var ended sync.WaitGroup
	loud := make(chan struct{})
	ended.Go(func() {
		for i := 0; !stopped.Load(); i++ {
			set.noise(l, second, store, i)
			if i == 20 {
				close(loud)
			}
		}
	})
	<-loud
	return func() {
		stopped.Store(true)
		ended.Wait()
	}
}
