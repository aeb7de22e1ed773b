package redisstore

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/uint128"
	"github.com/ratelimit-go/ratelimit/internal/warmup"
)

// tick is the unit of Redis's clock.
const tick = time.Microsecond

// A program is what the store needs to apply a transition by a script.
type program struct {
	t      *ratelimit.Transition // in its portable form, with microsecond ticks
	all    bool                  // whether the algorithm is an All
	kinds  []byte                // of its parts
	params string                // the parts and their constants, in the script's encoding
	one    string                // params, and the most common request: take one event
	header string                // the prefix of each state of t
	tag    string                // the prefix of each value in Redis: header, or "" if the key's name depends on it
	short  bool                  // whether values may have the short form of lua/bucket.lua
	costs  []cost                // the cost of one event in each bucket among the parts
	limit  int                   // the most events that one request may take

	scripts [together]atomic.Pointer[script] // by variant, once needed; that of several keys together is of no program

	partial   bool // whether a reply may omit the entries of a state that do not affect its decisions
	cacheable bool // whether a denial holds until RetryAfter, and leaves the state unchanged
	leasable  bool // whether events can be taken in advance and given back

	foreigns foreigns // the limits whose states it has met lately
}

// equals reports whether p and q are for the same limit.
func (p *program) equals(q *program) bool { return p == q || p.header == q.header }

// A cost is the time that an event costs, in units. A microsecond has unit units.
type cost struct{ units, unit uint64 }

// times returns the cost of n events, in whole microseconds and units. For more events than
// pass before time ends, it is some later time.
func (c cost) times(n int) (ticks, units float64) {
	hi, lo := bits.Mul64(uint64(n), c.units)
	if hi >= c.unit {
		return tooLong, 0
	}
	q, r := bits.Div64(hi, lo, c.unit)
	if q >= tooLong {
		return tooLong, 0
	}
	return float64(q), float64(r)
}

// tooLong is a number of microseconds that ends after the latest instant, whenever it begins.
const tooLong = 1 << 53

func newProgram(t *ratelimit.Transition) (*program, error) {
	t, err := t.Portable(tick)
	if err != nil {
		return nil, err
	}
	p := &program{t: t, header: string(t.Tag()), cacheable: true, leasable: true}
	if t.Varies() {
		p.tag = p.header
	}
	if t.Stateless() {
		return p, nil // no call is made with it
	}
	var params []byte
	parts, all := t.Algorithm().(ratelimit.All)
	if p.all = all; all {
		parts = slices.DeleteFunc(parts, unlimited)
		params = binary.LittleEndian.AppendUint16(params, uint16(len(parts)))
	} else {
		parts = ratelimit.All{t.Algorithm()}
	}
	for _, part := range parts {
		kind, constants := p.part(part)
		p.kinds = append(p.kinds, kind)
		params = append(append(params, kind), constants...)
	}
	p.short = !all && p.tag == "" && len(p.costs) > 0
	p.params = string(params)
	p.variantOf(plain) // to assemble it now, not at the first request

	peek := ratelimit.Request{Op: ratelimit.OpPeek, N: 1}.At(time.UnixMicro(0))
	_, _, res, err := t.Apply(nil, peek)
	p.limit = res.Decision.Limit
	usual := &call{prog: p, req: ratelimit.Request{Op: ratelimit.OpTake, N: 1}}
	p.one = string(usual.appendRun(appendDouble(params, -1), 1))
	return p, err
}

// unlimited reports whether a part of an All has no state and no effect.
func unlimited(part ratelimit.Algorithm) bool {
	_, ok := part.(ratelimit.Unlimited)
	return ok
}

// variantOf returns the script for commands that need a variant.
func (p *program) variantOf(v variant) *script {
	s := p.scripts[v].Load()
	if s == nil {
		s = scriptFor(p.all, v, p.kinds)
		p.scripts[v].Store(s)
	}
	return s
}

// state returns the state for a value that begins with tag. Values in replies have none,
// nor have values in Redis if the key's name depends on the parameters.
func (p *program) state(tag, value string) []byte {
	if value == "" {
		return nil
	}
	state := make([]byte, 0, len(p.header)+max(len(value), 24))
	if tag == "" {
		state = append(state, p.header...)
	}
	if ticks, units, ok := p.shortened(value); ok {
		for _, word := range []uint64{ticks, units, 0} {
			state = binary.LittleEndian.AppendUint64(state, word)
		}
		return state
	}
	return append(state, value...)
}

// shortened reads the short form of the state of a bucket, which lua/bucket.lua describes.
func (p *program) shortened(value string) (ticks, units uint64, ok bool) {
	if !p.short || len(value) != 16 && len(value) != 19 {
		return 0, 0, false
	}
	ticks, err := strconv.ParseUint(value[:16], 10, 64)
	if err == nil && len(value) > 16 {
		units, err = strconv.ParseUint(value[16:], 10, 64)
	}
	return ticks, units, err == nil
}

// part returns the kind of a part and its constants, in the order in which its script reads
// them, and sets the fields of p that depend on it. alg comes from a Transition, so its zero
// fields have been replaced by their defaults.
func (p *program) part(alg ratelimit.Algorithm) (kind byte, constants []byte) {
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		if a.Refill == ratelimit.RefillInterval {
			return intervalKind, doubles(uint64(a.Burst), min(uint64(a.Rate.Events), 1<<51), ticks(a.Rate.Per))
		}
		return bucketKind, p.bucket(a.Rate, a.Burst)
	case ratelimit.LeakyBucket:
		p.leasable = false // each event has a Delay of its own
		return queueKind, p.bucket(a.Rate, a.Capacity)
	case ratelimit.FixedWindow:
		aligned := byte(0)
		if a.Start == ratelimit.StartAligned {
			aligned = 1
		}
		return fixedKind, append(doubles(uint64(a.Limit), ticks(a.Window)), aligned)
	case ratelimit.SlidingWindow:
		return slidingKind, ring(a.Segments+1, a.Window/time.Duration(a.Segments), a.Limit, 0)
	case ratelimit.RollingWindow:
		return rollingKind, ring(int(a.Window/a.Period), a.Period, a.Quota, a.PeriodLimit)
	case ratelimit.SlidingLog:
		counted := byte(0)
		if a.CountDenied {
			counted = 1
			p.cacheable, p.leasable = false, false
		}
		p.partial = true
		return logKind, append(doubles(uint64(a.Limit), ticks(a.Window)), counted)
	case ratelimit.InFlight:
		p.cacheable, p.leasable = false, false // events may be released at any moment
		p.partial = true
		return flightKind, append(doubles(uint64(a.Limit), ticks(a.Timeout)), 0)
	case ratelimit.WarmingUp:
		p.leasable = false // its state does not count events
		c := warmup.New(a.Rate.Events, a.Rate.Per, a.Warmup, a.ColdFactor)
		for _, f := range []float64{c.Stable, c.Slope, c.Threshold, c.Stored, c.Cooldown} {
			constants = appendDouble(constants, f)
		}
		return warmingKind, constants
	}
	panic(fmt.Sprintf("redisstore: unknown algorithm %T", alg)) // the interface is sealed
}

func (p *program) bucket(rate ratelimit.Rate, depth int) []byte {
	units, unit, _ := uint128.Ratio(uint64(rate.Per), uint64(rate.Events), uint64(tick)) // checked by Portable
	c := cost{units, unit}
	p.costs = append(p.costs, c)
	spanTicks, spanUnits := c.times(depth)
	return appendDouble(appendDouble(doubles(unit), spanTicks), spanUnits)
}

func ring(slots int, length time.Duration, limit, perSlot int) []byte {
	if perSlot == 0 {
		perSlot = limit
	}
	size := byte(4)
	if uint64(limit) > math.MaxUint32 {
		size = 8
	}
	return append(doubles(uint64(slots), ticks(length), uint64(limit), uint64(min(perSlot, limit))), size)
}

func ticks(d time.Duration) uint64 { return uint64(d / tick) }

func doubles(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = appendDouble(b, float64(n))
	}
	return b
}

func appendDouble(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}

// programs caches the programs of transitions.
type programs struct {
	mu    sync.RWMutex     // protects known
	known map[any]*program // by transition, or by its tag if it varies
}

// maxPrograms bounds the memory of a programs.
const maxPrograms = 4096

// get returns the program of t.
func (p *programs) get(t *ratelimit.Transition) (*program, error) {
	var id any = t
	if t.Varies() { // t may have been made for this call
		id = string(t.Tag())
	}
	p.mu.RLock()
	prog := p.known[id]
	p.mu.RUnlock()
	if prog != nil {
		return prog, nil
	}
	made, err := newProgram(t)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if prog = p.known[id]; prog != nil {
		return prog, nil // another goroutine was faster
	}
	if p.known == nil || len(p.known) >= maxPrograms {
		p.known = make(map[any]*program)
	}
	p.known[id] = made
	return made, nil
}
