package decide_test

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/history"
)

// FuzzModel decodes an algorithm, its parameters and a sequence of operations
// from bytes, and runs them on the library and on the reference model, which
// must agree on every answer.
func FuzzModel(f *testing.F) {
	rng := budget.Rand(f)
	for i := range kinds {
		for range 4 {
			data := make([]byte, 200)
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			data[0] = byte(i)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &byteChoices{data}
		play(t, c, pick(c, kinds...), 100)
	})
}

// byteChoices makes choices from bytes. A choice takes as many bytes as its number of alternatives
// needs. Once the bytes have run out, it takes zeros.
type byteChoices struct{ data []byte }

func (c *byteChoices) More() bool { return len(c.data) > 0 }

func (c *byteChoices) Below(n int) int { return int(c.Within(time.Duration(n))) }

func (c *byteChoices) Within(n time.Duration) time.Duration {
	size := 1
	if n > 256 {
		size = 8
	}
	var word [8]byte
	c.data = c.data[copy(word[8-size:], c.data):]
	return time.Duration(binary.BigEndian.Uint64(word[:]) % uint64(n))
}

// mostDenied bounds the limit of a log that counts denials. Such a log keeps up to twice its limit
// of events, and as many denials, and counts at most 2⁶². With this bound, there is room for the
// turns ahead, whose number the model does not bound.
const mostDenied = math.MaxInt >> 5

// A kind of algorithm, and how to choose its parameters.
type kind struct {
	name string
	draw func(*drawer) ratelimit.Algorithm
}

// kinds are all kinds of algorithms.
var kinds = append(slices.Clone(simpleKinds), kind{"All", (*drawer).all},
	kind{"Plan", (*drawer).plan}, kind{"AllWithPlans", (*drawer).allWithPlans})

// simpleKinds are the kinds without parts.
var simpleKinds = []kind{
	{"TokenBucket", func(d *drawer) ratelimit.Algorithm {
		return d.tokenBucket(ratelimit.RefillContinuous)
	}},
	{"TokenBucketInterval", func(d *drawer) ratelimit.Algorithm {
		return d.tokenBucket(ratelimit.RefillInterval)
	}},
	{"LeakyBucket", (*drawer).leakyBucket},
	{"FixedWindow", func(d *drawer) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: d.count(), Window: d.span()}
	}},
	{"FixedWindowOnFirstEvent", func(d *drawer) ratelimit.Algorithm {
		return ratelimit.FixedWindow{Limit: d.count(), Window: d.span(), Start: ratelimit.StartOnFirstEvent}
	}},
	{"SlidingWindow", (*drawer).slidingWindow},
	{"SlidingLog", func(d *drawer) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: d.count(), Window: d.span()}
	}},
	{"SlidingLogCountDenied", func(d *drawer) ratelimit.Algorithm {
		return ratelimit.SlidingLog{Limit: min(d.count(), mostDenied), Window: d.span(), CountDenied: true}
	}},
	{"RollingWindow", (*drawer).rollingWindow},
	{"WarmingUp", (*drawer).warmingUp},
	{"InFlight", func(d *drawer) ratelimit.Algorithm {
		d.flies = true
		return ratelimit.InFlight{Limit: d.count(), Timeout: d.span()}
	}},
	{"Lockout", (*drawer).lockout},
}

// A drawer chooses parameters. Most parameters of one schedule are of about the same size, so that
// the parts of an All matter to each other.
type drawer struct {
	history.Choices
	base  time.Duration
	spans []time.Duration // the spans that were drawn: how long events count
	flies bool            // whether an InFlight was drawn
}

const century = 100 * 365 * 24 * time.Hour

func newDrawer(c history.Choices) *drawer {
	return &drawer{Choices: c, base: pick(c,
		time.Second, time.Second, time.Minute, 24*time.Hour,
		time.Millisecond, 10*time.Nanosecond, 12345678901, century)}
}

// span chooses a length of time, and notes it.
func (d *drawer) span() time.Duration {
	var span time.Duration
	switch d.Below(10) {
	case 0:
		span = pick(d.Choices, 1, 2, 3, 7, time.Microsecond, time.Hour, century)
	case 1:
		span = d.base/7 + 1
	case 2:
		span = d.base/10 + 1
	case 3:
		span = min(d.base, century/3) * 3
	case 4:
		span = 1 + d.Within(d.base)
	default:
		span = d.base
	}
	d.spans = append(d.spans, span)
	return span
}

// count chooses a number of events.
func (d *drawer) count() int {
	switch i := d.Below(12); i {
	case 0:
		return pick(d.Choices, 1000, 999_999_937, 1_000_000_000, math.MaxInt>>23, math.MaxInt>>10+1, math.MaxInt/2+1, fakes.MostEvents-1, fakes.MostEvents)
	case 1:
		return 100
	case 2, 3:
		return 1
	default:
		return i
	}
}

// rate chooses a rate, and notes how long one event takes as well.
func (d *drawer) rate() ratelimit.Rate {
	r := ratelimit.Rate{Events: d.count(), Per: d.span()}
	if d.Below(6) == 0 {
		r.Events = pick(d.Choices, 3, 7, 1_000_003, 1_000_000_000)
	}
	d.spans = append(d.spans, 1+r.Per/time.Duration(r.Events))
	return r
}

func (d *drawer) tokenBucket(refill ratelimit.Refill) ratelimit.Algorithm {
	a := ratelimit.TokenBucket{Rate: d.rate(), Refill: refill}
	if d.Below(3) > 0 {
		a.Burst = d.count()
	}
	return a
}

func (d *drawer) leakyBucket() ratelimit.Algorithm {
	a := ratelimit.LeakyBucket{Rate: d.rate()}
	if d.Below(3) > 0 {
		a.Capacity = d.count()
	}
	return a
}

func (d *drawer) slidingWindow() ratelimit.Algorithm {
	segments := d.Below(7)
	if d.Below(8) == 0 {
		segments = 60
	}
	a := ratelimit.SlidingWindow{Limit: d.count(), Segments: segments}
	k := time.Duration(max(1, segments))
	a.Window = min(d.span(), math.MaxInt64/k) * k
	return a
}

func (d *drawer) rollingWindow() ratelimit.Algorithm {
	a := ratelimit.RollingWindow{Quota: d.count(), Period: d.span()}
	a.Window = min(a.Period, math.MaxInt64/8)
	a.Period = a.Window
	a.Window *= time.Duration(1 + d.Below(8))
	if d.Below(2) == 0 {
		a.PeriodLimit = d.count()
	}
	return a
}

// warmingUp chooses parameters whose costs a float64 represents to far less than a nanosecond. Most
// are odd numbers, because round numbers lead to costs in the middle between two nanoseconds, where
// the model gives up.
func (d *drawer) warmingUp() ratelimit.Algorithm {
	events := pick(d.Choices, 1, 2, 3, 7, 100)
	each := history.Pick[time.Duration](d.Choices, 1_000_003, 16_777_259, 100_000_007)
	warmup := 120 * history.Pick[time.Duration](d.Choices, 49_999, 1_299_709, 15_485_863)
	if d.Below(10) == 0 {
		each, warmup = 10*time.Millisecond, 3*time.Second
	}
	d.spans = append(d.spans, each, warmup)
	return ratelimit.WarmingUp{
		Rate:       ratelimit.Rate{Events: events, Per: each * time.Duration(events)},
		Warmup:     warmup,
		ColdFactor: pick(d.Choices, 0, 1.5, 2, 5),
	}
}

// lockout chooses a Lockout of a small limit mostly, so that it locks, often and for longer each
// time.
func (d *drawer) lockout() ratelimit.Algorithm {
	a := ratelimit.Lockout{Limit: d.count(), Window: d.span(), First: d.span()}
	if d.Below(2) == 0 {
		a.Limit = 1 + d.Below(3)
	}
	if d.Below(4) > 0 {
		a.Longest = max(a.First, d.span(), min(a.First, century/50)*time.Duration(1+d.Below(50)))
		d.spans = append(d.spans, a.Longest)
	}
	return a
}

func (d *drawer) all() ratelimit.Algorithm {
	var all ratelimit.All
	for range 1 + d.Below(4) {
		all = append(all, pick(d.Choices, simpleKinds...).draw(d))
	}
	if len(all) > 2 && d.Below(4) == 0 {
		return ratelimit.All{all[0], all[1:]}
	}
	return all
}

// plan chooses an algorithm that needs no state.
func (d *drawer) plan() ratelimit.Algorithm {
	d.span() // notes a span by which the clock moves
	return pick[ratelimit.Algorithm](d.Choices, ratelimit.Unlimited{}, ratelimit.Blocked{})
}

// allWithPlans chooses an All with parts that need no state: Unlimited or Blocked.
func (d *drawer) allWithPlans() ratelimit.Algorithm {
	all := d.all().(ratelimit.All)
	for range 1 + d.Below(2) {
		var plan ratelimit.Algorithm = ratelimit.Unlimited{}
		if d.Below(8) == 0 {
			plan = ratelimit.Blocked{}
		}
		all = slices.Insert(all, d.Below(len(all)+1), plan)
	}
	return all
}
