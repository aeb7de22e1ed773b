package linear_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file checks decisions on several keys: TestJointlyLinearizable, then how a history of them is
// made, then what they are when they are made one after the other.

// manyKeys is the number of keys of a history of decisions on several keys.
const manyKeys = 3

// jointNames are the keys.
var jointNames = [manyKeys]string{"a", "b", "c"}

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
	"words": {
		limits:   [][manyKeys]ratelimit.Algorithm{{jointBucket, jointWindow, jointPair}},
		limiters: [manyKeys]int{0, 1, 2},
	},
	"one limiter": {limits: [][manyKeys]ratelimit.Algorithm{{jointBucket, jointBucket, jointBucket}}},
	"one log":     {limits: [][manyKeys]ratelimit.Algorithm{{jointLog, jointLog, jointLog}}},
	"widths": {
		limits:   [][manyKeys]ratelimit.Algorithm{{jointBucket, jointWide, jointLog}},
		limiters: [manyKeys]int{0, 1, 2},
	},
	"stores": {
		limits:   [][manyKeys]ratelimit.Algorithm{{jointQueue, jointWindow, jointLog}},
		limiters: [manyKeys]int{0, 1, 2},
		stores:   [manyKeys]int{0, 1, 2},
		stands:   true,
	},
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

// checkJointly makes a history of limiters, and fails the test unless it is linearizable, and unless
// the observers were told of each decision once.
func checkJointly(t *testing.T, joint jointSetting, set setting, seed uint64) {
	t.Helper()
	h := newJointHistory(t, joint, set, seed)
	h.callAtOnce(seed)
	if h.observed != nil {
		h.observed.check(t, seed, h.ops)
	}
	var limits [][manyKeys]*limit.Limit
	for _, algs := range joint.limits {
		limits = append(limits, compiledJointly(t, algs))
	}
	h.check(t, seed, jointly(limits, h.times))
}

func compiledJointly(t *testing.T, algs [manyKeys]ratelimit.Algorithm) [manyKeys]*limit.Limit {
	t.Helper()
	return [manyKeys]*limit.Limit(compiled(t, algs[:]...))
}

// A jointHistory is the calls of a few goroutines on several keys.
type jointHistory struct {
	*testing.T
	*recorder
	joint    jointSetting
	set      setting
	stores   [manyKeys]*ratelimit.MemoryStore
	limiters [manyKeys]ratelimit.Limiter // nil where the setting has fewer
	bounds   [manyKeys]ratelimit.Bound
	observed *tally // nil if the limiters have no observer

	// holds is whether events are held. If they are, there are no resets and no evictions, because a
	// hold may be lost if another key of the store is forgotten.
	holds bool
}

// newJointHistory returns an empty one. Of four seeds, two have an observer, and two hold events if
// the setting allows it.
func newJointHistory(t *testing.T, joint jointSetting, set setting, seed uint64) *jointHistory {
	h := &jointHistory{
		T:        t,
		recorder: newRecorder(newClock()),
		joint:    joint,
		set:      set,
		holds:    seed%2 == 1 && set.maxKeys == 0 && len(joint.limits) == 1,
	}
	if seed%4 >= 2 {
		h.observed = newTally(jointNames[:]...)
	}
	for i := range h.stores {
		h.stores[i] = &ratelimit.MemoryStore{MaxKeys: set.maxKeys}
	}
	for key, i := range joint.limiters {
		if h.limiters[i] == nil {
			h.limiters[i] = h.newLimiter(i, key)
		}
		h.bounds[key] = ratelimit.For(h.limiters[i], jointNames[key])
	}
	return h
}

// newLimiter returns the limiter of an index, with the limits of a key.
func (h *jointHistory) newLimiter(i, key int) ratelimit.Limiter {
	opts := []ratelimit.Option{
		ratelimit.WithStore(h.stores[h.joint.stores[i]]),
		ratelimit.WithName(fmt.Sprint(i)),
		ratelimit.WithClock(h.clk),
	}
	if h.observed != nil {
		opts = append(opts, ratelimit.WithObserver(h.observed.Observe))
	}
	return newLimiter(h.limitsOf(key), opts...)
}

// limitsOf returns the limits of a key.
func (h *jointHistory) limitsOf(key int) (algs []ratelimit.Algorithm) {
	for _, of := range h.joint.limits {
		algs = append(algs, of[key])
	}
	return algs
}

// callAtOnce makes all calls, and returns when each has returned.
func (h *jointHistory) callAtOnce(seed uint64) {
	stop := h.set.disturb(h.limiters[0], h.stores[0], h.clk)
	defer stop()
	var all sync.WaitGroup
	for id := range callers {
		c := jointCaller{jointHistory: h, id: id, rng: rand.New(rand.NewPCG(seed, uint64(id)))}
		all.Go(c.callAll)
	}
	all.Wait()
}

// A jointCall is one operation of such a history.
type jointCall struct {
	op      string // all, allHeld, take, allow, peek, hold, settle, reset or advance
	keys    []int  // of all and allHeld; the others have one
	n       int
	hold    int // of allHeld, hold and settle: which one
	limit   int // the index of the keys' limits
	advance time.Duration
	during  during
}

// together reports whether the call decides on its keys together.
func (c jointCall) together() bool { return c.op == "all" || c.op == "allHeld" }

// A jointCaller makes the calls of one goroutine. It has one open hold at a time, and leaves those of
// several keys open.
type jointCaller struct {
	*jointHistory
	id   int
	rng  *rand.Rand
	held *ratelimit.Reservation // nil if no hold is open
	hold jointCall              // which has made the open hold, if there is one
}

func (c *jointCaller) callAll() {
	for i := range 20 {
		c.do(c.next(1000*c.id + i))
	}
}

// next chooses a call. If it is a hold, it gets the number.
func (c *jointCaller) next(number int) jointCall {
	if c.held != nil && c.rng.IntN(2) == 0 {
		return jointCall{op: "settle", keys: c.hold.keys, n: c.rng.IntN(4), hold: c.hold.hold}
	}
	next := jointCall{op: c.nextOp(), n: 1 + c.rng.IntN(2), hold: number}
	if next.op == "advance" {
		if !c.joint.stands {
			next.advance = time.Duration(c.rng.IntN(5)) * 100 * time.Millisecond
		}
		return next
	}
	keys := 1
	if next.together() {
		keys = 2 + c.rng.IntN(2)
	}
	for range keys { // in any order, and some of them twice
		next.keys = append(next.keys, c.rng.IntN(manyKeys))
	}
	if next.op != "allow" && next.op != "reset" { // their limit cannot be chosen
		next.limit = c.rng.IntN(len(c.joint.limits))
	}
	if next.op == "hold" {
		c.hold = next
	}
	return next
}

// nextOp chooses what to call. One goroutine moves the clock.
func (c *jointCaller) nextOp() string {
	switch p := c.rng.IntN(20); {
	case p < 2:
		return "peek"
	case p < 5 && c.id == 0:
		return "advance"
	case p == 5 && !c.holds:
		return "reset"
	case p > 5 && p < 9 && c.holds && c.held == nil:
		return "hold"
	case p < 9:
		return "allow"
	case p < 11:
		return "take"
	case p < 15:
		return "allHeld"
	}
	return "all"
}

// do makes a call, and records it.
func (c *jointCaller) do(next jointCall) {
	if next.op == "advance" {
		c.advance(next.advance)
		return
	}
	var of []ratelimit.Bound
	for _, key := range next.keys {
		of = append(of, c.bounds[key])
	}
	var result ratelimit.Decision
	ctx := withLimit(c.limitsOf(0), next.limit)
	op, during := c.run(c.id, func() { result = c.result(ctx, next, of) })
	next.during = during
	op.Input, op.Output = next, result
	c.add(op)
}

// result makes a call of a limiter, or of several.
func (c *jointCaller) result(
	ctx context.Context,
	next jointCall,
	of []ratelimit.Bound,
) (d ratelimit.Decision) {
	var err error
	l, key := of[0].Limiter(), of[0].Key()
	switch next.op {
	case "all":
		d, err = ratelimit.TakeAll(ctx, next.n, of...)
	case "allHeld":
		_, d, err = ratelimit.HoldAll(ctx, next.n, of...)
	case "take":
		d, err = l.Take(ctx, key, next.n)
	case "allow":
		d.Allowed = l.AllowN(key, next.n)
	case "peek":
		d, err = l.Peek(ctx, key)
	case "hold":
		c.held, d, err = l.Hold(ctx, key, next.n)
	case "settle":
		d, err = c.held.Settle(ctx, next.n)
		c.held = nil
	case "reset":
		err = l.Reset(ctx, key)
	}
	if err != nil {
		c.Error(err)
	}
	return d
}

// A jointState is the states of the keys in a sequential limiter.
type jointState struct {
	changed [manyKeys]int64 // when each was
	bytes   [manyKeys]string
	holds   holds
}

// jointly is sequential for limiters that decide on several keys, by limit and key.
func jointly(limits [][manyKeys]*limit.Limit, times times) porcupine.Model {
	definition := porcupine.NondeterministicModel{
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
			for _, now := range times.of(c.during, st.latestChange(c.keys)) {
				if after, ok := st.step(limits[c.limit], c, now, output.(ratelimit.Decision)); ok {
					next = append(next, after)
				}
			}
			return next
		},
		DescribeOperation: describe,
	}
	return definition.ToModel()
}

// latestChange returns when the last of some keys was changed.
func (st jointState) latestChange(keys []int) (at int64) {
	for _, key := range keys {
		at = max(at, st.changed[key])
	}
	return at
}

// step makes a call at a time, and reports whether it has the given result.
func (st jointState) step(
	limits [manyKeys]*limit.Limit,
	c jointCall,
	now int64,
	result ratelimit.Decision,
) (after jointState, ok bool) {
	m := moment{limits, now}
	if c.together() {
		after, d := st.takeAll(m, c)
		return after, d == result
	}
	req := requestOf(c.op, c.n, c.hold)
	if c.op == "settle" {
		req.Of, _ = st.holds.find(c.hold)
	}
	after, answer := st.apply(m, c.keys[0], req)
	if c.op == "hold" && answer.Allowed {
		after.holds = after.holds.with(c.hold, c.n)
	}
	return after, returns(c.op, answer, result)
}

// A moment is the limits of the keys, and the time.
type moment struct {
	limits [manyKeys]*limit.Limit
	now    int64
}

// apply asks the limit of a key.
func (st jointState) apply(m moment, key int, req step.Request) (after jointState, a step.Answer) {
	t, err := m.limits[key].Apply([]byte(st.bytes[key]), req.At(time.Unix(0, m.now)))
	if err != nil {
		panic(err)
	}
	if left := string(t.State); st.bytes[key] != left {
		st.changed[key], st.bytes[key] = m.now, left
	}
	return st, t.Answer
}

// takeAll takes n events of all keys of a call, or of none. A key that is there twice is asked for
// both at once.
//
// Each key is asked by itself. If one of them refuses, those that would have granted their events
// keep them: they are asked for no event instead, so that each still has its present limit.
func (st jointState) takeAll(m moment, c jointCall) (after jointState, d ratelimit.Decision) {
	op := "take"
	if c.op == "allHeld" {
		op = "hold"
	}
	var answers [manyKeys]ratelimit.Decision
	before, granted := st, true
	for key, n := range c.events() {
		if n > 0 {
			var a step.Answer
			st, a = st.apply(m, key, requestOf(op, n, c.hold))
			answers[key] = ratelimit.Decision(a.Decision)
			granted = granted && a.Allowed
		}
	}
	if granted {
		return st, c.merged(answers)
	}
	for key, n := range c.events() {
		if n > 0 && answers[key].Allowed {
			var a step.Answer
			st.changed[key], st.bytes[key] = before.changed[key], before.bytes[key]
			st, a = st.apply(m, key, requestOf("take", 0, 0))
			answers[key] = ratelimit.Decision(a.Decision)
		}
	}
	return st, c.merged(answers)
}

// events returns how many events of each key a call asks for.
func (c jointCall) events() (of [manyKeys]int) {
	for _, key := range c.keys {
		of[key] += c.n
	}
	return of
}

// merged returns the decision on all keys of a call, given those on each: that of an All whose parts
// are the keys. If a key is there twice, the keys are asked for different numbers of events, and
// Limit and Remaining are those of the key that decides.
func (c jointCall) merged(answers [manyKeys]ratelimit.Decision) ratelimit.Decision {
	part := c.decider(answers)
	d := ratelimit.Decision{Allowed: true, Part: part}
	decider := answers[c.keys[part]]
	d.Limit, d.Remaining = decider.Limit, decider.Remaining
	for _, key := range c.keys {
		a := answers[key]
		if !c.repeats() {
			d.Limit, d.Remaining = min(d.Limit, a.Limit), min(d.Remaining, a.Remaining)
		}
		d.Allowed = d.Allowed && a.Allowed
		d.RetryAfter = max(d.RetryAfter, a.RetryAfter)
		d.ResetAfter = max(d.ResetAfter, a.ResetAfter)
		d.Delay = max(d.Delay, a.Delay)
	}
	if !d.Allowed {
		d.Delay = 0
	}
	return d
}

// decider returns the index of the first key that refuses for longest, or, if none refuses, of the
// first that has least left.
func (c jointCall) decider(answers [manyKeys]ratelimit.Decision) (part int) {
	for i, key := range c.keys {
		a, first := answers[key], answers[c.keys[part]]
		refusesLonger := !a.Allowed && (first.Allowed || a.RetryAfter > first.RetryAfter)
		hasLess := a.Allowed && first.Allowed && c.left(a, key) < c.left(first, c.keys[part])
		if refusesLonger || hasLess {
			part = i
		}
	}
	return part
}

// left returns how much a key has left, given the decision on it: events or, if a key is there twice,
// such calls.
func (c jointCall) left(a ratelimit.Decision, key int) int {
	if c.repeats() {
		return a.Remaining / c.events()[key]
	}
	return a.Remaining
}

// repeats reports whether a key is there twice.
func (c jointCall) repeats() bool {
	return slices.ContainsFunc(c.keys, func(key int) bool { return c.events()[key] > c.n })
}

// TestCatchesPartialDecisions checks that the check can fail, if a denial of one key leaves
// events spent in another one.
func TestCatchesPartialDecisions(t *testing.T) {
	var algs [manyKeys]ratelimit.Algorithm
	for key := range algs {
		algs[key] = ratelimit.FixedWindow{Limit: 2 + key, Window: time.Second}
	}
	of := func(remaining, limit, n int) ratelimit.Decision {
		d := ratelimit.Decision{Allowed: n > 0, Limit: limit, Remaining: remaining, ResetAfter: time.Second}
		if n == 0 {
			d.RetryAfter = time.Second
		}
		return d
	}
	history := func(third ratelimit.Decision) (ops []porcupine.Operation) {
		calls := []jointCall{
			{op: "take", keys: []int{0}, n: 2},
			{op: "all", keys: []int{1, 0}, n: 1},
			{op: "take", keys: []int{1}, n: 1},
		}
		denied := of(0, 2, 0)
		denied.Part = 1
		for i, d := range []ratelimit.Decision{of(0, 2, 1), denied, third} {
			ops = append(ops, porcupine.Operation{
				Input: calls[i], Output: d, Call: int64(2 * i), Return: int64(2*i + 1),
			})
		}
		return ops
	}
	model := jointly([][manyKeys]*limit.Limit{compiledJointly(t, algs)}, times{0})
	if !porcupine.CheckOperations(model, history(of(2, 3, 1))) {
		t.Error("a denial in one key spends nothing in the other")
	}
	if porcupine.CheckOperations(model, history(of(1, 3, 1))) {
		t.Error("a denial has spent an event, and the check did not notice")
	}
}
