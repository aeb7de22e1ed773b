package limitpage

// This file looks up and resets a single key: it finds the limiter and the key that a request
// names, asks the limiter for the state of the key, and forecasts the next decisions.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// storeTimeout bounds how long the page waits for a store.
const storeTimeout = 2 * time.Second

// A lookup is what the page shows of a key that is looked up.
type lookup struct {
	Limiter string `json:"limiter"`
	keyReport
	Algorithm string         `json:"algorithm"` // the type of the key's own, in Go
	Limit     string         `json:"limit"`     // the key's own, in words
	Decision  decisionReport `json:"decision"`  // what Peek returned
	Next      []forecast     `json:"next"`      // for the next requests
	Error     string         `json:"error,omitempty"`

	// Until when a Lockout has locked the key; null if none has.
	LockedUntil *int64 `json:"lockedUntil"`
}

// A decisionReport has the fields of ratelimit.Decision.
type decisionReport struct {
	Allowed    bool     `json:"allowed"`
	Limit      int      `json:"limit"`
	Remaining  int      `json:"remaining"`
	RetryAfter duration `json:"retryAfter"` // null means never
	ResetAfter duration `json:"resetAfter"`
	Delay      duration `json:"delay"`
	Part       int      `json:"part"`
	Degraded   bool     `json:"degraded"`
	StandIn    bool     `json:"standIn"`
	partLimit
}

// A forecast says that a request for at most Granted events is granted once In has passed, if no
// other request comes before it. If Exactly is true, a request for more events is denied then.
type forecast struct {
	In      duration `json:"in"`
	Granted int      `json:"granted"`
	Exactly bool     `json:"exactly"`
}

// lookUp asks the limiter w for the limit and the state of key. It spends nothing.
func (p *Page) lookUp(ctx context.Context, w limiterSnapshot, key string) lookup {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r := lookup{Limiter: label(w.name), keyReport: p.keyReportOf(key), Next: []forecast{}}
	alg, err := w.limiter.Describe().AlgorithmOf(ctx, key)
	if err == nil {
		r.Algorithm, r.Limit = words(alg)
	}
	d, peekErr := w.limiter.Peek(ctx, key)
	if err == nil {
		err = peekErr
	}
	r.Error = p.errorText(err)
	if peekErr != nil && !d.Degraded {
		return r
	}
	r.Decision = decisionReport{
		Allowed:    d.Allowed,
		Limit:      d.Limit,
		Remaining:  d.Remaining,
		RetryAfter: duration(d.RetryAfter),
		ResetAfter: duration(d.ResetAfter),
		Delay:      duration(d.Delay),
		Part:       d.Part,
		Degraded:   d.Degraded,
		StandIn:    d.StandIn,
		partLimit:  partLimitOf(alg, d.Part),
	}
	if d.Degraded {
		return r
	}
	r.Next = forecasts(alg, d)
	decided, _ := partOf(alg, d.Part)
	if _, locks := decided.(ratelimit.Lockout); locks && !d.Allowed {
		until := (p.now() + d.RetryAfter).Milliseconds()
		r.LockedUntil = &until
	}
	return r
}

// reset resets key, and waits no longer for the store than storeTimeout.
func (w limiterSnapshot) reset(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return w.limiter.Reset(ctx, key)
}

// forecasts returns what is known of later requests from alg and the decision of Peek.
func forecasts(alg ratelimit.Algorithm, d ratelimit.Decision) []forecast {
	all := []forecast{{0, d.Remaining, d.Remaining < math.MaxInt}}
	if !d.Allowed && d.RetryAfter == ratelimit.Never {
		return all
	}
	if !d.Allowed && d.RetryAfter != d.ResetAfter {
		all = append(all, forecast{duration(d.RetryAfter), 1, false})
	}
	if in, ok := untilOneMore(alg, d); ok {
		all = append(all, forecast{duration(in), d.Remaining + 1, false})
	}
	if d.Remaining < d.Limit && d.ResetAfter > 0 && d.ResetAfter < ratelimit.Never {
		all = append(all, forecast{duration(d.ResetAfter), d.Limit, true})
	}
	return all
}

// untilOneMore returns the time until a bucket that is neither empty nor full grants one event more
// than now. If the bucket will be full by then, or if alg is no bucket, ok is false: for other
// algorithms, the time does not follow from d.
func untilOneMore(alg ratelimit.Algorithm, d ratelimit.Decision) (in time.Duration, ok bool) {
	var rate ratelimit.Rate
	size := 0
	switch a := alg.(type) {
	case ratelimit.TokenBucket:
		if a.Refill == ratelimit.RefillContinuous {
			rate, size = a.Rate, a.Burst
		}
	case ratelimit.LeakyBucket:
		rate, size = a.Rate, a.Capacity
	}
	missing := size - d.Remaining - 1 // tokens that will be missing when one event more is granted
	if size != d.Limit || d.Remaining == 0 || missing <= 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(missing), uint64(rate.Per))
	if hi >= uint64(rate.Events) {
		return 0, false
	}
	filling, _ := bits.Div64(hi, lo, uint64(rate.Events)) // the time that the missing tokens take
	if filling > uint64(d.ResetAfter) {
		return 0, false
	}
	in = d.ResetAfter - time.Duration(filling)
	in = (in + time.Microsecond - 1).Truncate(time.Microsecond) // Redis counts in microseconds
	return in, in < d.ResetAfter
}

// errorText returns what the page shows of err. With WithHashedKeys, it hides the text of err,
// which may contain keys.
func (p *Page) errorText(err error) string {
	switch {
	case err == nil:
		return ""
	case !p.hashed:
		return err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "the store did not answer in time"
	}
	return "the store failed, or the limit of the key could not be looked up; " +
		"errors are not shown because they may contain keys"
}

// errUnknown means that a request names a limiter or a key that the page does not know.
var errUnknown = errors.New("unknown")

// find returns the limiter and the key that a request names. If id is neither empty nor the ID of
// key, find looks for the key of this ID in the lists of keys.
func (p *Page) find(name, key, id string) (limiterSnapshot, string, error) {
	var none limiterSnapshot
	w, ok := p.named(name)
	if !ok {
		return none, "", fmt.Errorf("%w limiter: the page has no limiter of the name %q",
			errUnknown, name)
	}
	if w.limiter == nil {
		return none, "", fmt.Errorf("%w limiter: %q was not added to the page with Add",
			errUnknown, name)
	}
	if id == "" || id == p.id(key) {
		return w, key, nil
	}
	for _, k := range append(w.denied.Top(mostListed), w.used.Top(mostListed)...) {
		if p.id(k.Key) != id {
			continue
		}
		if k.Cut {
			return none, "", fmt.Errorf(
				"%w key: the key is long, and only its first %d bytes are kept",
				errUnknown, len(k.Key))
		}
		return w, k.Key, nil
	}
	return none, "", fmt.Errorf("%w key: the key is no longer in a list", errUnknown)
}

// named returns the limiter of that name. If there is none, it returns the limiter whose label is
// name.
func (p *Page) named(name string) (w limiterSnapshot, ok bool) {
	for _, s := range p.snapshots() {
		if s.name == name {
			return s, true
		}
		if !ok && label(s.name) == name {
			w, ok = s, true
		}
	}
	return w, ok
}
