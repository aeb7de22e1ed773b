package main

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// TestMain lets the tests start this program as a wire.
func TestMain(m *testing.M) {
	serveIfWire()
	m.Run()
}

func TestKeys(t *testing.T) {
	uuid := regexp.MustCompile("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9]{12}$")
	for length, ks := range map[int]keys{keyLength: newKeys(1001), uuidLength: newUUIDs(1001)} {
		seen := make(map[string]bool)
		for i := range 1001 {
			key := ks.at(i)
			if len(key) != length || ks.touch(i) != key[0] || seen[key] {
				t.Fatalf("key %d is %q", i, key)
			}
			if length == uuidLength && !uuid.MatchString(key) {
				t.Fatalf("key %d is %q, which is no UUID", i, key)
			}
			if want := byte('0' + i%10); key[length-1] != want { // limits of keys' own depend on it
				t.Fatalf("key %d, %q, ends in %q, want %q", i, key, key[length-1], want)
			}
			seen[key] = true
		}
	}
}

func TestTour(t *testing.T) {
	order := shuffled(10)
	way := tour{order: order, at: 8}
	for _, n := range []int{1, 10, 25, 0, 3} {
		var want, got []uint32
		for i := range n {
			want = append(want, order[(way.at+i)%10])
		}
		sum := way.visit(n, func(part []uint32) int {
			got = append(got, part...)
			return len(part)
		})
		if sum != n || !slices.Equal(got, want) {
			t.Errorf("the next %d are %v with the sum %d, want %v", n, got, sum, want)
		}
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
	if slices.Equal(order, shuffledFor(1, 1000)) {
		t.Error("two workers have the same order")
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
	// of returns the entries of a scenario in which own, which took part in "other" as well,
	// has the figure own.
	of := func(own, peer, floor, elsewhere float64) func(string) []entry {
		join := func(name string, role contenders.Role, value float64, wrong int) entry {
			return entry{contenders.Contender{Name: name, Role: role}, &series{values: []float64{value}, wrong: wrong}}
		}
		return func(id string) []entry {
			if id == "other" {
				return []entry{join("peer", contenders.Peer, 1, 0), join("own", contenders.Main, elsewhere, 0)}
			}
			return []entry{
				join("own", contenders.Main, own, 0),
				join("wrong", contenders.Peer, 1, 1), // disqualified
				join("peer", contenders.Peer, peer, 0),
				join("floor", contenders.Floor, floor, 0),
			}
		}
	}
	for _, tt := range []struct {
		target
		own, peer, floor, elsewhere float64
		want                        bool
	}{
		{target{limit: 0.5, of: bestPeer}, 50, 100, 1, 1, true},
		{target{limit: 0.5, of: bestPeer}, 51, 100, 1, 1, false},
		{target{limit: 36, of: figure}, 36, 1, 1, 1, true},
		{target{limit: 36, of: figure}, 36.1, 99, 1, 99, false},
		{target{limit: 2, of: aboveFloor}, 9, 1, 7, 1, true},
		{target{limit: 2, of: aboveFloor}, 9, 1, 6.9, 9, false},
		{target{limit: 3, of: timesOther, than: "floor"}, 9, 1, 3, 1, true},
		{target{limit: 3, of: timesOther, than: "floor"}, 9, 9, 2.9, 9, false},
		{target{limit: 1.5, of: timesScenario, than: "other"}, 9, 1, 1, 6, true},
		{target{limit: 1.5, of: timesScenario, than: "other"}, 9, 9, 9, 5.9, false},
		{target{limit: 5, of: aboveScenario, than: "other"}, 9, 1, 1, 4, true},
		{target{limit: 5, of: aboveScenario, than: "other"}, 9, 9, 9, 3.9, false},
	} {
		if got, known := tt.met(of(tt.own, tt.peer, tt.floor, tt.elsewhere)); !known || got != tt.want {
			t.Errorf("%s with %v, best peer %v, floor %v, elsewhere %v: met %v, known %v; want %v", tt.words(nanoseconds), tt.own, tt.peer, tt.floor, tt.elsewhere, got, known, tt.want)
		}
	}
	for _, target := range []target{
		{limit: 1, of: bestPeer},
		{limit: 1, of: bestPeer, who: "nobody"},
		{limit: 1, of: timesOther, than: "nobody"},
		{limit: 1, of: timesScenario, than: "nowhere"},
	} {
		of := of(1, 1, 1, 1)
		if _, known := target.met(func(id string) []entry {
			if id == "nowhere" || target.of == bestPeer && target.who == "" {
				return nil
			}
			return of(id)
		}); known {
			t.Errorf("%+v is met or not although a contender did not take part", target)
		}
	}
}

// TestTargetsNameWhatThereIs checks that all targets are for contenders that take part in
// their scenario, beside one that does so too.
func TestTargetsNameWhatThereIs(t *testing.T) {
	for _, target := range targets() {
		takesPart := func(scenario, name string) bool {
			return slices.ContainsFunc(contenders.All(), func(c contenders.Contender) bool {
				isMain := name == "" && c.Role == contenders.Main
				return (c.Name == name || isMain) && groupOf(scenario).takesPart(c) && hasCall(scenario, c)
			})
		}
		if !slices.ContainsFunc(scenarios(full), func(sc scenario) bool { return sc.id == target.scenario }) {
			t.Errorf("there is no scenario %s", target.scenario)
		}
		if !takesPart(target.scenario, target.who) {
			t.Errorf("%q does not take part in %s", target.who, target.scenario)
		}
		switch target.of {
		case timesOther, nothingAsked:
			if target.than != "" && !takesPart(target.scenario, target.than) {
				t.Errorf("%q does not take part in %s", target.than, target.scenario)
			}
		case timesScenario, aboveScenario, besideScenario:
			if !takesPart(target.than, target.who) {
				t.Errorf("%q does not take part in %s", target.who, target.than)
			}
		}
	}
}

// TestBesideScenario checks that a figure that is only shown has the contender's own figure in
// another scenario beside it, and no target.
func TestBesideScenario(t *testing.T) {
	res, own := newResults(), contenders.Contender{Name: "own", Role: contenders.Main}
	res.add("RE100", own.Name, 20, 0)
	res.add("RE100-loop", own.Name, 80, 0)
	shown := target{scenario: "RE100", of: besideScenario, than: "RE100-loop"}
	cells, ok := shown.cells(scenario{id: "RE100", title: "title", unit: nanoseconds}, func(id string) []entry {
		return res.of(id, []contenders.Contender{own})
	})
	want := []string{"RE100", "title", "20.0 ns", "80.0 ns (RE100-loop)", "0.25", "", "", ""}
	if !ok || !slices.Equal(cells, want) {
		t.Errorf("the row is %q, want %q", cells, want)
	}
}

// TestBoundBesideScenario checks that the lower bound is shown beside the contender's own
// figure in another scenario, unless the scenario has a row with the best peer.
func TestBoundBesideScenario(t *testing.T) {
	res := newResults()
	own, bound := contenders.Contender{Name: "own", Role: contenders.Main}, contenders.Contender{Name: "bound", Role: contenders.Bound}
	for _, tt := range []struct{ id, than, want string }{
		{"S4h-each", "S4h", "10.0 ns, 0.25"},
		{"I1k", "S3", ""},
	} {
		res.add(tt.id, own.Name, 20, 0)
		res.add(tt.id, bound.Name, 10, 0)
		res.add(tt.than, own.Name, 40, 0)
		than := target{scenario: tt.id, limit: 1, of: timesScenario, than: tt.than}
		cells, ok := than.cells(scenario{id: tt.id, unit: nanoseconds}, func(id string) []entry {
			return res.of(id, []contenders.Contender{own, bound})
		})
		if !ok || cells[5] != tt.want {
			t.Errorf("%s: the row is %q, want the bound %q", tt.id, cells, tt.want)
		}
	}
}

// TestBoundAboveScenario checks that beside a target about what is added to another scenario
// stands what the lower bound adds.
func TestBoundAboveScenario(t *testing.T) {
	res := newResults()
	own, bound := contenders.Contender{Name: "own", Role: contenders.Main}, contenders.Contender{Name: "bound", Role: contenders.Bound}
	res.add("S1", own.Name, 20, 0)
	res.add("S1", bound.Name, 10, 0)
	res.add("S1-36", own.Name, 27, 0)
	res.add("S1-36", bound.Name, 16, 0)
	more := target{scenario: "S1-36", limit: 5, of: aboveScenario, than: "S1"}
	cells, ok := more.cells(scenario{id: "S1-36", unit: nanoseconds}, func(id string) []entry {
		return res.of(id, []contenders.Contender{own, bound})
	})
	if !ok || cells[5] != "16.0 ns, +6.0 ns" || cells[7] != "**no**" {
		t.Errorf("the row is %q", cells)
	}
}

// TestWalkEach checks that each key is asked for once, in order, in calls of at most eachKeys,
// and that every answer other than yes counts as wrong.
func TestWalkEach(t *testing.T) {
	ks, order := newKeys(1000), shuffled(1000)
	for _, n := range []int{1, eachKeys - 1, eachKeys, eachKeys + 1, 1000} {
		var asked []string
		wrong := walkEach(func(keys []string) int {
			if len(keys) > eachKeys {
				t.Errorf("a call for %d keys", len(keys))
			}
			asked = append(asked, keys...)
			return len(keys) - 1
		}, ks, order[:n])
		if calls := (n + eachKeys - 1) / eachKeys; wrong != calls {
			t.Errorf("%d keys: %d wrong answers, want %d", n, wrong, calls)
		}
		for i, key := range asked {
			if key != ks.at(int(order[i])) {
				t.Fatalf("%d keys: key %d is %q", n, i, key)
			}
		}
		if len(asked) != n {
			t.Errorf("%d keys: %d were asked for", n, len(asked))
		}
	}
}

// TestTokenBucketEach checks that the answers of the call for many keys are the limiter's.
func TestTokenBucketEach(t *testing.T) {
	i := slices.IndexFunc(contenders.All(), func(c contenders.Contender) bool { return c.Name == contenders.TokenBucket })
	allow, each, err := contenders.All()[i].Each(contenders.Once)
	if err != nil {
		t.Fatal(err)
	}
	if got := allow("a"); got != contenders.Allowed {
		t.Errorf("the first event: %d", got)
	}
	if got := each([]string{"a", "b", "c", "c"}); got != 2 {
		t.Errorf("%d of a used key and of two new ones, one of them twice, are allowed; want 2", got)
	}
	if got := allow("b"); got != contenders.Denied {
		t.Errorf("an event after the call for many: %d", got)
	}
}

// TestAlgorithms checks that each algorithm of this library is in the table of algorithms, in
// the overview, and names peers that there are.
func TestAlgorithms(t *testing.T) {
	all := contenders.All()
	named := func(name string) contenders.Contender {
		i := slices.IndexFunc(all, func(c contenders.Contender) bool { return c.Name == name })
		if i < 0 {
			t.Fatalf("there is no %q", name)
		}
		return all[i]
	}
	for _, a := range algorithms {
		c := named(a.who)
		if c.Own == nil {
			t.Errorf("%s has no limits of keys' own", c.Name)
		}
		for _, like := range c.Like {
			if named(like).Role != contenders.Peer {
				t.Errorf("%s is like %s, which is no peer", c.Name, like)
			}
		}
		for _, id := range algorithmRows {
			if !slices.ContainsFunc(asked(id), func(t target) bool { return t.who == c.Name }) {
				t.Errorf("%s has no target in %s", c.Name, id)
			}
		}
	}
	for _, c := range all {
		known := slices.ContainsFunc(algorithms, func(a struct {
			who   string
			limit float64
		}) bool {
			return a.who == c.Name
		})
		if c.Own != nil && c.Role == contenders.Variant && !known {
			t.Errorf("%s is missing in the table of algorithms", c.Name)
		}
	}
}

// TestOwnLimits checks that the limits of keys' own differ by the last digit of the key.
func TestOwnLimits(t *testing.T) {
	i := slices.IndexFunc(contenders.All(), func(c contenders.Contender) bool { return c.Name == contenders.TokenBucket })
	allow, err := contenders.All()[i].Own(contenders.Hundred)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"key 0", "key 1", "key 9"} {
		granted := 0
		for allow(key) == contenders.Allowed {
			granted++
		}
		if want := contenders.Hundred.Burst + []int{0, 1, 9}[i]; granted != want {
			t.Errorf("%q was granted %d events, want %d", key, granted, want)
		}
	}
}

// TestFromAll checks that a crowd decides as often as all cores do, and that GOMAXPROCS is
// restored.
func TestFromAll(t *testing.T) {
	procs := runtime.GOMAXPROCS(0)
	r := &round{sizes: quick, wanted: func(string) bool { return true }, results: newResults()}
	n := 64
	var asked []string
	r.fromAll("few", "many", n, func(workers, each int) int {
		if workers == crowd && runtime.GOMAXPROCS(0) != oversized*procs {
			t.Errorf("GOMAXPROCS is %d", runtime.GOMAXPROCS(0))
		}
		if workers*each != n*procs {
			t.Errorf("%d workers decide %d times each, want %d in total", workers, each, n*procs)
		}
		asked = append(asked, fmt.Sprint(workers))
		return 1
	})
	if got, want := strings.Join(asked, " "), fmt.Sprintf("%d %[1]d %d %[2]d", procs, crowd); got != want {
		t.Errorf("workers: %s, want %s", got, want)
	}
	for _, id := range []string{"few", "many"} {
		if got := r.results.at(id, ""); got.wrong != quick.togetherBatches {
			t.Errorf("%s: %d wrong answers, want %d", id, got.wrong, quick.togetherBatches)
		}
	}
	if runtime.GOMAXPROCS(0) != procs {
		t.Errorf("GOMAXPROCS is %d afterwards, want %d", runtime.GOMAXPROCS(0), procs)
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
