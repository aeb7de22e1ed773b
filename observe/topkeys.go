package observe

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/timeline"
	"github.com/ratelimit-go/ratelimit/internal/topk"
)

// TopKeys lists the keys that were denied most lately, or that have used most: [TopDenied] makes
// the first list, and [TopUsed] the second one. Pass its Observe to [ratelimit.WithObserver]. Any
// number of limiters may have the same TopKeys, and any number of goroutines may use it at once.
//
// A denial or an event counts half when the half-life has passed (see [WithHalfLife]), a quarter
// after two half-lives, and so on. A key leaves the list when its count is below one half.
// Limiters of the same name count as one.
//
// TopKeys takes little memory, however many keys there are. For a list of k keys, it counts 4k
// keys. So each key of the list takes about 800 bytes, and four times the length of a key. If
// several goroutines tell it of decisions at the same time, TopKeys takes as much memory for each
// of up to 16 processors. Of a key longer than 128 bytes, it keeps the first 128 bytes, or up to 3
// fewer so that no character is cut. Keys that differ only after these bytes are still counted as
// different keys.
//
// While there are no more than 4k keys, the counts are exact. With more keys, a new key takes the
// place of the key that has the least count. Then a count may be too small, by at most 1/(4k) of
// the count of all keys. Each key with more than 1.25/k of it is in the list: a list of 100 has
// each key with more than 1.25% of all denials or events, whatever the other keys are.
//
// The time since a decision is rounded to 1/1024 of the half-life.
type TopKeys struct {
	used     bool // whether the list counts events that are used, and not denials
	most     int
	timeline *timeline.Timeline
	start    kernel.Instant
	halfLife time.Duration
	step     uint64 // in nanoseconds; all decisions within one step have the same weight
	seeds    [2]maphash.Seed

	// Each part has counted some of the decisions. A goroutine that finds its part locked uses
	// the next one, so a flood from many processors spreads over as many parts.
	parts []topPart
	near  sync.Pool // of *topPart: the parts that were last used on each processor
}

// topSpares is how many keys are counted for each key that is listed. In real traffic, most keys
// have small counts, and take the places of each other. So the keys with great counts keep their
// places, and their counts are nearly exact.
const topSpares = 4

// maxTopKey is how many bytes of a key are kept.
const maxTopKey = 128

// maxTopKeys is the greatest k.
const maxTopKeys = 1_000_000

// maxTopParts bounds the memory of a TopKeys.
const maxTopParts = 16

// leastListed is the least count of a key in the list.
const leastListed = 0.5

// defaultHalfLife is long enough to see what was counted since the last look, and short enough
// that a million denials are forgotten after two hours.
const defaultHalfLife = 5 * time.Minute

// A topPart counts denials or events. Instead of letting old counts decay, it gives later ones a
// greater weight: one at the time d after the landmark weighs 2^(d/half-life).
type topPart struct {
	mu       sync.Mutex // protects the fields below; its holder takes no other lock
	keys     *topk.Summary[latest]
	landmark uint64  // the step in which a denial or event weighs 1
	step     uint64  // the latest step in which something was counted
	weight   float64 // of one denial or event in that step

	next *topPart
	_    [64]byte // the next part is in another cache line
}

// A latest is what is kept of a key: the name, and the latest decision that was counted for it.
type latest struct {
	limiter    string
	key        []byte // the array is used again for the next key in this place
	truncated  bool
	since      kernel.Instant // of the first decision since the key entered the list
	last       kernel.Instant // of the latest decision
	n          int
	part       int
	retryAfter time.Duration
}

// A TopKey is a key that was denied much or has used much lately, as [TopKeys.Top] returns it.
type TopKey struct {
	Limiter string // the name of the limiter; see WithName
	Key     string // may be personal data
	Cut     bool   // whether Key is only the first 128 bytes of the key

	// Count is how often the key was denied lately, or how many events it used. The true number is
	// at least Count, and at most Count + Error. Count is not a whole number, because what is older
	// counts less.
	Count, Error float64

	Since time.Time // the first counted decision since the key entered the list
	Last  time.Time // the latest counted decision; the fields below are of this one
	N     int       // how many events the call asked for
	Part  int       // which part of an All decided; see Decision

	// The RetryAfter of a denial, and Last plus RetryAfter. Back is zero if RetryAfter is 0 or
	// Never.
	RetryAfter time.Duration
	Back       time.Time
}

// A TopOption is an option of [TopDenied] and [TopUsed].
type TopOption func(*topConfig)

type topConfig struct {
	halfLife time.Duration
	clock    clock.Clock
}

// WithHalfLife sets the time after which a denial or an event counts half. The default is five
// minutes. A key for which nothing more is counted leaves the list one half-life after its count
// has fallen to 1: 21 half-lives after a million denials at once.
func WithHalfLife(d time.Duration) TopOption {
	return func(c *topConfig) { c.halfLife = d }
}

// WithTopClock makes the list read clk for each decision that it counts. The default is the
// system's clock. A clock of [ratelimit.NewCoarseClock] is cheaper to read.
func WithTopClock(clk clock.Clock) TopOption {
	return func(c *topConfig) { c.clock = clk }
}

// apply applies opts, and returns an error if k or one of them cannot be used. name is that of the
// function that they were given to.
func (c *topConfig) apply(name string, k int, opts []TopOption) error {
	if k < 1 || k > maxTopKeys {
		return invalid(name+"'s k", k, "must be between 1 and a million")
	}
	for i, opt := range opts {
		if opt == nil {
			const must = "must be the result of WithHalfLife or WithTopClock"
			return invalid(fmt.Sprintf("option %d of %s", i, name), nil, must)
		}
		opt(c)
	}
	if c.halfLife <= 0 {
		return invalid("WithHalfLife's d", c.halfLife, "must be positive")
	}
	if param.IsNil(c.clock) {
		const must = "must be a clock.Clock, such as clock.New()"
		return invalid("WithTopClock's clock", nil, must)
	}
	return nil
}

// TopDenied returns an observer that lists the k keys that were denied most lately. Give it to
// limiters by [ratelimit.WithObserver]. It counts calls whose [ratelimit.Outcome] is
// [ratelimit.Denied]. Each call counts as one, whatever its N. If k is not between 1 and a million,
// or an option cannot be used, TopDenied returns an error that matches [ratelimit.ErrInvalid].
func TopDenied(k int, opts ...TopOption) (*TopKeys, error) {
	return newTopKeys("TopDenied", false, k, opts)
}

// TopUsed returns an observer that lists the k keys that have used most events lately. Give it to
// limiters by [ratelimit.WithObserver]. It counts the events that may happen, as soon as they are
// granted: also those that have to wait, and those that only a [ratelimit.FailurePolicy] allows. A
// Charge and what a Settle counts in addition to what was held are counted too. Events that a
// Settle or Cancel gives back were counted, and stay so. If k is not between 1 and a million, or an
// option cannot be used, TopUsed returns an error that matches [ratelimit.ErrInvalid].
func TopUsed(k int, opts ...TopOption) (*TopKeys, error) {
	return newTopKeys("TopUsed", true, k, opts)
}

// invalid returns the error for an argument of this package that cannot be used.
func invalid(what string, value any, want string) error {
	return param.InvalidIn("observe", what, value, want)
}

func newTopKeys(name string, used bool, k int, opts []TopOption) (*TopKeys, error) {
	c := topConfig{halfLife: defaultHalfLife, clock: clock.New()}
	if err := c.apply(name, k, opts); err != nil {
		return nil, err
	}
	t := &TopKeys{
		used:     used,
		most:     k,
		timeline: timeline.New(c.clock, nil),
		halfLife: c.halfLife,
		step:     uint64(max(c.halfLife/1024, 1)),
		seeds:    [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		parts:    make([]topPart, min(runtime.GOMAXPROCS(0), maxTopParts)),
	}
	t.start, _ = t.timeline.Now()
	for i := range t.parts {
		p := &t.parts[i]
		p.keys = topk.New[latest](topSpares * t.most)
		p.weight = 1
		p.next = &t.parts[(i+1)%len(t.parts)]
	}
	return t, nil
}

// countOf returns what o adds to the count of its key, if that is more than 0.
func (t *TopKeys) countOf(o *ratelimit.Observation) int {
	switch {
	case t.used:
		return usedEvents(o)
	case o.Outcome == ratelimit.Denied:
		return 1
	}
	return 0
}

// usedEvents returns how many more events are in use after o than before o. It is negative if o
// gives events back.
func usedEvents(o *ratelimit.Observation) int {
	switch {
	case o.Call != ratelimit.CallCharge && o.Call != ratelimit.CallSettle:
		return o.Granted
	case o.Outcome == ratelimit.Counted:
		return o.N - o.Granted // Granted is what was held; of a Charge, it is 0
	}
	return 0
}

// Observe is a [ratelimit.Observer]: it counts o for its key, if the list is about such decisions.
func (t *TopKeys) Observe(_ context.Context, o ratelimit.Observation) {
	n := t.countOf(&o)
	if n <= 0 {
		return
	}
	now, _ := t.timeline.Now()
	id := maphash.String(t.seeds[0], o.Key)
	if o.Limiter != "" {
		id ^= maphash.String(t.seeds[1], o.Limiter)
	}
	p := t.lock()
	t.advance(p, t.stepOf(now))
	weight := float64(n) * p.weight
	e, added := p.keys.Add(id, weight)
	d := &e.Value
	if added {
		d.limiter = o.Limiter
		d.key, d.truncated = append(d.key[:0], keptOf(o.Key)...), len(o.Key) > maxTopKey
	}
	if e.Count-e.Error-weight < leastListed*p.weight { // not listed before this decision
		d.since = now
	}
	d.last, d.n, d.part, d.retryAfter = now, o.N, o.Decision.Part, o.Decision.RetryAfter
	p.mu.Unlock()
	t.near.Put(p)
}

// keptOf returns the part of a key that is kept. It ends at the end of a character.
func keptOf(key string) string {
	if len(key) <= maxTopKey {
		return key
	}
	n := maxTopKey
	for n > maxTopKey-utf8.UTFMax+1 && !utf8.RuneStart(key[n]) {
		n--
	}
	return key[:n]
}

// lock locks a part that is free, preferably the part that this processor used before.
func (t *TopKeys) lock() *topPart {
	p, _ := t.near.Get().(*topPart)
	if p == nil {
		p = &t.parts[0]
	}
	for range t.parts {
		if p.mu.TryLock() {
			return p
		}
		p = p.next
	}
	p.mu.Lock()
	return p
}

// stepOf returns the number of the step that now is in.
func (t *TopKeys) stepOf(now kernel.Instant) uint64 { return (now - min(now, t.start)) / t.step }

// growth returns the factor by which the weight of a denial or event grows in a number of steps.
func (t *TopKeys) growth(steps uint64) float64 {
	return math.Exp2(float64(steps) * float64(t.step) / float64(t.halfLife))
}

// maxGrowth is the weight at which weights start over at 1. It is far below the greatest float64.
const maxGrowth = 0x1p256

// advance makes step the latest one of p, which is locked.
func (t *TopKeys) advance(p *topPart, step uint64) {
	if step <= p.step {
		return
	}
	p.step = step
	p.weight = t.growth(step - p.landmark)
	if p.weight > maxGrowth {
		p.keys.Scale(1 / p.weight)
		p.landmark, p.weight = step, 1
	}
}

// Top returns the n keys with the greatest Count, or all of them if there are fewer than n. It
// returns at most the k keys of [TopDenied] or [TopUsed]. The key with the greatest Count comes
// first. Of keys with the same Count, the key that was counted last comes first. Top is for pages
// and logs: it takes some microseconds for each key of the list and each processor.
func (t *TopKeys) Top(n int) []TopKey {
	now, _ := t.timeline.Now()
	step := t.stepOf(now)
	found := make(map[uint64]*TopKey)
	rest := 0.0 // the greatest count that a key can have if it is in no part
	for i := range t.parts {
		rest += t.collect(&t.parts[i], step, found)
	}
	top := make([]TopKey, 0, len(found))
	for _, d := range found {
		d.Error = max(d.Error+rest, 0) // rounding may make a sum of differences negative
		if d.Since.IsZero() {
			d.Since = d.Last
		}
		if d.Count >= leastListed {
			top = append(top, *d)
		}
	}
	slices.SortFunc(top, func(a, b TopKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last),
			strings.Compare(a.Limiter, b.Limiter), strings.Compare(a.Key, b.Key))
	})
	return top[:max(min(n, t.most, len(top)), 0)]
}

// collect adds the keys of p to found, with their counts at a step. It returns floor, the greatest
// count that p may have seen of a key that it does not keep. The caller adds floor to the errors
// of all keys. So collect subtracts floor from the errors of the keys in p.
func (t *TopKeys) collect(
	p *topPart,
	step uint64,
	found map[uint64]*TopKey,
) (floor float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.advance(p, step)
	floor = p.keys.Floor() / p.weight
	for _, e := range p.keys.Entries() {
		d := found[e.ID]
		if d == nil {
			d = &TopKey{
				Limiter: e.Value.limiter,
				Key:     string(e.Value.key),
				Cut:     e.Value.truncated,
			}
			found[e.ID] = d
		}
		count := (e.Count - e.Error) / p.weight
		if since := t.timeline.Wall(e.Value.since, 0); count >= leastListed &&
			(d.Since.IsZero() || since.Before(d.Since)) {
			d.Since = since
		}
		d.Count += count
		d.Error += e.Error/p.weight - floor
		if last := t.timeline.Wall(e.Value.last, 0); !last.Before(d.Last) || d.Last.IsZero() {
			d.Last, d.N, d.Part = last, e.Value.n, e.Value.part
			d.RetryAfter, d.Back = e.Value.retryAfter, time.Time{}
			if d.RetryAfter > 0 && d.RetryAfter != ratelimit.Never {
				d.Back = last.Add(d.RetryAfter)
			}
		}
	}
	return floor
}
