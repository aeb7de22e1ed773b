package client

import (
	"math"
	"time"
)

// A pair is what one response has said: Left requests, until there is more quota. Both stay
// together, because a server never said the Left of one response with the Reset of another.
//
// A pair is as old as its request. The server says it when the request comes, and a request that is
// sent now takes as long to come. So the reset is due for requests that are sent a Reset after that
// one, however slow the response is, and requests that are sent after that one use the pair up.
type pair struct {
	quota  Quota
	since  time.Time // when the request was sent whose response said it, or the last reset
	until  time.Time // when there is more quota
	next   time.Time // when the next request may go, if they are spread
	number int       // how many responses had said what is left with this one

	// What is known of the Window from all pairs with this Limit, for servers that do not say it.
	longest time.Duration // the longest Reset
	mostly  sample        // the Reset when most was used
}

// A sample is how much of a quota was used, and when it was back. A bucket is back the later, the
// more of it is used: only when much is used, its Reset says how long the whole quota takes.
type sample struct {
	used  int
	reset time.Duration
}

// merge lets s be the one of both with more use.
func (s *sample) merge(other sample) {
	if other.used > s.used || other.used == s.used && other.reset > s.reset {
		*s = other
	}
}

// learn takes over what is known of the Window from another pair, if its Limit is the same.
func (p *pair) learn(other *pair) {
	if other.quota.Limit == p.quota.Limit {
		p.longest = max(p.longest, other.longest)
		p.mostly.merge(other.mostly)
	}
}

// leastSpread is the shortest time over which requests are spread, if the limit is known. Most
// servers round Reset up to a second: to a request that is sent late in a short window, they would
// say that the reset is later than it is.
const leastSpread = 5 * time.Second

// later returns d and a twentieth of it: requests that are sent evenly come less evenly.
func later(d time.Duration) time.Duration { return d + min(d/20, math.MaxInt64-d) }

// newPair returns the pair that a response says at now to a request that was sent at the given
// time. While a response is fast, its reset counts from now, which is the safe side.
func newPair(q Quota, sent, now time.Time) pair {
	until := sent.Add(q.Reset)
	if until.After(now) {
		until = until.Add(min(now.Sub(sent), q.Reset/20))
	}
	return pair{
		quota: q, since: sent, until: until,
		longest: q.Reset, mostly: sample{q.Limit - q.Left, q.Reset},
	}
}

// window returns the time in which the whole quota comes back, as far as is known.
func (p *pair) window() time.Duration {
	switch {
	case p.quota.Window > 0:
		return max(p.quota.Window, p.quota.Reset)
	case p.mostly.used <= 0:
		return p.longest
	}
	whole := p.mostly.reset.Seconds() * float64(p.quota.Limit) / float64(p.mostly.used)
	return max(p.longest, time.Duration(min(whole, longestRest.Seconds())*float64(time.Second)))
}

// isOver reports whether there is more quota than the pair says.
func (p *pair) isOver(now time.Time) bool { return !now.Before(p.until) }

// covers reports whether whoever keeps to p keeps to other.
func (p *pair) covers(other *pair) bool {
	return p.quota.Left <= other.quota.Left && !p.until.Before(other.until)
}

// renew lets quota be back, as far as is known, if the limit is known.
func (p *pair) renew(now time.Time) {
	elapsed := p.quota.Reset + now.Sub(p.until)
	if p.quota.isWholeAfter(elapsed) {
		p.since = p.until
	}
	p.quota.Left = p.quota.after(elapsed)
	if p.quota.Window == 0 {
		p.quota.Reset = p.longest
	}
	p.until, p.next = now.Add(p.quota.Reset), now
}

// use notes that a request which was sent at the given time was answered by a response that says
// nothing of the present.
func (p *pair) use(sent, now time.Time) {
	if !sent.Before(p.since) && now.Sub(sent) < later(p.window()) {
		p.quota.Left--
	}
}

// counted returns those of the requests under way that may use up the pair. When one has been under
// way for a window, the server has counted it in an earlier one, or it is lost.
func (p *pair) counted(under underWay, now time.Time) underWay {
	return under.after(now.Add(-later(p.window())))
}

// free returns how many requests the server still grants.
func (p *pair) free(out outgoing, now time.Time) int {
	return max(0, p.quota.Left-out.queued-len(p.counted(out.underWay, now)))
}

// frees returns when n requests are free, which are more than now. That is at the reset, or earlier
// if some of those under way cease to count.
func (p *pair) frees(n int, out outgoing, now time.Time) time.Time {
	counted := p.counted(out.underWay, now)
	spare := p.quota.Left - out.queued - len(counted)
	if i := n - spare - 1; 0 <= i && i < len(counted) {
		if at := counted[i].Add(later(p.window())); at.Before(p.until) {
			return at
		}
	}
	return p.until
}

// opens returns when the nth request from now may go.
func (p *pair) opens(n int, out outgoing, now time.Time) time.Time {
	free := p.free(out, now)
	switch {
	case p.quota.enough(free):
		return time.Time{}
	case n > free:
		return p.frees(n, out, now)
	case p.quota.Limit > 0 && p.quota.Reset < leastSpread:
		return time.Time{}
	}
	at, more := p.next, p.frees(free+1, out, now)
	if n > 1 {
		at = at.Add(more.Sub(at) / time.Duration(free) * time.Duration(n-1))
	}
	if at.After(more) {
		return more
	}
	return at
}

// spread lets the next request go when it is time, if those that are free are spread from now on.
func (p *pair) spread(out outgoing, now time.Time) {
	p.next = now.Add(p.quota.every(p.free(out, now)))
}

// pass notes that a request goes: those to come are spread over the time until there are more.
func (p *pair) pass(out outgoing, now time.Time) {
	free := p.free(out, now)
	p.next = now.Add(p.frees(free+1, out, now).Sub(now) / time.Duration(max(1, free)))
}

// isUsedUp reports whether the server grants no request before the reset.
func (p *pair) isUsedUp(out outgoing, now time.Time) bool {
	return p.free(out, now) == 0 && p.quota.Reset > 0
}
