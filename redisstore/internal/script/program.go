package script

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file compiles a limit into a program: the script that decides by it, and its constants in
// the encoding of that script.

// Tick is the unit of Redis's clock.
const Tick = time.Microsecond

// A Program is what the store needs to apply a limit by a script.
type Program struct {
	Limit *limit.Limit // in its portable form, with microsecond ticks
	All   bool         // whether the algorithm is an All
	Kinds []byte       // of its parts, or none if one of them has no kernel in the scripts
	Most  int          // the most events that one request may take

	Letters string // that stand for its kind in the names of keys
	// The prefix of each state of the limit, and of each value in Redis unless it is short.
	Tag      string
	OpenTag  string // that of states with open holds
	AheadTag string // that of states with turns ahead

	// Whether a reply may omit the entries of a state that do not affect its decisions.
	Partial   bool
	Cacheable bool // whether a denial holds until RetryAfter, and leaves the state unchanged
	Leasable  bool // whether events can be taken in advance and given back

	// The parts and their constants, in the script's encoding. They change with the time if there
	// are calendars.
	constants atomic.Pointer[constants]
	calendars []datedPart
	costs     []cost // the cost of one event in each bucket among the parts
	short     bool   // whether another rate may have left a short value: see lua/parts.lua
	code      int    // what ends the short form of its own values, or -1 if they have none

	// By variant, once needed; that of several keys together is of no program.
	scripts [together]atomic.Pointer[Script]
}

// NotesDenials reports whether a part counts denied events.
func (p *Program) NotesDenials() bool { return p.Limit.Notes() }

// A cost is the time that an event costs, in units. A microsecond has unit units.
type cost struct{ units, unit uint64 }

// times returns the cost of n events, in whole microseconds and units. For more events than
// pass before time ends, it is some later time.
func (c cost) times(n int) (ticks, units float64) {
	hi, lo := bits.Mul64(uint64(n), c.units)
	if hi >= c.unit {
		return TooLong, 0
	}
	q, r := bits.Div64(hi, lo, c.unit)
	if q >= TooLong {
		return TooLong, 0
	}
	return float64(q), float64(r)
}

// TooLong is a number of microseconds that ends after the latest instant, whenever it begins.
const TooLong = 1 << 53

// AppendCosts appends the cost of n events in each bucket.
func (p *Program) AppendCosts(b []byte, n int) []byte {
	for _, cost := range p.costs {
		ticks, units := cost.times(n)
		b = AppendDouble(AppendDouble(b, ticks), units)
	}
	return b
}

// New returns the program of a limit, or an error if no state in Redis has room for its numbers.
func New(l *limit.Limit) (*Program, error) {
	varies := l.Varies
	l, err := l.Portable(Tick)
	if err != nil {
		return nil, err
	}
	p := &Program{Limit: l, Tag: string(l.Tag()), code: -1}
	if l.Stateless() {
		return p, nil // no call is made with it
	}
	p.OpenTag, p.AheadTag = openVersion+p.Tag[1:], aheadVersion+p.Tag[1:]
	p.Most = l.Limit()
	p.Cacheable = !l.Notes() && !l.Releases() // or events may be released at any moment
	var params []byte
	parts := []limit.Spec{l.Spec}
	p.All = l.Spec.Kind == limit.All
	if p.All {
		// It has no state and no effect.
		unlimited := func(part limit.Spec) bool { return part.Kind == limit.Unlimited }
		parts = slices.DeleteFunc(slices.Clone(l.Spec.Parts), unlimited)
		params = binary.LittleEndian.AppendUint16(params, uint16(len(parts)))
		p.Letters = "+"
	}
	for i := range parts {
		letter := parts[i].Letter()
		p.Letters += string(letter)
		p.Kinds = append(p.Kinds, kindOf(letter))
	}
	if slices.Contains(p.Kinds, 0) { // a part has no script
		p.Kinds = nil
		p.setConstants(nil, time.Now())
		return p, nil
	}
	p.Leasable = p.Cacheable
	for i, kind := range p.Kinds {
		part, k := &parts[i], kernels[kind]
		p.short = k.isShort && !p.All && !varies
		p.Partial = p.Partial || k.isPartial
		p.Leasable = p.Leasable && part.Leases()
		params = k.constants(p, append(params, kind), part)
	}
	p.For(Plain) // to assemble it now, not at the first request
	p.setConstants(params, time.Now())
	return p, nil
}

// HasScript reports whether scripts can decide by the limit. Otherwise, the process decides.
func (p *Program) HasScript() bool { return p.Kinds != nil }

// Constants are those of all parts, for as long as no window of a calendar among them ends.
type constants struct {
	params string // with their kinds
	one    string // params, and the most common request: take one event
	from   int64  // in seconds since 1970
	to     int64  // likewise; these constants are for times before it
}

// A datedPart is a part with a calendar.
type datedPart struct {
	dates *calendar.Calendar
	at    int // where params have its borders
}

// setConstants sets the constants to those for a time of the server's clock. params are those for
// any other time.
func (p *Program) setConstants(params []byte, now time.Time) {
	c := &constants{from: math.MinInt64, to: math.MaxInt64}
	for _, part := range p.calendars {
		borders := part.dates.Around(now.Unix())
		c.from, c.to = max(c.from, borders[1]), min(c.to, borders[2])
		for i, border := range borders {
			at := float64(max(border, 0)) * float64(time.Second/Tick)
			binary.LittleEndian.PutUint64(params[part.at+8*i:], math.Float64bits(at))
		}
	}
	c.params = string(params)
	usual := Request{p, &step.Request{Op: step.OpTake, N: 1}}
	c.one = string(usual.AppendRun(AppendDouble(params, -1), 1, Plain))
	p.constants.Store(c)
}

// Params returns the constants of all parts, with their kinds.
func (p *Program) Params() string { return p.constants.Load().params }

// TakesOne returns the argument of a script for the most common request, at the time of the
// server's clock: take one event.
func (p *Program) TakesOne() string { return p.constants.Load().one }

// Follow sees to it that the constants are those for a time of the server's clock, and reports
// whether that has changed them.
func (p *Program) Follow(now time.Time) (changed bool) {
	c := p.constants.Load()
	sec := now.Unix()
	changed = sec < c.from || sec >= c.to
	if changed {
		p.setConstants([]byte(c.params), now)
	}
	return changed
}

// For returns the script for commands that need a variant.
func (p *Program) For(v Variant) *Script {
	s := p.scripts[v].Load()
	if s == nil {
		s = scriptFor(p.All, v, p.Kinds)
		p.scripts[v].Store(s)
	}
	return s
}
