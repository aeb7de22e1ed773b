package main

import (
	"slices"
	"testing"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// TestMain lets the tests start this program as a wire.
func TestMain(m *testing.M) {
	serveIfWire()
	m.Run()
}

func TestKeys(t *testing.T) {
	ks := newKeys(1001)
	seen := make(map[string]bool)
	for i := range 1001 {
		key := ks.at(i)
		if len(key) != keyLength || ks.touch(i) != key[0] || seen[key] {
			t.Fatalf("key %d is %q", i, key)
		}
		seen[key] = true
	}
}

func TestShuffled(t *testing.T) {
	order := shuffled(1000)
	near := 0
	for i := 1; i < len(order); i++ {
		if order[i] == order[i-1]+1 {
			near++
		}
	}
	if near > 10 {
		t.Errorf("%d of 1,000 follow the one before", near)
	}
	slices.Sort(order)
	for i, v := range order {
		if int(v) != i {
			t.Fatalf("%d comes instead of %d", v, i)
		}
	}
}

func TestPart(t *testing.T) {
	order := shuffled(100)
	for _, n := range []int{1, 7, 50, 100} {
		for batch := range 30 {
			if got := part(order, batch, n, 50); len(got) != n {
				t.Fatalf("batch %d: %d keys, want %d", batch, len(got), n)
			}
		}
	}
	first, second := part(order, 0, 10, 0), part(order, 1, 10, 0)
	for _, v := range first {
		if slices.Contains(second, v) {
			t.Errorf("%d is in both of the first batches", v)
		}
	}
}

func TestCalendar(t *testing.T) {
	var counts [3]int
	for _, kind := range calendar(1) {
		counts[kind]++
	}
	if counts != [3]int{forLive: 90, forDenied: 9, forNew: 1} {
		t.Errorf("of a hundred calls: %v", counts)
	}
	// A live key is used once before, and then in turn with the others.
	for _, s := range []sizes{full, quick} {
		if most := 1 + s.mixed/s.live + 1; most >= contenders.Hundred.Burst {
			t.Errorf("a live key is used %d times, but is exhausted after %d", most, contenders.Hundred.Burst)
		}
		if needed := hotKeys + s.live + s.mixed/10; needed > max(s.table, s.many) {
			t.Errorf("%d keys are needed, but there are only %d", needed, max(s.table, s.many))
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 2}, 2},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median of %v is %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestTargets(t *testing.T) {
	entries := func(own, peer, floor float64) []entry {
		return []entry{
			{contenders.Contender{Role: contenders.Main}, &series{values: []float64{own}}},
			{contenders.Contender{Role: contenders.Peer}, &series{values: []float64{1}, wrong: 1}}, // disqualified
			{contenders.Contender{Role: contenders.Peer}, &series{values: []float64{peer}}},
			{contenders.Contender{Role: contenders.Floor}, &series{values: []float64{floor}}},
		}
	}
	for _, tt := range []struct {
		target
		own, peer, floor float64
		want             bool
	}{
		{target{limit: 0.5, of: bestPeer}, 50, 100, 1, true},
		{target{limit: 0.5, of: bestPeer}, 51, 100, 1, false},
		{target{limit: 36, of: figure}, 36, 1, 1, true},
		{target{limit: 36, of: figure}, 36.1, 99, 1, false},
		{target{limit: 2, of: aboveFloor}, 9, 1, 7, true},
		{target{limit: 2, of: aboveFloor}, 9, 1, 6.9, false},
	} {
		if got, known := tt.met(entries(tt.own, tt.peer, tt.floor)); !known || got != tt.want {
			t.Errorf("%s with %v, best peer %v, floor %v: met %v, known %v; want %v", tt.words(nanoseconds), tt.own, tt.peer, tt.floor, got, known, tt.want)
		}
	}
	if _, known := targets[0].met(nil); known {
		t.Error("a target is met or not although no contender took part")
	}
	for _, target := range targets {
		if !slices.ContainsFunc(scenarios(full), func(sc scenario) bool { return sc.id == target.scenario }) {
			t.Errorf("there is no scenario %s", target.scenario)
		}
	}
}

func TestGoesOn(t *testing.T) {
	res := newResults()
	var all []contenders.Contender
	join := func(name string, role contenders.Role, gc, heap float64) {
		all = append(all, contenders.Contender{Name: name, Role: role})
		res.add("gc", name, gc, 0)
		res.add("heap-5M", name, heap, 0)
	}
	join("own", contenders.Main, 99, 99)
	join("variant", contenders.Variant, 1, 1)
	join("first", contenders.Peer, 2, 9)
	join("second", contenders.Peer, 3, 8)
	join("third", contenders.Peer, 4, 7)
	join("slow", contenders.Peer, 5, 9)
	join("lean", contenders.Peer, 9, 6)
	join("nothing", contenders.Floor, 0, 0)
	var on []string
	for _, c := range all {
		if res.goesOn([]string{"gc", "heap-5M"}, c, all) {
			on = append(on, c.Name)
		}
	}
	if want := []string{"own", "first", "second", "third", "lean", "nothing"}; !slices.Equal(on, want) {
		t.Errorf("%q continue, want %q", on, want)
	}
}
