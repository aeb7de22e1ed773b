package client

import (
	"math/rand/v2"
	"time"
)

// A record is what is known of a key: the latest rest that a server has asked for, what the server
// says is left, and which requests wait and are under way. A request goes when both the rest and
// what is left let it. All times are by the clock of Turns, whose mutex protects the record.
type record struct {
	way  wayBack // from the latest rest
	left left    // what the server says

	waiting  int      // requests that have arrived and may not go yet
	queued   int      // requests that have gone since the latest rest, and wait for the limiter
	sent     int      // requests that were sent since then, and are not answered yet
	underWay underWay // these, and those that were sent before

	// After the latest refusal without Retry-After, less what successes took off.
	backoff time.Duration

	first   chan struct{} // has an element while a request is the first of those that wait
	changed chan struct{} // wakes the first one
}

func newRecord() *record {
	return &record{first: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Bounds on how long requests are held back after a refusal that does not say it, and how long it
// is remembered how a server came back from a rest.
const (
	firstBackoff   = time.Second
	longestBackoff = time.Minute
	memory         = 10 * time.Minute
)

// isIdle reports whether no request is under way or waits, and nothing that is known is of use for
// much longer: a rest and a limit are remembered for the given time.
func (r *record) isIdle(now time.Time, memory time.Duration) bool {
	return r.waiting+r.queued+len(r.underWay) == 0 && r.left.isOver(now.Add(-memory)) &&
		(r.way.rest == 0 && r.backoff == 0 || !now.Before(r.way.until.Add(memory)))
}

// out returns the requests that are under way or about to be sent.
func (r *record) out() outgoing { return outgoing{r.queued, r.underWay} }

// pass lets a request go, unless it has to wait.
func (r *record) pass(now time.Time, isFirst bool) (p pass, wait time.Duration) {
	r.left.renew(now)
	since := r.queued + r.sent // the rest
	at := r.way.opens(now, since, isFirst || since > 0)
	if spread := r.left.opens(1, r.out(), now); spread.After(at) {
		at = spread
	}
	wait = at.Sub(now)
	if wait > 0 {
		return pass{}, wait
	}
	r.way.pass(now)
	r.left.pass(r.out(), now)
	r.queued++
	return pass{record: r, rest: r.way.number}, 0
}

// said returns when the nth request from now may go at the earliest, as far as the server has said
// it.
func (r *record) said(now time.Time, n int) time.Time {
	r.left.renew(now)
	if spread := r.left.opens(n, r.out(), now); spread.After(r.way.until) {
		return spread
	}
	return r.way.until
}

// depart reports whether a request which has gone may be sent at the time that p says.
func (r *record) depart(p *pass) bool {
	now := p.sent
	r.left.renew(now)
	if p.rest != r.way.number || r.left.isUsedUp(outgoing{underWay: r.underWay}, now) {
		return false
	}
	r.queued--
	r.sent++
	r.underWay.add(now)
	p.heard = r.left.heard
	return true
}

// forgo notes that a request which has gone is not sent.
func (r *record) forgo(p pass) {
	if p.rest == r.way.number {
		r.queued--
	}
	r.wake()
}

// An answer is what a response says about the requests to come. The zero answer is that of a
// request which has failed.
type answer struct {
	granted bool          // whether the server has granted the request
	refused bool          // whether it has refused it because of a limit
	rest    time.Duration // for how long it asks to hold requests back
	quota   Quota         // what is left
	known   bool          // whether it says what is left
}

// says reports whether a says more than that the request is over.
func (a answer) says() bool { return a.refused || a.known || a.rest > 0 }

// pair returns what a, which says what is left, has said at now to a request that was sent at the
// given time. If there is a rest, the server grants none before it ends.
func (a answer) pair(rest time.Duration, sent, now time.Time) pair {
	if rest <= 0 {
		return newPair(a.quota, sent, now)
	}
	a.quota.Left, a.quota.Reset = 0, rest
	p := newPair(a.quota, now, now)
	p.mostly = sample{} // it is not the whole quota that is back then
	return p
}

// answer notes the answer to a request that was sent.
func (r *record) answer(p pass, a answer, now time.Time) {
	if p.record != nil { // otherwise it was sent before r was made
		r.underWay.remove(p.sent)
		if p.rest == r.way.number {
			r.sent--
		}
	}
	rest := min(a.rest, longestRest)
	if rest <= 0 && a.refused {
		rest = a.quota.Reset
		if rest == 0 {
			rest = r.backOff(p, now)
		}
	}
	if a.known {
		isNews := r.left.hear(a.pair(rest, p.sent, now), p.heard, now)
		if isNews && r.waiting == 0 { // otherwise each answer would put off those that wait
			r.left.spread(r.out(), now)
		}
	} else if p.record != nil {
		r.left.use(p.sent, now)
	}
	if rest <= 0 && a.granted {
		if p.rest == r.way.number {
			r.way.step(now)
		}
		if r.backoff -= r.backoff / 5; r.backoff < firstBackoff/8 {
			r.backoff = 0
		}
	}
	r.hold(rest, now)
	r.wake()
}

// hold lets requests rest for d, at most for a day, unless they already rest for longer.
func (r *record) hold(d time.Duration, now time.Time) {
	d = min(d, longestRest)
	if d <= 0 || !now.Add(d).After(r.way.until) {
		return
	}
	r.way.begin(d, now)
	r.sent, r.queued = 0, 0
	r.wake()
}

// backOff returns for how long to hold requests back after a refusal that does not say it: twice as
// long as the last time, and up to half of that longer, so that clients do not return together. It
// is 0 if a rest has begun since the request went.
func (r *record) backOff(p pass, now time.Time) time.Duration {
	if p.rest != r.way.number {
		return 0
	}
	if now.Sub(r.way.until) > memory {
		r.backoff = 0
	}
	r.backoff = min(max(2*r.backoff, firstBackoff), longestBackoff)
	return r.backoff + rand.N(r.backoff/2)
}

func (r *record) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}
