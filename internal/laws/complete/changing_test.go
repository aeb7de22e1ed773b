package complete_test

import (
	"fmt"
	"reflect"
)

// An adopter is a definition whose limit may change: docs/algorithms.md, "When a limit changes".
type adopter interface {
	definition

	// adopt returns the definition, which is that of a new key, with what another one has counted
	// as of t, whose algorithm is the same.
	adopt(other definition, t int) definition

	// shares reports whether the definition differs from another one only in how much it grants.
	shares(other definition) bool
}

// A debtor is a definition that pays for each event of a debt, so that it counts only some of the
// events that another limit grants.
type debtor interface {
	// credit returns how many events it counts at t if the other limit grants them.
	credit(t int) int
}

// changing is a key whose limit changes between two.
type changing struct {
	limits [2]definition // of a new key
	asks   int           // the index of the limit that is asked

	// What each limit has counted, or nil if the key does not keep that limit.
	kept   [2]definition
	begins bool // whether the limit that is asked was not kept before
	took   bool // whether events were taken since it is asked
	shares bool // whether it then takes the place of the other one, once it grants
	latest int  // the limit that has made the latest grant: the other one is the former one
	until  int  // the latest instant at which the former one was asked
}

// follow counts events in d that the other limit grants.
func follow(d definition, t, n int) definition {
	switch d := d.(type) {
	case both:
		return both{follow(d.one, t, n), follow(d.other, t, n)}
	case debtor:
		n = min(n, d.credit(t))
	}
	if n == 0 {
		return d
	}
	return d.take(t, n)
}

// memory is for how many ticks either limit remembers events.
func (c changing) memory() (longest int) {
	for _, limit := range c.limits {
		longest = max(longest, memoryOf(limit))
	}
	return longest
}

func memoryOf(limit definition) int {
	if l, ok := limit.(lockout); ok { // a lock may have come after others
		return max(l.window, 2*l.longest)
	}
	granted := limit.take(0, limit.room(0))
	return first(0, func(t int) bool { return !granted.counts(t) })
}

// forgets returns when what both limits have counted by t does not count any more.
func (c changing) forgets(t int) int {
	return first(t, func(t int) bool {
		return !c.counted(0, t) && !c.counted(1, t)
	})
}

func (c changing) counted(i, t int) bool { return c.kept[i] != nil && c.kept[i].counts(t) }

// at returns the key as of t. The former limit goes when it was not asked for as long as either
// remembers events, if nothing counts any more, and half as long again otherwise.
func (c changing) at(t int) changing {
	former := 1 - c.latest
	isIdle := !c.counted(0, t) && !c.counted(1, t)
	if c.kept[former] != nil {
		after := c.memory()
		if !isIdle {
			after += c.memory() / 2
		}
		if t < c.until+after {
			return c
		}
		c.kept[former] = nil
	}
	if isIdle {
		c.kept[c.latest] = nil
	}
	return c
}

// as returns the key with a limit that is asked at t. It begins with what the other one has counted,
// if the key does not keep it.
func (c changing) as(i, t int) changing {
	c.asks, c.begins, c.shares, c.took = i, false, false, false
	other := c.kept[1-i]
	switch limit, ok := c.limits[i].(adopter); {
	case c.kept[i] != nil:
	case other == nil || !ok || c.areOfTwoKinds():
		c.kept, c.latest = [2]definition{}, i
		c.kept[i] = c.limits[i]
	default:
		c.kept[i], c.until, c.begins, c.shares = limit.adopt(other, t), t, true, limit.shares(other)
	}
	return c
}

// areOfTwoKinds reports whether the limits have two algorithms, so that neither adopts anything.
func (c changing) areOfTwoKinds() bool {
	return reflect.TypeOf(c.limits[0]) != reflect.TypeOf(c.limits[1])
}

func (c changing) own() definition { return c.kept[c.asks] }

func (c changing) room(t int) int { return c.own().room(t) }

func (c changing) counts(t int) bool { return c.own().counts(t) }

func (c changing) delay(t int) int {
	if q, ok := c.own().(queue); ok {
		return q.delay(t)
	}
	return 0
}

// take counts events in both limits. In the former one, which is asked, they make it the present one.
func (c changing) take(t, n int) definition {
	other := 1 - c.asks
	if c.latest != c.asks {
		c.latest, c.until = c.asks, max(t, c.forgets(t)-c.memory())
	}
	c.kept[c.asks], c.took = c.own().take(t, n), true
	if c.shares {
		c.kept[other] = nil
	}
	if d := c.kept[other]; d != nil {
		c.kept[other] = follow(d, t, n)
	}
	return c
}

// denied returns the key after a denial that ends at an instant. The limit that denies is kept, and
// was asked until then: it is no matter if that is less than half of the memory later than before.
func (c changing) denied(t, until int) changing {
	if c.latest == c.asks {
		return c
	}
	until = max(until, c.forgets(t)-c.memory())
	if c.until+c.memory()/2 <= until {
		c.until = until
	}
	return c
}

// mayForget reports whether a store may keep the key as it was before this denial: if the limit that
// denies is the present one, is known to have been asked, or would be the same if it began at any
// later instant.
func (c changing) mayForget(before changing, t int) bool {
	switch {
	case c.latest == c.asks || c.shares:
		return true
	case !c.begins:
		return c.until == before.until
	}
	for at := t; at < c.forgets(t); at++ {
		if c.own().key(at) != c.limits[c.asks].(adopter).adopt(c.kept[c.latest], at).key(at) {
			return false
		}
	}
	return true
}

// asIn: which limits the key keeps, and since when, is a fact. If a former bucket owes its burst, it
// gives nothing back.
func (c changing) asIn(decides definition, t int) definition {
	d := decides.(changing)
	c = c.like(d)
	for i, own := range c.kept {
		if own == nil {
			continue
		}
		if own, ok := own.(fact); ok {
			c.kept[i] = own.asIn(d.kept[i], t)
		}
		if d.took && i != d.asks {
			c.kept[i] = forfeit(c.kept[i], d.kept[i], t)
		}
	}
	return c
}

// forfeit returns d or, if it is a bucket that owes its burst in the world that decides, what that has.
func forfeit(d, decides definition, t int) definition {
	switch own := d.(type) {
	case both:
		other := decides.(both)
		return both{forfeit(own.one, other.one, t), forfeit(own.other, other.other, t)}
	case debtor:
		if decides.(debtor).credit(t) == 0 {
			return decides
		}
	}
	return d
}

// like returns the key with the limits that d keeps, since d keeps them.
func (c changing) like(d changing) changing {
	c.latest, c.until = d.latest, d.until
	for i := range c.kept {
		if d.kept[i] == nil {
			c.kept[i] = nil
		}
	}
	return c
}

// matters reports whether anything makes a difference at t.
func (c changing) matters(t int) bool {
	c = c.at(t)
	return c.kept[0] != nil || c.kept[1] != nil
}

func (c changing) key(t int) (name string) {
	for _, kept := range c.kept {
		if kept != nil {
			name += kept.key(t)
		}
		name += "; "
	}
	if c.kept[1-c.latest] != nil {
		name += fmt.Sprint(max(c.until-t, -2*c.memory()))
	}
	return name + fmt.Sprint("; ", c.latest)
}

// adopt: spent tokens stay spent, and return at the new rate. Those that are no whole number of the
// parts of a tick in which the bucket counts are rounded up.
func (b tokenBucket) adopt(other definition, t int) definition {
	from := other.(tokenBucket)
	b.missing, b.at = (from.left(t)*b.per+from.per-1)/from.per, t
	return b
}

func (b tokenBucket) shares(other definition) bool {
	from := other.(tokenBucket)
	return b.events == from.events && b.per == from.per
}

func (b tokenBucket) credit(t int) int { return max(0, 2*b.burst*b.per-b.left(t)) / b.per }

func (b leakyBucket) adopt(other definition, t int) definition {
	return leakyBucket{b.tokenBucket.adopt(other.(leakyBucket).tokenBucket, t).(tokenBucket)}
}

func (b leakyBucket) shares(other definition) bool {
	return b.tokenBucket.shares(other.(leakyBucket).tokenBucket)
}

// adopt: the new interval begins at t.
func (b intervalBucket) adopt(other definition, t int) definition {
	from := other.(intervalBucket).at(t)
	b.tokens = b.burst - (from.burst - from.tokens)
	b.since = t
	if b.shares(from) {
		b.since = from.since
	}
	return b
}

func (b intervalBucket) shares(other definition) bool {
	from := other.(intervalBucket)
	return b.events == from.events && b.per == from.per
}

func (b intervalBucket) credit(t int) int { return max(0, b.at(t).tokens+b.burst) }

// adopt: the events of the present window count as late as they can have happened.
func (w fixedWindow) adopt(other definition, t int) definition {
	from := other.(fixedWindow)
	if n := from.limit - from.room(t); n > 0 {
		w.granted = w.granted.add(t, n)
	}
	return w
}

func (w fixedWindow) shares(other definition) bool { return w.window == other.(fixedWindow).window }

func (w eventWindow) adopt(other definition, t int) definition {
	from := other.(eventWindow)
	switch {
	case !from.counts(t):
	case w.shares(from):
		w.begin, w.count = from.begin, from.count
	default:
		w.begin, w.count = t, from.count
	}
	return w
}

func (w eventWindow) shares(other definition) bool { return w.window == other.(eventWindow).window }

// asLateAs returns the events of the newest segments of a length, each as late as it can have
// happened by t.
func (all batches) asLateAs(t, length, segments int) (known batches) {
	if len(all) == 0 {
		return nil
	}
	newest := all[len(all)-1].at / length
	for i := max(0, newest-segments+1); i <= newest; i++ {
		if n := all.sum(i*length, (i+1)*length); n > 0 {
			known = known.add(min(t, (i+1)*length-1), n)
		}
	}
	return known
}

// adopt: the events of a segment count as late as they can have happened. Known are those that
// counted when the latest of them happened.
func (w slidingWindow) adopt(other definition, t int) definition {
	from := other.(slidingWindow)
	w.granted = from.granted.asLateAs(t, from.length, from.segments+1)
	return w
}

func (w slidingWindow) shares(other definition) bool {
	from := other.(slidingWindow)
	return w.segments == from.segments && w.length == from.length
}

// adopt: the log still knows what was in its window when it counted its latest event.
func (l slidingLog) adopt(other definition, _ int) definition {
	l.logged = other.(slidingLog).logged
	return l
}

func (l slidingLog) shares(other definition) bool { return l.window == other.(slidingLog).window }

// adopt: as of a slidingWindow.
func (w rollingWindow) adopt(other definition, t int) definition {
	from := other.(rollingWindow)
	w.granted = from.granted.asLateAs(t, from.length, from.periods)
	return w
}

func (w rollingWindow) shares(other definition) bool {
	from := other.(rollingWindow)
	return w.periods == from.periods && w.length == from.length
}

// adopt: the count and the locks, at their times.
func (l lockout) adopt(other definition, _ int) definition {
	from := other.(lockout)
	l.begin, l.latest, l.count, l.locks, l.ended = from.begin, from.latest, from.count, from.locks, from.ended
	return l
}

func (l lockout) shares(definition) bool { return false }

func (b both) adopt(other definition, t int) definition {
	from := other.(both)
	return both{b.one.(adopter).adopt(from.one, t), b.other.(adopter).adopt(from.other, t)}
}

func (b both) shares(other definition) bool {
	from := other.(both)
	return b.one.(adopter).shares(from.one) && b.other.(adopter).shares(from.other)
}
