package fakeredis

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
)

// This file reads the arguments of the scripts and writes their replies, as lua/take.lua,
// main.lua and joint.lua of package redisstore describe them.

// The operations.
const (
	opPeek = iota
	opTake
	opReserve
	opHold
	opCharge
	opSettle
	opExtend
	opNothing
	opUpTo
)

// The outcomes, in a reply.
const (
	replyDone  = 0
	replyOther = 1 // the value is not a state of the limit
	replyHolds = 4 // holds are open or turns ahead, and the script does not know them
	replyOpen  = 5 // done; the value has open holds
	replyAhead = 6 // done; the value has turns ahead
	replyDue   = 7 // turns of one of several keys have come
	// The value of one of several keys is no state of its limit, and is in the reply.
	replyForeign = 8
)

// The flags of a hold.
const (
	flagBack   = 1
	flagYields = 2
)

// headOf returns how each reply of a script begins.
func headOf(now time.Time, outcome byte) string {
	return string(append(appendDouble(nil, float64(now.UnixMicro())), outcome))
}

func appendDouble(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}

// A reader reads an argument. rest is what follows.
type reader struct{ rest string }

func (r *reader) skip(n int) string {
	skipped := r.rest[:n]
	r.rest = r.rest[n:]
	return skipped
}

func (r *reader) byte() byte { return r.skip(1)[0] }

func (r *reader) uint16() int { return int(binary.LittleEndian.Uint16([]byte(r.skip(2)))) }

func (r *reader) uint32() int { return int(binary.LittleEndian.Uint32([]byte(r.skip(4)))) }

func (r *reader) double() float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(r.skip(8))))
}

func (r *reader) ticks() time.Duration {
	n := r.double()
	if n >= 1<<53 {
		return math.MaxInt64
	}
	return time.Duration(n) * tick
}

// timeOr returns the time that a request gives, or that of the server's clock.
func (r *reader) timeOr(now time.Time) time.Time {
	given := r.double()
	if given < 0 {
		return now
	}
	return time.UnixMicro(int64(given))
}

// The kinds of parts.
const (
	bucketKind = iota + 1
	queueKind
	intervalKind
	fixedKind
	slidingKind
	rollingKind
	logKind
	warmingKind
	flightKind
	calendarKind
	lockoutKind
)

// constantsSize is the size of the constants of a part of each kind: doubles, and a byte of some.
var constantsSize = [...]int{
	bucketKind:   4 * 8,
	queueKind:    4 * 8,
	intervalKind: 3 * 8,
	fixedKind:    2*8 + 1,
	slidingKind:  4*8 + 1,
	rollingKind:  4*8 + 1,
	logKind:      2*8 + 1,
	warmingKind:  5 * 8,
	flightKind:   2*8 + 1,
	calendarKind: 5 * 8,
	lockoutKind:  4 * 8,
}

// constants are what the server needs of the constants of a limit.
type constants struct {
	buckets []bucket // the parts that are buckets, for which a request has costs
	queue   bool     // whether the limit is a LeakyBucket
	code    int      // how the short form of its values ends, or -1 if it has none
	notes   bool     // whether a part counts denials

	// The time for which all parts with a calendar know the windows, in microseconds: from the
	// first one until before the second one.
	from, to float64
}

// A bucket is a part of which events cost time: whole ticks, and units of which a tick has unit.
type bucket struct {
	rate limit.Rate
	unit float64
}

// constants reads those of l.
func (r *reader) constants(l *limit.Limit) constants {
	c, parts := constants{code: -1, to: math.Inf(1)}, []limit.Spec{l.Spec}
	all := l.Spec.Kind == limit.All
	if all {
		parts = slices.DeleteFunc(slices.Clone(l.Spec.Parts), func(part limit.Spec) bool {
			return part.Kind == limit.Unlimited // which has no state
		})
		r.uint16() // how many there are
	}
	for i := range parts {
		kind := r.byte()
		numbers := reader{r.skip(constantsSize[kind])}
		switch kind {
		case bucketKind, queueKind:
			c.buckets = append(c.buckets, bucket{parts[i].Rate(), numbers.double()})
			numbers.skip(2 * 8)
			if !all {
				c.queue, c.code = kind == queueKind, int(numbers.double())
			}
		case calendarKind:
			numbers.double()
			c.from = max(c.from, numbers.double())
			numbers.skip(2 * 8)
			c.to = min(c.to, numbers.double())
		case logKind:
			numbers.skip(2 * 8)
			c.notes = c.notes || numbers.byte() == 1
		}
	}
	return c
}

// knows reports whether the constants have the windows of a time.
func (c *constants) knows(now time.Time) bool {
	at := float64(now.UnixMicro())
	return c.from <= at && at < c.to
}

// skipCosts skips the costs of a number of events.
func (r *reader) skipCosts(c constants) { r.skip(2 * 8 * len(c.buckets)) }

// mostEvents is the greatest number of events that a request says. If there are more, only their
// costs say how many.
const mostEvents = 1 << 52

// events reads a number of events, which may be negative.
func (r *reader) events() int { return int(r.double()) }

// costs reads the costs of n events, and returns the number of events that they are of.
func (r *reader) costs(c constants, n int) int {
	for i, b := range c.buckets {
		ticks, units := r.double(), r.double()
		if i == 0 && uint64(n) == mostEvents {
			n = b.eventsOf(ticks, units)
		}
	}
	return n
}

// eventsOf returns how many events have a cost.
func (b bucket) eventsOf(ticks, units float64) int {
	number := func(f float64) *big.Int { return big.NewInt(int64(f)) }
	time := new(big.Int).Mul(number(ticks), number(b.unit))
	time.Add(time, number(units))
	time.Mul(time, number(float64(tick))).Mul(time, big.NewInt(int64(b.rate.Events)))
	each := new(big.Int).Mul(number(b.unit), big.NewInt(int64(b.rate.Per)))
	n := time.Quo(time, each)
	if !n.IsInt64() {
		return math.MaxInt
	}
	return int(n.Int64())
}
