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

// DeniedKeys finds the keys that were denied most lately: pass its Observe to
// [ratelimit.WithObserver]. Any number of limiters may have the same DeniedKeys, and any number of
// goroutines may use it at once.
//
// DeniedKeys counts calls whose [ratelimit.Outcome] is [ratelimit.Denied]. Each call counts as one,
// whatever its N. A call counts half as much when the half-life has passed (see [WithHalfLife]), a
// quarter after two half-lives, and so on. A key leaves the list when its count is below one half.
// Limiters of the same name count as one.
//
// DeniedKeys takes little memory, however many keys are denied. For a list of k keys, it counts 4k
// keys. So each key of the list takes about 800 bytes, and four times the length of a key. If
// several goroutines are denied at the same time, DeniedKeys takes as much memory for each of up to
// 16 processors. Of a key longer than 128 bytes, it keeps the first 128 bytes, or up
// to 3 fewer so that no character is cut. Keys that differ only after these bytes are still counted
// as different keys.
//
// While no more than 4k keys are denied, the counts are exact. With more keys, a new key takes the
// place of the key that was denied least. Then a count may be too small, by at most 1/4k of the
// count of all denials. Each key with more than 1.25/k of the denials is in the list: a list of 100
// has each key with more than 1.25% of the denials, whatever the other keys are.
//
// The time since a denial is rounded to 1/1024 of the half-life.
type DeniedKeys struct {
	most     int
	timeline *timeline.Timeline
	start    kernel.Instant
	halfLife time.Duration
	step     uint64 // in nanoseconds; all denials within one step have the same weight
	seeds    [2]maphash.Seed

	// Each part has counted some of the denials. A goroutine that finds its part locked uses
	// the next one, so a flood from many processors spreads over as many parts.
	parts []deniedPart
	near  sync.Pool // of *deniedPart: the parts that were last used on each processor
}

// deniedSpares is how many keys are counted for each key that is listed. In real traffic, most
// denied keys have few denials, and take the places of each other. So the keys with many denials
// keep their places, and their counts are nearly exact.
const deniedSpares = 4

// maxDeniedKey is how many bytes of a key are kept.
const maxDeniedKey = 128

// maxDeniedKeys is the greatest k.
const maxDeniedKeys = 1_000_000

// maxDeniedParts bounds the memory of a DeniedKeys.
const maxDeniedParts = 16

// leastListed is the least count of a key in the list.
const leastListed = 0.5

// defaultHalfLife is long enough to see what was denied since the last look, and short enough
// that a million denials are forgotten after two hours.
const defaultHalfLife = 5 * time.Minute

// A deniedPart counts denials. Instead of letting old counts decay, it gives later denials a
// greater weight: a denial at the time d after the landmark weighs 2^(d/half-life).
type deniedPart struct {
	mu       sync.Mutex // protects the fields below; its holder takes no other lock
	keys     *topk.Summary[denial]
	landmark uint64  // the step in which a denial weighs 1
	step     uint64  // the latest step of a denial
	weight   float64 // the weight of a denial in that step

	next *deniedPart
	_    [64]byte // the next part is in another cache line
}

// A denial has what is kept of a denied key, and of its latest denial.
type denial struct {
	limiter    string
	key        []byte // the array is used again for the next key in this place
	truncated  bool
	since      kernel.Instant // of the first denial since the key entered the list
	last       kernel.Instant // of the latest denial
	n          int
	part       int
	retryAfter time.Duration
}

// A DeniedKey is a key that was denied lately, as [DeniedKeys.Top] returns it.
type DeniedKey struct {
	Limiter string // the name of the limiter; see WithName
	Key     string // may be personal data
	Cut     bool   // whether Key is only the first 128 bytes of the key

	// Count is how often the key was denied lately. The true number is at least Count, and at most
	// Count + Error. Count is not a whole number, because older denials count less.
	Count, Error float64

	Since      time.Time     // the first denial since the key entered the list
	Last       time.Time     // when the key was last denied
	N          int           // how many events the last denied call asked for
	Part       int           // which part of an All denied the last call; see Decision
	RetryAfter time.Duration // the RetryAfter of the last denial
	Back       time.Time     // Last plus RetryAfter; zero if RetryAfter is 0 or Never
}

// A TopOption is an option of [TopDenied].
type TopOption func(*topConfig)

type topConfig struct {
	halfLife time.Duration
	clock    clock.Clock
}

// WithHalfLife sets the time after which a denial counts half. The default is five minutes. A key
// that is no longer denied leaves the list one half-life after its count has fallen to 1: 21
// half-lives after a million denials at once.
func WithHalfLife(d time.Duration) TopOption {
	return func(c *topConfig) { c.halfLife = d }
}

// WithTopClock makes the list read clk for each denial. The default is the system's clock. A clock
// of [ratelimit.NewCoarseClock] is cheaper to read.
func WithTopClock(clk clock.Clock) TopOption {
	return func(c *topConfig) { c.clock = clk }
}

// apply applies opts, and returns an error if k or one of them cannot be used.
func (c *topConfig) apply(k int, opts []TopOption) error {
	if k < 1 || k > maxDeniedKeys {
		return param.Invalid("TopDenied's k", k, "must be between 1 and a million")
	}
	for i, opt := range opts {
		if opt == nil {
			const must = "must be the result of WithHalfLife or WithTopClock"
			return param.Invalid(fmt.Sprintf("option %d of TopDenied", i), nil, must)
		}
		opt(c)
	}
	if c.halfLife <= 0 {
		return param.Invalid("WithHalfLife's d", c.halfLife, "must be positive")
	}
	if param.IsNil(c.clock) {
		const must = "must be a clock.Clock, such as clock.New()"
		return param.Invalid("WithTopClock's clock", nil, must)
	}
	return nil
}

// TopDenied returns an observer that lists the k keys that were denied most lately. Give it to
// limiters by [ratelimit.WithObserver]. If k is not between 1 and a million, or an option cannot be
// used, TopDenied returns an error that matches [ratelimit.ErrInvalid].
func TopDenied(k int, opts ...TopOption) (*DeniedKeys, error) {
	c := topConfig{halfLife: defaultHalfLife, clock: clock.New()}
	if err := c.apply(k, opts); err != nil {
		return nil, err
	}
	t := &DeniedKeys{
		most:     k,
		timeline: timeline.New(c.clock, nil),
		halfLife: c.halfLife,
		step:     uint64(max(c.halfLife/1024, 1)),
		seeds:    [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		parts:    make([]deniedPart, min(runtime.GOMAXPROCS(0), maxDeniedParts)),
	}
	t.start, _ = t.timeline.Now()
	for i := range t.parts {
		p := &t.parts[i]
		p.keys = topk.New[denial](deniedSpares * t.most)
		p.weight = 1
		p.next = &t.parts[(i+1)%len(t.parts)]
	}
	return t, nil
}

// Observe is a [ratelimit.Observer]: it counts o if o is a denial.
func (t *DeniedKeys) Observe(_ context.Context, o ratelimit.Observation) {
	if o.Outcome != ratelimit.Denied {
		return
	}
	now, _ := t.timeline.Now()
	id := maphash.String(t.seeds[0], o.Key)
	if o.Limiter != "" {
		id ^= maphash.String(t.seeds[1], o.Limiter)
	}
	p := t.lock()
	t.advance(p, t.stepOf(now))
	e, added := p.keys.Add(id, p.weight)
	d := &e.Value
	if added {
		d.limiter = o.Limiter
		d.key, d.truncated = append(d.key[:0], keptOf(o.Key)...), len(o.Key) > maxDeniedKey
	}
	if e.Count-e.Error-p.weight < leastListed*p.weight { // not listed before this denial
		d.since = now
	}
	d.last, d.n, d.part, d.retryAfter = now, o.N, o.Decision.Part, o.Decision.RetryAfter
	p.mu.Unlock()
	t.near.Put(p)
}

// keptOf returns the part of a key that is kept. It ends at the end of a character.
func keptOf(key string) string {
	if len(key) <= maxDeniedKey {
		return key
	}
	n := maxDeniedKey
	for n > maxDeniedKey-utf8.UTFMax && !utf8.RuneStart(key[n]) {
		n--
	}
	return key[:n]
}

// lock locks a part that is free, preferably the part that this processor used before.
func (t *DeniedKeys) lock() *deniedPart {
	p, _ := t.near.Get().(*deniedPart)
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
func (t *DeniedKeys) stepOf(now kernel.Instant) uint64 { return (now - min(now, t.start)) / t.step }

// growth returns the factor by which the weight of a denial grows in a number of steps.
func (t *DeniedKeys) growth(steps uint64) float64 {
	return math.Exp2(float64(steps) * float64(t.step) / float64(t.halfLife))
}

// maxGrowth is the weight at which weights start over at 1. It is far below the greatest float64.
const maxGrowth = 0x1p256

// advance makes step the latest one of p, which is locked.
func (t *DeniedKeys) advance(p *deniedPart, step uint64) {
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

// Top returns the n keys that were denied most lately, or all of them if there are fewer than n. It
// returns at most the k keys of [TopDenied]. The key with the greatest Count comes first. Of keys
// with the same Count, the key that was denied last comes first. Top is for pages and logs: it
// takes some microseconds for each key of the list and each processor.
func (t *DeniedKeys) Top(n int) []DeniedKey {
	now, _ := t.timeline.Now()
	step := t.stepOf(now)
	found := make(map[uint64]*DeniedKey)
	rest := 0.0 // the most denials that a key can have if it is in no part
	for i := range t.parts {
		rest += t.collect(&t.parts[i], step, found)
	}
	top := make([]DeniedKey, 0, len(found))
	for _, d := range found {
		d.Error = max(d.Error+rest, 0) // rounding may make a sum of differences negative
		if d.Since.IsZero() {
			d.Since = d.Last
		}
		if d.Count >= leastListed {
			top = append(top, *d)
		}
	}
	slices.SortFunc(top, func(a, b DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last),
			strings.Compare(a.Limiter, b.Limiter), strings.Compare(a.Key, b.Key))
	})
	return top[:max(min(n, t.most, len(top)), 0)]
}

// collect adds the keys of p to found, with their counts at a step. It returns floor, the most
// denials that p may have seen of a key that it does not keep. The caller adds floor to the errors
// of all keys. So collect subtracts floor from the errors of the keys in p.
func (t *DeniedKeys) collect(
	p *deniedPart,
	step uint64,
	found map[uint64]*DeniedKey,
) (floor float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.advance(p, step)
	floor = p.keys.Floor() / p.weight
	for _, e := range p.keys.Entries() {
		d := found[e.ID]
		if d == nil {
			d = &DeniedKey{
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
