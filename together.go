package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// A Bound is a limiter and one of its keys. [TakeAll] and [HoldAll] decide on several at once. The zero
// Bound, and one of a nil Limiter, has no limiter: that is an error, which matches [ErrInvalid].
type Bound struct {
	limiter Limiter
	key     string
	n       int  // its own number of events
	hasN    bool // whether it has one

	options *[]HoldOption // of its holds; nil if there are none
}

// For returns l bound to key. The options are those of what the Bound holds: see [HoldFor] and
// [GiveBack].
func For(l Limiter, key string, opts ...HoldOption) Bound {
	b := Bound{limiter: l, key: key}
	if len(opts) > 0 {
		copied := slices.Clone(opts)
		b.options = &copied
	}
	return b
}

// N returns b with a number of events of its own, which [TakeAll] and [HoldAll] spend in its key
// in the place of theirs: so one call spends a request, 1,200 tokens and 3 cents. If n is 0, the
// key spends nothing and never refuses.
func (b Bound) N(n int) Bound {
	b.n, b.hasN = n, true
	return b
}

// events returns how many events a call for n of each key means for b.
func (b Bound) events(n int) int {
	if b.hasN {
		return b.n
	}
	return n
}

// held returns the options of its holds.
func (b Bound) held() []HoldOption {
	if b.options == nil {
		return nil
	}
	return *b.options
}

// Limiter returns the limiter, or nil if there is none.
func (b Bound) Limiter() Limiter { return b.limiter }

// Key returns the key.
func (b Bound) Key() string { return b.key }

// errUnbound says that a Bound has no limiter.
var errUnbound = param.Invalid("Bound's limiter", nil, "must not be nil; make a Bound with For(limiter, key)")

// TakeAll spends n events of each of several keys, or the number that [Bound.N] has given to a key,
// if all of them grant them now, and otherwise spends nothing: a request may belong to a user, to an
// organisation and to the whole service.
//
//	d, err := ratelimit.TakeAll(ctx, 1,
//		ratelimit.For(users, user), ratelimit.For(orgs, org), ratelimit.For(service, ""))
//
// The limiters may have different algorithms and stores. A key that is given k times spends k·n
// events, and its Limit and Remaining are divided by k.
//
// The Decision is that of an [All] whose parts are the keys. Limit and Remaining are the least,
// RetryAfter, ResetAfter and Delay the greatest of the keys. Part is the index of the Bound that
// decided. If a Bound has a number of its own, Part is the key that refuses for longest or, if the
// events are granted, that has room for the fewest such calls. Limit and Remaining are then those
// of that key.
//
// # In memory
//
// TakeAll is atomic for the keys of limiters that [New] has made on a [MemoryStore], including
// the default one, even if the stores differ: no other call finds the events spent in some keys
// and not in others, or, if the request is denied, spent at all. The order of the keys does not
// matter. As with an All, every [SlidingLog] with CountDenied counts a request that another key
// denies. If TakeAll has more keys of a store with MaxKeys than the store may hold, it
// returns an error that matches [ErrFull].
//
// # In Redis
//
// TakeAll is one call, and atomic for all processes, if the keys are of one Store of package
// redisstore, whose server has all keys. In a cluster or a ring, the keys must have the same
// {tag}: see the section "Several keys" of that package. Other stores may have [limit.JointStates] to
// do the same. If a key is known to be exhausted without a call, the Decision tells only of such
// keys.
//
// # Several stores
//
// If the keys are not all in memory or all in one Redis, TakeAll holds those that are not in
// memory first, in the order in which they are given: the keys that one call can decide on
// together, and any other key with [Limiter.Hold]. These are keys in other stores or other slots
// of a cluster, and those whose limit cannot be looked up; and in memory, a key that is also given with another limiter of
// the same name, if they have lookups of their own ([WithLimits]). Keys that are [Unlimited] or [Blocked]
// come before them, and need no call. In the end, TakeAll decides on the keys in memory. As soon
// as a key refuses, or fails and its [FailurePolicy] does not allow the request, TakeAll settles
// the holds before it with 0, and asks no further keys, so that the Decision tells only of those
// before. Until it has settled the holds, other calls may be denied what they would have been
// granted otherwise, and what [Reservation.Settle] does not give back stays spent. But TakeAll
// never grants more than each of the limiters would.
//
// # Other limiters
//
// Limiters that New has not made are asked last, in the order in which they are given: TakeAll
// calls their Take, and HoldAll their Hold. All other keys are held before that, as several stores
// are, even those in memory, which are then not decided on together. So nothing is spent in these
// limiters if another key refuses. If one of them refuses, HoldAll also settles the holds of those
// before it, but what they have granted to TakeAll stays spent.
//
// # Errors
//
// The error is that of [Limiter.Take], or one for each key that failed. If there is no Bound, or
// one has no limiter, it matches [ErrInvalid].
func TakeAll(ctx context.Context, n int, of ...Bound) (d Decision, err error) {
	varies, err := checkTogether(ctx, n, of)
	if err != nil {
		return Decision{}, err
	}
	if !takeWords(n, of, varies, &d) {
		_, d, err = takeTogether(ctx, n, of, varies, false)
	}
	return d, err
}

// HoldAll is [TakeAll], and returns one Reservation of the events in all keys if they are
// granted. Each key is held as the options of [For] say; for a key that is given several times, those of
// the first. [Reservation.Parts] has those of the keys. Its Settle has a number for each Bound, or one for all, settles them one after the other, and returns
// the decisions of all, merged like those of TakeAll. It checks ctx once, before the first. If a key has no room for the events
// ([ErrDebt] or [ErrFull]), the others are settled, and Settle can be called again for that key. If
// the events are denied, the Reservation is nil.
//
// A [LeakyBucket] may delay the events. Then the holds of all keys last from when the events may happen in all of
// them, as in an All. For keys that are not in memory, and have not delayed the events as long, that takes
// a call of the store for each. If that fails, the events are held all the same, but those of the key from the
// call on: the Decision is Allowed, and the error is that of the store, whatever the [FailurePolicy].
//
// In memory, HoldAll makes an allocation for each key, and three more; up to two more for a key of which a hold
// has just ended by itself.
func HoldAll(ctx context.Context, n int, of ...Bound) (*Reservation, Decision, error) {
	varies, err := checkTogether(ctx, n, of)
	if err != nil {
		return nil, Decision{}, err
	}
	return takeTogether(ctx, n, of, varies, true)
}

// takeWords is a faster takeTogether without hold, for a few keys in memory whose states are one
// word. It sets d, or returns false if it cannot be used.
func takeWords(n int, of []Bound, varies bool, d *Decision) (ok bool) {
	if len(of) > memory.MostWords {
		return false
	}
	var words [memory.MostWords]memory.Word
	for i, b := range of {
		l, ok := b.limiter.(*limiter)
		if !ok || l.fast == nil || l.waiters.Any() || !words[i].Load(l.fast, l.timeline, b.key, b.events(n)) {
			return false
		}
	}
	if !memory.TakeWords(words[:len(of)]) {
		return false
	}
	m := merging{varies: varies}
	var a kernel.Answer
	for i, b := range of {
		words[i].Answer(&a)
		m.add(i, &a.Decision, 1, b.events(n))
	}
	*d = m.decision()
	return true
}

// takeTogether is TakeAll and HoldAll. varies is whether a Bound has a number of its own. Without
// hold, the Reservation is nil.
func takeTogether(ctx context.Context, n int, of []Bound, varies, hold bool) (r *Reservation, d Decision, err error) {
	a := askings.Get().(*asking)
	defer a.close()
	a.ctx, a.all = ctx, hold
	a.add(of, n)
	a.arrange()
	a.granted = a.ask()
	if a.granted && hold {
		a.each((*asking).isEarly, (*asking).align)
		r = &Reservation{n: n, all: &parts{of: a.parts(), varies: varies}}
	} else {
		a.each((*asking).isOpen, (*asking).settle)
	}
	m := merging{varies: varies}
	for i := range a.keys {
		if k := &a.keys[i]; k.times > 0 && k.Told {
			k.observe(ctx, a.granted)
			m.add(i, &k.Answer.Decision, k.times, k.n)
		}
	}
	d = m.decision()
	d.Allowed = a.granted
	return r, d, errors.Join(a.errs...)
}

// checkTogether returns an error if nothing need be asked. varies is whether a Bound has a number of
// its own.
func checkTogether(ctx context.Context, n int, of []Bound) (varies bool, err error) {
	if err := (*limiter)(nil).check(ctx, n); err != nil {
		return false, err
	}
	if len(of) == 0 {
		return false, param.Invalid("bounds", "empty", "must have at least one Bound")
	}
	for i := range of {
		b := &of[i]
		switch varies = varies || b.hasN; {
		case b.limiter == nil:
			return varies, param.Within(fmt.Sprintf("bounds[%d]", i), errUnbound)
		case b.n < 0:
			return varies, param.Invalid(fmt.Sprintf("bounds[%d].N", i), b.n, "must be at least 0")
		case b.options != nil:
			if _, err := b.holding(); err != nil {
				return varies, param.Within(fmt.Sprintf("bounds[%d]", i), err)
			}
		}
	}
	return varies, nil
}

// parts are the reservations of the keys of a HoldAll.
type parts struct {
	of     []part // for each Bound
	varies bool   // whether a Bound has a number of its own
}

// A part of a Reservation is that of one key. The first Bound with the key has it.
type part struct {
	r     *Reservation // nil unless the Bound is the first with its key
	first int          // the index of that one
	times int          // how often the key was given
	n     int          // how many events of it were held
}

// sum returns a+b, or math.MaxInt if that overflows.
func sum(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// times returns k·n, or math.MaxInt if that overflows.
func times(k, n int) int {
	if n > math.MaxInt/k {
		return math.MaxInt
	}
	return k * n
}

// A merging merges decisions as an All does those of its parts.
type merging struct {
	Decision
	varies  bool // whether a Bound has a number of its own: then Limit and Remaining are those of Part
	any     bool // whether there are any so far
	refused bool
	least   int // how much the key that has the least has left
}

// add adds the decision of the i-th key, which was given times times, for n events altogether.
func (m *merging) add(i int, d *kernel.Decision, times, n int) {
	limit, remaining := d.Limit, d.Remaining
	left := math.MaxInt
	switch {
	case !m.varies:
		if times > 1 {
			limit /= times
			remaining /= times
		}
		left = remaining
	case n > 0:
		left = remaining / n // the number of such calls
	}
	first := !m.any
	if first {
		m.any, m.least, m.Limit, m.Remaining = true, left, limit, remaining
	}
	decides := !m.refused && (first || left < m.least)
	if !d.Allowed && (!m.refused || d.RetryAfter > m.RetryAfter) {
		decides, m.refused, m.RetryAfter = true, true, d.RetryAfter
	}
	if decides {
		m.Part = i
	}
	switch {
	case !m.varies:
		m.Limit, m.Remaining = min(m.Limit, limit), min(m.Remaining, remaining)
	case decides:
		m.Limit, m.Remaining = limit, remaining
	}
	m.least = min(m.least, left)
	m.ResetAfter = max(m.ResetAfter, d.ResetAfter)
	m.Delay = max(m.Delay, d.Delay)
	m.Degraded = m.Degraded || d.Degraded
}

// decision returns the merged decision.
func (m *merging) decision() Decision {
	d := m.Decision
	if d.Allowed = !m.refused; m.refused {
		d.Delay = 0
	}
	return d
}

// settleAll settles each part of a HoldAll with what events returns, of which least must not be
// negative.
func (r *Reservation) settleAll(ctx context.Context, least int, events func(i int, p *part) int) (Decision, error) {
	if err := r.l.check(ctx, least); err != nil {
		return Decision{}, err
	}
	if r.set(isOver) {
		return Decision{}, errSettled
	}
	ctx = context.WithoutCancel(ctx) // all or none
	all := r.parts()
	m := merging{varies: all.varies}
	var errs []error
	for i := range all.of {
		p := &all.of[i]
		if p.r == nil || p.r.is(isOver) {
			continue // an earlier call has settled it, when another part had no room
		}
		d, err := p.r.settle(ctx, events(i, p))
		if err != nil {
			errs = append(errs, err)
		}
		m.add(i, (*kernel.Decision)(&d), p.times, p.n)
	}
	err := errors.Join(errs...)
	if isUncounted(err) {
		r.clear(isOver)
	}
	return m.decision(), err
}

// An asking is a TakeAll or HoldAll. What is atomic is decided below. In memory, the shards of all keys are locked in one
// order, their words are owned, the clock is read once, all keys are asked, and then all spend or none (memory/together.go).
// In Redis, one script asks every key before it spends in any (redisstore/joint.go). It asks the keys in groups, one after
// the other, until one refuses. Those of a group are decided on together.
type asking struct {
	ctx     context.Context
	all     bool         // whether this is HoldAll
	foreign bool         // whether New has not made a limiter
	keys    []asked      // of each Bound
	order   []*asked     // the first of equal ones, as they are asked
	calls   []limit.Call // of those in order
	last    bool         // whether all keys but those that are asked now have granted, so that these need not be held
	held    bool         // whether a key holds anything
	granted bool
	delay   time.Duration // until the events of all keys that have granted them may happen
	errs    []error
}

// An asked is a key of an asking.
type asked struct {
	part
	bound  Bound
	index  int      // of bound
	l      *limiter // nil if New has not made it
	t      *limit.Limit
	failed error // of the lookup of t, or of the store
	again  bool  // whether another limiter, with a lookup of its own, has the key as well
	group  any   // that of [limit.JointStates]; nil if the key is in memory, or asked alone
	phase  phase
	rank   int // the same in a group, of which the one with the least is asked first

	*limit.Call       // nil unless the key is the first of equal ones
	err         error // of its Answer
}

// askings keeps the memory of askings.
var askings = sync.Pool{New: func() any { return new(asking) }}

// mostKept is the most keys of an asking whose memory is kept.
const mostKept = 64

// close ends the use of a.
func (a *asking) close() {
	if cap(a.keys) > mostKept {
		return
	}
	clear(a.keys)
	clear(a.order)
	clear(a.calls)
	a.ctx, a.errs, a.held, a.delay = nil, nil, false, 0
	a.keys, a.order, a.calls = a.keys[:0], a.order[:0], a.calls[:0]
	askings.Put(a)
}

// add adds the keys, for n events of each. It copies the Bounds, so that they may be on their caller's stack.
func (a *asking) add(of []Bound, n int) {
	a.foreign = false
	a.keys = slices.Grow(a.keys, len(of))[:len(of)]
	for i := range of {
		k := &a.keys[i]
		k.bound = of[i]
		k.l, _ = k.bound.limiter.(*limiter)
		k.index, k.first, k.times, k.n = i, i, 1, k.bound.events(n)
		if first := a.repeated(k); first != nil {
			first.times, first.n = first.times+1, sum(first.n, k.n)
			k.first, k.times = first.index, 0
			continue
		}
		a.order = append(a.order, k)
		a.foreign = a.foreign || k.l == nil
	}
}

// repeated returns the first key that is the same as k and has the same limit, or nil.
func (a *asking) repeated(k *asked) *asked {
	for _, other := range a.order {
		switch {
		case !k.equals(other):
		case k.l == other.l || k.l.limits == nil && other.l.limits == nil:
			return other
		default: // lookups of several limiters may differ
			k.again = true
		}
	}
	return nil
}

// equals reports whether k and other are the same key: of one limiter, or in memory, where limiters may share their
// states. It is false if the limiters cannot be compared.
func (k *asked) equals(other *asked) bool {
	switch l, o := k.l, other.l; {
	case l == nil || o == nil:
		return k.bound.key == other.bound.key && param.Same(k.bound.limiter, other.bound.limiter)
	case l != o && (l.local == nil || l.local != o.local):
		return false
	}
	return k.bound.key == other.bound.key
}

// arrange arranges the keys in groups, in the order in which they are asked, and makes their calls.
func (a *asking) arrange() {
	sorted := true
	for i, k := range a.order {
		k.look(a.ctx, a.foreign)
		if k.rank = len(a.order) * int(k.phase); k.phase != inMemory {
			k.rank += a.leader(i)
		}
		sorted = sorted && (i == 0 || a.order[i-1].rank <= k.rank)
	}
	if !sorted {
		slices.SortStableFunc(a.order, func(k, other *asked) int { return k.rank - other.rank })
	}
	a.calls = slices.Grow(a.calls, len(a.order))[:len(a.order)]
	for i, k := range a.order {
		k.Call = &a.calls[i]
		if k.Key, k.Request.N = k.bound.key, k.n; k.l != nil {
			k.States, k.Limit, k.Request.Clock = k.l.states, k.t, k.l.timeline
		}
	}
}

// leader returns the index of the first key of the group of the i-th one.
func (a *asking) leader(i int) int {
	k := a.order[i]
	for first, other := range a.order[:i] {
		if k.group != nil && k.group == other.group {
			return first
		}
	}
	return i
}

// A phase is when a key is asked.
type phase int

const (
	needsNoStore phase = iota // if it is Blocked, nothing is spent
	inStores
	inMemory  // all together
	isForeign // to its limiter, which may not give back
)

// look looks up what decides on the key, and whether it can be decided on together with others. A foreign key is
// asked last, and may refuse: so all others are held.
func (k *asked) look(ctx context.Context, foreign bool) {
	if k.phase = isForeign; k.l == nil {
		return
	}
	l, key := k.l, k.bound.key
	k.t, k.failed = l.limitOf(ctx, key)
	switch k.phase = inStores; {
	case k.failed == nil && k.t.Stateless():
		k.phase = needsNoStore
	case k.failed != nil || k.again || l.waiters.Has(key): // Hold does not overtake a Wait
	case l.local == nil:
		if states, ok := l.states.(limit.JointStates); ok {
			k.group = states.Group(key)
		}
	case !foreign:
		k.phase = inMemory
	}
}

// flies reports whether the key has an InFlight.
func (k *asked) flies() bool { return k.l != nil && k.failed == nil && k.t.Flies() }

// maxJoint bounds the calls of [limit.JointStates.ApplyAll], except in memory.
const maxJoint = 1024

// ask asks the groups until one refuses. It reports whether all have granted.
func (a *asking) ask() (granted bool) {
	for from, to := 0, 0; from < len(a.order); from = to {
		k := a.order[from]
		for to = from + 1; to < len(a.order) && a.order[to].rank == k.rank && (to-from < maxJoint || k.phase == inMemory); {
			to++
		}
		a.last = to == len(a.order)
		if !a.askGroup(a.order[from:to], a.calls[from:to]) {
			return false
		}
	}
	return true
}

// askGroup asks the keys of a group, together if that is possible, and reports whether all have granted.
func (a *asking) askGroup(keys []*asked, calls []limit.Call) (granted bool) {
	alone := (*asking).askAlone
	if local := keys[0].phase == inMemory; local || len(keys) > 1 {
		decided, err := a.applyAll(keys, calls)
		switch {
		case err != nil && local:
			return a.full(keys, err)
		case err != nil:
			alone = (*asking).decide // by the FailurePolicy
		case decided:
			return a.answered(keys)
		}
		for _, k := range keys {
			k.Told, k.Answer, k.failed = false, kernel.Answer{}, err // the store may have begun to decide
		}
	}
	last := a.last
	for i, k := range keys {
		a.last = last && i == len(keys)-1
		if !alone(a, k) {
			return false
		}
	}
	return true
}

// applyAll asks the store of the keys to decide on them together. If some of the events are in flight, it returns
// when the context ends, as applyOrRelease does.
func (a *asking) applyAll(keys []*asked, calls []limit.Call) (bool, error) {
	if a.holds() {
		for _, k := range keys {
			k.Request.Op, k.Request.Hold, k.Delay = kernel.OpHold, newHandle(k.t, a.holding(k)), a.delay
		}
	}
	ask := keys[0].States.(limit.JointStates)
	if !a.holds() || keys[0].phase == inMemory || a.ctx.Done() == nil || !slices.ContainsFunc(keys, (*asked).flies) {
		return ask.ApplyAll(a.ctx, calls)
	}
	limiters := make([]*limiter, len(keys))
	for i, k := range keys {
		limiters[i] = k.l
	}
	return applyOrRelease(a.ctx, calls, limiters, ask.ApplyAll)
}

// answered records what the keys hold, and reports whether all have granted, so that their events are spent.
func (a *asking) answered(keys []*asked) (granted bool) {
	for _, k := range keys {
		if !k.Told || !k.Answer.Allowed {
			return false
		}
	}
	if a.holds() {
		for _, k := range keys {
			a.keep(k, k.l.held(k.Call))
		}
	}
	return true
}

// full records that a store in memory may not hold as many keys.
func (a *asking) full(keys []*asked, err error) (granted bool) {
	err = fmt.Errorf("%w: %w; see MaxKeys", ErrFull, err)
	a.errs = append(a.errs, err)
	for _, k := range keys {
		k.Told, k.err = true, err
	}
	return false
}

// askAlone asks a key as Hold does, or Take of a limiter that New has not made.
func (a *asking) askAlone(k *asked) (granted bool) {
	if k.l == nil {
		return a.askForeign(k)
	}
	if err := k.l.check(a.ctx, k.n); err != nil {
		return a.tell(k, nil, err)
	}
	if d, ok := k.l.overtakes(a.ctx, k.Key, k.n); ok {
		k.Answer.Decision = kernel.Decision(d)
		return a.tell(k, nil, nil)
	}
	return a.decide(k)
}

// askForeign asks a key of a limiter that New has not made.
func (a *asking) askForeign(k *asked) (granted bool) {
	var d Decision
	var r *Reservation
	var err error
	if b := k.bound; a.all {
		r, d, err = b.limiter.Hold(a.ctx, b.key, k.n, b.held()...)
		r = cmp.Or(r, new(Reservation))
	} else {
		d, err = b.limiter.Take(a.ctx, b.key, k.n)
	}
	k.Answer.Decision = kernel.Decision(d)
	return a.tell(k, r, err)
}

// decide has the store decide on a key, or the FailurePolicy if there is an error.
func (a *asking) decide(k *asked) (granted bool) {
	c := call{Call: *k.Call, ctx: a.ctx}
	c.Err = k.failed
	if a.holds() {
		c.Request.Op, c.h, c.opts = kernel.OpHold, a.holding(k), k.bound.held()
	}
	r, err := k.l.decide(&c)
	k.Answer = c.Answer
	return a.tell(k, r, err)
}

// tell records what a key holds or why it failed, and reports whether it has granted.
func (a *asking) tell(k *asked, r *Reservation, err error) (granted bool) {
	a.fail(k, err)
	if k.Told, k.err = true, err; k.Answer.Allowed {
		a.keep(k, r)
	}
	return k.Answer.Allowed
}

// keep records what a key holds: r is nil if that is nothing.
func (a *asking) keep(k *asked, r *Reservation) {
	k.r, a.held, a.delay = r, a.held || r != nil, max(a.delay, k.Answer.Delay)
}

// fail records an error of a key, if there is one.
func (a *asking) fail(k *asked, err error) {
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("bounds[%d]: %w", k.index, err))
	}
}

// holds reports whether the keys that are asked now are held.
func (a *asking) holds() bool { return a.all || !a.last }

// holding says how a key is held: by a TakeAll, only until all are asked, unless it has an InFlight, in which
// the events then count until the Timeout.
func (a *asking) holding(k *asked) holding {
	switch {
	case a.all:
	case k.flies():
		return holding{holds: true}
	default:
		return holding{holds: true, last: maxAsking, lastSet: true}
	}
	h, _ := k.bound.holding()
	return h
}

// maxAsking is how long a TakeAll may take to ask all keys. If it is never told what a store has
// granted, the events count after that as if they had been taken.
const maxAsking = time.Minute

// parts returns what a HoldAll holds.
func (a *asking) parts() []part {
	of := make([]part, len(a.keys))
	for i := range of {
		of[i] = a.keys[i].part
	}
	return of
}

// isEarly reports whether the events of the key might happen before those of others.
func (a *asking) isEarly(k *asked) bool {
	return k.phase != inMemory && k.r.isHold() && k.r.lasts > 0 && k.Answer.Delay < a.delay
}

// align lets a hold last from when the events of all keys may happen, as holds of keys in memory do already. So it
// takes a call only if a key has queued the events, for each other one.
func (a *asking) align(ctx context.Context, k *asked) error {
	r := k.r
	c := r.extension(ctx, kernel.Handle{For: r.lasts}.After(a.delay))
	if r.l.apply(&c); c.Err != nil {
		return r.l.failed(c.Err)
	}
	k.Answer.ResetAfter, r.due = c.Answer.ResetAfter, r.l.timeline.In(a.delay)
	return nil
}

// isOpen reports whether what a key holds is to end: it is given back, or it has happened, except what is in
// flight, which is not over.
func (a *asking) isOpen(k *asked) bool {
	return !a.granted || k.r.hold != 0 && !k.flies()
}

// settle ends what a key holds. If it is given back, it sets what has changed in the answer.
func (a *asking) settle(ctx context.Context, k *asked) error {
	if k.l != nil { // observers, if any, of others have seen their Hold
		k.r.set(isQuiet)
	}
	if a.granted {
		_, _ = k.r.settle(ctx, k.r.n) // if it fails, the hold ends by itself
	} else if d, err := k.r.settle(ctx, 0); err == nil {
		k.Answer.Remaining, k.Answer.ResetAfter = d.Remaining, d.ResetAfter
	}
	return nil
}

// maxAtOnce bounds the calls that are made at once, so that no store has too much to do.
const maxAtOnce = 128

// each calls f for the keys for which is returns true, many at once: each may take a round trip. ctx does not
// end, because the events are spent.
func (a *asking) each(is func(*asking, *asked) bool, f func(a *asking, ctx context.Context, k *asked) error) {
	if !a.held {
		return
	}
	var keys []*asked
	for _, k := range a.order {
		if k.r != nil && is(a, k) {
			keys = append(keys, k)
		}
	}
	for some := range slices.Chunk(keys, maxAtOnce) {
		ctx, errs := context.WithoutCancel(a.ctx), make([]error, len(some))
		var wg sync.WaitGroup
		for i, k := range some[1:] {
			wg.Go(func() { errs[i+1] = f(a, ctx, k) })
		}
		errs[0] = f(a, ctx, some[0]) // so that one key needs no goroutine
		wg.Wait()
		for i, k := range some {
			a.fail(k, errs[i])
		}
	}
}
