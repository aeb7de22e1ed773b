package complete_test

import (
	"fmt"
	"slices"
)

// A definition is what an algorithm has granted a key, and what it grants next, as
// docs/algorithms.md defines it. Instants are whole ticks from 0 on. A definition is never changed
// in place.
type definition interface {
	// room returns the most events that are granted at t; less than 0 if the key is in debt.
	room(t int) int

	// take returns what follows after n events are counted at t, whether or not they were granted.
	take(t, n int) definition

	// counts reports whether anything makes a difference at t that happened before.
	counts(t int) bool

	// key names what makes a difference from t on, relative to t.
	key(t int) string
}

// A queue is the definition of an algorithm that delays what it grants.
type queue interface {
	// delay returns how many ticks events granted at t are held for.
	delay(t int) int
}

// A denialCounter is the definition of an algorithm that counts what it denies.
type denialCounter interface {
	deny(t, n int) definition
}

// first returns the first instant, from t on, at which ok. The definition of a small limit has
// forgotten everything long before horizon.
func first(t int, ok func(t int) bool) int {
	for at := t; at < t+horizon; at++ {
		if ok(at) {
			return at
		}
	}
	panic("complete: a definition that never forgets")
}

const horizon = 1 << 12

// tokenBucket: tokens(t) = min(burst, tokens + elapsed·events/per), and begins with burst. It counts
// what is missing, in parts of an event: per of them are one.
type tokenBucket struct {
	events, per, burst int
	missing            int // as of at
	at                 int
}

func (b tokenBucket) left(t int) int { return max(0, b.missing-(t-b.at)*b.events) }

func (b tokenBucket) room(t int) int { return floor(b.burst*b.per-b.left(t), b.per) }

func (b tokenBucket) take(t, n int) definition {
	b.missing, b.at = b.left(t)+n*b.per, t
	return b
}

func (b tokenBucket) counts(t int) bool { return b.left(t) > 0 }

func (b tokenBucket) key(t int) string { return fmt.Sprint(b.left(t)) }

// floor returns a/b, rounded down.
func floor(a, b int) int {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

// leakyBucket: the level leaks at events/per, never below 0, and n are granted if level + n ≤
// capacity. Delay is the time that the level that was there before needs to leak out.
type leakyBucket struct{ tokenBucket }

func (b leakyBucket) take(t, n int) definition {
	return leakyBucket{b.tokenBucket.take(t, n).(tokenBucket)}
}

func (b leakyBucket) delay(t int) int { return (b.left(t) + b.events - 1) / b.events }

// intervalBucket: refills of events arrive at whole multiples of per after the event that took the
// bucket from full.
type intervalBucket struct {
	events, per, burst int
	tokens             int
	since              int // the event that took the bucket from full; no matter if it is full
}

// at returns the bucket after the refills up to t.
func (b intervalBucket) at(t int) intervalBucket {
	for b.tokens < b.burst && b.since+b.per <= t {
		b.tokens, b.since = min(b.burst, b.tokens+b.events), b.since+b.per
	}
	return b
}

func (b intervalBucket) room(t int) int { return b.at(t).tokens }

func (b intervalBucket) take(t, n int) definition {
	b = b.at(t)
	if b.tokens == b.burst {
		b.since = t
	}
	b.tokens -= n
	return b
}

func (b intervalBucket) counts(t int) bool { return b.at(t).tokens < b.burst }

func (b intervalBucket) key(t int) string {
	if !b.counts(t) {
		return "full"
	}
	return fmt.Sprint(b.at(t).tokens, t-b.at(t).since)
}

// asIn: when refills come is a fact.
func (b intervalBucket) asIn(decides definition, t int) definition {
	if b.counts(t) {
		b = b.at(t)
		b.since = decides.(intervalBucket).at(t).since
	}
	return b
}

// A batch is n events at an instant.
type batch struct{ at, n int }

// batches are what a key was granted, oldest first.
type batches []batch

func (all batches) add(t, n int) batches {
	if last := len(all) - 1; last >= 0 && all[last].at == t {
		all = slices.Clone(all)
		all[last].n += n
		return all
	}
	return append(slices.Clip(all), batch{t, n})
}

// sum adds up the events from one instant on and before another one.
func (all batches) sum(from, before int) (n int) {
	for _, b := range all {
		if from <= b.at && b.at < before {
			n += b.n
		}
	}
	return n
}

// since names the batches from an instant on, relative to t.
func (all batches) since(from, t int) (name string) {
	for _, b := range all {
		if b.at >= from {
			name += fmt.Sprint(t-b.at, ":", b.n, " ")
		}
	}
	return name
}

// forget drops the batches before an instant.
func (all batches) forget(before int) batches {
	for len(all) > 0 && all[0].at < before {
		all = all[1:]
	}
	return all
}

// fixedWindow: counts per window of length window, aligned to 0.
type fixedWindow struct {
	limit, window int
	granted       batches
}

func (w fixedWindow) room(t int) int { return w.limit - w.granted.sum(t-t%w.window, t+1) }

func (w fixedWindow) take(t, n int) definition {
	w.granted = w.granted.forget(t-t%w.window).add(t, n)
	return w
}

func (w fixedWindow) counts(t int) bool { return w.room(t) < w.limit }

func (w fixedWindow) key(t int) string { return fmt.Sprint(w.limit-w.room(t), t%w.window) }

// eventWindow: a window begins with the first event that is counted, and lasts for window.
type eventWindow struct {
	limit, window int
	begin, count  int
}

func (w eventWindow) counts(t int) bool { return w.count > 0 && t < w.begin+w.window }

func (w eventWindow) room(t int) int {
	if w.counts(t) {
		return w.limit - w.count
	}
	return w.limit
}

func (w eventWindow) take(t, n int) definition {
	if !w.counts(t) {
		w.begin, w.count = t, 0
	}
	w.count += n
	return w
}

func (w eventWindow) key(t int) string {
	if !w.counts(t) {
		return "none"
	}
	return fmt.Sprint(t-w.begin, w.count)
}

// asIn: a window that has begun with events that are held goes on while anything counts in it.
func (w eventWindow) asIn(decides definition, t int) definition {
	if w.counts(t) {
		w.begin = decides.(eventWindow).begin
	}
	return w
}

// slidingWindow: the newest segments count in full, the one before them in proportion to the part of
// it that the window still overlaps.
type slidingWindow struct {
	limit, segments, length int
	granted                 batches
}

// used returns the estimate at t, in parts of an event: length of them are one.
func (w slidingWindow) used(t int) int {
	segment := t - t%w.length
	oldest := segment - w.segments*w.length
	whole := w.granted.sum(oldest+w.length, t+1)
	return whole*w.length + w.granted.sum(oldest, oldest+w.length)*(w.length-t%w.length)
}

func (w slidingWindow) room(t int) int { return floor(w.limit*w.length-w.used(t), w.length) }

func (w slidingWindow) take(t, n int) definition {
	w.granted = w.granted.forget(t-t%w.length-w.segments*w.length).add(t, n)
	return w
}

func (w slidingWindow) counts(t int) bool { return w.used(t) > 0 }

func (w slidingWindow) key(t int) string {
	counts := make([]int, w.segments+1)
	for i := range counts {
		from := t - t%w.length - i*w.length
		counts[i] = w.granted.sum(from, from+w.length)
	}
	return fmt.Sprint(counts, t%w.length)
}

// slidingLog: n are granted if the events in (t − window, t], and n, are at most limit. With denials,
// refused events enter the log, too.
type slidingLog struct {
	limit, window int
	logged        batches
}

func (l slidingLog) room(t int) int { return l.limit - l.logged.sum(t-l.window+1, t+1) }

func (l slidingLog) take(t, n int) definition {
	l.logged = l.logged.forget(t-l.window+1).add(t, n)
	return l
}

func (l slidingLog) counts(t int) bool { return l.room(t) < l.limit }

func (l slidingLog) key(t int) string { return l.logged.since(t-l.window+1, t) }

// countingLog is a slidingLog with CountDenied.
type countingLog struct {
	slidingLog
	denied batches
}

func (l countingLog) room(t int) int {
	return l.slidingLog.room(t) - l.denied.sum(t-l.window+1, t+1)
}

func (l countingLog) take(t, n int) definition {
	l.slidingLog = l.slidingLog.take(t, n).(slidingLog)
	return l
}

// deny logs n events. Of those of one instant, which leave the window together, as many as the limit
// already leave no room.
func (l countingLog) deny(t, n int) definition {
	n = min(n, l.limit-l.denied.sum(t, t+1))
	l.denied = l.denied.forget(t-l.window+1).add(t, n)
	return l
}

func (l countingLog) counts(t int) bool { return l.room(t) < l.limit }

func (l countingLog) key(t int) string {
	return l.slidingLog.key(t) + ", denied " + l.denied.since(t-l.window+1, t)
}

// rollingWindow: at the start of a period, there is room for the quota less what was granted in the
// window − period before it, at most perPeriod. periods of length are a window.
type rollingWindow struct {
	quota, perPeriod, periods, length int
	granted                           batches
}

func (w rollingWindow) room(t int) int {
	start := t - t%w.length
	room := w.quota - w.granted.sum(start-(w.periods-1)*w.length, start)
	if w.perPeriod > 0 {
		room = min(room, w.perPeriod)
	}
	return room - w.granted.sum(start, t+1)
}

func (w rollingWindow) take(t, n int) definition {
	w.granted = w.granted.forget(t-t%w.length-w.periods*w.length).add(t, n)
	return w
}

func (w rollingWindow) counts(t int) bool {
	return w.granted.sum(t-t%w.length-(w.periods-1)*w.length, t+1) > 0
}

func (w rollingWindow) key(t int) string {
	counts := make([]int, w.periods)
	for i := range counts {
		from := t - t%w.length - i*w.length
		counts[i] = w.granted.sum(from, from+w.length)
	}
	return fmt.Sprint(counts, t%w.length)
}

// lockout: when limit events were counted within window of the first of them, the key is locked from
// the latest event on. Each lock lasts twice as long as the one before, from shortest up to longest.
// The next one lasts for shortest again when longest has passed since the end of a lock.
type lockout struct {
	limit, window, shortest, longest int

	begin, latest, count int
	locks                int // that make the next one last longer
	ended                int // the latest of them
}

func (l lockout) locked() bool { return l.count >= l.limit }

func (l lockout) lasts() int {
	lasts := l.shortest
	for range l.locks {
		lasts = min(2*lasts, l.longest)
	}
	return lasts
}

// at returns the key as of t: what is over by then is forgotten.
func (l lockout) at(t int) lockout {
	switch {
	case l.locked() && t >= l.latest+l.lasts():
		l.ended, l.count = l.latest+l.lasts(), 0
		if l.lasts() < l.longest {
			l.locks++
		}
	case !l.locked() && t >= l.begin+l.window:
		l.count = 0
	}
	if !l.locked() && t >= l.ended+l.longest {
		l.locks = 0
	}
	return l
}

func (l lockout) room(t int) int {
	l = l.at(t)
	return l.limit - l.count
}

func (l lockout) take(t, n int) definition {
	l = l.at(t)
	if l.count == 0 {
		l.begin = t
	}
	l.count, l.latest = l.count+n, t
	return l
}

func (l lockout) counts(t int) bool {
	l = l.at(t)
	return l.count > 0 || l.locks > 0 && l.shortest < l.longest
}

func (l lockout) key(t int) string {
	l = l.at(t)
	begin, latest, ended := 0, 0, 0
	if l.count > 0 {
		begin, latest = t-l.begin, t-l.latest
	}
	if l.locks > 0 {
		ended = t - l.ended
	}
	return fmt.Sprint(begin, latest, l.count, l.locks, ended)
}

// asIn: a count that has begun with events that are held goes on, and that a lock was served is a
// fact.
func (l lockout) asIn(decides definition, t int) definition {
	l, d := l.at(t), decides.(lockout).at(t)
	if !d.locked() && (d.locks != l.locks || d.ended != l.ended) {
		l.count, l.locks, l.ended = 0, d.locks, d.ended
	}
	if l.count > 0 {
		l.begin = d.begin
	}
	return l
}

// both: an All grants what each of two parts grants, and counts it in both.
type both struct{ one, other definition }

func (b both) room(t int) int { return min(b.one.room(t), b.other.room(t)) }

func (b both) take(t, n int) definition { return both{b.one.take(t, n), b.other.take(t, n)} }

func (b both) counts(t int) bool { return b.one.counts(t) || b.other.counts(t) }

func (b both) key(t int) string { return b.one.key(t) + " and " + b.other.key(t) }
