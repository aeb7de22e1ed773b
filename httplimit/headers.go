package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Headers says in which header fields a client is told what is left.
type Headers int

const (
	// Standard sends RateLimit-Policy, which tells the limits, and RateLimit,
	// which tells what is left of the one that is nearest to its end, as
	// draft-ietf-httpapi-ratelimit-headers-11 writes them:
	//
	//	RateLimit-Policy: "default";q=60;w=60
	//	RateLimit: "default";r=59;t=1
	//
	// q is the most events that a client can be granted at once, and w is how many
	// seconds it takes at most until none of them counts any more, rounded up. So
	// a client that sends at most q events in any w seconds is never refused
	// (except by a [ratelimit.WarmingUp], which spaces events out). It may well be
	// granted more: a bucket refills while it is used. For a bucket, w is the time
	// in which it fills; for a [ratelimit.SlidingWindow], which remembers events by
	// segments, w is Window and a segment; for other windows, w is Window. It is
	// left out if it is less than a second, or over 292 years.
	//
	// r is the number of events left. t is the number of seconds until the whole
	// quota is back or, after a refusal, until the same request would be granted.
	//
	// Each part of a [ratelimit.All] is an item of RateLimit-Policy. RateLimit then
	// has one item, for the part that decided: r is the least over the parts, and t
	// is sent only after a refusal. A RollingWindow's PeriodLimit is an item of its
	// own as well, but RateLimit and refusals always use the quota's name. If the
	// limiter does not tell its algorithm (see [ratelimit.AlgorithmOf]),
	// RateLimit-Policy is not sent, and t only after a refusal.
	Standard Headers = iota

	// Legacy sends X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset, the latter as the Unix time, in seconds and by the
	// limiter's clock, at which the whole quota is back.
	Legacy

	// None sends neither. Retry-After is sent as with the others.
	None
)

// The header fields, in the form that net/http keys them by.
const (
	fieldPolicy     = "Ratelimit-Policy"
	fieldLimit      = "Ratelimit"
	fieldRetryAfter = "Retry-After"
	fieldXLimit     = "X-Ratelimit-Limit"
	fieldXRemaining = "X-Ratelimit-Remaining"
	fieldXReset     = "X-Ratelimit-Reset"
)

// seconds returns d in whole seconds, rounded up: nobody is told to come too
// early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// tell sets the header fields that tell d.
func (m *middleware) tell(h http.Header, d ratelimit.Decision) {
	if d.Degraded && d.Allowed {
		return // nobody knows what is left
	}
	if !d.Allowed && d.RetryAfter != ratelimit.Never {
		h[fieldRetryAfter] = []string{strconv.FormatInt(retryAfter(d), 10)}
	}
	if d.Degraded {
		return
	}
	switch m.headers {
	case Standard:
		// The values are this response's alone: a handler may change them.
		values := [2]string{m.item(d), m.policies.field}
		h[fieldLimit] = joined(h[fieldLimit], values[0:1:1])
		if m.policies.field != "" {
			h[fieldPolicy] = joined(h[fieldPolicy], values[1:2:2])
		}
	case Legacy:
		h[fieldXLimit] = []string{strconv.Itoa(d.Limit)}
		h[fieldXRemaining] = []string{strconv.Itoa(d.Remaining)}
		h[fieldXReset] = []string{strconv.FormatInt(seconds(time.Duration(m.now().UnixNano())+min(d.ResetAfter, math.MaxInt64/4)), 10)}
	}
}

// joined adds lines to those of a limit further out. None of them is changed.
func joined(outer, lines []string) []string {
	if len(outer) == 0 {
		return lines
	}
	return append(outer[:len(outer):len(outer)], lines...)
}

// item returns the value of RateLimit for d.
func (m *middleware) item(d ratelimit.Decision) string {
	window := seconds(d.ResetAfter)
	if !d.Allowed {
		window = retryAfter(d)
	}
	b := make([]byte, 0, 64)
	b = append(b, m.policies.items[m.policies.part(d)]...)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, min(int64(d.Remaining), maxInteger), 10)
	if d.Allowed && !m.policies.single || !d.Allowed && d.RetryAfter == ratelimit.Never {
		return string(b) // only that of all limits together is known
	}
	b = append(b, ";t="...)
	return string(strconv.AppendInt(b, window, 10))
}

// retryAfter returns in how many seconds to come back after a refusal. It is not
// 0, which would be at once, even if the place in a queue was lost just now.
func retryAfter(d ratelimit.Decision) int64 { return max(1, seconds(d.RetryAfter)) }
