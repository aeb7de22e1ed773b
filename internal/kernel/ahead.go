package kernel

import "slices"

// This file keeps the reservations of a key whose turns are ahead as a part of its state.
//
// They are events that have not happened yet. So the state has a list of them, in the order of their
// turns, the state of the key without them, and the one after them. Requests are decided on that after
// them: nothing is granted before the last turn. What happens or has happened meanwhile (a turn that
// comes, a hold that is settled, a charge, a denial that is noted) changes the one before them, and the
// turns are spent again on top of it, each at its own instant.
//
// So to cancel a reservation is to leave it out, whatever was reserved or cancelled before and after it:
// the key is as if only the others had been reserved, at their turns. There is one exception. When a
// window of StartOnFirstEvent, a refill of RefillInterval or the warmth of a WarmingUp begins depends on
// what came first: without it, later turns might come before their time. Such a reservation stays, void,
// until a settlement finds that the others do not need it any more, and a hold before the turns gives nothing back.
//
// A turn whose hold goes on when it comes is a hold from then on (holds.go). So is one whose events a
// queue still delays. While no turn is ahead, nothing of this exists. The words are:
//
//	how many turns are ahead
//	four times the length of the state after them, plus 2 if the second of two limits has reserved them,
//	    plus 1 if holds are open before them
//	of each turn, in order:
//	    the ID of the reservation; 0 if it cannot be settled any more
//	    the instant at which its events are spent
//	    when its hold ends by itself: when its events may happen, if it does not last; 0 if it is void
//	    twice its events, plus 1 if these are given back then
//	the state after them
//	the state before them, in which holds may be open

const (
	aheadTurns = iota
	aheadForm
	aheadHeader
)

// The words of a turn.
const (
	turnID = iota
	turnAt
	turnEnd
	turnEvents
	turnWords
)

// ahead is the kernel of states with turns. The embedded Kernel is nil, as in opened.
type ahead struct {
	Kernel
	base *Compiled // of the state after them
}

// turns are a state of ahead. What is before and after them is not changed in place.
type turns struct {
	base   *Compiled // the kernel of after
	by     *Compiled // and of before
	list   []uint64
	before []uint64
	after  []uint64
}

// Ahead returns the kernel of the states of c, which is a Base, with turns ahead.
func (c *Compiled) Ahead() *Compiled {
	if a := c.withTurns.Load(); a != nil {
		return a
	}
	c.withTurns.CompareAndSwap(nil, c.on(&ahead{base: c}))
	return c.withTurns.Load()
}

// ahead returns the kernel of a state with turns, or nil.
func (c *Compiled) ahead() *ahead {
	k, _ := c.Kernel.(*ahead)
	return k
}

// read takes a state apart.
func (k *ahead) read(st []uint64) turns {
	form := st[aheadForm]
	from := aheadHeader + int(st[aheadTurns])*turnWords
	to := from + int(form>>2)
	t := turns{base: k.base, by: k.base, list: st[aheadHeader:from:from], before: st[to:len(st):len(st)], after: st[from:to:to]}
	if two := k.base.changed; two != nil {
		t.base = two.asking[form>>1&1]
	}
	if form&1 != 0 {
		t.by = k.base.Opened()
	}
	return t
}

// stored returns the state, and the kernel that it is stored with.
func (t *turns) stored() (*Compiled, []uint64) {
	if len(t.list) == 0 {
		return t.by, t.before
	}
	form := uint64(len(t.after)) << 2
	if t.base.changed != nil {
		form |= uint64(t.base.changed.asked) << 1
	}
	if t.by.opened() != nil {
		form |= 1
	}
	header := []uint64{uint64(len(t.list) / turnWords), form}
	return t.base.stored().Ahead(), slices.Concat(header, t.list, t.after, t.before)
}

// inner returns the state before the turns, without the list of holds.
func (t *turns) inner() []uint64 { return innerOf(t.by, t.before) }

// innerOf returns a state that by has left, without the list of holds.
func innerOf(by *Compiled, st []uint64) []uint64 {
	if o := by.opened(); o != nil {
		return o.inner(st)
	}
	return st
}

// withHolds returns the kernel of the state before the turns with open holds, of the limit that has reserved them.
func (t *turns) withHolds() *opened { return t.base.Opened().opened() }

// spend returns st after n events of a turn, which may be fewer than were reserved. They keep their instant even if
// they would not be granted then any more, because others were charged.
func (t *turns) spend(st, turn []uint64, n uint64) []uint64 {
	if n == 0 {
		return st
	}
	at := turn[turnAt]
	if t.base.Ready(st, at, int(n)) == at {
		st = t.base.book(st, at, int(n))
	} else if n = min(n, t.base.chargeable(st, at, t.base.Encoding)); n > 0 {
		st = t.base.charge(st, at, int(n))
	}
	if t.base.changed != nil {
		st[promised] = max(st[promised], at)
	}
	return t.base.each(st, func(_ int, _ bool, part *capable, st []uint64) []uint64 {
		if log, ok := part.Kernel.(*inFlight); ok {
			return log.move(st, int(n), log.frontier(st)+log.window, turn[turnEnd])
		}
		return st
	})
}

// spendAgain makes the state after the turns of that before them.
func (t *turns) spendAgain() {
	t.after = slices.Clone(t.inner())
	for i := range len(t.list) / turnWords {
		t.after = t.spend(t.after, t.turn(i), t.turn(i)[turnEvents]/2)
	}
}

func (t *turns) turn(i int) []uint64 { return t.list[i*turnWords:][:turnWords] }

// advance lets the turns come that do so until an instant, and ends the holds that are due at now. It returns how many
// holds have ended by themselves, and whether anything has changed.
func (t *turns) advance(until, now Instant) (ended int, changed bool) {
	if o := t.by.opened(); t.list[turnAt] > until && (o == nil || t.before[firstEnd] > now) {
		return 0, false
	}
	t.before = slices.Clone(t.before)
	for ; len(t.list) > 0 && t.list[turnAt] <= until; t.list = t.list[turnWords:] {
		ended += t.end(min(t.list[turnAt], now)) // in the order of time, which makes a difference in a WarmingUp
		ended += t.come(t.list[:turnWords], now)
	}
	ended += t.end(now)
	t.spendAgain()
	return ended, true
}

// end ends the holds that are due by themselves. They give nothing back if a turn would then come too early.
func (t *turns) end(now Instant) (ended int) {
	o := t.by.opened()
	if o == nil || t.before[firstEnd] > now {
		return 0
	}
	st, ended := o.endDue(slices.Clone(t.before), now)
	if !t.fit(everyTurn, 0, o.inner(st)) {
		st = slices.Clone(t.before)
		for i := range o.count(st) {
			if e := o.entry(st, i); e[holdEnd] <= now {
				e[holdEvents] &^= 1
			}
		}
		st, ended = o.endDue(st, now)
	}
	t.by, t.before = o.closed(st)
	return ended
}

// everyTurn is for fit, if all turns stay.
func everyTurn(int) bool { return true }

// come spends the events of a turn in the state before all turns, and opens its hold, if that goes on.
func (t *turns) come(turn []uint64, now Instant) (ended int) {
	id, at, h := turn[turnID], turn[turnAt], hold{turn[turnEnd], int(turn[turnEvents] / 2), turn[turnEvents]%2 == 1}
	if endsAtTurn(id) && (h.end <= now || at > now) {
		id = 0 // it is over, or is not ahead any more because the list was too long or the limit has changed
	}
	o := t.by.opened()
	if id == 0 && o == nil {
		t.before = t.spend(t.before, turn, uint64(h.n))
		return ended
	}
	k := t.withHolds()
	if o == nil {
		t.before = k.open(t.before)
	}
	if id == 0 {
		k.pass(t.before, at)
	} else {
		t.before, ended = k.add(t.before, id, h, now, at)
	}
	t.by, t.before = k.closed(k.replace(t.before, t.spend(k.inner(t.before), turn, uint64(h.n))))
	return ended
}

// add appends a turn.
func (t *turns) add(id uint64, at Instant, h hold, now Instant) (ended int) {
	if len(t.list) >= MostHolds*turnWords {
		t.before = slices.Clone(t.before)
		ended = t.come(t.list[:turnWords], now)
		if t.list = t.list[turnWords:]; ended > 0 { // the oldest hold, which may have given its events back
			t.spendAgain()
		}
	}
	e := h.events()
	t.list = append(t.list, id, at, h.end, e)
	t.after = t.spend(slices.Clone(t.after), t.list[len(t.list)-turnWords:], e/2)
	return ended
}

// ends returns an instant before which no hold ends by itself, whether it is open or will be, or Forever if there is none.
func (t *turns) ends() (first Instant) {
	first = Forever
	if o := t.by.opened(); o != nil && o.holds(t.before) {
		first = t.before[firstEnd]
	}
	for i := range len(t.list) / turnWords {
		if turn := t.turn(i); !endsAtTurn(turn[turnID]) {
			first = min(first, turn[turnEnd])
		}
	}
	return first
}

// find returns the index of the turn of a reservation, or −1.
func (t *turns) find(id uint64) int {
	for i := range len(t.list) / turnWords {
		if t.turn(i)[turnID] == id && id != 0 {
			return i
		}
	}
	return -1
}

// settle lets n events of the i-th turn happen, at most as many as it has. If none do, it leaves the list, and so do the
// void ones that the others do not need any more.
func (t *turns) settle(i, n int) {
	t.list = slices.Clone(t.list)
	turn := t.turn(i)
	turn[turnID], turn[turnEnd] = 0, turn[turnAt]
	if n == 0 {
		turn[turnEnd] = 0
	} else if t.fit(func(j int) bool { return j != i }, uint64(n), t.inner()) {
		turn[turnEvents] = 2 * uint64(n)
	}
	stays := func(j int) bool { return t.turn(j)[turnEnd] > 0 }
	if !t.fit(stays, 0, t.inner()) { // else all void ones leave
		if stays = func(j int) bool { return j != i || n > 0 }; !t.fit(stays, 0, t.inner()) {
			stays = everyTurn
		}
	}
	left := t.list[:0]
	for j := range len(t.list) / turnWords {
		if stays(j) {
			left = append(left, t.turn(j)...)
		}
	}
	for len(left) > 0 && left[len(left)-turnWords+turnEnd] == 0 { // nothing is behind these
		left = left[:len(left)-turnWords]
	}
	t.list = left
	t.spendAgain()
}

// fit reports whether no turn would come too early if those that do not stay had only n events, and the state before
// them, without the list of holds, were another one.
func (t *turns) fit(stays func(i int) bool, n uint64, before []uint64) bool {
	if !t.base.drifts() {
		return true
	}
	all, other := slices.Clone(t.inner()), slices.Clone(before)
	for i := range len(t.list) / turnWords {
		turn := t.turn(i)
		at, events := turn[turnAt], turn[turnEvents]/2
		has := events
		if !stays(i) {
			has = n
		} else if events > 0 && t.base.Ready(other, at, int(events)) > max(at, t.base.Ready(all, at, int(events))) {
			return false
		}
		all, other = t.spend(all, turn, events), t.spend(other, turn, has)
	}
	return true
}

// drifts reports whether events may come later because earlier ones did not happen.
func (c *Compiled) drifts() bool {
	return slices.ContainsFunc(c.leaves, func(leaf capable) bool {
		switch k := leaf.Kernel.(type) {
		case *fixed:
			return !k.aligned
		case *intervalBucket, *warming:
			return true
		}
		return false
	})
}

// Stores call these methods of a Kernel for whatever state they have.

func (k *ahead) Limit() int { return k.base.Limit() }

func (k *ahead) Width() int { return 0 }

func (k *ahead) Ready(st []uint64, now Instant, n int) Instant {
	t := k.read(st)
	return t.base.Ready(t.after, now, n)
}

func (k *ahead) Remaining(st []uint64, now Instant) int {
	t := k.read(st)
	return t.base.Remaining(t.after, now)
}

// Fresh returns when all turns have come, no hold is open any more, and nothing counts.
func (k *ahead) Fresh(st []uint64) Instant {
	t := k.read(st)
	at := max(t.base.Fresh(t.after), t.by.Fresh(t.before))
	for i := range len(t.list) / turnWords {
		at = max(at, t.turn(i)[turnAt], t.turn(i)[turnEnd])
	}
	return at
}

func (k *ahead) frontier(st []uint64) Instant {
	t := k.read(st)
	return t.base.frontier(t.after)
}

func (k *ahead) Valid(st []uint64) bool {
	if len(st) < aheadHeader || st[aheadTurns] == 0 || st[aheadTurns] > uint64(len(st)-aheadHeader)/turnWords ||
		st[aheadTurns] > MostHolds || st[aheadForm]&2 != 0 && k.base.changed == nil ||
		st[aheadForm]>>2 > uint64(len(st)-aheadHeader)-st[aheadTurns]*turnWords {
		return false
	}
	t := k.read(st)
	last := Instant(0)
	for i := range len(t.list) / turnWords {
		turn := t.turn(i)
		if turn[turnAt] < last || max(turn[turnAt], turn[turnEnd]) > k.base.lastInstant() || turn[turnEvents]/2 > uint64(t.base.Limit()) ||
			turn[turnID] != 0 && turn[turnEnd] < turn[turnAt] {
			return false
		}
		last = turn[turnAt]
	}
	valid := func(c *Compiled, st []uint64) bool { return (c.Width() == 0 || c.Width() == len(st)) && c.Valid(st) }
	return valid(t.base, t.after) && valid(t.by, t.before)
}

func (k *ahead) pack(st []uint64) []uint64 {
	t := k.read(st)
	t.after, t.before = t.base.Pack(slices.Clone(t.after)), t.by.Pack(slices.Clone(t.before))
	_, st = t.stored()
	return st
}
