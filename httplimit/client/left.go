package client

import (
	"slices"
	"time"
)

// left is what a server says is left: the latest pair and those that may be as late, because the
// request of each was sent before the response with another came. The server may have said them in
// any order, or of quotas of different requests. So a request goes when all pairs let it. Requests
// under way count as if they used up each of them, because the server may not have counted them.
type left struct {
	pairs []pair // in the order in which they came
	heard int    // how many responses have said what is left
}

// mostPairs is how many pairs are kept. Of more, the one with most left counts least.
const mostPairs = 8

// hear notes what a response says to a request that was sent at the given time, when so many
// responses were heard. It reports whether the server has said this later than all before.
func (l *left) hear(p pair, heard int, now time.Time) (isNews bool) {
	for i := range l.pairs {
		p.next = l.pairs[i].next
		p.learn(&l.pairs[i])
		l.pairs[i].learn(&p)
	}
	l.heard++
	p.number = l.heard
	l.pairs = slices.DeleteFunc(l.pairs, func(old pair) bool { return old.number <= heard })
	if len(l.pairs) == 0 {
		l.pairs = append(l.pairs, p)
		return true
	}
	if p.isOver(now) {
		l.use(p.since, now)
		return false
	}
	if slices.ContainsFunc(l.pairs, func(old pair) bool { return old.covers(&p) }) {
		return false
	}
	l.pairs = slices.DeleteFunc(l.pairs, func(old pair) bool { return p.covers(&old) })
	l.pairs = append(l.pairs, p)
	if len(l.pairs) > mostPairs {
		l.forgetMost()
	}
	return false
}

// forgetMost forgets the pair with most left.
func (l *left) forgetMost() {
	most := 0
	for i, p := range l.pairs {
		if p.quota.Left > l.pairs[most].quota.Left {
			most = i
		}
	}
	l.pairs = slices.Delete(l.pairs, most, most+1)
}

// use notes that a request which was sent at the given time was answered by a response that says
// nothing of the present.
func (l *left) use(sent, now time.Time) {
	for i := range l.pairs {
		l.pairs[i].use(sent, now)
	}
}

// renew forgets pairs that are over. If all are, the one that ended last is renewed, unless its
// limit is not known.
func (l *left) renew(now time.Time) {
	isOver := func(p pair) bool { return p.isOver(now) }
	if !slices.ContainsFunc(l.pairs, isOver) {
		return
	}
	last := slices.MaxFunc(l.pairs, func(a, b pair) int { return a.until.Compare(b.until) })
	l.pairs = slices.DeleteFunc(l.pairs, isOver)
	if len(l.pairs) == 0 && last.quota.Limit > 0 {
		last.renew(now)
		l.pairs = append(l.pairs, last)
	}
}

// isOver reports whether there is more quota than the server has said.
func (l *left) isOver(now time.Time) bool {
	return !slices.ContainsFunc(l.pairs, func(p pair) bool { return !p.isOver(now) })
}

// opens returns when the nth request from now may go.
func (l *left) opens(n int, out outgoing, now time.Time) (latest time.Time) {
	for i := range l.pairs {
		if at := l.pairs[i].opens(n, out, now); at.After(latest) {
			latest = at
		}
	}
	return latest
}

// spread lets the next request go when it is time, if those that are free are spread from now on.
func (l *left) spread(out outgoing, now time.Time) {
	for i := range l.pairs {
		l.pairs[i].spread(out, now)
	}
}

// pass notes that a request goes: those to come are spread.
func (l *left) pass(out outgoing, now time.Time) {
	for i := range l.pairs {
		l.pairs[i].pass(out, now)
	}
}

// isUsedUp reports whether the server grants no request before a reset.
func (l *left) isUsedUp(out outgoing, now time.Time) bool {
	return slices.ContainsFunc(l.pairs, func(p pair) bool { return p.isUsedUp(out, now) })
}
