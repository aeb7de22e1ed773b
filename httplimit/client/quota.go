package client

import (
	"math"
	"time"
)

// A Quota is what a response says is left: the server grants Left more requests until Reset.
type Quota struct {
	// Left is how many requests the server still grants. If it is negative, the response does not
	// say it.
	Left int

	// Reset is the time until there is more quota.
	Reset time.Duration

	// Limit is how many requests the server grants when the whole quota is there, and 0 if that is
	// not known.
	Limit int

	// Window is the time in which the server grants Limit requests. If it is longer than Reset,
	// only what the limit allows in that time is back at the reset. If it is 0, it is not known,
	// and the whole quota is back.
	Window time.Duration
}

// mostLeft bounds numbers of requests, so that sums of them do not overflow.
const mostLeft = math.MaxInt / 2

// bounded returns q with all fields in bounds, and whether q says anything.
func (q Quota) bounded() (Quota, bool) {
	return Quota{
		Left:   min(max(0, q.Left), mostLeft),
		Reset:  min(max(0, q.Reset), longestRest),
		Limit:  min(max(0, q.Limit), mostLeft),
		Window: max(0, q.Window),
	}, q.Left >= 0
}

// enough reports whether so many requests are left that they need not be spread, or no wait helps.
func (q Quota) enough(left int) bool {
	return q.Reset == 0 || left > 0 && q.Limit > 0 && left > q.Limit/8
}

// every returns the time between two requests if so many are left and spread evenly.
func (q Quota) every(left int) time.Duration { return q.Reset / time.Duration(left+1) }

// isSlower reports whether q needs a slower pace than other.
func (q Quota) isSlower(other Quota) bool {
	if q.enough(q.Left) != other.enough(other.Left) {
		return other.enough(other.Left)
	}
	return q.every(q.Left) > other.every(other.Left)
}

// renewed returns how many requests may be sent after the reset, until a response says more, if so
// many are under way. That is the limit, less those under way, if its window is not known or as
// long as the reset. Otherwise it is what was left and what the limit allows in that time, because
// some servers say when there is any more quota, and not when all of it is back. What was left
// counts as far as the limit has room for it and those under way. What the limit allows in that
// time always counts: if responses take longer than the window, the server has long counted those
// under way.
func (q Quota) renewed(underWay int) int {
	if q.Reset >= q.Window {
		return max(0, q.Limit-underWay)
	}
	back := max(1, int(float64(q.Limit)*(q.Reset.Seconds()/q.Window.Seconds())))
	return max(back, min(q.Limit-underWay, q.Left+back))
}

// left is what a server says is left. Requests that are under way are not counted in it until they
// are answered: the server may have counted them or not.
type left struct {
	known bool
	// What the latest responses say, less the requests answered since that said nothing.
	quota   Quota
	until   time.Time     // when there is more quota
	next    time.Time     // when the next request may go, if they are spread
	longest time.Duration // the longest Reset that a response has had
	heard   int           // how many responses have said what is left
}

// hear notes what a response says to a request that was sent when so many responses were heard. If
// there is a rest, the server grants none before it ends. It reports whether the server has said
// this later than what it said before.
func (l *left) hear(q Quota, rest time.Duration, heard int, now time.Time) (isNews bool) {
	l.longest = max(l.longest, q.Reset)
	if rest > 0 {
		q.Left, q.Reset = 0, rest
	}
	until := now.Add(q.Reset)
	if l.known && now.Before(l.until) && heard < l.heard {
		// The server may have said this before or after what it said last.
		l.quota.Left = min(l.quota.Left, q.Left)
		if until.After(l.until) {
			l.until = until
		}
		return false
	}
	l.quota, l.known, l.until = q, true, until
	l.heard++
	return true
}

// use notes that a request was answered by a response which does not say what is left.
func (l *left) use() { l.quota.Left-- }

// free returns how many requests the server still grants if so many are under way.
func (l *left) free(underWay int) int { return max(0, l.quota.Left-underWay) }

// renew lets the quota be back if it is time, as far as is known.
func (l *left) renew(now time.Time, underWay int) {
	if !l.known || now.Before(l.until) {
		return
	}
	q := l.quota
	q.Left = l.free(underWay)
	if q.Window == 0 {
		q.Reset = l.longest
	}
	l.known, q.Left = q.Limit > 0, q.renewed(underWay)+underWay
	l.quota, l.until, l.next = q, now.Add(q.Reset), now
}

// opens returns when the nth request from now may go, if so many are under way or about to be sent.
func (l *left) opens(out, n int) time.Time {
	free := l.free(out)
	switch {
	case !l.known || l.quota.enough(free):
		return time.Time{}
	case n > free:
		return l.until
	}
	at := l.next
	if n > 1 {
		at = at.Add(l.until.Sub(at) / time.Duration(free) * time.Duration(n-1))
	}
	if at.After(l.until) {
		return l.until
	}
	return at
}

// spread lets the next request go when it is time, if those that are free are spread from now on.
func (l *left) spread(now time.Time, out int) {
	l.next = now.Add(l.quota.every(l.free(out)))
}

// pass notes that a request goes: those to come are spread over the time until the reset.
func (l *left) pass(now time.Time, out int) {
	l.next = now.Add(l.until.Sub(now) / time.Duration(max(1, l.free(out))))
}

// isUsedUp reports whether the server grants no request before the reset, if so many are under way.
func (l *left) isUsedUp(underWay int) bool {
	return l.known && l.free(underWay) == 0 && l.quota.Reset > 0
}
