package model

import (
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// A Changing is a key whose limit changes. It keeps two limits: the present one, which granted
// last, and a former one. internal/step/former.go has their laws as a table.
//
//   - The one that is asked decides alone. What it grants is charged in both, except that a bucket
//     owes of that only up to what it grants at once.
//   - Another limit begins with the level of the one that was asked last, and replaces the other
//     one. If it is similar to one of the two, it begins with that one's level; of a bucket, with
//     the level that leaves less.
//   - The former one goes when it was not asked for as long as either remembers what it grants at
//     once, and what counted in either when it was asked.
//   - The one that was asked last is the former one if it has denied since the last grant, and else
//     the present one.
type Changing struct {
	kept []keptLimit // the present limit, and the former one if there is one
	// Until when the former one was asked: until the end of its RetryAfter, if it denied.
	told instant
	last int  // the index of the one that was asked last
	both bool // whether anything was granted since both are there
	tick time.Duration
}

type keptLimit struct {
	alg ratelimit.Algorithm
	key *Key
}

// NewChanging returns a fresh key.
func NewChanging(tick time.Duration) *Changing { return &Changing{tick: tick} }

// Clone returns an independent copy of the key.
func (c *Changing) Clone() *Changing {
	copied := *c
	copied.kept = slices.Clone(c.kept)
	for i, l := range c.kept {
		copied.kept[i].key = l.key.Clone()
	}
	return &copied
}

// Limits returns how many limits the key keeps.
func (c *Changing) Limits() int { return len(c.kept) }

// Take asks the limit alg for n events at now.
func (c *Changing) Take(now int64, alg ratelimit.Algorithm, n int) ratelimit.Decision {
	a := c.ask(now, alg)
	d := a.key.Take(now, n)
	c.decided(now, a, d, d.Allowed, n)
	return d
}

// Peek is Take(now, alg, 1) without changing anything.
func (c *Changing) Peek(now int64, alg ratelimit.Algorithm) ratelimit.Decision {
	return c.ask(now, alg).key.Peek(now)
}

// Charge spends n events whether or not they may happen.
func (c *Changing) Charge(now int64, alg ratelimit.Algorithm, n int) ratelimit.Decision {
	a := c.ask(now, alg)
	d := a.key.Charge(now, n)
	c.decided(now, a, d, true, n)
	return d
}

// An asking is a limit that is asked, while there may be another one.
type asking struct {
	keptLimit
	other   []keptLimit
	present bool // whether it is the present one, or the only one
	added   bool // whether it is a third one
	keep    bool // whether it replaces the former one even if it denies
	told    instant
	forgets instant // when nothing counts any more in either, unless more is granted
}

// ask returns the limit that is asked. It changes nothing.
func (c *Changing) ask(now int64, alg ratelimit.Algorithm) asking {
	a := c.find(now, alg)
	a.forgets = a.key.fresh(instant(now))
	for _, other := range a.other {
		a.forgets = max(a.forgets, other.key.fresh(instant(now)))
	}
	return a
}

// find is ask without forgets.
func (c *Changing) find(now int64, alg ratelimit.Algorithm) asking {
	at, kept := instant(now), c.kept
	idle := !slices.ContainsFunc(kept, func(l keptLimit) bool { return !l.key.forgotten(at) })
	if idle && (len(kept) < 2 || c.told+c.memory() <= at) { // a store may have forgotten the key
		return asking{keptLimit: keptLimit{alg, New(alg, c.tick)}, present: true}
	}
	last := c.last
	if len(kept) == 2 && c.told+c.memory()+c.memory()/2 <= at {
		kept, last = kept[:1], 0
	}
	for i, l := range kept {
		if l.alg == alg {
			return asking{
				keptLimit: l,
				other:     slices.Delete(slices.Clone(kept), i, i+1),
				present:   i == 0,
				told:      c.told,
			}
		}
	}
	for i, l := range kept {
		if similar(l.alg, alg) {
			key, _ := l.key.adopted(l.alg, alg, at, false)
			if i != last {
				key = key.raised(kept[last], alg, at, last == 1)
			}
			if last == 1 && i == 1 && c.both {
				key = key.raised(kept[0], alg, at, false)
			}
			return asking{
				keptLimit: keptLimit{alg, key},
				other:     slices.Delete(slices.Clone(kept), i, i+1),
				present:   i == 0,
				keep:      i == 1 || i != last,
				told:      c.told,
			}
		}
	}
	old := kept[last]
	key, lasting := old.key.adopted(old.alg, alg, at, last == 1)
	if last == 1 && c.both { // a bucket may not have counted what the present one granted
		if level, _ := kept[0].key.adopted(kept[0].alg, alg, at, false); level.missing(at).
			Cmp(key.missing(at)) >
			0 {
			key = level
		}
	}
	keep := !lasting || key.fresh(at) > old.key.fresh(at)
	return asking{
		keptLimit: keptLimit{alg, key},
		other:     []keptLimit{old},
		added:     true,
		keep:      keep,
		told:      at,
	}
}

// raised returns k, a key of the limit alg, with the level of another limit if a bucket misses more
// then, but no more than it has credit for.
func (k *Key) raised(other keptLimit, alg ratelimit.Algorithm, at instant, denied bool) *Key {
	level, _ := other.key.adopted(other.alg, alg, at, denied)
	switch {
	case level.missing(at).Cmp(k.missing(at)) <= 0:
		return k
	case level.credit(at) > 0:
		return level
	}
	k.Charge(int64(at), k.credit(at))
	return k
}

// decided keeps the limit that was asked as the present one, if it granted, or as the former one,
// if it is that already or is to be kept.
func (c *Changing) decided(now int64, a asking, d ratelimit.Decision, granted bool, n int) {
	until := instant(now) + instant(d.RetryAfter)
	known := slices.Contains(c.kept, a.keptLimit)
	switch {
	case granted && n > 0:
		for _, other := range a.other {
			other.key.Charge(now, min(n, other.key.credit(instant(now))))
		}
		c.kept, c.told, c.last, c.both = append(
			[]keptLimit{a.keptLimit},
			a.other...), a.told, 0, true
		if !a.present {
			c.told = max(instant(now), a.forgets-min(a.forgets, c.memory()))
		}
	case d.RetryAfter == ratelimit.Never:
	case a.present && a.keep: // it counts more than before, and is otherwise what it was
		c.kept = append([]keptLimit{a.keptLimit}, a.other...)
	case !a.present && (known || a.keep):
		c.kept, c.told, c.last, c.both = append(
			slices.Clone(a.other),
			a.keptLimit,
		), a.told, 1, c.both &&
			!a.added
		until = max(until, a.forgets-min(a.forgets, c.memory()))
		if c.told+c.memory()/2 <= until {
			c.told = until
		}
	}
}

// credit returns how many events that the other limit grants at t a key counts: those of a bucket
// leave no more missing than twice what it grants at once.
func (k *Key) credit(t instant) int {
	more := new(big.Rat)
	switch p := k.parts[0].(type) {
	case *tokenBucket:
		more.Add(p.tokens(p.last(), t), ratOf(p.burst))
	case *leakyBucket:
		more.Sub(ratOf(2*p.capacity), p.level(p.last(), t))
	case *intervalBucket:
		more.SetInt64(p.tokens(p.last(), t) + int64(p.burst))
	default:
		return math.MaxInt
	}
	if more.Sign() < 0 {
		return 0
	}
	return int(new(big.Int).Quo(more.Num(), more.Denom()).Int64())
}

// missing returns how many events a bucket lacks at t.
func (k *Key) missing(t instant) *big.Rat {
	switch p := k.parts[0].(type) {
	case *tokenBucket:
		return new(big.Rat).Sub(ratOf(p.burst), p.tokens(p.last(), t))
	case *leakyBucket:
		return p.level(p.last(), t)
	case *intervalBucket:
		return new(big.Rat).SetInt64(int64(p.burst) - p.tokens(p.last(), t))
	}
	return new(big.Rat)
}

// memory is for how long either limit remembers what it grants at once.
func (c *Changing) memory() (longest instant) {
	for _, l := range c.kept {
		longest = max(longest, l.memory())
	}
	return longest
}

// memory is for how long a limit remembers that.
func (l keptLimit) memory() (longest instant) {
	for _, p := range newParts(l.alg) {
		p.charge(0, p.limit())
		t, _ := first(0, farthest, p.forgotten)
		longest = max(longest, t)
	}
	return longest
}

// forgotten reports whether nothing counts at t.
func (k *Key) forgotten(t instant) bool {
	return !slices.ContainsFunc(k.parts, func(p part) bool { return !p.forgotten(t) })
}

// fresh is the first instant, t or later, at which nothing counts.
func (k *Key) fresh(t instant) instant {
	at, _ := first(t, farthest, k.forgotten)
	return at
}

// similar reports whether two limits differ only in how much they grant.
func similar(a, b ratelimit.Algorithm) bool {
	if reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	switch a := a.(type) {
	case ratelimit.TokenBucket:
		b := b.(ratelimit.TokenBucket)
		if a.Refill == ratelimit.RefillInterval {
			return b.Refill == a.Refill && a.Rate == b.Rate
		}
		return b.Refill == a.Refill && perNano(a.Rate).Cmp(perNano(b.Rate)) == 0
	case ratelimit.LeakyBucket:
		return perNano(a.Rate).Cmp(perNano(b.(ratelimit.LeakyBucket).Rate)) == 0
	case ratelimit.SlidingLog:
		b := b.(ratelimit.SlidingLog)
		return a.Window == b.Window && a.CountDenied == b.CountDenied
	}
	panic(fmt.Sprintf("model: %T does not change", a))
}

// adopted returns a key of the limit alg that begins at now with the level of k, whose limit is
// old. lasting reports whether it would be the same at any later instant. denied says that k has
// counted nothing since it began itself: then the refills of an interval are counted from the last
// one of k on, of which one may be due.
func (k *Key) adopted(
	old, alg ratelimit.Algorithm,
	now instant,
	denied bool,
) (next *Key, lasting bool) {
	next = New(alg, time.Duration(k.tick))
	lasting = similar(old, alg)
	switch p := next.parts[0].(type) {
	case *tokenBucket:
		from := k.parts[0].(*tokenBucket)
		missing := new(big.Rat).Sub(ratOf(from.burst), from.tokens(from.last(), now))
		lasting = lasting || missing.Sign() == 0
		p.stack = newStack(level{now, missing.Sub(ratOf(p.burst), p.counted(missing))})
	case *leakyBucket:
		from := k.parts[0].(*leakyBucket)
		amount := from.level(from.last(), now)
		lasting = lasting || amount.Sign() == 0
		p.stack = newStack(level{now, countedTo(p.rate, amount)})
	case *intervalBucket:
		from := k.parts[0].(*intervalBucket)
		missing := int64(from.burst) - from.tokens(from.last(), now)
		began, anchor := now, now
		switch {
		case similar(old, alg):
			anchor = from.last().anchor
		case denied && missing > 0:
			anchor = max(from.refilledAt(now), now-min(now, p.per))
			began = anchor
		}
		lasting = lasting || missing == 0
		p.stack = newStack(intervalState{began, anchor, int64(p.burst) - missing})
	case *slidingLog:
		from := k.parts[0].(*slidingLog)
		for _, b := range from.batches { // what it still remembered when it last counted any
			if from.counts(b, from.latest()) {
				p.add(b)
			}
		}
		lasting = true
	}
	return next, lasting
}

// counted is countedTo at the rate of b.
func (b *tokenBucket) counted(missing *big.Rat) *big.Rat { return countedTo(b.rate, missing) }

// countedTo returns the events that come at a rate in the time that those given take, rounded up to
// the next fraction of a nanosecond that the bucket counts: of which the time of an event is a
// whole number.
func countedTo(rate, events *big.Rat) *big.Rat {
	fractions := new(big.Rat).SetInt(rate.Num())
	time := new(big.Rat).Quo(events, rate)
	time.Mul(time, fractions)
	whole, rest := new(big.Int).QuoRem(time.Num(), time.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	up := new(big.Rat).SetInt(whole)
	return up.Mul(up.Quo(up, fractions), rate)
}
