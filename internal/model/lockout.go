package model

import (
	"math/big"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// lockout is ratelimit.Lockout. What has passed is a fact: when a count began, in which count an
// event is, and that a lock was served.
type lockout struct {
	history
	max     int
	window  instant
	first   instant // how long a lock lasts
	longest instant // how long it may last, if it is to last twice as long as the one before

	locks  []lock    // that were served
	behind int       // how many of the batches are in counts that have led to these
	lasts  []instant // for each batch, how long the lock lasts that it makes or is in
}

// A lock is one that was served.
type lock struct {
	end   instant
	lasts instant // without what events that were charged meanwhile have added
}

func newLockout(a ratelimit.Lockout) *lockout {
	return &lockout{
		max:     a.Limit,
		window:  instant(a.Window),
		first:   instant(a.First),
		longest: instant(max(a.First, a.Longest)),
	}
}

// latestCount returns the batches of the latest count, of which none is in a count that has led to
// a lock that was served.
func (l *lockout) latestCount() []batch {
	rest := l.batches[l.behind:]
	if len(rest) == 0 {
		return nil
	}
	began := rest[len(rest)-1].start
	return slices.DeleteFunc(slices.Clone(rest), func(b batch) bool { return b.start != began })
}

// full reports whether the latest count has reached the limit. If so, the key is locked until an
// instant, or was.
func (l *lockout) full() (until instant, full bool) {
	of := history{l.latestCount()}
	if len(of.batches) == 0 || fits(of.count(func(batch) bool { return true }), 1, l.max) {
		return 0, false
	}
	for _, b := range of.batches { // also those that did not happen: the latest instant is a fact
		until = max(until, b.at)
	}
	return until + l.lasts[len(l.lasts)-1], true
}

// pass lets time pass until t: a lock that ends until then was served.
func (l *lockout) pass(t instant) {
	until, full := l.full()
	if full && until <= t {
		l.locks = append(l.locks, lock{until, l.lasts[len(l.lasts)-1]})
		l.behind = len(l.batches)
	}
}

// passed is a copy in which time has passed until t.
func (l *lockout) passed(t instant) *lockout {
	c := l.clone().(*lockout)
	c.pass(t)
	return c
}

// current counts the events that count at t, from when the latest count began.
func (l *lockout) current(t instant) *big.Int {
	c := l.passed(t)
	_, locked := c.full()
	return (&history{c.latestCount()}).count(func(b batch) bool {
		return locked || t-b.start < l.window
	})
}

// next is how long a lock lasts that begins at t, if the key is not locked.
func (l *lockout) next(t instant) instant {
	if len(l.locks) == 0 {
		return l.first
	}
	last := l.locks[len(l.locks)-1]
	if t-last.end >= l.longest {
		return l.first
	}
	return min(2*last.lasts, l.longest)
}

func (l *lockout) limit() int                      { return l.max }
func (l *lockout) grantable(t instant, n int) bool { return fits(l.current(t), n, l.max) }

func (l *lockout) forgotten(t instant) bool {
	return l.current(t).Sign() == 0 && l.passed(t).next(t) == l.first
}

func (l *lockout) charge(t instant, n int) {
	l.pass(t)
	start, lasts := t, l.next(t)
	if l.current(t).Sign() > 0 {
		start = l.batches[len(l.batches)-1].start
	}
	if _, locked := l.full(); locked {
		lasts = l.lasts[len(l.lasts)-1]
	}
	l.add(batch{at: t, n: n, start: start})
	l.lasts = append(l.lasts, lasts)
}

func (l *lockout) clone() part {
	c := *l
	c.history, c.locks, c.lasts = l.history.clone(), slices.Clone(l.locks), slices.Clone(l.lasts)
	return &c
}
