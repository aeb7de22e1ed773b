package httplimit

import (
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/internal/policy"
)

// This file has the fields of every response about the limits. What else a refusal has is in
// refusal.go: the status, Cache-Control: no-store, and a body, as a problem or as plain text.
//
// The r and t of RateLimit are the Remaining of the request's Decision, and its RetryAfter or
// ResetAfter. The q and w of RateLimit-Policy are computed in package policy from the limiter's
// algorithm: q is its Limit, w the ResetAfter of a fresh key that spends q at once.

// Headers chooses the header fields that tell a client how much of its limit is left.
type Headers int

const (
	// Standard sends RateLimit-Policy, which lists the limits, and RateLimit, which
	// says how much is left of the limit that is closest to exhaustion, in the form of
	// draft-ietf-httpapi-ratelimit-headers-11:
	//
	//	RateLimit-Policy: "default";q=60;w=60
	//	RateLimit: "default";r=59;t=1
	//
	// q is the most events that can be granted at once. w is the number of seconds,
	// rounded up, after which none of these events counts any more. So a client that
	// sends at most q events in any w seconds is never refused (except by a
	// [ratelimit.WarmingUp], which spaces events out). It may be granted more, because
	// a bucket refills while it is used. For a bucket, w is the time to refill it; for
	// a [ratelimit.SlidingWindow], which counts events by segment, w is Window plus one
	// segment; for other windows, w is Window. w is left out if it is less than a
	// second or more than 292 years.
	//
	// r is the number of events left. t is the number of seconds until the whole
	// quota is back or, after a refusal, until the same request would be granted.
	//
	// Each part of a [ratelimit.All] is an item of RateLimit-Policy. RateLimit then
	// has one item, named after the part that decided: r is the minimum over the
	// parts. Unless the request was refused, t is a time within which the whole quota of that
	// part is back, but not always the shortest: it is the part's window, for a bucket the
	// time to refill it from r, or the time until the quotas of all parts are back, whichever
	// is least.
	//
	// A RollingWindow's PeriodLimit is a separate item in RateLimit-Policy. RateLimit and
	// refusals always use the quota's name, and t is sent only after a refusal, because r may
	// be what is left of either.
	//
	// If keys have limits of their own, RateLimit-Policy lists those of the
	// request's key; for that, each response needs another call of the lookup given to
	// [ratelimit.WithLimits]. If the algorithm is not known (see
	// [ratelimit.Info.AlgorithmOf]), RateLimit-Policy is not sent, and t is sent only after a
	// refusal.
	//
	// The item of a [ratelimit.InFlight] has qu="concurrent-requests" and no w, and t is sent
	// only after a refusal. t and Retry-After are then a hint, at most a second: requests
	// may end long before the Timeout.
	//
	// For a key whose limit is [ratelimit.Unlimited], neither field is sent, nor are those of
	// Legacy. For a [ratelimit.Blocked] one, q and r are 0, and t and Retry-After are not sent,
	// nor is X-RateLimit-Reset.
	Standard Headers = iota

	// Legacy sends X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset.
	// X-RateLimit-Reset is the Unix time in seconds, by the limiter's clock, at which
	// the whole quota is back. Of a [ratelimit.All], and with [WithAlso], all three are of the part
	// that decided; X-RateLimit-Reset is then a time at which its whole quota is back, but not
	// always the earliest.
	Legacy

	// None sends neither. Refusals still have Retry-After.
	None

	// Draft7 sends RateLimit-Policy and RateLimit as draft-ietf-httpapi-ratelimit-headers-07
	// has them, for clients that do not know the later form:
	//
	//	RateLimit-Policy: 60;w=60
	//	RateLimit: limit=60, remaining=59, reset=1
	//
	// limit, remaining and reset are q, r and t of Standard. Where Standard sends no t, reset is
	// the number of seconds until all quotas are back, or until the Timeout of a
	// [ratelimit.InFlight]. For a key whose limit is [ratelimit.Blocked], RateLimit is not sent,
	// because it must have a reset. RateLimit-Policy has no limits without w, and none with the
	// same q as another one.
	Draft7
)

// The header fields, in the canonical form of net/http.
const (
	fieldPolicy     = "Ratelimit-Policy"
	fieldLimit      = "Ratelimit"
	fieldRetryAfter = "Retry-After"
	fieldXLimit     = "X-Ratelimit-Limit"
	fieldXRemaining = "X-Ratelimit-Remaining"
	fieldXReset     = "X-Ratelimit-Reset"
)

// setHeaders sets the header fields that describe what a tells the client.
func (g *Gate) setHeaders(h http.Header, a *Admission) {
	d, p := a.told, a.policies
	if d.Allowed && !d.Checked() {
		return // the store did not answer, so Remaining is unknown
	}
	if !d.Allowed && d.RetryAfter != ratelimit.Never {
		h[fieldRetryAfter] = []string{strconv.FormatInt(policy.Seconds(d.RetryAfter), 10)}
	}
	if !d.Checked() || d.Remaining == math.MaxInt { // nothing counts the events of the key
		return
	}
	switch g.headers {
	case Standard:
		// Responses must not share these values, because a handler may change them.
		values := [2]string{p.Value(d), p.Field}
		h[fieldLimit] = joined(h[fieldLimit], values[0:1:1])
		if p.Field != "" {
			h[fieldPolicy] = joined(h[fieldPolicy], values[1:2:2])
		}
	case Draft7:
		if blocks(d) {
			delete(h, fieldLimit) // a reset is required, and there is none
		} else {
			// A dictionary: its keys would replace those of an outer middleware.
			h[fieldLimit] = []string{p.Value7(d)}
		}
		if p.Field7 != "" {
			h[fieldPolicy] = joined(h[fieldPolicy], []string{p.Field7})
		}
	case Legacy:
		limit, reset := p.Whole(d)
		h[fieldXLimit] = []string{strconv.Itoa(limit)}
		h[fieldXRemaining] = []string{strconv.Itoa(d.Remaining)}
		if blocks(d) {
			delete(h, fieldXReset)
			return
		}
		h[fieldXReset] = []string{strconv.FormatInt(a.unix(reset), 10)}
	}
}

// unix returns the Unix time, in whole seconds, that is d after the decision, which was made
// between two readings. If that time may be a whole second, it is, because windows end in whole
// seconds. Otherwise it is rounded up, so that no client comes too early.
func (a *Admission) unix(d time.Duration) int64 {
	d = min(d, math.MaxInt64/4)
	earliest, latest := a.asked.Add(d), a.answered.Add(d)
	whole := latest.Truncate(time.Second)
	if whole.Before(earliest) || latest.Sub(earliest) >= time.Second {
		return latest.Add(time.Second - 1).Unix()
	}
	return whole.Unix()
}

// joined appends lines to those that an outer middleware has set, without changing
// either slice.
func joined(outer, lines []string) []string {
	if len(outer) == 0 {
		return lines
	}
	return append(outer[:len(outer):len(outer)], lines...)
}

// flightRetry is the most that a client is told to wait if an InFlight refuses. Nobody knows when
// the requests in flight will end, and RetryAfter, the time until the earliest of them reaches its
// Timeout, would keep clients away for as long as that.
const flightRetry = time.Second

// hinted returns d, a refusal by p, with the RetryAfter that the client is told. It is at most
// flightRetry if an InFlight refuses, later by up to WithJitter's maximum, and never 0, which would
// mean to retry at once.
func (g *Gate) hinted(d ratelimit.Decision, p *policy.List) ratelimit.Decision {
	if d.RetryAfter <= 0 { // of a limiter that failed
		d.RetryAfter = time.Second
	}
	if p.Quota(d).Flies && !d.Degraded && d.RetryAfter < ratelimit.Never {
		d.RetryAfter = min(d.RetryAfter, flightRetry)
	}
	if d.RetryAfter < ratelimit.Never {
		d.RetryAfter += rand.N(min(g.jitter, ratelimit.Never-1-d.RetryAfter) + 1)
	}
	return d
}
