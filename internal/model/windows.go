package model

import (
	"math/big"
	"slices"

	"github.com/ratelimit-go/ratelimit"
)

// A batch is n events at one instant. n is 0 once none of them counts.
type batch struct {
	at      instant
	n       int
	start   instant // of their window, in a window that starts on the first event
	until   instant // when they are over, if they are in flight
	refused bool
}

// A history has all batches in the order in which they were charged. What counts is a sum over
// the batches, so there is nothing to replay when one of them changes.
type history struct{ batches []batch }

func (h *history) charges() int { return len(h.batches) }
func (h *history) add(b batch)  { h.batches = append(h.batches, b) }

func (h *history) settle(index, n int) { h.batches[index].n = n }

func (history) earliest(t instant) instant { return t }

// latest is the latest instant of a batch that was granted and counts.
func (h *history) latest() (at instant) {
	for _, b := range h.batches {
		if b.n > 0 && !b.refused {
			at = max(at, b.at)
		}
	}
	return at
}

// count adds up the events of the batches that match.
func (h *history) count(match func(batch) bool) *big.Int {
	sum, n := new(big.Int), new(big.Int)
	for _, b := range h.batches {
		if match(b) {
			sum.Add(sum, n.SetInt64(int64(b.n)))
		}
	}
	return sum
}

func (h *history) clone() history { return history{slices.Clone(h.batches)} }

// fits reports whether count + n ≤ limit.
func fits(count *big.Int, n, limit int) bool {
	sum := new(big.Int).Add(count, big.NewInt(int64(n)))
	return sum.Cmp(big.NewInt(int64(limit))) <= 0
}

// fixedWindow is ratelimit.FixedWindow with StartAligned.
type fixedWindow struct {
	history
	max    int
	window instant
}

func (w *fixedWindow) counts(b batch, t instant) bool { return b.at/w.window == t/w.window }

// current counts the events in the window that contains t.
func (w *fixedWindow) current(t instant) *big.Int {
	return w.count(func(b batch) bool { return w.counts(b, t) })
}

func (w *fixedWindow) limit() int                      { return w.max }
func (w *fixedWindow) grantable(t instant, n int) bool { return fits(w.current(t), n, w.max) }
func (w *fixedWindow) forgotten(t instant) bool        { return w.current(t).Sign() == 0 }
func (w *fixedWindow) charge(t instant, n int)         { w.add(batch{at: t, n: n}) }

func (w *fixedWindow) clone() part { return &fixedWindow{w.history.clone(), w.max, w.window} }

// eventWindow is ratelimit.FixedWindow with StartOnFirstEvent.
type eventWindow struct {
	history
	max    int
	window instant
}

func (w *eventWindow) counts(b batch, t instant) bool {
	return b.start <= t && t-b.start < w.window
}

// current counts the events whose window contains t.
func (w *eventWindow) current(t instant) *big.Int {
	return w.count(func(b batch) bool { return w.counts(b, t) })
}

func (w *eventWindow) limit() int                      { return w.max }
func (w *eventWindow) grantable(t instant, n int) bool { return fits(w.current(t), n, w.max) }
func (w *eventWindow) forgotten(t instant) bool        { return w.current(t).Sign() == 0 }

func (w *eventWindow) clone() part { return &eventWindow{w.history.clone(), w.max, w.window} }

// charge adds the events to the window that contains t, or to a new one that starts at t. When
// a window began is part of the history: it lasts as long as any of its events counts, also if
// the first of them is settled for none.
func (w *eventWindow) charge(t instant, n int) {
	start := t
	for _, b := range w.batches {
		if b.n > 0 && w.counts(b, t) {
			start = b.start
		}
	}
	w.add(batch{at: t, n: n, start: start})
}

// slidingWindow is ratelimit.SlidingWindow.
type slidingWindow struct {
	history
	max     int
	k       instant // segments in a window
	segment instant // the length of one
}

func newSlidingWindow(a ratelimit.SlidingWindow) *slidingWindow {
	k := instant(max(a.Segments, 1))
	return &slidingWindow{max: a.Limit, k: k, segment: instant(a.Window) / k}
}

// estimate is the current segment and the k−1 before it, plus the one before those
// weighted by 1 − e/segment, where e is the time since the current segment began.
func (w *slidingWindow) estimate(t instant) *big.Rat {
	now, e := t/w.segment, t%w.segment
	whole := w.count(func(b batch) bool { return b.at/w.segment+w.k > now })
	oldest := w.count(func(b batch) bool { return b.at/w.segment+w.k == now })
	weight := new(big.Rat).Quo(ratOf(w.segment-e), ratOf(w.segment))
	sum := weight.Mul(weight, new(big.Rat).SetInt(oldest))
	return sum.Add(sum, new(big.Rat).SetInt(whole))
}

func (w *slidingWindow) limit() int { return w.max }

func (w *slidingWindow) grantable(t instant, n int) bool {
	sum := w.estimate(t)
	return sum.Add(sum, ratOf(n)).Cmp(ratOf(w.max)) <= 0
}

func (w *slidingWindow) forgotten(t instant) bool { return w.estimate(t).Sign() == 0 }

func (w *slidingWindow) charge(t instant, n int) { w.add(batch{at: t, n: n}) }

func (w *slidingWindow) clone() part {
	return &slidingWindow{w.history.clone(), w.max, w.k, w.segment}
}

// slidingLog is ratelimit.SlidingLog. It keeps every event, even those that cannot count
// any more.
type slidingLog struct {
	history
	max         int
	window      instant
	countDenied bool
}

func (w *slidingLog) counts(b batch, t instant) bool { return b.at <= t && t-b.at < w.window }

// current counts the events in (t−window, t].
func (w *slidingLog) current(t instant) *big.Int {
	return w.count(func(b batch) bool { return w.counts(b, t) })
}

func (w *slidingLog) limit() int                      { return w.max }
func (w *slidingLog) grantable(t instant, n int) bool { return fits(w.current(t), n, w.max) }
func (w *slidingLog) forgotten(t instant) bool        { return w.current(t).Sign() == 0 }
func (w *slidingLog) charge(t instant, n int)         { w.add(batch{at: t, n: n}) }

func (w *slidingLog) refuse(t instant, n int) {
	if w.countDenied {
		w.add(batch{at: t, n: n, refused: true})
	}
}

func (w *slidingLog) clone() part {
	return &slidingLog{w.history.clone(), w.max, w.window, w.countDenied}
}

// rollingWindow is ratelimit.RollingWindow.
type rollingWindow struct {
	history
	quota     int
	perPeriod int // the most events in one period
	periods   instant
	period    instant // the length of one
}

func newRollingWindow(a ratelimit.RollingWindow) *rollingWindow {
	w := &rollingWindow{
		quota:     a.Quota,
		perPeriod: a.Quota,
		periods:   instant(a.Window / a.Period),
		period:    instant(a.Period),
	}
	if a.PeriodLimit > 0 {
		w.perPeriod = min(a.PeriodLimit, a.Quota)
	}
	return w
}

// bucket is the number of events that period p started with: the quota minus the events
// granted in the earlier periods that share a window with p, and at most the limit of
// one period.
func (w *rollingWindow) bucket(p instant) *big.Int {
	before := w.count(func(b batch) bool {
		q := b.at / w.period
		return q < p && q+w.periods > p
	})
	left := before.Sub(big.NewInt(int64(w.quota)), before)
	if most := big.NewInt(int64(w.perPeriod)); left.Cmp(most) > 0 {
		return most
	}
	return left
}

func (w *rollingWindow) limit() int { return w.perPeriod }

func (w *rollingWindow) grantable(t instant, n int) bool {
	p := t / w.period
	taken := w.count(func(b batch) bool { return b.at/w.period == p })
	taken.Add(taken, big.NewInt(int64(n)))
	return taken.Cmp(w.bucket(p)) <= 0
}

func (w *rollingWindow) forgotten(t instant) bool {
	p := t / w.period
	return w.count(func(b batch) bool { return b.at/w.period+w.periods > p }).Sign() == 0
}

func (w *rollingWindow) charge(t instant, n int) { w.add(batch{at: t, n: n}) }

func (w *rollingWindow) clone() part {
	return &rollingWindow{w.history.clone(), w.quota, w.perPeriod, w.periods, w.period}
}
