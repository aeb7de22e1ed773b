package linear_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/storetest"
)

// A flightCall is one operation on the only key of a history.
type flightCall struct {
	op      string // hold, release, allow, peek or advance
	id      string // of the hold
	n       int
	advance time.Duration
}

// A flight is a hold that is not released.
type flight struct {
	id    string
	n     int
	until int64
}

// inFlight is the definition of an InFlight. Its states are the time and the flights, as text.
func inFlight(alg ratelimit.InFlight) porcupine.Model {
	used := func(flights []flight) (sum int) {
		for _, f := range flights {
			sum += f.n
		}
		return sum
	}
	type state struct {
		now     int64
		flights string
	}
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, input, output any) (bool, any) {
			st, c := s.(state), input.(flightCall)
			var flights []flight
			for _, line := range strings.Fields(st.flights) {
				var f flight
				if _, err := fmt.Sscanf(line, "%d,%d,%s", &f.until, &f.n, &f.id); err == nil && st.now < f.until {
					flights = append(flights, f)
				}
			}
			ok := true
			switch fits := used(flights)+c.n <= alg.Limit; c.op {
			case "hold", "allow":
				if ok = output.(int) == 1 == fits; fits {
					flights = append(flights, flight{c.id, c.n, st.now + int64(alg.Timeout)})
				}
			case "release":
				flights = slices.DeleteFunc(flights, func(f flight) bool { return f.id == c.id })
			case "peek":
				ok = output.(int) == alg.Limit-used(flights)
			case "advance":
				st.now += int64(c.advance)
			}
			var lines []string
			for _, f := range flights {
				lines = append(lines, fmt.Sprintf("%d,%d,%s", f.until, f.n, f.id))
			}
			slices.Sort(lines)
			st.flights = strings.Join(lines, " ")
			return ok, st
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
	}
}

// TestLinearizableInFlight holds and releases events from several goroutines while holds time
// out, and compares the history with the definition, and with what an observer has counted.
func TestLinearizableInFlight(t *testing.T) {
	alg := ratelimit.InFlight{Limit: 4, Timeout: time.Second}
	for seed := range budget.Seeds(t, 40) {
		clk := newClock()
		observed, opts := newTally("k"), []ratelimit.Option{ratelimit.WithClock(clk)}
		if seed%2 == 1 {
			opts = append(opts, ratelimit.WithObserver(observed.Observe))
		}
		l := ratelimit.Must(ratelimit.New(alg, opts...))
		recorded := newRecorder(clk)
		var wg sync.WaitGroup
		for id := range 4 {
			rng := rand.New(rand.NewPCG(seed, uint64(id)))
			wg.Go(func() {
				holds := map[string]*ratelimit.Reservation{}
				for i := range 20 {
					c := nextFlightCall(rng, id, i, slices.Collect(maps.Keys(holds)))
					var result int
					op, _ := recorded.run(id, func() { result = fly(t, l, clk, c, holds) })
					op.Input, op.Output = c, result
					recorded.add(op)
				}
			})
		}
		wg.Wait()
		recorded.check(t, seed, inFlight(alg))
		if more := observed.differencesInFlight(recorded.ops); seed%2 == 1 && len(more) > 0 {
			t.Fatalf("seed %d: the observer has seen more often:\n%+v", seed, more)
		}
	}
}

// nextFlightCall chooses the call that a goroutine makes next. held has the IDs of its open holds, in any order.
// It draws the same numbers whatever is open, so that what another goroutine did changes one choice, and not all that follow.
func nextFlightCall(rng *rand.Rand, goroutine, call int, held []string) flightCall {
	kind, n, which, tenths := rng.IntN(10), 1+rng.IntN(2), rng.IntN(20), 1+rng.IntN(8)
	id := fmt.Sprintf("%d-%02d", goroutine, call)
	switch {
	case kind < 4 && len(held) > 0:
		slices.Sort(held)
		return flightCall{op: "release", id: held[which%len(held)]}
	case kind == 4:
		return flightCall{op: "allow", id: id, n: n}
	case kind == 5:
		return flightCall{op: "peek"}
	case kind == 6 && goroutine == 0:
		return flightCall{op: "advance", advance: time.Duration(tenths) * 100 * time.Millisecond}
	}
	return flightCall{op: "hold", id: id, n: n}
}

// TestFlightsRepeat checks that a seed chooses the same hold to release in whichever order the open holds come: from a
// map, they come in another one each time.
func TestFlightsRepeat(t *testing.T) {
	choose := func(held ...string) flightCall {
		return nextFlightCall(rand.New(rand.NewPCG(3, 0)), 1, 4, held)
	}
	want := choose("1-00", "1-01", "1-02")
	if want.op != "release" {
		t.Fatalf("the seed chooses %+v; this test needs one that releases", want)
	}
	for _, held := range [][]string{{"1-02", "1-01", "1-00"}, {"1-01", "1-02", "1-00"}, {"1-02", "1-00", "1-01"}} {
		if got := choose(held...); got != want {
			t.Errorf("%v: got %+v, want %+v", held, got, want)
		}
	}
}

// differencesInFlight is differences for flightCalls, without the fields of decisions.
func (a *tally) differencesInFlight(history []porcupine.Operation) map[decision]int {
	more := make(map[decision]int)
	for d, n := range a.counts {
		more[d.withoutDetails()] += n
	}
	sizes := make(map[string]int)
	for _, op := range history {
		c := op.Input.(flightCall)
		d := decision{key: "k", n: c.n, outcome: ratelimit.Denied}
		if op.Output.(int) == 1 {
			d.outcome = ratelimit.Granted
		}
		switch c.op {
		case "hold":
			d.call, sizes[c.id] = ratelimit.CallHold, c.n
		case "allow":
			d.call = ratelimit.CallAllow
		case "release":
			d.call, d.n, d.outcome = ratelimit.CallSettle, sizes[c.id], ratelimit.Counted
		default:
			continue
		}
		more[d]--
	}
	maps.DeleteFunc(more, func(_ decision, n int) bool { return n == 0 })
	return more
}

// fly makes a call, and returns 1 if it was granted, or what a peek found.
func fly(t *testing.T, l ratelimit.Limiter, clk *storetest.Clock, c flightCall, holds map[string]*ratelimit.Reservation) int {
	ctx := context.Background()
	var err error
	var d ratelimit.Decision
	switch c.op {
	case "hold":
		var r *ratelimit.Reservation
		if r, d, err = l.Hold(ctx, "k", c.n); r != nil {
			holds[c.id] = r
		}
	case "release":
		err = holds[c.id].Release(ctx)
		delete(holds, c.id)
	case "allow":
		d.Allowed = l.AllowN("k", c.n)
	case "peek":
		d, err = l.Peek(ctx, "k")
	case "advance":
		clk.Advance(c.advance)
	}
	switch {
	case err != nil:
		t.Error(err)
	case c.op == "peek":
		return d.Remaining
	case d.Allowed:
		return 1
	}
	return 0
}

// TestCatchesEarlyTimeout checks that the definition refuses a history in which a slot has
// returned before its time.
func TestCatchesEarlyTimeout(t *testing.T) {
	history := func(wait time.Duration) []porcupine.Operation {
		return []porcupine.Operation{
			{Input: flightCall{op: "hold", id: "a", n: 1}, Output: 1, Call: 0, Return: 10},
			{Input: flightCall{op: "advance", advance: wait}, Output: 0, Call: 20, Return: 30},
			{Input: flightCall{op: "hold", id: "b", n: 1}, Output: 1, Call: 40, Return: 50},
			{Input: flightCall{op: "release", id: "a"}, Output: 0, Call: 60, Return: 70},
			{Input: flightCall{op: "peek"}, Output: 0, Call: 80, Return: 90},
		}
	}
	model := inFlight(ratelimit.InFlight{Limit: 1, Timeout: time.Second})
	if !porcupine.CheckOperations(model, history(time.Second)) {
		t.Error("the first hold had timed out")
	}
	if porcupine.CheckOperations(model, history(time.Second-1)) {
		t.Error("the first hold had not timed out, and the check did not notice")
	}
}
