package policy

import (
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Seconds returns d in whole seconds, rounded up, so that no client is told to
// retry too early.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// Value returns the value of RateLimit for d.
func (l *List) Value(d ratelimit.Decision) string {
	b := make([]byte, 0, 64)
	b = append(b, l.items[l.Part(d)]...)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, min(int64(d.Remaining), maxInteger), 10)
	if t, ok := l.reset(d); ok {
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, Seconds(t), 10)
	}
	return string(b)
}

// Value7 returns the value of RateLimit for d, as in draft-ietf-httpapi-ratelimit-headers-07.
func (l *List) Value7(d ratelimit.Decision) string {
	limit := d.Limit
	if q := l.Quota(d); q.events > 0 {
		limit = q.events
	}
	t, ok := l.reset(d)
	if !ok {
		t = d.ResetAfter
	}
	b := make([]byte, 0, 64)
	b = append(b, "limit="...)
	b = strconv.AppendInt(b, min(int64(limit), maxInteger), 10)
	b = append(b, ", remaining="...)
	b = strconv.AppendInt(b, min(int64(d.Remaining), maxInteger), 10)
	b = append(b, ", reset="...)
	return string(strconv.AppendInt(b, Seconds(t), 10))
}

// reset returns the time until the same request would be granted, if d is a refusal, or else the
// time within which the whole quota of the part that decided is back. ok is false if no wait helps,
// or the time is not known: then ResetAfter covers all parts together, not the one named, or is a
// Timeout.
func (l *List) reset(d ratelimit.Decision) (t time.Duration, ok bool) {
	q := l.Quota(d)
	switch {
	case !d.Allowed:
		return d.RetryAfter, d.RetryAfter < ratelimit.Never
	case len(l.Names) == 1:
		return q.resetAfter(d), q.window > 0
	}
	return min(q.resetAfter(d), q.back(d.Remaining)), q.window > 0
}

// Whole returns the limit of the part that decided d, and a time within which its whole quota is
// back.
func (l *List) Whole(d ratelimit.Decision) (limit int, reset time.Duration) {
	q := l.Quota(d)
	if len(l.Names) == 1 || q.most == 0 {
		return d.Limit, q.resetAfter(d)
	}
	reset = min(q.resetAfter(d), q.back(d.Remaining))
	if d.RetryAfter < ratelimit.Never {
		reset = max(reset, d.RetryAfter)
	}
	return q.most, reset
}
