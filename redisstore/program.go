package redisstore

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/calendar"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file compiles a limit into a program: the script that decides by it, and its constants in
// the encoding of that script.

// tick is the unit of Redis's clock.
const tick = time.Microsecond

// A program is what the store needs to apply a limit by a script.
type program struct {
	l       *limit.Limit // in its portable form, with microsecond ticks
	all     bool         // whether the algorithm is an All
	kinds   []byte       // of its parts, or none if one of them has no kernel in the scripts
	letters string       // that stand for its kind in the names of keys
	// The parts and their constants, in the script's encoding. They change with the time if there
	// are calendars.
	constants atomic.Pointer[constants]
	calendars []datedPart
	// The prefix of each state of l, and of each value in Redis unless it is short.
	tag      string
	openTag  string // that of states with open holds
	aheadTag string // that of states with turns ahead
	short    bool   // whether another rate may have left a short value: see lua/parts.lua
	code     int    // what ends the short form of its own values, or -1 if they have none
	costs    []cost // the cost of one event in each bucket among the parts
	limit    int    // the most events that one request may take

	// By variant, once needed; that of several keys together is of no program.
	scripts [together]atomic.Pointer[script]

	// Whether a reply may omit the entries of a state that do not affect its decisions.
	partial   bool
	cacheable bool // whether a denial holds until RetryAfter, and leaves the state unchanged
	leasable  bool // whether events can be taken in advance and given back

	similars similars     // the limits whose states it has met lately
	opened   atomic.Int64 // when the store last met open holds, by its clock; 0 if never
}

// notesDenials reports whether a part counts denied events.
func (p *program) notesDenials() bool { return p.l.Notes() }

// equals reports whether p and q are for the same limit.
func (p *program) equals(q *program) bool { return p == q || p.tag == q.tag }

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

// appendCosts appends the cost of n events in each bucket.
func (p *program) appendCosts(b []byte, n int) []byte {
	for _, cost := range p.costs {
		ticks, units := cost.times(n)
		b = appendDouble(appendDouble(b, ticks), units)
	}
	return b
}

func newProgram(l *limit.Limit) (*program, error) {
	varies := l.Varies
	l, err := l.Portable(tick)
	if err != nil {
		return nil, err
	}
	p := &program{l: l, tag: string(l.Tag()), code: -1}
	if l.Stateless() {
		return p, nil // no call is made with it
	}
	p.openTag, p.aheadTag = openVersion+p.tag[1:], aheadVersion+p.tag[1:]
	p.limit = l.Limit()
	p.cacheable = !l.Notes() && !l.Releases() // or events may be released at any moment
	var params []byte
	parts := []limit.Spec{l.Spec}
	p.all = l.Spec.Kind == limit.All
	if p.all {
		// It has no state and no effect.
		unlimited := func(part limit.Spec) bool { return part.Kind == limit.Unlimited }
		parts = slices.DeleteFunc(slices.Clone(l.Spec.Parts), unlimited)
		params = binary.LittleEndian.AppendUint16(params, uint16(len(parts)))
		p.letters = "+"
	}
	for i := range parts {
		letter := parts[i].Letter()
		p.letters += string(letter)
		p.kinds = append(p.kinds, kindOf(letter))
	}
	if slices.Contains(p.kinds, 0) { // a part has no script
		p.kinds = nil
		p.setConstants(nil, time.Now())
		return p, nil
	}
	p.leasable = p.cacheable
	for i, kind := range p.kinds {
		part, k := &parts[i], kernels[kind]
		p.short = k.isShort && !p.all && !varies
		p.partial = p.partial || k.isPartial
		p.leasable = p.leasable && part.Leases()
		params = k.constants(p, append(params, kind), part)
	}
	p.variantOf(plain) // to assemble it now, not at the first request
	p.setConstants(params, time.Now())
	return p, nil
}

// hasScript reports whether scripts can decide by the limit. Otherwise, the process decides.
func (p *program) hasScript() bool { return p.kinds != nil }

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
func (p *program) setConstants(params []byte, now time.Time) {
	c := &constants{from: math.MinInt64, to: math.MaxInt64}
	for _, part := range p.calendars {
		borders := part.dates.Around(now.Unix())
		c.from, c.to = max(c.from, borders[1]), min(c.to, borders[2])
		for i, border := range borders {
			at := float64(max(border, 0)) * float64(time.Second/tick)
			binary.LittleEndian.PutUint64(params[part.at+8*i:], math.Float64bits(at))
		}
	}
	c.params = string(params)
	usual := &call{prog: p, req: step.Request{Op: step.OpTake, N: 1}}
	c.one = string(usual.appendRun(appendDouble(params, -1), 1, plain))
	p.constants.Store(c)
}

// follow sees to it that the constants are those for a time of the server's clock, and reports
// whether that has changed them.
func (p *program) follow(now time.Time) (changed bool) {
	c := p.constants.Load()
	sec := now.Unix()
	changed = sec < c.from || sec >= c.to
	if changed {
		p.setConstants([]byte(c.params), now)
	}
	return changed
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

// firstEnd returns an instant before which none of the open holds in a state ends by itself, nor
// any of those whose turns are ahead, or the zero Time if there is none.
func (p *program) firstEnd(state []byte) (at time.Time) {
	word := func(words []byte, i uint64) (w uint64) {
		if i < uint64(len(words))/8 { // else the value is damaged
			w = binary.LittleEndian.Uint64(words[8*i:])
		}
		return w
	}
	ends := func(instant uint64) {
		if end := time.UnixMicro(int64(instant)); at.IsZero() || end.Before(at) {
			at = end
		}
	}
	if list, open := bytes.CutPrefix(state, []byte(p.openTag)); open {
		ends(word(list, 1))
	}
	if ahead, has := bytes.CutPrefix(state, []byte(p.aheadTag)); has {
		turns, form := min(word(ahead, 0), uint64(len(ahead))/32), word(ahead, 1)
		for i := range turns {
			if word(ahead, 2+4*i)%2 == 1 { // an even one is of no hold
				ends(word(ahead, 2+4*i+2))
			}
		}
		if form%2 == 1 {
			ends(word(ahead, 2+4*turns+form/4+1))
		}
	}
	return at
}

// These begin the states with open holds, and with turns ahead: the versions of their form.
const (
	openVersion  = "\x02"
	aheadVersion = "\x03"
)

// isOpen reports whether holds are open in a state, or turns ahead.
func (p *program) isOpen(state []byte) bool { return len(state) > 0 && state[0] != p.tag[0] }

// state returns the state for a value in a reply, which has no prefix.
func (p *program) state(value string) []byte {
	if value == "" {
		return nil
	}
	if p.code >= 0 && len(value) == shortLength {
		return p.long(value)
	}
	return append(append(make([]byte, 0, len(p.tag)+len(value)), p.tag...), value...)
}

// shortLength is the length of the short form of a value, which lua/parts.lua describes.
const shortLength = 19

// long returns the state for a value in the short form, or the value if it has another form.
func (p *program) long(value string) []byte {
	number, err := strconv.ParseUint(value, 10, 63)
	if err != nil || !p.short {
		return []byte(value)
	}
	state := []byte(p.tag)
	if code := int(number % 1e4); code != p.code {
		of, err := p.paced(code)
		if err != nil {
			return []byte(value)
		}
		state = slices.Clone(of.Tag())
	}
	for _, word := range []uint64{number/1e4 + 15e14, 0, 0} {
		state = binary.LittleEndian.AppendUint64(state, word)
	}
	return state
}

// codeOf returns what ends the short form of the values of a bucket: the first digits of the cost
// of an event, and the number of zeros behind them. It is -1 if there are other digits.
func codeOf(c cost) int {
	digits, zeros := c.units, 0
	for ; digits > 999 && digits%10 == 0 && zeros < 9; zeros++ {
		digits /= 10
	}
	if c.unit > 1 || digits > 999 {
		return -1
	}
	return int(digits)*10 + zeros
}

// paced returns the limit of a bucket like that of p, with the cost of an event that a code
// stands for.
func (p *program) paced(code int) (*limit.Limit, error) {
	per := time.Duration(code/10) * tick
	for range code % 10 {
		per *= 10
	}
	spec := p.l.Spec
	spec.Numbers[0], spec.Numbers[1] = 1, uint64(per)
	return limit.New(spec, p.l.Encoding, nil)
}

// programs caches the programs of limits.
type programs struct {
	mu    sync.RWMutex     // protects known
	known map[any]*program // by limit, or by its tag if it varies
}

// maxPrograms bounds the memory of a programs.
const maxPrograms = 4096

// get returns the program of l.
func (p *programs) get(l *limit.Limit) (*program, error) {
	var id any = l
	if l.Varies { // l may have been made for this call
		id = string(l.Tag())
	}
	p.mu.RLock()
	prog := p.known[id]
	p.mu.RUnlock()
	if prog != nil {
		return prog, nil
	}
	made, err := newProgram(l)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	prog = p.known[id]
	if prog != nil {
		return prog, nil // another goroutine was faster
	}
	if p.known == nil || len(p.known) >= maxPrograms {
		p.known = make(map[any]*program)
	}
	p.known[id] = made
	return made, nil
}
