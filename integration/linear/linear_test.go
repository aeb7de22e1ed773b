// Package linear_test checks that concurrent histories of a limiter are linearizable: the
// results of concurrent calls equal those of the same calls made one after the other, in
// some order.
package linear_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A call is one operation of a history.
type call struct {
	op      string // take, each, allow, peek, reset, hold, settle, charge, up to, or advance
	key     string
	n       int
	advance time.Duration
	limit   int // of take, up to and peek: the index of the key's limit at the time of the call
	hold    int // of hold and settle: which one
	during  during
}

// A state is the state of one key in a sequential limiter.
type state struct {
	changed int64 // when
	bytes   string
	holds   holds
}

// holds are those that a sequential limiter has granted.
type holds []held

type held struct{ hold, n int }

// find returns the number of events of a hold, and whether it was granted.
func (hs holds) find(hold int) (n int, ok bool) {
	for _, h := range hs {
		if h.hold == hold {
			return h.n, true
		}
	}
	return 0, false
}

// handle returns the identity of a hold.
func handle(hold int) step.Handle {
	return step.Handle{ID: uint64(hold) + 1, For: 10 * time.Minute}
}

// sequential returns the specification: the compiled limits, applied to one key
// by one caller at a time.
func sequential(limits []*limit.Limit, times times) porcupine.Model {
	specification := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			byKey := make(map[string][]porcupine.Operation)
			for _, op := range history {
				key := op.Input.(call).key
				byKey[key] = append(byKey[key], op)
			}
			return slices.Collect(maps.Values(byKey))
		},
		Init: func() []any { return []any{state{}} },
		Equal: func(a, b any) bool {
			x, y := a.(state), b.(state)
			return x.changed == y.changed && x.bytes == y.bytes && slices.Equal(x.holds, y.holds)
		},
		Step: func(s, input, output any) (next []any) {
			st, c := s.(state), input.(call)
			if c.op == "reset" {
				st.bytes = ""
				return []any{st}
			}
			for _, now := range times.of(c.during, st.changed) {
				if after, ok := st.step(limits[c.limit], c, now, output.(ratelimit.Decision)); ok {
					next = append(next, after)
				}
			}
			return next
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
	}
	return specification.ToModel()
}

// step makes a call at a time, and reports whether it has the given result.
func (st state) step(limit *limit.Limit, c call, now int64, output ratelimit.Decision) (after state, ok bool) {
	req := step.Request{Op: step.OpTake, N: c.n}
	switch c.op {
	case "peek":
		req.Op = step.OpPeek
	case "up to":
		req.UpTo = true
	case "hold":
		req.Op, req.Hold = step.OpHold, handle(c.hold)
	case "settle":
		of, granted := st.holds.find(c.hold)
		if !granted {
			return st, output == ratelimit.Decision{}
		}
		req.Op, req.Hold, req.Of = step.OpSettle, handle(c.hold), of
	case "charge":
		req.Op = step.OpCharge
	}
	t, err := limit.Apply([]byte(st.bytes), req.At(time.Unix(0, now)))
	if err != nil {
		return st, false
	}
	res := t.Answer
	if left := string(t.State); st.bytes != left {
		st.changed, st.bytes = now, left
	}
	if c.op == "hold" && res.Allowed {
		st.holds = append(slices.Clip(st.holds), held{c.hold, c.n})
	}
	if c.op == "allow" {
		return st, res.Allowed == output.Allowed
	}
	return st, ratelimit.Decision(res.Decision) == output
}

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

var algorithms = map[string]ratelimit.Algorithm{
	"TokenBucket":          ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
	"TokenBucket/wide":     ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 4},
	"TokenBucket/interval": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Refill: ratelimit.RefillInterval},
	"LeakyBucket":          ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 4},
	"FixedWindow":          ratelimit.FixedWindow{Limit: 4, Window: time.Second},
	"CalendarWindow":       ratelimit.CalendarWindow{Limit: 4, Every: ratelimit.Day},
	"SlidingWindow":        ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 4},
	"SlidingWindow/pair":   ratelimit.SlidingWindow{Limit: 4, Window: time.Second},
	"SlidingLog":           ratelimit.SlidingLog{Limit: 4, Window: time.Second},
	"Lockout":              ratelimit.Lockout{Limit: 4, Window: time.Second, First: 300 * time.Millisecond, Longest: time.Second},
	"SlidingLog/denied":    ratelimit.SlidingLog{Limit: 4, Window: time.Second, CountDenied: true},
	"RollingWindow":        ratelimit.RollingWindow{Quota: 8, Window: 2 * time.Second, Period: time.Second / 2, PeriodLimit: 4},
	"WarmingUp":            ratelimit.WarmingUp{Rate: ratelimit.PerSecond(3), Warmup: time.Second},
	"All": ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 4},
		ratelimit.SlidingLog{Limit: 6, Window: 2 * time.Second},
	},
}

func TestLinearizable(t *testing.T) {
	for name, alg := range algorithms {
		for settingName, s := range settings {
			if s.keys > 0 && !strings.HasPrefix(name, "TokenBucket") && name != "SlidingWindow" {
				continue // one algorithm of each width is enough
			}
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				for seed := range budget.Seeds(t, s.seeds) {
					check(t, []ratelimit.Algorithm{alg}, s, seed)
				}
			})
		}
	}
}

// TestLinearizableHolds: the same with holds, settlements and charges.
func TestLinearizableHolds(t *testing.T) {
	for name, alg := range algorithms {
		for _, settingName := range []string{"quiet", "growing", "evicting"} {
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				set := settings[settingName]
				set.holds = true
				for seed := range budget.Seeds(t, set.seeds) {
					check(t, []ratelimit.Algorithm{alg}, set, seed)
				}
			})
		}
	}
}

// TestLinearizableLimits: the same while the limits of keys change.
func TestLinearizableLimits(t *testing.T) {
	slow, fast := ratelimit.PerSecond(2), ratelimit.PerSecond(5)
	window := func(limit int, window time.Duration) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: limit, Window: window}
	}
	limits := map[string][]ratelimit.Algorithm{
		"TokenBucket": {ratelimit.TokenBucket{Rate: slow, Burst: 6}, ratelimit.TokenBucket{Rate: fast, Burst: 6}, ratelimit.TokenBucket{Rate: fast, Burst: 3}},
		"LeakyBucket": {ratelimit.LeakyBucket{Rate: slow, Capacity: 6}, ratelimit.LeakyBucket{Rate: fast, Capacity: 3}},
		"FixedWindow": {window(6, time.Second), window(3, time.Second), window(4, 2*time.Second)},
		"kinds":       {window(4, time.Second), ratelimit.TokenBucket{Rate: slow, Burst: 4}},
		"places": {ratelimit.TokenBucket{Rate: slow, Burst: 4}, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 5},
			ratelimit.TokenBucket{Rate: fast, Burst: 2}, ratelimit.SlidingLog{Limit: 4, Window: time.Second}},
	}
	for name, algs := range limits {
		for _, settingName := range []string{"quiet", "growing", "evicting"} {
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				set := settings[settingName]
				for seed := range budget.Seeds(t, set.seeds) {
					check(t, algs, set, seed)
				}
			})
		}
	}
}

// each are the keys of TakeEach. The first is there twice, so that its state has changed when
// it is decided on again.
var each = []string{"a", "b", "c", "a"}

// ownLimit is the key of a context whose value is the limit that the lookup returns.
type ownLimit struct{}

// check calls a limiter from a few goroutines concurrently and checks the history. If there
// is more than one limit, each call is made with one of them.
func check(t *testing.T, limits []ratelimit.Algorithm, set setting, seed uint64) {
	t.Helper()
	const callers, calls = 4, 25
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	times := newTimes(clk)
	store := &ratelimit.MemoryStore{MaxKeys: set.maxKeys}
	opts := []ratelimit.Option{ratelimit.WithStore(store), ratelimit.WithName("test"), ratelimit.WithClock(clk)}
	if len(limits) > 1 {
		opts = append(opts, ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
			alg, _ := ctx.Value(ownLimit{}).(ratelimit.Algorithm)
			return alg, nil
		}))
	}
	observed := newTally("a", "b", "c")
	if seed%2 == 1 { // Allow takes another way then, and both are to be checked
		opts = append(opts, ratelimit.WithObserver(observed.Observe))
	}
	l := ratelimit.Must(ratelimit.New(limits[0], opts...))
	second := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)},
		ratelimit.WithStore(store), ratelimit.WithClock(clk), ratelimit.WithName("second")))
	for i := range set.keys {
		l.Allow(fmt.Sprint("old ", i))
	}
	stop := noise(l, second, store, set)
	defer stop()

	recorded := newRecorder()
	reservations := make([]map[int]*ratelimit.Reservation, callers)
	record := func(id int, c call) {
		if c.op == "advance" {
			times.advance(clk, c.advance)
			return
		}
		op := porcupine.Operation{ClientId: id, Call: recorded.now()}
		c.during.from = now(clk)
		ctx := context.Background()
		if c.limit > 0 {
			ctx = context.WithValue(ctx, ownLimit{}, limits[c.limit])
		}
		if c.op == "each" {
			out, err := l.TakeEach(ctx, each, c.n, nil)
			if err != nil {
				t.Error(err)
			}
			c.during.to = now(clk)
			op.Return = recorded.now()
			for i, d := range out { // as if another caller took events of each key
				op.Input, op.Output = call{op: "take", key: each[i], n: c.n, limit: c.limit, during: c.during}, d
				recorded.add(op)
			}
			return
		}
		op.Output = do(ctx, t, l, c, reservations[id])
		c.during.to = now(clk)
		op.Input, op.Return = c, recorded.now()
		recorded.add(op)
	}
	keys := []string{"a", "b"}
	var wg sync.WaitGroup
	for id := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(id)))
		reservations[id] = make(map[int]*ratelimit.Reservation)
		wg.Go(func() {
			var open []call // holds to settle
			for i := range calls {
				c := call{op: "take", key: keys[rng.IntN(2)], n: 1 + rng.IntN(2)}
				switch p := rng.IntN(20); {
				case p < 2:
					c.op = "peek"
				case p < 3:
					c.op = "reset"
				case p < 6 && id == 0: // one goroutine moves the clock
					c.op, c.advance = "advance", time.Duration(rng.IntN(5))*100*time.Millisecond
				case p < 12:
					c.op = "allow"
				case p < 14:
					c.op = "each"
				case p < 16:
					c.op, c.n = "up to", 2+rng.IntN(4)
				}
				switch p := rng.IntN(20); {
				case !set.holds || c.op == "advance" || c.op == "peek":
				case len(open) > 0 && p < 4+2*len(open):
					j := rng.IntN(len(open))
					c = call{op: "settle", key: open[j].key, n: rng.IntN(4), hold: open[j].hold}
					open = slices.Delete(open, j, j+1)
				case len(open) < 3 && p < 14:
					c.op, c.hold = "hold", 1000*id+i
					open = append(open, c)
				case p < 15:
					c.op = "charge"
				case c.op == "reset": // it could come while a hold is being settled, and count on neither side
					c.op = "take"
				}
				if c.op == "take" || c.op == "each" || c.op == "peek" || c.op == "up to" {
					c.limit = rng.IntN(len(limits))
				}
				record(id, c)
			}
		})
	}
	wg.Wait()
	stop()
	if seed%2 == 1 {
		observed.check(t, seed, recorded.history)
	}

	var compiled []*limit.Limit
	for _, alg := range limits {
		one, err := fakes.NewLimit(alg)
		if err != nil {
			t.Fatal(err)
		}
		compiled = append(compiled, one)
	}
	recorded.check(t, seed, sequential(compiled, *times))
}

// noise calls the noise of a setting until stop is called. stop waits for the last call.
func noise(l, second ratelimit.Limiter, s *ratelimit.MemoryStore, set setting) (stop func()) {
	if set.noise == nil {
		return func() {}
	}
	var stopped atomic.Bool
	var wg sync.WaitGroup
	loud := make(chan struct{})
	wg.Go(func() {
		for i := 0; !stopped.Load(); i++ {
			set.noise(l, second, s, i)
			if i == 20 {
				close(loud)
			}
		}
	})
	<-loud
	return func() {
		stopped.Store(true)
		wg.Wait()
	}
}

// do makes a call. held has the reservations of its caller.
func do(ctx context.Context, t *testing.T, l ratelimit.Limiter, c call, held map[int]*ratelimit.Reservation) (d ratelimit.Decision) {
	var err error
	switch c.op {
	case "take":
		d, err = l.Take(ctx, c.key, c.n)
	case "up to": // the Decision tells how many are left, and with it how many were granted
		_, d, err = l.TakeUpTo(ctx, c.key, c.n)
	case "allow":
		d.Allowed = l.AllowN(c.key, c.n)
	case "peek":
		d, err = l.Peek(ctx, c.key)
	case "reset":
		err = l.Reset(ctx, c.key)
	case "hold":
		held[c.hold], d, err = l.Hold(ctx, c.key, c.n)
	case "settle":
		if r := held[c.hold]; r != nil {
			d, err = r.Settle(ctx, c.n)
		}
	case "charge":
		d, err = l.Charge(ctx, c.key, c.n)
	}
	if err != nil {
		t.Error(err)
	}
	return d
}

// TestCatchesLostUpdate checks that the check can fail, on a store that loses updates, the
// most common bug in stores.
func TestCatchesLostUpdate(t *testing.T) {
	alg := ratelimit.FixedWindow{Limit: 4, Window: time.Second}
	one, err := fakes.NewLimit(alg)
	if err != nil {
		t.Fatal(err)
	}
	limits := []*limit.Limit{one}
	told := func(remaining int) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: 4, Remaining: remaining, ResetAfter: time.Second}
	}
	take := call{op: "take", key: "a", n: 1}
	history := func(first, second int) []porcupine.Operation {
		return []porcupine.Operation{
			{ClientId: 0, Input: take, Output: told(first), Call: 0, Return: 10},
			{ClientId: 1, Input: take, Output: told(second), Call: 5, Return: 15},
		}
	}
	if !porcupine.CheckOperations(sequential(limits, times{0}), history(2, 3)) {
		t.Error("two overlapping calls may take effect in either order")
	}
	if porcupine.CheckOperations(sequential(limits, times{0}), history(3, 3)) {
		t.Error("two calls were granted the same event, and the check did not notice")
	}
}

// TestCatchesLostSettlement: the same for a settlement.
func TestCatchesLostSettlement(t *testing.T) {
	one, err := fakes.NewLimit(ratelimit.FixedWindow{Limit: 4, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	told := func(remaining int) ratelimit.Decision {
		return ratelimit.Decision{Allowed: true, Limit: 4, Remaining: remaining, ResetAfter: time.Second}
	}
	history := func(last int) []porcupine.Operation {
		return []porcupine.Operation{
			{Input: call{op: "hold", key: "a", n: 2, hold: 7}, Output: told(2), Call: 0, Return: 10},
			{Input: call{op: "settle", key: "a", n: 1, hold: 7}, Output: told(3), Call: 20, Return: 40},
			{ClientId: 1, Input: call{op: "take", key: "a", n: 1}, Output: told(last), Call: 30, Return: 50},
		}
	}
	limits := []*limit.Limit{one}
	if !porcupine.CheckOperations(sequential(limits, times{0}), history(2)) {
		t.Error("the take came after the settlement")
	}
	if porcupine.CheckOperations(sequential(limits, times{0}), history(3)) {
		t.Error("the take did not count, and the check did not notice")
	}
}
