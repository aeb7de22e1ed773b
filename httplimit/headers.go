package httplimit

import (
	"fmt"
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
	// q is the limit and w the seconds in which all of it comes back, rounded up,
	// and left out if that is less than one; r is what is left and t for how many
	// seconds that has to do: until all has come back, or after a refusal until
	// the same request is granted. If there are several limits, t is only told
	// after a refusal, and r is the least of all of them. The PeriodLimit of a RollingWindow is told as a limit of
	// its own, but what is left of it, and its refusals, under the quota's name.
	Standard Headers = iota

	// Legacy sends X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset, the latter as the Unix time, in seconds, at which all
	// has come back.
	Legacy

	// None sends neither.
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

// policies are the limits that a limiter holds its keys to.
type policies struct {
	field []string // the value of RateLimit-Policy
	names []string // of the parts, by number
	items []string // the same as items of a structured field: in quotes

	several bool // whether there are several limits
}

// newPolicies describes the algorithm of l, if that tells.
func newPolicies(name string, l ratelimit.Limiter) policies {
	alg := ratelimit.AlgorithmOf(l)
	parts := []ratelimit.Algorithm{alg}
	if all, ok := alg.(ratelimit.All); ok {
		parts = all
	}
	var p policies
	field := ""
	for i, part := range parts {
		partName := name
		if len(parts) > 1 {
			partName = fmt.Sprintf("%s-%d", name, i+1)
		}
		item := quoted(partName)
		p.names, p.items = append(p.names, partName), append(p.items, item)
		for j, q := range quotas(part) {
			if field != "" {
				field += ", "
				p.several = true
			}
			if j > 0 {
				item = quoted(partName + "-period")
			}
			field += fmt.Sprintf("%s;q=%d", item, min(int64(q.events), maxInteger))
			if q.window >= time.Second {
				field += fmt.Sprintf(";w=%d", seconds(q.window))
			}
		}
	}
	if field != "" {
		p.field = []string{field}
	}
	return p
}

// part returns the number of the part that decided d.
func (p *policies) part(d ratelimit.Decision) int { return min(max(d.Part, 0), len(p.names)-1) }

// A quota is so many events in a window.
type quota struct {
	events int
	window time.Duration
}

// quotas returns what an algorithm grants a key that uses all of it, as quotas:
// for a bucket, what fits into it in the time in which it fills.
func quotas(alg ratelimit.Algorithm) []quota {
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		return []quota{filled(a.Rate, a.Burst)}
	case ratelimit.LeakyBucket:
		return []quota{filled(a.Rate, a.Capacity)}
	case ratelimit.FixedWindow:
		return []quota{{a.Limit, a.Window}}
	case ratelimit.SlidingWindow:
		return []quota{{a.Limit, a.Window}}
	case ratelimit.SlidingLog:
		return []quota{{a.Limit, a.Window}}
	case ratelimit.RollingWindow:
		if a.PeriodLimit > 0 {
			return []quota{{a.Quota, a.Window}, {a.PeriodLimit, a.Period}}
		}
		return []quota{{a.Quota, a.Window}}
	case ratelimit.WarmingUp:
		return []quota{{a.Rate.Events, a.Rate.Per}}
	}
	return nil
}

// filled returns how many events fit into a bucket, and how long it takes to fill
// it at a rate.
func filled(rate ratelimit.Rate, size int) quota {
	if size == 0 {
		size = rate.Events
	}
	per := float64(size) / float64(rate.Events) * float64(rate.Per)
	return quota{size, time.Duration(min(per, math.MaxInt64/2))}
}

// maxInteger is the greatest integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// seconds returns d in whole seconds, rounded up: nobody is told to come too
// early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

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
		if m.policies.field != nil {
			h[fieldPolicy] = joined(h[fieldPolicy], m.policies.field)
		}
		h[fieldLimit] = joined(h[fieldLimit], []string{m.item(d)})
	case Legacy:
		h[fieldXLimit] = []string{strconv.Itoa(d.Limit)}
		h[fieldXRemaining] = []string{strconv.Itoa(d.Remaining)}
		h[fieldXReset] = []string{strconv.FormatInt(seconds(time.Duration(time.Now().UnixNano())+min(d.ResetAfter, math.MaxInt64/4)), 10)}
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
	if d.Allowed && m.policies.several || !d.Allowed && d.RetryAfter == ratelimit.Never {
		return string(b) // of several limits, only that of all together is known
	}
	b = append(b, ";t="...)
	return string(strconv.AppendInt(b, window, 10))
}

// retryAfter returns in how many seconds to come back after a refusal. It is not
// 0, which would be at once, even if the place in a queue was lost just now.
func retryAfter(d ratelimit.Decision) int64 { return max(1, seconds(d.RetryAfter)) }
