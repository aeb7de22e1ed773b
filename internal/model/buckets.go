package model

import (
	"math/big"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// ratOf returns a whole number as a fraction.
func ratOf[N int | instant](n N) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).SetUint64(uint64(n)))
}

// over returns r · (to − from), the events of a rate per nanosecond in that time.
func over(r *big.Rat, from, to instant) *big.Rat {
	return new(big.Rat).Mul(r, ratOf(to-from))
}

func minRat(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

// perNano returns the rate in events per nanosecond.
func perNano(r ratelimit.Rate) *big.Rat { return big.NewRat(int64(r.Events), int64(r.Per)) }

// A level is the content of a bucket right after a charge at an instant.
type level struct {
	at     instant
	amount *big.Rat
}

// A charge is the state of a bucket after a charge at an instant.
type charge[S any] struct {
	at        instant
	state     S
	cancelled bool
	void      bool // whether all of it was given back otherwise, as if it had never been made
	none      bool // whether all of it was given back otherwise
	back      bool // whether it is not a charge, but what was given back of one
}

// A stack has the initial state and the states after each charge. A charge can be
// removed only while it is the latest, because later states depend on it. If it is
// cancelled earlier, it is removed once the later charges are gone.
type stack[S any] []charge[S]

func newStack[S any](state S) stack[S]       { return stack[S]{{state: state}} }
func (s stack[S]) last() S                   { return s[len(s)-1].state }
func (s stack[S]) charges() int              { return len(s) - 1 }
func (s stack[S]) latest() instant           { return s[len(s)-1].at }
func (s *stack[S]) push(at instant, state S) { *s = append(*s, charge[S]{at: at, state: state}) }

func (s *stack[S]) cancel(index int, _ instant) {
	(*s)[1+index].cancelled = true
	for s.top().cancelled || s.top().void {
		*s = (*s)[:len(*s)-1]
	}
}

func (s stack[S]) top() *charge[S] { return &s[len(s)-1] }

// redo replaces the charge of an index, after which nothing is left of others, by one of n
// events.
func (s *stack[S]) redo(index, n int, charge func(t instant, n int)) {
	state := (*s)[index].state
	if n > 0 {
		s.push((*s)[1+index].at, state)
		charge(s.top().at, n)
		state = s.last()
		*s = (*s)[:len(*s)-2]
	}
	for i := 1 + index; i < len(*s); i++ {
		(*s)[i].state, (*s)[i].void = state, n == 0
	}
}

func (stack[S]) earliest(t instant) instant { return t }

// tokenBucket is ratelimit.TokenBucket with RefillContinuous.
type tokenBucket struct {
	stack[level]
	rate  *big.Rat
	burst int
}

func newTokenBucket(a ratelimit.TokenBucket) *tokenBucket {
	burst := burstOf(a)
	return &tokenBucket{newStack(level{0, ratOf(burst)}), perNano(a.Rate), burst}
}

func burstOf(a ratelimit.TokenBucket) int {
	if a.Burst == 0 {
		return a.Rate.Events
	}
	return a.Burst
}

// tokens is min(B, tokens + elapsed·E/P).
func (b *tokenBucket) tokens(t instant) *big.Rat {
	l := b.last()
	gained := over(b.rate, l.at, t)
	return minRat(ratOf(b.burst), gained.Add(gained, l.amount))
}

func (b *tokenBucket) limit() int { return b.burst }

func (b *tokenBucket) grantable(t instant, n int) bool { return b.tokens(t).Cmp(ratOf(n)) >= 0 }

func (b *tokenBucket) forgotten(t instant) bool { return b.tokens(t).Cmp(ratOf(b.burst)) == 0 }

func (b *tokenBucket) charge(t instant, n int) {
	b.push(t, level{t, new(big.Rat).Sub(b.tokens(t), ratOf(n))})
}

func (b *tokenBucket) inDebt(t instant) bool { return b.tokens(t).Sign() < 0 }

// refund gives all back if nothing was granted since, and otherwise what would be missing now if
// only the hold had been taken, from a full bucket.
func (b *tokenBucket) refund(index, n, back int, now instant, ahead, more bool) {
	held := &b.stack[1+index]
	nothing, nothingLater := b.grantedSince(index)
	amount := ratOf(back)
	switch all := nothing || nothingLater && more; {
	case held.at > now:
		return
	case !all && ahead:
		return
	case !all:
		missing := new(big.Rat).Sub(ratOf(n+back), over(b.rate, held.at, now))
		if missing.Sign() <= 0 {
			return
		}
		amount = minRat(amount, missing)
	case index == b.charges()-1:
		b.redo(index, n, b.charge)
		return
	}
	held.none = n == 0 && amount.Cmp(ratOf(back)) == 0
	l := b.last()
	b.push(l.at, level{l.at, amount.Add(amount, l.amount)})
	b.top().back = true
}

// grantedSince reports whether nothing was granted after a charge, and whether nothing was at a
// later instant that has not come back.
func (b *tokenBucket) grantedSince(index int) (nothing, nothingLater bool) {
	nothing, nothingLater = true, true
	held := &b.stack[1+index]
	for i := range b.stack[2+index:] {
		if c := &b.stack[2+index+i]; !c.back {
			nothing = false
			nothingLater = nothingLater && (c.none || c.void || c.at == held.at)
		}
	}
	return nothing, nothingLater
}

func (b *tokenBucket) clone() part {
	return &tokenBucket{slices.Clone(b.stack), b.rate, b.burst}
}

// leakyBucket is ratelimit.LeakyBucket.
type leakyBucket struct {
	stack[level]
	rate     *big.Rat
	capacity int
}

func newLeakyBucket(a ratelimit.LeakyBucket) *leakyBucket {
	return &leakyBucket{newStack(level{0, new(big.Rat)}), perNano(a.Rate), max(a.Capacity, 1)}
}

// level is max(0, level − elapsed·E/P).
func (b *leakyBucket) level(t instant) *big.Rat {
	l := b.last()
	left := new(big.Rat).Sub(l.amount, over(b.rate, l.at, t))
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

func (b *leakyBucket) limit() int { return b.capacity }

func (b *leakyBucket) grantable(t instant, n int) bool {
	level := b.level(t)
	return level.Add(level, ratOf(n)).Cmp(ratOf(b.capacity)) <= 0
}

func (b *leakyBucket) forgotten(t instant) bool { return b.level(t).Sign() == 0 }

func (b *leakyBucket) charge(t instant, n int) {
	b.push(t, level{t, new(big.Rat).Add(b.level(t), ratOf(n))})
}

// delay is the time that the level at t takes to leak out.
func (b *leakyBucket) delay(t instant) time.Duration {
	empty, ok := first(t, t+instant(ratelimit.Never), b.forgotten)
	if !ok {
		return ratelimit.Never
	}
	return time.Duration(empty - t)
}

// same reports whether the bucket of l has the same content as that of m at each instant, as
// far as neither is full or empty.
func (l level) same(m level, rate *big.Rat) bool {
	if l.at < m.at {
		l, m = m, l
	}
	gained := over(rate, m.at, l.at)
	return gained.Add(gained, m.amount).Cmp(l.amount) == 0
}

// refund gives nothing back if others were queued since.
func (b *leakyBucket) refund(index, n, _ int, now instant, _, _ bool) {
	held := b.stack[1+index]
	falls := new(big.Rat).Neg(b.rate)
	if held.at <= now && b.last().same(held.state, falls) {
		b.redo(index, n, b.charge)
	}
}

func (b *leakyBucket) clone() part {
	return &leakyBucket{slices.Clone(b.stack), b.rate, b.capacity}
}

// intervalBucket is ratelimit.TokenBucket with RefillInterval.
type intervalBucket struct {
	stack[intervalState]
	refill int // arrives at anchor + k·per
	per    instant
	burst  int
}

// An intervalState is the content of the bucket right after a charge at an instant. The anchor
// is the instant of the charge that took it from full.
type intervalState struct {
	at, anchor instant
	tokens     int
}

func newIntervalBucket(a ratelimit.TokenBucket) *intervalBucket {
	burst := burstOf(a)
	return &intervalBucket{newStack(intervalState{tokens: burst}), a.Rate.Events, instant(a.Rate.Per), burst}
}

// tokens is the tokens after the latest charge, plus the refills that arrived since then
// until t.
func (b *intervalBucket) tokens(t instant) int {
	s := b.last()
	refills := (t-s.anchor)/b.per - (s.at-s.anchor)/b.per
	gained := new(big.Int).Mul(new(big.Int).SetUint64(refills), big.NewInt(int64(b.refill)))
	if gained.Cmp(big.NewInt(int64(b.burst-s.tokens))) >= 0 {
		return b.burst
	}
	return s.tokens + int(gained.Int64())
}

func (b *intervalBucket) limit() int { return b.burst }

func (b *intervalBucket) grantable(t instant, n int) bool { return b.tokens(t) >= n }

func (b *intervalBucket) forgotten(t instant) bool { return b.tokens(t) == b.burst }

func (b *intervalBucket) charge(t instant, n int) {
	s := intervalState{at: t, anchor: b.last().anchor, tokens: b.tokens(t) - n}
	if b.forgotten(t) {
		s.anchor = t
	}
	b.push(t, s)
}

// begun is the instant from which the refills after a charge are counted: the last one, or that
// of the charge that took the bucket from full.
func (b *intervalBucket) begun(s intervalState) instant {
	return s.at - (s.at-s.anchor)%b.per
}

// refund gives back, if others were granted since, what would be missing now if only the hold
// had been taken, from a full bucket, and the refills had come when they did.
func (b *intervalBucket) refund(index, n, back int, now instant, _, _ bool) {
	held := b.stack[1+index]
	last, begun := b.last(), b.begun(held.state)
	switch {
	case held.at > now:
	case b.begun(last) == begun && last.tokens == held.state.tokens:
		b.redo(index, n, b.charge)
	case now >= b.begun(last) && now >= begun:
		refills := new(big.Int).SetUint64((now - begun) / b.per)
		missing := refills.Sub(big.NewInt(int64(n+back)), refills.Mul(refills, big.NewInt(int64(b.refill))))
		if missing.Sign() > 0 {
			tokens := b.tokens(now) + min(back, int(missing.Int64()))
			b.push(now, intervalState{at: now, anchor: last.anchor, tokens: tokens})
		}
	}
}

func (b *intervalBucket) clone() part {
	return &intervalBucket{slices.Clone(b.stack), b.refill, b.per, b.burst}
}
