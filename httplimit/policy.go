package httplimit

import (
	"context"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/calendar"
)

// policies describe the limits of a limiter, for header fields and bodies.
type policies struct {
	field  string   // the value of RateLimit-Policy; empty if there is none
	field7 string   // the same for Draft7
	items7 []string // its items
	names  []string // of the parts, by number
	used   []string // these, and the names of periods
	items  []string // the names as items of a structured field, in quotes
	// Of the parts, by number; zero if not known, and without a window if there are two.
	quotas []quota

	starts  []int    // the numbers of the first parts of several limiters; nil with one
	refusal *refusal // answers unless WithRefusal was given
}

// policiesOf returns the policies of the keys of q, on which d was decided.
func (g *Gate) policiesOf(ctx context.Context, q *question, d ratelimit.Decision) *policies {
	isFixed := g.limitsOf == nil
	switch {
	case d.Degraded && isFixed:
		return g.standIns
	case d.Degraded:
		return combinedStandIns(q.limits)
	case isFixed && (!g.variesByKey || d.Allowed && g.headers == None):
		// Nothing else would be shown.
		return g.policies
	case q.bounds == nil:
		return q.limits[0].policiesOf(ctx, q.key, g.status)
	}
	all := make([]*policies, len(q.bounds))
	for i, b := range q.bounds {
		all[i] = q.limits[i].policiesOf(ctx, b.Key(), g.status)
	}
	return combined(all)
}

// combinedPolicies returns the policies of all keys of several limits.
func combinedPolicies(limits []*namedLimit) *policies {
	all := make([]*policies, len(limits))
	for i, l := range limits {
		all[i] = l.policies
	}
	return combined(all)
}

// combinedStandIns returns the policies of what decides in the place of several limits.
func combinedStandIns(limits []*namedLimit) *policies {
	all := make([]*policies, len(limits))
	for i, l := range limits {
		all[i] = l.standIns
	}
	return combined(all)
}

// combined returns the policies of several limiters as one.
func combined(all []*policies) *policies {
	if len(all) == 1 {
		return all[0]
	}
	refusal := *all[0].refusal
	refusal.after = nil
	p := &policies{refusal: &refusal}
	var fields []string
	for _, one := range all {
		p.starts = append(p.starts, len(p.names))
		p.names = append(p.names, one.names...)
		p.used = append(p.used, one.used...)
		p.items = append(p.items, one.items...)
		p.quotas = append(p.quotas, one.quotas...)
		refusal.after = append(refusal.after, one.refusal.after...)
		if one.field != "" {
			fields = append(fields, one.field)
		}
		p.items7 = append(p.items7, one.items7...)
	}
	p.field, p.field7 = strings.Join(fields, ", "), joined7(p.items7)
	return p
}

// firstPartOf returns the number of the first part of the limiter that decided d.
func (p *policies) firstPartOf(d ratelimit.Decision) int {
	if p.starts == nil {
		return d.Part
	}
	return p.starts[d.Part]
}

// shown returns d, a decision on q, with the Part that it has in p. That may take another call of
// the limiter that decided.
func (p *policies) shown(
	ctx context.Context,
	q *question,
	d ratelimit.Decision,
) ratelimit.Decision {
	if p.starts == nil {
		return d
	}
	decided := q.bounds[d.Part]
	first, end := p.starts[d.Part], len(p.names)
	if d.Part+1 < len(p.starts) {
		end = p.starts[d.Part+1]
	}
	d.Part = first
	if end-first == 1 || d.Degraded {
		return d
	}
	// Peek names the part with the least left, or one that refuses a single event. If d is a
	// refusal, that part refuses its events.
	if now, err := decided.Limiter().Peek(ctx, decided.Key()); err == nil {
		d.Part = min(first+now.Part, end-1)
	}
	return d
}

// check returns an error if two limits have one name, so that a client could not tell them apart.
func (p *policies) check() error {
	for i, name := range p.used {
		if slices.Contains(p.used[:i], name) {
			return invalid("a limit's name", fmt.Sprintf("%q", name),
				"must not be that of another limit: give WithPolicyName or WithAlso another name")
		}
	}
	return nil
}

// joined7 returns a list of items, without those whose number is that of an earlier one.
func joined7(items []string) string {
	var kept []string
	seen := make(map[string]bool)
	for _, item := range items {
		if q, _, _ := strings.Cut(item, ";"); !seen[q] {
			seen[q], kept = true, append(kept, item)
		}
	}
	return strings.Join(kept, ", ")
}

// A policyCache has the policies of algorithms.
type policyCache struct {
	known sync.Map // of *policies, by cacheKey
	count atomic.Int64
}

// mostCached is the number of policies after which a policyCache starts over.
const mostCached = 1024

// policies returns the policies of alg.
func (c *policyCache) policies(name string, status int, alg ratelimit.Algorithm) *policies {
	key, ok := cacheKey(alg)
	if !ok {
		return newPolicies(name, status, alg)
	}
	if p, ok := c.known.Load(key); ok {
		return p.(*policies)
	}
	p := newPolicies(name, status, alg)
	if c.count.Add(1) > mostCached {
		c.known.Clear()
		c.count.Store(1)
	}
	c.known.Store(key, p)
	return p
}

// cacheKey returns a comparable value that stands for alg. An All of more than four parts, or
// with another All in it, has none.
func cacheKey(alg ratelimit.Algorithm) (key any, ok bool) {
	if all, isAll := alg.(ratelimit.All); isAll {
		var parts [4]ratelimit.Algorithm
		if copy(parts[:], all) < len(all) {
			return nil, false
		}
		key = parts
	} else {
		key = alg
	}
	return key, reflect.ValueOf(key).Comparable()
}

// newPolicies describes alg, if it is not nil.
func newPolicies(name string, status int, alg ratelimit.Algorithm) *policies {
	parts := partsOf(alg)
	p := new(policies)
	for i, part := range parts {
		partName := name
		if len(parts) > 1 {
			partName = fmt.Sprintf("%s-%d", name, i+1)
		}
		item := quoted(partName)
		p.names, p.used = append(p.names, partName), append(p.used, partName)
		p.items = append(p.items, item)
		of := quotas(part)
		for j, q := range of {
			if p.field != "" {
				p.field += ", "
			}
			if j > 0 {
				period := partName + "-period"
				p.used, item = append(p.used, period), quoted(period)
			}
			p.field += fmt.Sprintf("%s;q=%d", item, min(int64(q.events), maxInteger))
			if q.flies {
				p.field += `;qu="concurrent-requests"`
			} else if q.window >= time.Second && q.window < ratelimit.Never {
				p.field += fmt.Sprintf(";w=%d", seconds(q.window))
				item7 := fmt.Sprintf("%d;w=%d", min(int64(q.events), maxInteger), seconds(q.window))
				p.items7 = append(p.items7, item7)
			}
		}
		switch len(of) {
		case 0:
			of = []quota{{}}
		case 2: // nobody knows which of them a decision is about
			of[0].window, of[0].most = 0, min(of[0].most, of[1].most)
		}
		p.quotas = append(p.quotas, of[0])
	}
	p.field7 = joined7(p.items7)
	p.refusal = newRefusal(status, p.names)
	return p
}

// partsOf returns the parts of an All, and otherwise alg alone or, if that is nil or invalid, a
// nil.
func partsOf(alg ratelimit.Algorithm) []ratelimit.Algorithm {
	l, err := ratelimit.New(alg)
	if err != nil {
		return []ratelimit.Algorithm{nil}
	}
	alg = l.Describe().Algorithm
	if all, ok := alg.(ratelimit.All); ok {
		return all
	}
	return []ratelimit.Algorithm{alg}
}

// flies reports whether l is known to have an InFlight.
func flies(l ratelimit.Limiter) bool {
	return slices.ContainsFunc(
		partsOf(l.Describe().Algorithm),
		func(part ratelimit.Algorithm) bool {
			_, ok := part.(ratelimit.InFlight)
			return ok
		},
	)
}

// part returns the number of the part that decided d.
func (p *policies) part(d ratelimit.Decision) int { return min(max(d.Part, 0), len(p.names)-1) }

// A quota is the most events that can be granted to a key at once, and the time after
// which none of them counts any more.
type quota struct {
	events int
	most   int           // the same, also of a period within it
	window time.Duration // 0 if flies, because it is not known
	lasts  time.Duration // after which none of them counts any more in any case
	flies  bool          // whether they count until they are released
	drips  bool          // whether they come back one by one, evenly

	// Of a Lockout: for how long events count that have not locked the key, and for how long a lock
	// is remembered after its end.
	counts, remembers time.Duration

	// Of a CalendarWindow, its windows, and the zone in which they begin; nil for other algorithms.
	windows *calendar.Calendar
	zone    *time.Location
}

// resetAfter returns the ResetAfter of d, without the time for which a Lockout does nothing but
// remember the last lock.
func (q quota) resetAfter(d ratelimit.Decision) time.Duration {
	switch {
	case q.counts == 0:
		return d.ResetAfter
	case d.Remaining > 0:
		return min(d.ResetAfter, q.counts)
	}
	return max(0, d.ResetAfter-q.remembers)
}

// back returns a time after a grant within which the whole quota is back, if so many events are
// left. It is 0 if it is not known.
func (q quota) back(left int) time.Duration {
	if !q.drips {
		return q.lasts
	}
	missing := uint64(q.events - min(max(0, left), q.events))
	hi, lo := bits.Mul64(uint64(q.window), missing)
	t, rest := bits.Div64(hi, lo, uint64(q.events))
	if rest > 0 {
		t++
	}
	return time.Duration(t)
}

// locks reports whether they are those of a Lockout.
func (q quota) locks() bool { return q.counts > 0 }

// quotas returns the quotas of an algorithm, or none if alg is nil, invalid, or Unlimited.
func quotas(alg ratelimit.Algorithm) []quota {
	if _, ok := alg.(ratelimit.Unlimited); ok {
		return nil
	}
	if a, ok := alg.(ratelimit.RollingWindow); ok && a.PeriodLimit > 0 {
		period := ratelimit.FixedWindow{Limit: a.PeriodLimit, Window: a.Period}
		a.PeriodLimit = 0
		return append(quotas(a), quotas(period)...)
	}
	if a, ok := alg.(ratelimit.InFlight); ok {
		return []quota{{events: a.Limit, most: a.Limit, lasts: a.Timeout, flies: true}}
	}
	q, err := spent(alg)
	if err != nil {
		return nil
	}
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		q.drips = a.Refill == ratelimit.RefillContinuous
	case ratelimit.LeakyBucket:
		q.drips = true
	case ratelimit.Lockout:
		// Events that lock may be spread over Window, and the longest lock begins with the last.
		q.window = min(a.Window, ratelimit.Never-max(a.First, a.Longest)) + max(a.First, a.Longest)
		q.lasts, q.counts = q.window, a.Window
		if a.Longest > a.First {
			q.remembers = a.Longest
		}
	case ratelimit.CalendarWindow:
		q.zone, err = calendar.Zone(a.Zone) // New has loaded it
		if err == nil {
			rule := calendar.Rule{Every: calendar.Unit(a.Every), Start: a.Start, Hour: a.Hour}
			q.windows = calendar.New(rule, q.zone)
			q.lasts = longestOf(q.windows)
			q.window = q.lasts
		}
	}
	if err != nil {
		return nil
	}
	return []quota{q}
}

// longestOf returns the length of the longest of the next windows of a calendar: of those in five
// years, one of which is a leap year, or in one year of days. A client that was idle for so long
// has the whole quota in any case.
func longestOf(windows *calendar.Calendar) time.Duration {
	const mostDays = 366
	now := time.Now()
	last := now.AddDate(5, 0, 0).Unix()
	start, end := windows.Window(now.Unix())
	longest := end - start
	for range mostDays {
		if end > last {
			break
		}
		start, end = windows.Window(end)
		longest = max(longest, end-start)
	}
	return time.Duration(longest) * time.Second
}

// spent finds the quota by trying: it lets a fresh key spend all it can at once. It
// does so at the Unix epoch, where every window, period and segment begins, so that
// the events count for as long as they ever can.
func spent(alg ratelimit.Algorithm) (quota, error) {
	ctx := context.Background()
	l, err := ratelimit.New(alg, ratelimit.WithClock(clock.NewMock())) // which shows the epoch
	if err != nil {
		return quota{}, err
	}
	fresh, err := l.Peek(ctx, "")
	if err != nil {
		return quota{}, err
	}
	d, err := l.Take(ctx, "", fresh.Limit)
	return quota{
		events: fresh.Limit,
		most:   fresh.Limit,
		window: d.ResetAfter,
		lasts:  d.ResetAfter,
	}, err
}

// maxInteger is the greatest integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns s as a string of a structured field.
func quoted(s string) string {
	q := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			q = append(q, '\\')
		}
		q = append(q, s[i])
	}
	return string(append(q, '"'))
}
