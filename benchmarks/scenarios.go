package main

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// A scenario is a figure that is measured of every contender.
type scenario struct {
	id    string
	title string
	unit  unit
}

// A unit is the unit of a figure.
type unit string

const (
	nanoseconds  unit = "ns" // per decision
	bytesPerKey  unit = "B/key"
	milliseconds unit = "ms"
	percent      unit = "%"
)

// sizes are the sizes of the measurements. A full and a quick run differ in nothing else.
//
// A batch by one caller takes a millisecond or two, so that most batches are not interrupted
// by other processes. A batch by all cores is longer, so that starting the goroutines does
// not matter.
type sizes struct {
	alone, aloneBatches       int // operations of a timed batch by one caller, and batches in a pass
	together, togetherBatches int // operations per core of a batch by all cores, and batches
	many                      int // keys of S4, S6 and S7
	table                     int // keys of the grown table
	live, mixed               int // keys and operations of the mixed load
	flood, bound, exhausted   int // new keys of the flood, keys that the store holds, exhausted keys among them
	shared                    int // keys in Redis
	busy                      int // milliseconds of a batch of calls to Redis on busy cores
	span, spans               int // milliseconds of a batch of calls to Redis, and batches in a pass
	passes                    func(g group) int
}

var full = sizes{
	alone: 20_000, aloneBatches: 20,
	together: 100_000, togetherBatches: 5,
	many:  1_000_000,
	table: 5_000_000,
	live:  100_000, mixed: 2_000_000,
	flood: 10_000_000, bound: 100_000, exhausted: 1_000,
	shared: 100_000, span: 200, spans: 5, busy: 250,
	passes: func(g group) int { return g.passes },
}

// quick gives meaningless figures. It is for checking that everything works.
var quick = sizes{
	alone: 2_000, aloneBatches: 2,
	together: 2_000, togetherBatches: 2,
	many:  20_000,
	table: 40_000,
	live:  5_000, mixed: 40_000,
	flood: 20_000, bound: 2_000, exhausted: 100,
	shared: 1_000, span: 5, spans: 2, busy: 20,
	passes: func(group) int { return 1 },
}

const (
	few     = 1_000              // keys of S3
	hotKeys = 10                 // of the mixed load, which are denied
	callers = contenders.Callers // of Redis at once
	ahead   = 64                 // the number of positions before its use at which a key is touched
)

// scenarios returns the scenarios in the order of the report.
func scenarios(s sizes) []scenario {
	n := message.NewPrinter(language.English)
	all := []scenario{
		{id: "S1", title: "one hot key, allowed", unit: nanoseconds},
		{id: "S2", title: "one hot key, denied", unit: nanoseconds},
		{id: "S2p", title: "one hot key, denied, from all cores at once", unit: nanoseconds},
		{id: "S3", title: n.Sprintf("%d keys, allowed", few), unit: nanoseconds},
		{id: "I1k", title: n.Sprintf("%d idle keys, in a shuffled order", few), unit: nanoseconds},
		{id: "I1kp", title: "I1k from all cores at once", unit: nanoseconds},
		{id: "I100k", title: n.Sprintf("%d idle keys, in a shuffled order", s.live), unit: nanoseconds},
		{id: "I100kp", title: "I100k from all cores at once", unit: nanoseconds},
		{id: "I1M", title: n.Sprintf("%d idle keys, in a shuffled order", s.many), unit: nanoseconds},
		{id: "S4", title: n.Sprintf("%d keys in a shuffled order, callers' keys cold", s.many), unit: nanoseconds},
		{id: "S4h", title: n.Sprintf("%d keys in a shuffled order, callers' keys warm", s.many), unit: nanoseconds},
		{id: "S5", title: "one hot key, allowed, from all cores at once", unit: nanoseconds},
		{id: "S6", title: "S4 from all cores at once", unit: nanoseconds},
		{id: "S6h", title: "S4h from all cores at once", unit: nanoseconds},
		{id: "S7", title: n.Sprintf("%d keys never seen before", s.many), unit: nanoseconds},
		{id: "heap-1M", title: n.Sprintf("heap per key, %d keys", s.many), unit: bytesPerKey},
		{id: "heap-5M", title: n.Sprintf("heap per key, %d keys", s.table), unit: bytesPerKey},
		{id: "heap-peak", title: n.Sprintf("heap per key at the worst moment of growing to %d keys", s.many), unit: bytesPerKey},
		{id: "gc", title: n.Sprintf("forced collection with %d keys live", s.table), unit: milliseconds},
		{id: "longest", title: n.Sprintf("longest call while growing to %d keys", s.table), unit: milliseconds},
		{id: "mixed-p50", title: "mixed load, median", unit: nanoseconds},
		{id: "mixed-p99", title: "mixed load, 99 of 100 calls", unit: nanoseconds},
		{id: "mixed-p99.9", title: "mixed load, 999 of 1,000 calls", unit: nanoseconds},
		{id: "mixed-max", title: "mixed load, longest call", unit: milliseconds},
		{id: "http", title: "a request through the middleware, allowed", unit: nanoseconds},
		{id: "http-denied", title: "a request through the middleware, refused", unit: nanoseconds},
		{id: "http-hostile", title: "480 hostile header fields over HTTP/2, refused", unit: nanoseconds},
		{id: "rules-none", title: "a call that no rule names", unit: nanoseconds},
		{id: "rules-one", title: "a call that one rule names", unit: nanoseconds},
		{id: "flood", title: n.Sprintf("a flood of %d new keys against a bound of %d", s.flood, s.bound), unit: nanoseconds},
		{id: "flood-heap", title: "heap per key of the bound during the flood", unit: bytesPerKey},
		{id: "R1", title: n.Sprintf("%d keys chosen at random, allowed", s.shared), unit: nanoseconds},
		{id: "R2", title: "one hot key, allowed", unit: nanoseconds},
		{id: "R3", title: "one hot key, denied", unit: nanoseconds},
		{id: "R-bytes", title: n.Sprintf("memory of Redis per key, %d keys", s.shared), unit: bytesPerKey},
	}
	for _, of := range []struct{ id, title string }{
		{"R1", n.Sprintf("%d keys, allowed", min(awayKeys, s.shared))},
		{"R2", "one hot key, allowed"},
		{"R3", "one hot key, denied"},
	} {
		for _, callers := range awayCallers {
			title := n.Sprintf("%s, away and busy, %d callers: ", of.title, callers)
			all = append(all,
				scenario{id: away(of.id, callers, p50), title: title + "median", unit: milliseconds},
				scenario{id: away(of.id, callers, p99), title: title + "99 of 100 calls", unit: milliseconds},
				scenario{id: away(of.id, callers, byPolicy), title: title + "decided without Redis", unit: percent})
		}
	}
	return all
}

// A group measures several scenarios with one limiter, which need not be filled for each.
type group struct {
	name   string
	ids    []string
	passes int
	roles  []contenders.Role // that take part; nil means all
	http   bool              // whether it is for middlewares
	wire   bool              // whether it is for handlers of hostile requests
	rules  bool              // whether it is for tables of rules
	quick  bool              // whether it is for limiters that can have the limit Quick
	redis  bool              // whether it is for limiters in Redis
	crowd  bool              // whether a thousand callers use one key, which limiters that swap cannot serve
	heavy  bool              // whether only the best continue after the first pass
	run    func(r *round) error
}

func groups() []group {
	limiters := []contenders.Role{contenders.Main, contenders.Variant, contenders.Peer}
	weighed := append([]contenders.Role{contenders.Floor}, limiters...)
	own := []contenders.Role{contenders.Main, contenders.Variant}
	return []group{
		{name: "one key, allowed", ids: []string{"S1", "S5"}, passes: 5, run: hotAllowed},
		{name: "one key, denied", ids: []string{"S2", "S2p"}, passes: 5, run: hotDenied},
		{name: "few keys", ids: []string{"S3"}, passes: 5, run: fewKeys},
		{name: "idle keys", ids: []string{"I1k", "I1kp", "I100k", "I100kp", "I1M"}, passes: 3, quick: true, run: idleKeys},
		{name: "many keys", ids: []string{"S4", "S4h", "S6", "S6h", "S7", "heap-1M"}, passes: 3, run: manyKeys},
		{name: "growth", ids: []string{"heap-peak"}, passes: 1, roles: own, run: growth},
		{name: "big table", ids: []string{"heap-5M", "gc", "longest"}, passes: 3, roles: weighed, heavy: true, run: bigTable},
		{name: "mixed load", ids: []string{"mixed-p50", "mixed-p99", "mixed-p99.9", "mixed-max"}, passes: 3, roles: limiters, run: mixedLoad},
		{name: "middleware", ids: []string{"http", "http-denied"}, passes: 5, http: true, run: middlewares},
		{name: "hostile requests", ids: []string{"http-hostile"}, passes: 5, wire: true, run: hostileRequests},
		{name: "rules", ids: []string{"rules-none", "rules-one"}, passes: 5, rules: true, run: throttledCalls},
		{name: "flood", ids: []string{"flood", "flood-heap"}, passes: 1, roles: []contenders.Role{contenders.Main}, run: flood},
		{name: "Redis, many keys", ids: []string{"R1"}, passes: 3, redis: true, roles: limiters, run: redisMany},
		{name: "Redis, one key, allowed", ids: []string{"R2"}, passes: 5, redis: true, roles: limiters, run: redisAllowed},
		{name: "Redis, one key, denied", ids: []string{"R3"}, passes: 5, redis: true, roles: limiters, run: redisDenied},
		{name: "Redis, away, many keys", ids: awayIDs("R1"), passes: 3, redis: true, roles: limiters, run: awayMany},
		{name: "Redis, away, one key, allowed", ids: awayIDs("R2"), passes: 3, redis: true, crowd: true, roles: limiters, run: awayAllowed},
		{name: "Redis, away, one key, denied", ids: awayIDs("R3"), passes: 3, redis: true, roles: limiters, run: awayDenied},
		{name: "Redis, memory", ids: []string{"R-bytes"}, passes: 1, redis: true, roles: []contenders.Role{contenders.Main, contenders.Weighed, contenders.Peer}, run: redisMemory},
	}
}

// groupOf returns the group that measures a scenario.
func groupOf(id string) group {
	for _, g := range groups() {
		if slices.Contains(g.ids, id) {
			return g
		}
	}
	return group{}
}

// takesPart reports whether the group is for c.
func (g group) takesPart(c contenders.Contender) bool {
	switch {
	case c.HTTP != g.http, c.Wire != g.wire, c.Rules != g.rules, (c.Dial != nil) != g.redis:
		return false
	case g.crowd && c.Swaps:
		return false
	case g.quick && !c.Quick && c.Role != contenders.Floor && c.Role != contenders.Bound:
		return false
	}
	return g.roles == nil || slices.Contains(g.roles, c.Role)
}

// A bench is a run of the program.
type bench struct {
	sizes      sizes
	contenders []contenders.Contender
	wanted     func(id string) bool
	progress   func(format string, args ...any)
	server     *server // nil if none is needed or installed
	wire       *wire   // to the server
}

// run measures all scenarios. The contenders take turns, in another order in each pass, so
// that other load on the machine affects all of them equally.
func (b bench) run() (*results, error) {
	res := newResults()
	ks := newKeys(max(b.sizes.table, b.sizes.many, b.sizes.flood+b.sizes.exhausted, b.sizes.shared))
	random := rand.New(rand.NewPCG(2, 2))
	all := slices.DeleteFunc(groups(), func(g group) bool { return !slices.ContainsFunc(g.ids, b.wanted) })
	inRedis := func(g group) bool { return g.redis && slices.ContainsFunc(b.contenders, g.takesPart) }
	if slices.ContainsFunc(all, inRedis) {
		srv, err := startServer()
		switch {
		case errors.Is(err, errNoServer):
			res.server.missing = err.Error()
			b.progress("SKIPPED: limiters in Redis: %v\n", err)
		case err != nil:
			return nil, err
		default:
			defer srv.end()
			if b.wire, err = startWire(srv.addr); err != nil {
				return nil, err
			}
			defer b.wire.end()
			b.server, res.server.version = srv, srv.version()
		}
	}
	if b.server == nil {
		all = slices.DeleteFunc(all, func(g group) bool { return g.redis })
	}
	passes := 0
	for _, g := range all {
		passes = max(passes, b.sizes.passes(g))
	}
	for pass := range passes {
		for _, g := range all {
			if pass >= b.sizes.passes(g) {
				continue
			}
			order := slices.Clone(b.contenders)
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			start := time.Now()
			for _, c := range order {
				if !g.takesPart(c) || pass > 0 && g.heavy && !res.goesOn(g.ids, c, b.contenders) {
					continue
				}
				settle()
				// The timeout is long because callers and server share the cores. farAway
				// sets it to the default.
				r := &round{sizes: b.sizes, keys: ks, contender: c, wanted: b.wanted, results: res, server: b.server, wire: b.wire, timeout: time.Second}
				if b.server != nil {
					r.addr = b.server.addr
				}
				err := g.run(r)
				r.stop()
				if err != nil {
					return nil, err
				}
			}
			b.progress("%s: pass %d of %d took %v\n", g.name, pass+1, b.sizes.passes(g), time.Since(start).Round(time.Millisecond))
		}
	}
	return res, nil
}

// settle collects the garbage of the previous contender, so that it does not affect the next
// one.
func settle() {
	runtime.GC()
	runtime.GC() // collects the objects that finalizers have kept
}
