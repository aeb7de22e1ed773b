package linear_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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

// manyKeys is the number of keys of a history of decisions on several keys.
const manyKeys = 3

// jointNames are the keys.
var jointNames = [manyKeys]string{"a", "b", "c"}

// A jointCall is one operation of such a history.
type jointCall struct {
	op      string // all, allHeld, take, allow, peek, hold, settle, reset or advance
	keys    []int  // of all; the others have one
	n       int
	hold    int // of allHeld, hold and settle: which one
	limit   int // the index of the keys' limits
	advance time.Duration
	during  during
}

// A jointState is the states of the keys in a sequential limiter.
type jointState struct {
	changed [manyKeys]int64 // when each was
	bytes   [manyKeys]string
	holds   holds
}

// jointly returns the specification: the compiled limits, by limit and key.
func jointly(limits [][manyKeys]*limit.Limit, times times) porcupine.Model {
	specification := porcupine.NondeterministicModel{
		Init: func() []any { return []any{jointState{}} },
		Equal: func(a, b any) bool {
			x, y := a.(jointState), b.(jointState)
			return x.changed == y.changed && x.bytes == y.bytes && slices.Equal(x.holds, y.holds)
		},
		Step: func(s, input, output any) (next []any) {
			st, c := s.(jointState), input.(jointCall)
			if c.op == "reset" {
				st.bytes[c.keys[0]] = ""
				return []any{st}
			}
			var changed int64
			for _, key := range c.keys {
				changed = max(changed, st.changed[key])
			}
			for _, now := range times.of(c.during, changed) {
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
func (st jointState) step(limits [manyKeys]*limit.Limit, c jointCall, now int64, output ratelimit.Decision) (after jointState, ok bool) {
	apply := func(key int, req step.Request) (string, step.Answer) {
		t, err := limits[key].Apply([]byte(st.bytes[key]), req.At(time.Unix(0, now)))
		if err != nil {
			panic(err)
		}
		return string(t.State), t.Answer
	}
	set := func(key int, bytes string) {
		if st.bytes[key] != bytes {
			st.changed[key], st.bytes[key] = now, bytes
		}
	}
	if c.op == "all" || c.op == "allHeld" {
		bytes, d := st.takeAll(c, apply)
		for key := range bytes {
			set(key, bytes[key])
		}
		return st, d == output
	}
	key, req := c.keys[0], step.Request{Op: step.OpTake, N: c.n}
	switch c.op {
	case "peek":
		req.Op = step.OpPeek
	case "hold":
		req.Op, req.Hold = step.OpHold, handle(c.hold)
	case "settle":
		req.Op, req.Hold = step.OpSettle, handle(c.hold)
		req.Of, _ = st.holds.find(c.hold)
	}
	next, res := apply(key, req)
	set(key, next)
	if c.op == "hold" && res.Allowed {
		st.holds = append(slices.Clip(st.holds), held{c.hold, c.n})
	}
	if c.op == "allow" {
		return st, res.Allowed == output.Allowed
	}
	return st, ratelimit.Decision(res.Decision) == output
}

// takeAll takes n events of all keys of a call or of none.
func (st jointState) takeAll(c jointCall, apply func(key int, req step.Request) (string, step.Answer)) (next [manyKeys]string, d ratelimit.Decision) {
	times := map[int]int{}
	for _, key := range c.keys {
		times[key]++
	}
	granted := true
	next = st.bytes
	req := step.Request{Op: step.OpTake}
	if c.op == "allHeld" {
		req.Op, req.Hold = step.OpHold, handle(c.hold)
	}
	var answers [manyKeys]ratelimit.Decision
	for key, k := range times {
		var res step.Answer
		req.N = k * c.n
		next[key], res = apply(key, req)
		answers[key] = ratelimit.Decision(res.Decision)
		granted = granted && res.Allowed
	}
	for key := range times {
		if !granted && answers[key].Allowed { // it keeps its events, by the present limit
			var res step.Answer
			next[key], res = apply(key, step.Request{Op: step.OpTake})
			answers[key] = ratelimit.Decision(res.Decision)
		}
	}
	varies, least := len(times) < len(c.keys), 0 // then Limit and Remaining are those of the key that decides
	for i, key := range c.keys {
		a := answers[key]
		left := a.Remaining
		if varies && c.n > 0 {
			left /= times[key] * c.n // the number of such calls
		}
		if i == 0 {
			d, least = a, left
			d.Part = 0
			continue
		}
		decides := !a.Allowed && (d.Allowed || a.RetryAfter > d.RetryAfter) || d.Allowed && left < least
		if decides {
			d.Part = i
		}
		switch {
		case !varies:
			d.Limit, d.Remaining = min(d.Limit, a.Limit), min(d.Remaining, a.Remaining)
		case decides:
			d.Limit, d.Remaining = a.Limit, a.Remaining
		}
		d.Allowed, least = d.Allowed && a.Allowed, min(least, left)
		d.RetryAfter, d.ResetAfter, d.Delay = max(d.RetryAfter, a.RetryAfter), max(d.ResetAfter, a.ResetAfter), max(d.Delay, a.Delay)
	}
	if !d.Allowed {
		d.Delay = 0
	}
	return next, d
}

// A jointSetting is what keys are decided on together, and where they are.
type jointSetting struct {
	limits   [][manyKeys]ratelimit.Algorithm // those of each key; several if limits vary
	limiters [manyKeys]int                   // the limiter of each key
	stores   [manyKeys]int                   // the store of each limiter
	stands   bool                            // whether the clock does: each store has its own reading
}

var (
	jointBucket = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(3), Burst: 5}
	jointWindow = ratelimit.FixedWindow{Limit: 5, Window: time.Second}
	jointPair   = ratelimit.SlidingWindow{Limit: 6, Window: time.Second}
	jointWide   = ratelimit.SlidingWindow{Limit: 5, Window: time.Second, Segments: 4}
	jointLog    = ratelimit.SlidingLog{Limit: 5, Window: time.Second}
	jointQueue  = ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(4), Capacity: 5}
	jointSlow   = ratelimit.TokenBucket{Rate: ratelimit.PerSecond(7), Burst: 4} // not a word
)

var jointSettings = map[string]jointSetting{
	"words":       {limits: [][manyKeys]ratelimit.Algorithm{{jointBucket, jointWindow, jointPair}}, limiters: [manyKeys]int{0, 1, 2}},
	"one limiter": {limits: [][manyKeys]ratelimit.Algorithm{{jointBucket, jointBucket, jointBucket}}},
	"one log":     {limits: [][manyKeys]ratelimit.Algorithm{{jointLog, jointLog, jointLog}}},
	"widths":      {limits: [][manyKeys]ratelimit.Algorithm{{jointBucket, jointWide, jointLog}}, limiters: [manyKeys]int{0, 1, 2}},
	"stores":      {limits: [][manyKeys]ratelimit.Algorithm{{jointQueue, jointWindow, jointLog}}, limiters: [manyKeys]int{0, 1, 2}, stores: [manyKeys]int{0, 1, 2}, stands: true},
	"limits": {limits: [][manyKeys]ratelimit.Algorithm{
		{jointBucket, jointBucket, jointBucket},
		{jointSlow, jointSlow, jointSlow},
		{jointWindow, jointWindow, jointWindow},
	}},
}

// TestJointlyLinearizable: decisions on several keys, while others decide on each of them.
func TestJointlyLinearizable(t *testing.T) {
	for name, joint := range jointSettings {
		for _, settingName := range []string{"quiet", "growing", "evicting", "splitting"} {
			set := settings[settingName]
			if set.keys > 0 && name != "words" && name != "widths" {
				continue
			}
			t.Run(name+"/"+settingName, func(t *testing.T) {
				t.Parallel()
				for seed := range budget.Seeds(t, set.seeds) {
					checkJointly(t, joint, set, seed)
				}
			})
		}
	}
}

// checkJointly calls limiters from a few goroutines concurrently and checks the history. There
// are either resets and evictions, or holds, because a hold may be lost if another key of the
// store is forgotten.
func checkJointly(t *testing.T, joint jointSetting, set setting, seed uint64) {
	t.Helper()
	const callers, calls = 4, 20
	clk := storetest.NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	times := newTimes(clk)
	var stores [manyKeys]*ratelimit.MemoryStore
	var limiters [manyKeys]ratelimit.Limiter
	var bounds [manyKeys]ratelimit.Bound
	observed, observes := newTally(jointNames[:]...), seed%4 >= 2
	for key, i := range joint.limiters {
		if stores[joint.stores[i]] == nil {
			stores[joint.stores[i]] = &ratelimit.MemoryStore{MaxKeys: set.maxKeys}
		}
		if limiters[i] == nil {
			opts := []ratelimit.Option{ratelimit.WithStore(stores[joint.stores[i]]), ratelimit.WithClock(clk), ratelimit.WithName(fmt.Sprint(i))}
			if len(joint.limits) > 1 {
				opts = append(opts, ratelimit.WithLimits(func(ctx context.Context, _ string) (ratelimit.Algorithm, error) {
					alg, _ := ctx.Value(ownLimit{}).(ratelimit.Algorithm)
					return alg, nil
				}))
			}
			if observes {
				opts = append(opts, ratelimit.WithObserver(observed.Observe))
			}
			limiters[i] = ratelimit.Must(ratelimit.New(joint.limits[0][key], opts...))
		}
		bounds[key] = ratelimit.For(limiters[i], jointNames[key])
	}
	second := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1000)},
		ratelimit.WithStore(stores[0]), ratelimit.WithClock(clk), ratelimit.WithName("second")))
	for i := range set.keys {
		limiters[0].Allow(fmt.Sprint("old ", i))
	}
	stop := noise(limiters[0], second, stores[0], set)
	defer stop()

	holds := seed%2 == 1 && set.maxKeys == 0 && len(joint.limits) == 1
	recorded := newRecorder()
	record := func(id int, c jointCall, r **ratelimit.Reservation) {
		if c.op == "advance" {
			times.advance(clk, c.advance)
			return
		}
		op := porcupine.Operation{ClientId: id, Call: recorded.now()}
		c.during.from = now(clk)
		ctx := context.Background()
		if c.limit > 0 {
			ctx = context.WithValue(ctx, ownLimit{}, joint.limits[c.limit][0])
		}
		op.Output = doJointly(ctx, t, bounds, c, r)
		c.during.to = now(clk)
		op.Input, op.Return = c, recorded.now()
		recorded.add(op)
	}
	var wg sync.WaitGroup
	for id := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(id)))
		wg.Go(func() {
			var held *ratelimit.Reservation
			var hold jointCall
			for i := range calls {
				c := randomCall(rng, id, holds, len(joint.limits))
				c.hold = id*calls + i
				switch {
				case held != nil && rng.IntN(2) == 0:
					c = jointCall{op: "settle", keys: hold.keys, n: rng.IntN(4), hold: hold.hold}
				case c.op == "hold" && held != nil:
					c.op = "take"
				case c.op == "hold":
					hold = c
				}
				if c.op == "advance" && joint.stands {
					c.advance = 0
				}
				record(id, c, &held)
			}
		})
	}
	wg.Wait()
	stop()
	if observes {
		observed.check(t, seed, recorded.history)
	}

	var compiled [][manyKeys]*limit.Limit
	for _, limits := range joint.limits {
		var of [manyKeys]*limit.Limit
		for key, alg := range limits {
			var err error
			if of[key], err = fakes.NewLimit(alg); err != nil {
				t.Fatal(err)
			}
		}
		compiled = append(compiled, of)
	}
	recorded.check(t, seed, jointly(compiled, *times))
}

// randomCall returns a call of a goroutine.
func randomCall(rng *rand.Rand, id int, holds bool, limits int) jointCall {
	c := jointCall{op: "all", n: 1 + rng.IntN(2)}
	for range 2 + rng.IntN(2) { // in any order, and some of them twice
		c.keys = append(c.keys, rng.IntN(manyKeys))
	}
	c.limit = rng.IntN(limits)
	p := rng.IntN(20)
	switch {
	case p < 2:
		c.op = "peek"
	case p < 3 && holds:
		c.op = "hold"
	case p < 3:
		c.op, c.limit = "reset", 0
	case p < 6 && id == 0: // one goroutine moves the clock
		return jointCall{op: "advance", advance: time.Duration(rng.IntN(5)) * 100 * time.Millisecond}
	case p < 9:
		c.op, c.limit = "allow", 0
	case p < 11:
		c.op = "take"
	case p < 13 && holds:
		c.op = "hold"
	case p < 15:
		c.op = "allHeld"
	}
	if !strings.HasPrefix(c.op, "all") || c.op == "allow" {
		c.keys = c.keys[:1]
	}
	return c
}

func doJointly(ctx context.Context, t *testing.T, bounds [manyKeys]ratelimit.Bound, c jointCall, held **ratelimit.Reservation) (d ratelimit.Decision) {
	var of []ratelimit.Bound
	for _, key := range c.keys {
		of = append(of, bounds[key])
	}
	var err error
	switch c.op {
	case "all":
		d, err = ratelimit.TakeAll(ctx, c.n, of...)
	case "allHeld":
		_, d, err = ratelimit.HoldAll(ctx, c.n, of...)
	case "take":
		d, err = of[0].Limiter().Take(ctx, of[0].Key(), c.n)
	case "allow":
		d.Allowed = of[0].Limiter().AllowN(of[0].Key(), c.n)
	case "peek":
		d, err = of[0].Limiter().Peek(ctx, of[0].Key())
	case "hold":
		*held, d, err = of[0].Limiter().Hold(ctx, of[0].Key(), c.n)
	case "settle":
		d, err = (*held).Settle(ctx, c.n)
		*held = nil
	case "reset":
		err = of[0].Limiter().Reset(ctx, of[0].Key())
	}
	if err != nil {
		t.Error(err)
	}
	return d
}

// TestCatchesPartialDecisions checks that the check can fail, if a denial of one key leaves
// events spent in another one.
func TestCatchesPartialDecisions(t *testing.T) {
	var limits [manyKeys]*limit.Limit
	for key := range limits {
		var err error
		if limits[key], err = fakes.NewLimit(ratelimit.FixedWindow{Limit: 2 + key, Window: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(remaining, limit, n int) ratelimit.Decision {
		d := ratelimit.Decision{Allowed: n > 0, Limit: limit, Remaining: remaining, ResetAfter: time.Second}
		if n == 0 {
			d.RetryAfter = time.Second
		}
		return d
	}
	history := func(third ratelimit.Decision) (ops []porcupine.Operation) {
		calls := []jointCall{{op: "take", keys: []int{0}, n: 2}, {op: "all", keys: []int{1, 0}, n: 1}, {op: "take", keys: []int{1}, n: 1}}
		denied := of(0, 2, 0)
		denied.Part = 1
		for i, d := range []ratelimit.Decision{of(0, 2, 1), denied, third} {
			ops = append(ops, porcupine.Operation{Input: calls[i], Output: d, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		return ops
	}
	model := jointly([][manyKeys]*limit.Limit{limits}, times{0})
	if !porcupine.CheckOperations(model, history(of(2, 3, 1))) {
		t.Error("a denial in one key spends nothing in the other")
	}
	if porcupine.CheckOperations(model, history(of(1, 3, 1))) {
		t.Error("a denial has spent an event, and the check did not notice")
	}
}
