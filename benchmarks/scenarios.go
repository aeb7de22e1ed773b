package main

import (
	"errors"
	"fmt"
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
	megabytes    unit = "MB"
	milliseconds unit = "ms"
	percent      unit = "%"
)

// sizes are the sizes of the measurements. A full and a quick run differ in nothing else.
//
// A batch by one caller takes a millisecond or two, so that most batches are not interrupted
// by other processes. A batch by all cores is longer, so that starting the goroutines does
// not matter.
type sizes struct {
	alone, aloneBatches       int           // operations of a timed batch by one caller, and batches in a pass
	together, togetherBatches int           // operations per core of a batch by all cores, and batches
	many                      int           // keys of S4, S6 and S7
	table                     int           // keys of the grown table
	live, mixed               int           // keys and operations of the mixed load; I100k has as many keys
	samples                   int           // of the heap during the flood of keys used once
	flood, bound, exhausted   int           // new keys of the flood, keys that the store holds, exhausted keys among them
	shared                    int           // keys in Redis
	busy                      int           // milliseconds of a batch of calls to Redis on busy cores
	span, spans               int           // milliseconds of a batch of calls to Redis, and batches in a pass
	most                      int           // callers at once of a limiter in Redis
	patience                  time.Duration // with limiters in Redis that fail before the measurement
	passes                    func(g group) int
}

var full = sizes{
	alone: 20_000, aloneBatches: 20,
	together: 50_000, togetherBatches: 5,
	many:  1_000_000,
	table: 5_000_000,
	live:  100_000, mixed: 2_000_000,
	samples: 100,
	flood:   10_000_000, bound: 100_000, exhausted: 1_000,
	shared: 100_000, span: 200, spans: 5, busy: 250,
	most: 16 * callers, patience: 3 * time.Second,
	passes: func(g group) int { return g.passes },
}

// quick gives meaningless figures. It is for checking that everything works.
var quick = sizes{
	alone: 2_000, aloneBatches: 2,
	together: 2_000, togetherBatches: 2,
	many:  20_000,
	table: 40_000,
	live:  5_000, mixed: 40_000,
	samples: 5,
	flood:   20_000, bound: 2_000, exhausted: 100,
	shared: 1_000, span: 5, spans: 2, busy: 20,
	most: 2 * callers, patience: 3 * time.Second,
	passes: func(group) int { return 1 },
}

// keys returns how many keys the measurements need.
func (s sizes) keys() int {
	return max(s.table, s.many, s.shared, s.flood+max(s.exhausted, trickling(longTrickle)))
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
		{id: "S1-36", title: fmt.Sprintf("S1 with a key of %d bytes", uuidLength), unit: nanoseconds},
		{id: "S2", title: "one hot key, denied", unit: nanoseconds},
		{id: "S2-36", title: fmt.Sprintf("S2 with a key of %d bytes", uuidLength), unit: nanoseconds},
		{id: "S2p", title: "S2 from all cores at once", unit: nanoseconds},
		{id: "S3", title: n.Sprintf("%d keys, allowed", few), unit: nanoseconds},
		{id: "S3-own", title: "S3 with limits of keys' own", unit: nanoseconds},
		{id: "S3p", title: "S3 from all cores at once", unit: nanoseconds},
		{id: "S3p-own", title: "S3p with limits of keys' own", unit: nanoseconds},
		{id: "S3-64", title: fmt.Sprintf("S3 from %d goroutines", crowd), unit: nanoseconds},
		{id: "I1k", title: n.Sprintf("%d idle keys, in a shuffled order", few), unit: nanoseconds},
		{id: "I1k-36", title: fmt.Sprintf("I1k with keys of %d bytes", uuidLength), unit: nanoseconds},
		{id: "I1k-own", title: "I1k with limits of keys' own", unit: nanoseconds},
		{id: "I1kp", title: "I1k from all cores at once", unit: nanoseconds},
		{id: "I100k", title: n.Sprintf("%d idle keys, in a shuffled order", s.live), unit: nanoseconds},
		{id: "I100kp", title: "I100k from all cores at once", unit: nanoseconds},
		{id: "I100k-64", title: fmt.Sprintf("I100k from %d goroutines", crowd), unit: nanoseconds},
		{id: "I1M", title: n.Sprintf("%d idle keys, in a shuffled order", s.many), unit: nanoseconds},
		{id: "S4", title: n.Sprintf("%d keys in a shuffled order, callers' keys cold", s.many), unit: nanoseconds},
		{id: "S4h", title: n.Sprintf("%d keys in a shuffled order, callers' keys warm", s.many), unit: nanoseconds},
		{id: "S4h-each", title: fmt.Sprintf("S4h with TakeEach, %d keys in each call", eachKeys), unit: nanoseconds},
		{id: "S5", title: "one hot key, allowed, from all cores at once", unit: nanoseconds},
		{id: "S5-64", title: fmt.Sprintf("S5 from %d goroutines", crowd), unit: nanoseconds},
		{id: "S6", title: "S4 from all cores at once", unit: nanoseconds},
		{id: "S6h", title: "S4h from all cores at once", unit: nanoseconds},
		{id: "S7", title: n.Sprintf("%d keys never seen before", s.many), unit: nanoseconds},
		{id: "heap-1M", title: n.Sprintf("heap per key, %d keys", s.many), unit: bytesPerKey},
		{id: "heap-own", title: "heap-1M with limits of keys' own", unit: bytesPerKey},
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
		{id: "http-16", title: fmt.Sprintf("http with a key of %d bytes from a header field", keyLength), unit: nanoseconds},
		{id: "http-36", title: fmt.Sprintf("http with a key of %d bytes from a header field", uuidLength), unit: nanoseconds},
		{id: "http-hostile", title: "480 hostile header fields over HTTP/2, refused", unit: nanoseconds},
		{id: "rules-none", title: "a call that no rule names", unit: nanoseconds},
		{id: "rules-one", title: "a call that one rule names", unit: nanoseconds},
		{id: "flood", title: n.Sprintf("a flood of %d new keys against a bound of %d", s.flood, s.bound), unit: nanoseconds},
		{id: "flood-heap", title: "heap per key of the bound during the flood", unit: bytesPerKey},
		{id: "once-peak", title: n.Sprintf("largest heap during a flood of %d keys that are used once", s.flood), unit: megabytes},
		{id: "once-1m", title: fmt.Sprintf("heap after the flood and %.0f minute with %d new keys a second", shortTrickle.Minutes(), trickleRate), unit: megabytes},
		{id: "once-10m", title: fmt.Sprintf("heap after %.0f minutes of that", longTrickle.Minutes()), unit: megabytes},
		{id: "once-shrunk", title: "heap after Shrink", unit: megabytes},
		{id: "R1", title: n.Sprintf("%d keys chosen at random, allowed", s.shared), unit: nanoseconds},
		{id: "R2", title: "one hot key, allowed", unit: nanoseconds},
		{id: "R3", title: "one hot key, denied", unit: nanoseconds},
		{id: "RE100-loop", title: fmt.Sprintf("%d keys in a loop of Take, one caller", eachInRedis), unit: nanoseconds},
		{id: "RE100", title: fmt.Sprintf("%d keys with TakeEach, one caller", eachInRedis), unit: nanoseconds},
		{id: "RE100-away-loop", title: fmt.Sprintf("RE100-loop, %v away", 2*oneWay), unit: nanoseconds},
		{id: "RE100-away", title: fmt.Sprintf("RE100, %v away", 2*oneWay), unit: nanoseconds},
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
	own    bool              // whether it is for limiters with limits of keys' own
	each   bool              // whether it is for limiters in Redis with a call for many keys
	large  bool              // whether it has more than a thousand keys
	redis  bool              // whether it is for limiters in Redis
	crowd  bool              // whether a thousand callers use one key, which limiters that swap cannot serve
	heavy  bool              // whether only the best continue after the first pass
	run    func(r *round) error
}

func groups() []group {
	limiters := []contenders.Role{contenders.Main, contenders.Variant, contenders.Peer}
	compared := []contenders.Role{contenders.Main, contenders.Peer}
	scale := append([]contenders.Role{contenders.Floor, contenders.Bound}, compared...)
	weighed := append([]contenders.Role{contenders.Floor}, compared...)
	alone := []contenders.Role{contenders.Main}
	return []group{
		{name: "one key, allowed", ids: []string{"S1", "S1-36", "S5", "S5-64"}, passes: 5, run: hotAllowed},
		{name: "one key, denied", ids: []string{"S2", "S2-36", "S2p"}, passes: 5, run: hotDenied},
		{name: "few keys", ids: []string{"S3", "S3-own", "S3p", "S3p-own", "S3-64"}, passes: 5, run: fewKeys},
		{name: "few idle keys", ids: []string{"I1k", "I1k-36", "I1k-own", "I1kp"}, passes: 5, quick: true, run: idleFew},
		{name: "idle keys", ids: []string{"I100k", "I100kp", "I100k-64"}, passes: 3, quick: true, large: true, run: idleMany},
		{name: "many idle keys", ids: []string{"I1M"}, passes: 2, quick: true, large: true, roles: scale, run: idleMillion},
		{name: "many keys", ids: []string{"S4", "S4h", "S4h-each", "S6", "S6h", "S7", "heap-1M"}, passes: 3, large: true, run: manyKeys},
		{name: "growth", ids: []string{"heap-peak"}, passes: 1, large: true, roles: alone, run: growth},
		{name: "limits of keys' own", ids: []string{"heap-own"}, passes: 1, large: true, own: true, run: ownHeap},
		{name: "big table", ids: []string{"heap-5M", "gc", "longest"}, passes: 3, large: true, roles: weighed, heavy: true, run: bigTable},
		{name: "mixed load", ids: []string{"mixed-p50", "mixed-p99", "mixed-p99.9", "mixed-max"}, passes: 2, large: true, roles: compared, run: mixedLoad},
		{name: "middleware", ids: []string{"http", "http-denied"}, passes: 5, http: true, roles: scale, run: middlewares},
		{name: "middleware, keys", ids: []string{"http-16", "http-36"}, passes: 5, http: true, roles: []contenders.Role{contenders.Variant}, run: requestsByKey},
		{name: "hostile requests", ids: []string{"http-hostile"}, passes: 5, wire: true, run: hostileRequests},
		{name: "rules", ids: []string{"rules-none", "rules-one"}, passes: 5, rules: true, run: throttledCalls},
		{name: "flood", ids: []string{"flood", "flood-heap"}, passes: 1, large: true, roles: alone, run: flood},
		{name: "keys used once", ids: []string{"once-peak", "once-1m", "once-10m", "once-shrunk"}, passes: 1, large: true, roles: alone, run: usedOnce},
		{name: "Redis, many keys", ids: []string{"R1"}, passes: 3, redis: true, roles: append([]contenders.Role{contenders.Slots, contenders.Settled, contenders.Bound}, limiters...), run: redisMany},
		{name: "Redis, one key, allowed", ids: []string{"R2"}, passes: 3, redis: true, roles: limiters, run: redisAllowed},
		{name: "Redis, one key, denied", ids: []string{"R3"}, passes: 3, redis: true, roles: limiters, run: redisDenied},
		{name: "Redis, keys in one call", ids: []string{"RE100-loop", "RE100", "RE100-away-loop", "RE100-away"}, passes: 2, redis: true, each: true, roles: limiters, run: redisEach},
		{name: "Redis, away, many keys", ids: awayIDs("R1"), passes: 3, redis: true, roles: limiters, run: awayMany},
		{name: "Redis, away, one key, allowed", ids: awayIDs("R2"), passes: 3, redis: true, crowd: true, roles: limiters, run: awayAllowed},
		{name: "Redis, away, one key, denied", ids: awayIDs("R3"), passes: 3, redis: true, roles: limiters, run: awayDenied},
		{name: "Redis, memory", ids: []string{"R-bytes"}, passes: 1, redis: true, roles: append([]contenders.Role{contenders.Weighed, contenders.Slots}, compared...), run: redisMemory},
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
	case g.large && c.Small, g.own && c.Own == nil, g.each && c.DialEach == nil:
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
	ks, uuids, ways := newKeys(b.sizes.keys()), newUUIDs(few), make(orders)
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
				r := &round{sizes: b.sizes, keys: ks, uuids: uuids, orders: ways, contender: c, wanted: b.wanted, results: res, server: b.server, wire: b.wire, timeout: time.Second}
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
