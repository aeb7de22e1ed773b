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

// A charge is events that were spent at an instant, and the state of the bucket after them.
type charge[S any] struct {
	at    instant
	n     int // the events that count: a settlement may lower it
	state S
}

// A stack has the initial state and the charges, each with the state after it, which is what
// replaying the charges up to it gives.
type stack[S any] []charge[S]

func newStack[S any](state S) stack[S]      { return stack[S]{{state: state}} }
func (s stack[S]) last() S                  { return s.top().state }
func (s stack[S]) top() *charge[S]          { return &s[len(s)-1] }
func (s stack[S]) charges() int             { return len(s) - 1 }
func (stack[S]) earliest(t instant) instant { return t }

// push adds a charge. spend returns the state after a charge, given the one before it.
func (s *stack[S]) push(c charge[S], spend func(before S, c charge[S]) S) {
	c.state = spend(s.last(), c)
	*s = append(*s, c)
}

// replay changes a charge to one of n events, and makes those after it again, at the instants
// at which they were made.
func (s stack[S]) replay(index, n int, spend func(before S, c charge[S]) S) {
	if s[1+index].n == n {
		return
	}
	s[1+index].n = n
	for i := 1 + index; i < len(s); i++ {
		s[i].state = spend(s[i-1].state, s[i])
	}
}

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
func (b *tokenBucket) tokens(l level, t instant) *big.Rat {
	gained := over(b.rate, l.at, t)
	return minRat(ratOf(b.burst), gained.Add(gained, l.amount))
}

func (b *tokenBucket) limit() int { return b.burst }

func (b *tokenBucket) grantable(t instant, n int) bool {
	return b.tokens(b.last(), t).Cmp(ratOf(n)) >= 0
}

func (b *tokenBucket) forgotten(t instant) bool { return b.grantable(t, b.burst) }

func (b *tokenBucket) charge(t instant, n int) { b.push(charge[level]{at: t, n: n}, b.spend) }

func (b *tokenBucket) settle(index, n int) { b.replay(index, n, b.spend) }

func (b *tokenBucket) spend(before level, c charge[level]) level {
	return level{c.at, new(big.Rat).Sub(b.tokens(before, c.at), ratOf(c.n))}
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
func (b *leakyBucket) level(l level, t instant) *big.Rat {
	left := new(big.Rat).Sub(l.amount, over(b.rate, l.at, t))
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

func (b *leakyBucket) limit() int { return b.capacity }

func (b *leakyBucket) grantable(t instant, n int) bool {
	level := b.level(b.last(), t)
	return level.Add(level, ratOf(n)).Cmp(ratOf(b.capacity)) <= 0
}

func (b *leakyBucket) forgotten(t instant) bool { return b.level(b.last(), t).Sign() == 0 }

func (b *leakyBucket) charge(t instant, n int) { b.push(charge[level]{at: t, n: n}, b.spend) }

func (b *leakyBucket) settle(index, n int) { b.replay(index, n, b.spend) }

func (b *leakyBucket) spend(before level, c charge[level]) level {
	return level{c.at, new(big.Rat).Add(b.level(before, c.at), ratOf(c.n))}
}

// delay is the time that the level at t takes to leak out.
func (b *leakyBucket) delay(t instant) time.Duration {
	empty, ok := first(t, t+instant(ratelimit.Never), b.forgotten)
	if !ok {
		return ratelimit.Never
	}
	return time.Duration(empty - t)
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
// is the instant of the charge that took it from full. It is part of the history: it stays when
// that charge is settled for fewer events, or for none, until the bucket is full again.
type intervalState struct {
	at, anchor instant
	tokens     int64 // an int of 32 bits has no room for a debt
}

func newIntervalBucket(a ratelimit.TokenBucket) *intervalBucket {
	burst := burstOf(a)
	return &intervalBucket{
		newStack(intervalState{tokens: int64(burst)}),
		a.Rate.Events,
		instant(a.Rate.Per),
		burst,
	}
}

// tokens is the tokens after a charge, plus the refills that arrived since then until t.
func (b *intervalBucket) tokens(s intervalState, t instant) int64 {
	refills := (t-s.anchor)/b.per - (s.at-s.anchor)/b.per
	gained := new(big.Int).Mul(new(big.Int).SetUint64(refills), big.NewInt(int64(b.refill)))
	if gained.Cmp(big.NewInt(int64(b.burst)-s.tokens)) >= 0 {
		return int64(b.burst)
	}
	return s.tokens + gained.Int64()
}

// refilledAt returns when the last refill until t arrived, or the anchor if none has.
func (b *intervalBucket) refilledAt(t instant) instant {
	anchor := b.last().anchor
	return anchor + (t-anchor)/b.per*b.per
}

func (b *intervalBucket) limit() int { return b.burst }

func (b *intervalBucket) grantable(t instant, n int) bool {
	return b.tokens(b.last(), t) >= int64(n)
}

func (b *intervalBucket) forgotten(t instant) bool { return b.grantable(t, b.burst) }

func (b *intervalBucket) charge(t instant, n int) {
	anchor := b.last().anchor
	if b.forgotten(t) {
		anchor = t
	}
	b.push(charge[intervalState]{at: t, n: n, state: intervalState{anchor: anchor}}, b.spend)
}

func (b *intervalBucket) settle(index, n int) { b.replay(index, n, b.spend) }

func (b *intervalBucket) spend(before intervalState, c charge[intervalState]) intervalState {
	return intervalState{
		at:     c.at,
		anchor: c.state.anchor,
		tokens: b.tokens(before, c.at) - int64(c.n),
	}
}

func (b *intervalBucket) clone() part {
	return &intervalBucket{slices.Clone(b.stack), b.refill, b.per, b.burst}
}
