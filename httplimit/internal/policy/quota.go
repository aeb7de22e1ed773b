package policy

import (
	"context"
	"math/bits"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/calendar"
)

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

// Flies reports whether l is known to have an InFlight.
func Flies(l ratelimit.Limiter) bool {
	return slices.ContainsFunc(
		partsOf(l.Describe().Algorithm),
		func(part ratelimit.Algorithm) bool {
			_, ok := part.(ratelimit.InFlight)
			return ok
		},
	)
}

// A quota is the most events that can be granted to a key at once, and the time after
// which none of them counts any more.
type Quota struct {
	events int
	most   int           // the same, also of a period within it
	window time.Duration // 0 if it Flies, because it is not known
	lasts  time.Duration // after which none of them counts any more in any case
	Flies  bool          // whether they count until they are released
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
func (q *Quota) resetAfter(d ratelimit.Decision) time.Duration {
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
func (q *Quota) back(left int) time.Duration {
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

// Locks reports whether they are those of a Lockout.
func (q *Quota) Locks() bool { return q.counts > 0 }

// quotas returns the quotas of an algorithm, or none if alg is nil, invalid, or Unlimited.
func quotas(alg ratelimit.Algorithm) []Quota {
	if _, ok := alg.(ratelimit.Unlimited); ok {
		return nil
	}
	if a, ok := alg.(ratelimit.RollingWindow); ok && a.PeriodLimit > 0 {
		period := ratelimit.FixedWindow{Limit: a.PeriodLimit, Window: a.Period}
		a.PeriodLimit = 0
		return append(quotas(a), quotas(period)...)
	}
	if a, ok := alg.(ratelimit.InFlight); ok {
		return []Quota{{events: a.Limit, most: a.Limit, lasts: a.Timeout, Flies: true}}
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
	return []Quota{q}
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
func spent(alg ratelimit.Algorithm) (Quota, error) {
	ctx := context.Background()
	l, err := ratelimit.New(alg, ratelimit.WithClock(clock.NewMock())) // which shows the epoch
	if err != nil {
		return Quota{}, err
	}
	fresh, err := l.Peek(ctx, "")
	if err != nil {
		return Quota{}, err
	}
	d, err := l.Take(ctx, "", fresh.Limit)
	return Quota{
		events: fresh.Limit,
		most:   fresh.Limit,
		window: d.ResetAfter,
		lasts:  d.ResetAfter,
	}, err
}

// WindowAt returns the instant of the next whole minute, in the zone of a CalendarWindow, if one of
// its windows begins then. The instant may be a little off, because the clock of a store may differ
// from others.
func (q *Quota) WindowAt(at time.Time) (begin time.Time, ok bool) {
	if q.windows == nil {
		return at, false
	}
	at = at.In(q.zone).Round(time.Minute) // windows begin at whole minutes
	start, _ := q.windows.Window(at.Unix())
	return at, start == at.Unix()
}
