package ratelimit

import (
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
	own     bool // whether it has one

	options *[]HoldOption // of its holds; nil if there are none
}

// For returns l bound to key. The options are those of what the Bound holds: see [HoldFor] and
// [GiveBack].
func For(l Limiter, key string, opts ...HoldOption) Bound {
	b := Bound{limiter: l, key: key}
	if len(opts) > 0 {
		own := slices.Clone(opts)
		b.options = &own
	}
	return b
}

// N returns b with a number of events of its own, which [TakeAll] and [HoldAll] spend in its key
// in the place of theirs: so one call spends a request, 1,200 tokens and 3 cents. If n is 0, the
// key spends nothing and never refuses.
func (b Bound) N(n int) Bound {
	b.n, b.own = n, true
	return b
}

// events returns how many events a call for n of each key means for b.
func (b Bound) events(n int) int {
	if b.own {
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
// of a cluster, and those whose limit cannot be looked up. Keys that are [Unlimited] or [Blocked]
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
	own, err := checkTogether(ctx, n, of)
	if err != nil {
		return Decision{}, err
	}
	if !takeWords(n, of, own, &d) {
		_, d, err = takeTogether(ctx, n, of, own, false)
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
	own, err := checkTogether(ctx, n, of)
	if err != nil {
		return nil, Decision{}, err
	}
	return takeTogether(ctx, n, of, own, true)
}

// takeWords is a faster takeTogether without hold, for a few keys in memory whose states are one
// word. It sets d, or returns false if it cannot be used.
func takeWords(n int, of []Bound, own bool, d *Decision) (ok bool) {
	var words [memory.MostWords]memory.Word
	if len(of) > len(words) {
		return false
	}
	for i, b := range of {
		l, ok := b.limiter.(*limiter)
		if !ok || l.fast == nil || l.waiters.Any() || !words[i].Load(l.fast, l.timeline, b.key, b.events(n)) {
			return false
		}
	}
	if !memory.TakeWords(words[:len(of)]) {
		return false
	}
	m := merging{own: own}
	var a kernel.Answer
	for i, b := range of {
		words[i].Answer(&a)
		m.add(i, Decision(a.Decision), 1, b.events(n))
	}
	*d = m.decision()
	return true
}

// takeTogether is TakeAll and HoldAll. own is whether a Bound has a number of its own. Without
// hold, the Reservation is nil.
func takeTogether(ctx context.Context, n int, of []Bound, own, hold bool) (_ *Reservation, _ Decision, err error) {
	joint := memory.NewJoint()
	defer joint.Close()
	held := parts{own: own}
	if hold {
		held.of = make([]part, len(of))
	}
	// A limiter that New has not made is asked last, and may refuse: so all others are held.
	foreign := slices.ContainsFunc(of, func(b Bound) bool { _, ok := b.limiter.(*limiter); return !ok })
	var apart []apartKey
	for i, b := range of {
		if k := repeated(apart, of, i); k != nil {
			k.times, k.n = k.times+1, sum(k.n, b.events(n))
			apart = append(apart, apartKey{index: i, first: k.index})
			continue
		}
		by := b.decider(ctx)
		if foreign {
			apart = addApart(apart, of, i, n, by)
		} else if e, ok := by.join(joint, b.key); !ok {
			apart = addApart(apart, of, i, n, by)
		} else if e.Index, e.N = i, b.events(n); hold {
			h, _ := b.holding()
			e.Hold = newHandle(by.t, h)
			held.of[i].r = &Reservation{l: by.l, key: b.key, by: by.t}
		}
	}
	if len(apart) > 0 {
		kept := append([]Bound(nil), of...) // so that of may be on its caller's stack
		asking := asking{ctx: ctx, of: kept, all: hold, keys: apart}
		return asking.take(joint, held, n)
	}
	granted, err := decideTogether(joint, hold)
	for i, b := range of {
		b.toldJoint(ctx, &joint.Asked[i], granted, err)
	}
	if err != nil {
		return nil, Decision{}, err
	}
	m := merging{own: own}
	for i := range joint.Asked {
		m.addJoint(&joint.Asked[i])
	}
	if !granted || !hold {
		return nil, m.decision(), nil
	}
	return reservedTogether(joint, n, held), m.decision(), nil
}

// checkTogether returns an error if nothing need be asked. own is whether a Bound has a number of
// its own.
func checkTogether(ctx context.Context, n int, of []Bound) (own bool, err error) {
	if err := (*limiter)(nil).check(ctx, n); err != nil {
		return false, err
	}
	if len(of) == 0 {
		return false, param.Invalid("bounds", "empty", "must have at least one Bound")
	}
	for i := range of {
		b := &of[i]
		switch own = own || b.own; {
		case b.limiter == nil:
			return own, param.Within(fmt.Sprintf("bounds[%d]", i), errUnbound)
		case b.n < 0:
			return own, param.Invalid(fmt.Sprintf("bounds[%d].N", i), b.n, "must be at least 0")
		case b.options != nil:
			if _, err := b.holding(); err != nil {
				return own, param.Within(fmt.Sprintf("bounds[%d]", i), err)
			}
		}
	}
	return own, nil
}

// A decider is what decides on a key.
type decider struct {
	l      *limiter // nil if New has not made it
	t      *limit.Limit
	failed error // of the lookup of t
}

// decider looks up what decides on the key.
func (b Bound) decider(ctx context.Context) (own decider) {
	if own.l, _ = b.limiter.(*limiter); own.l != nil {
		own.t, own.failed = own.l.limitOf(ctx, b.key)
	}
	return own
}

// join adds the key to those that are decided on together, if it can be.
func (own *decider) join(joint *memory.Joint, key string) (e *memory.Asked, ok bool) {
	l, t := own.l, own.t
	switch {
	case l == nil || l.local == nil:
		return nil, false
	case own.failed != nil || t.Stateless(): // Hold asks the FailurePolicy, or needs no state
		return nil, false
	case l.waiters.Has(key): // Hold does not overtake a Wait
		return nil, false
	}
	e = joint.Add()
	e.Clock, e.Key = l.timeline, key
	e.Space, e.Limit = l.local.Space, l.local.LimitOf(t)
	return e, true
}

// decideTogether decides on the keys in memory.
func decideTogether(joint *memory.Joint, hold bool) (granted bool, err error) {
	op := kernel.OpTake
	if hold {
		op = kernel.OpHold
	}
	if granted, err = joint.Decide(op); err != nil {
		err = fmt.Errorf("%w: %w; see MaxKeys", ErrFull, err)
	}
	return granted, err
}

// parts are the reservations of the keys of a HoldAll.
type parts struct {
	of  []part // for each Bound
	own bool   // whether a Bound has a number of its own
}

// A part of a Reservation is that of one key. The first Bound with the key has it.
type part struct {
	r     *Reservation // nil unless the Bound is the first with its key
	first int          // the index of that one
	times int          // how often the key was given
	n     int          // how many events of it were held
}

// reservedTogether returns the Reservation of the events that joint has granted, and of those that
// held has already. n is how many HoldAll was called for.
func reservedTogether(joint *memory.Joint, n int, held parts) *Reservation {
	for i := range joint.Asked {
		e := &joint.Asked[i]
		p := &held.of[e.Index]
		if p.first = joint.Asked[e.First].Index; e.Times == 0 {
			p.r = nil
			continue
		}
		p.r.n, p.r.due = e.Sum, e.Answer.Due
		if e.Answer.Held {
			p.r.hold = e.Hold.ID
		}
		p.times, p.n = e.Times, e.Sum
	}
	return &Reservation{n: n, all: &held}
}

// equals reports whether b and other are the same key of the same limiter. It is false if the
// limiters cannot be compared.
func (b Bound) equals(other Bound) bool {
	return b.key == other.key && param.Same(b.limiter, other.limiter)
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
	own     bool // whether a Bound has a number of its own: then Limit and Remaining are those of Part
	any     bool // whether there are any so far
	refused bool
	least   int // how much the key that has the least has left
}

// add adds the decision of the i-th key, which was given times times, for n events altogether.
func (m *merging) add(i int, d Decision, times, n int) {
	left := math.MaxInt
	switch {
	case !m.own:
		d.Limit /= times
		d.Remaining /= times
		left = d.Remaining
	case n > 0:
		left = d.Remaining / n // the number of such calls
	}
	first := !m.any
	if first {
		m.any, m.least, m.Limit, m.Remaining = true, left, d.Limit, d.Remaining
	}
	decides := !m.refused && (first || left < m.least)
	if !d.Allowed && (!m.refused || d.RetryAfter > m.RetryAfter) {
		decides, m.refused, m.RetryAfter = true, true, d.RetryAfter
	}
	if decides {
		m.Part = i
	}
	switch {
	case !m.own:
		m.Limit, m.Remaining = min(m.Limit, d.Limit), min(m.Remaining, d.Remaining)
	case decides:
		m.Limit, m.Remaining = d.Limit, d.Remaining
	}
	m.least = min(m.least, left)
	m.ResetAfter = max(m.ResetAfter, d.ResetAfter)
	m.Delay = max(m.Delay, d.Delay)
	m.Degraded = m.Degraded || d.Degraded
}

// addJoint adds the decision of a key in memory.
func (m *merging) addJoint(e *memory.Asked) {
	if e.Times > 0 {
		d := Decision(e.Answer.Decision)
		m.add(e.Index, d, e.Times, e.Sum)
	}
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
	m := merging{own: all.own}
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
		m.add(i, d, p.times, p.n)
	}
	err := errors.Join(errs...)
	if isUncounted(err) {
		r.clear(isOver)
	}
	return m.decision(), err
}

// delay returns the greatest Delay of the parts.
func (r *Reservation) delay() (d time.Duration) {
	for _, p := range r.parts().of {
		d = max(d, p.r.Delay())
	}
	return d
}

// An apartKey is a key that cannot be decided on with those in memory.
type apartKey struct {
	index int // the index of its Bound
	first int // the index of the first Bound with the key
	times int // how often the key was given; 0 if this is not the first Bound with it
	n     int // how many events of it to take

	decider     // failed may also be that of the store
	group   any // that of [limit.JointStates], or nil

	told   bool // whether answer is set
	answer kernel.Answer
	err    error        // of the answer
	held   *Reservation // nil if nothing is held
}

// repeated returns the first one with the key of the i-th Bound, or nil.
func repeated(apart []apartKey, of []Bound, i int) *apartKey {
	for k := range apart {
		if a := &apart[k]; a.times > 0 && of[a.index].equals(of[i]) {
			return a
		}
	}
	return nil
}

// addApart adds the key of the i-th Bound, which is the first one with it, if TakeAll is called for
// n events.
func addApart(apart []apartKey, of []Bound, i, n int, own decider) []apartKey {
	k := apartKey{index: i, first: i, times: 1, n: of[i].events(n), decider: own}
	if k.l != nil {
		k.group = k.groupOf(of[i].key)
	}
	return append(apart, k)
}

// needsNoStore reports whether the key is Unlimited or Blocked.
func (k *apartKey) needsNoStore() bool { return k.l != nil && k.failed == nil && k.t.Stateless() }

// flies reports whether the key has an InFlight.
func (k *apartKey) flies() bool { return k.l != nil && k.failed == nil && k.t.Flies() }

// groupOf returns the group in which the key may be decided on together with others, or nil.
func (k *apartKey) groupOf(key string) any {
	if k.l.local != nil || k.failed != nil || k.t.Stateless() || k.l.waiters.Has(key) { // Hold does not overtake a Wait
		return nil
	}
	if states, ok := k.l.states.(limit.JointStates); ok {
		return states.Group(key)
	}
	return nil
}

// An asking is a TakeAll or HoldAll some of whose keys are apart.
type asking struct {
	ctx  context.Context
	of   []Bound
	keys []apartKey
	all  bool // whether this is HoldAll
	last bool // whether all keys but those that are asked now have granted, so that these need not be held
	errs []error
}

// take decides on the keys that are apart, and then on those of joint. held has the reservations of
// the latter, if this is HoldAll, for n events.
func (a *asking) take(joint *memory.Joint, held parts, n int) (*Reservation, Decision, error) {
	together := a.ask(len(joint.Asked) > 0) // whether the others are asked
	granted := together
	var failed error
	if together && len(joint.Asked) > 0 {
		joint.Delay = a.delay()
		granted, failed = decideTogether(joint, a.all)
		a.fail(failed)
	}
	switch {
	case !granted:
		a.settle(true)
	case a.all:
		a.align(max(a.delay(), joint.Delay))
	default:
		a.settle(false)
	}
	m, next := merging{own: held.own}, 0
	keys := a.keys
	for i := range a.of {
		if len(keys) > 0 && keys[0].index == i {
			k := &keys[0]
			if k.told {
				a.of[i].observe(a.ctx, k.n, &k.answer, granted, k.err)
				m.add(i, Decision(k.answer.Decision), k.times, k.n)
			}
			if granted && a.all {
				held.of[i] = part{k.held, k.first, k.times, k.n}
			}
			keys = keys[1:]
		} else if together {
			a.of[i].toldJoint(a.ctx, &joint.Asked[next], granted, failed)
			m.addJoint(&joint.Asked[next])
			next++
		}
	}
	d, err := m.decision(), errors.Join(a.errs...)
	d.Allowed = granted
	if !granted || !a.all {
		return nil, d, err
	}
	return reservedTogether(joint, n, held), d, err
}

// ask asks the keys until one refuses: those of a group together, and the others one after the
// other. Those that need no store come first, so that nothing is spent if one is Blocked, and those
// of limiters that New has not made last, because they may not give back. more says that others are
// asked after them. It reports whether all have granted.
func (a *asking) ask(more bool) (granted bool) {
	var plans, groups, foreign [][]*apartKey
	for i := range a.keys {
		switch k := &a.keys[i]; {
		case k.times == 0:
		case k.needsNoStore():
			plans = append(plans, []*apartKey{k})
		case k.l == nil:
			foreign = append(foreign, []*apartKey{k})
		default:
			groups = enter(groups, k)
		}
	}
	all := slices.Concat(plans, groups, foreign)
	for i, keys := range all {
		a.last = !more && i == len(all)-1
		if !a.askGroup(keys) {
			return false
		}
	}
	return true
}

// maxJoint bounds the calls of [limit.JointStates.ApplyAll].
const maxJoint = 1024

// enter adds a key to a group that has room, or to a new one.
func enter(groups [][]*apartKey, k *apartKey) [][]*apartKey {
	for i, keys := range groups {
		if k.group != nil && keys[0].group == k.group && len(keys) < maxJoint {
			groups[i] = append(keys, k)
			return groups
		}
	}
	return append(groups, []*apartKey{k})
}

// askGroup asks the keys of a group, and reports whether all have granted.
func (a *asking) askGroup(keys []*apartKey) (granted bool) {
	if len(keys) > 1 {
		if decided, granted := a.askTogether(keys); decided {
			return granted
		}
	}
	last := a.last
	for i, k := range keys {
		a.last = last && i == len(keys)-1
		if !a.askAlone(k) {
			return false
		}
	}
	return true
}

// askAlone asks a key as Hold does, or Take of a limiter that New has not made.
func (a *asking) askAlone(k *apartKey) (granted bool) {
	b, n := a.of[k.index], k.n
	if k.l == nil && !a.all {
		d, err := b.limiter.Take(a.ctx, b.key, n)
		return a.tell(k, nil, kernel.Answer{Decision: kernel.Decision(d)}, err)
	}
	if k.l == nil {
		r, d, err := b.limiter.Hold(a.ctx, b.key, n, b.held()...)
		if r == nil {
			r = new(Reservation)
		}
		return a.tell(k, r, kernel.Answer{Decision: kernel.Decision(d)}, err)
	}
	if err := k.l.check(a.ctx, n); err != nil {
		return a.tell(k, nil, kernel.Answer{}, err)
	}
	if d, ok := k.l.overtakes(a.ctx, b.key, n); ok {
		return a.tell(k, nil, kernel.Answer{Decision: kernel.Decision(d)}, nil)
	}
	return a.decide(k)
}

// decide has the store decide on a key, or the FailurePolicy if there is an error.
func (a *asking) decide(k *apartKey) (granted bool) {
	key := a.of[k.index].key
	var res kernel.Answer
	if !a.holds() {
		err := k.l.takeBy(a.ctx, key, k.n, k.t, k.failed, &res)
		return a.tell(k, nil, res, err)
	}
	r, err := k.l.hold(&want{ctx: a.ctx, key: key, n: k.n, h: a.holding(k), opts: a.of[k.index].held()}, k.t, k.failed, &res)
	return a.tell(k, r, res, err)
}

// holds reports whether the keys that are asked now are held.
func (a *asking) holds() bool { return a.all || !a.last }

// holding says how a key is held: by a TakeAll, only until all are asked, unless it has an InFlight, in which
// the events then count until the Timeout.
func (a *asking) holding(k *apartKey) holding {
	switch {
	case a.all:
	case k.flies():
		return holding{holds: true}
	default:
		return holding{holds: true, last: maxAsking, lastSet: true}
	}
	h, _ := a.of[k.index].holding()
	return h
}

// maxAsking is how long a TakeAll may take to ask all keys. If it is never told what a store has
// granted, the events count after that as if they had been taken.
const maxAsking = time.Minute

// askTogether asks keys at once, if that is possible.
func (a *asking) askTogether(keys []*apartKey) (decided, granted bool) {
	op := kernel.OpTake
	if a.holds() {
		op = kernel.OpHold
	}
	calls := make([]limit.Call, len(keys))
	for i, k := range keys {
		req := kernel.Request{Op: op, N: k.n, Clock: k.l.timeline}
		if op == kernel.OpHold {
			req.Hold = newHandle(k.t, a.holding(k))
		}
		calls[i] = limit.Call{States: k.l.states, Key: a.of[k.index].key, Limit: k.t, Request: req}
	}
	decided, err := a.applyAll(calls, keys)
	if !decided && err == nil {
		return false, false
	}
	if err != nil {
		granted = true
		last := a.last
		for i, k := range keys {
			a.last, k.failed = last && i == len(keys)-1, err
			granted = granted && a.decide(k)
		}
		return true, granted
	}
	spent := allGranted(calls)
	granted = spent
	for i, k := range keys {
		c := &calls[i]
		switch {
		case !c.Told:
		case spent && op == kernel.OpHold:
			r := k.l.held(c.Key, c.Request.N, k.t, &c.Answer, c.Request.Hold)
			a.tell(k, r, c.Answer, nil)
		default:
			a.tell(k, nil, c.Answer, nil)
			k.held = nil
		}
	}
	return true, granted
}

// allGranted reports whether all calls are granted, so that their events are spent.
func allGranted(calls []limit.Call) bool {
	return !slices.ContainsFunc(calls, func(c limit.Call) bool { return !c.Told || !c.Answer.Allowed })
}

// applyAll makes the calls for keys. If some of the events are in flight, it returns when the
// context ends, as applyOrRelease does.
func (a *asking) applyAll(calls []limit.Call, keys []*apartKey) (decided bool, err error) {
	ask := keys[0].l.states.(limit.JointStates)
	if !a.holds() || a.ctx.Done() == nil || !slices.ContainsFunc(keys, func(k *apartKey) bool { return k.t.Flies() }) {
		return ask.ApplyAll(a.ctx, calls)
	}
	type answer struct {
		calls   []limit.Call
		decided bool
		err     error
	}
	b, ok := unlessLate(a.ctx, func(ctx context.Context) answer {
		own := slices.Clone(calls)
		decided, err := ask.ApplyAll(ctx, own)
		return answer{own, decided, err}
	}, func(ctx context.Context, late answer) {
		for i, k := range keys {
			if c := &late.calls[i]; late.decided && late.err == nil && allGranted(late.calls) && c.Answer.Held {
				_, _ = k.l.held(c.Key, c.Request.N, k.t, &c.Answer, c.Request.Hold).giveBack(ctx)
			}
		}
	})
	if !ok {
		return true, a.ctx.Err()
	}
	copy(calls, b.calls)
	return b.decided, b.err
}

// tell records the results of a hold of a key, and reports whether it has granted.
func (a *asking) tell(k *apartKey, r *Reservation, answer kernel.Answer, err error) (granted bool) {
	if err != nil {
		a.fail(fmt.Errorf("bounds[%d]: %w", k.index, err))
	}
	k.told, k.answer, k.err = true, answer, err
	if answer.Allowed {
		k.held = r
	}
	return answer.Allowed
}

// fail records an error, if there is one.
func (a *asking) fail(err error) {
	if err != nil {
		a.errs = append(a.errs, err)
	}
}

// delay returns the time until the events of all keys that have granted them may happen.
func (a *asking) delay() (d time.Duration) {
	for i := range a.keys {
		d = max(d, a.keys[i].answer.Delay)
	}
	return d
}

// align lets the holds last from when the events of all keys may happen, delay from now, as holds of keys in
// memory do. It takes a call only if a key has queued the events, for each other one.
func (a *asking) align(delay time.Duration) {
	late := func(k *apartKey) bool {
		return k.held.isHold() && k.held.lasts > 0 && k.answer.Delay < delay
	}
	errs := make([]error, len(a.of))
	a.each(late, func(k *apartKey) {
		r := k.held
		req := kernel.Request{Op: kernel.OpExtend, Hold: kernel.Handle{ID: r.hold, For: kernel.Handle{For: r.lasts}.After(delay)}}
		var res kernel.Answer
		if err := r.l.applyBy(context.WithoutCancel(a.ctx), r.key, r.by, &req, &res); err != nil { // without, because the events are held
			errs[k.index] = fmt.Errorf("bounds[%d]: %w", k.index, r.l.failed(err))
			return
		}
		k.answer.ResetAfter = res.ResetAfter
		r.due = r.l.timeline.In(delay)
	})
	a.fail(errors.Join(errs...))
}

// maxSettled bounds the holds that are settled at once, so that no store has too much to do.
const maxSettled = 128

// each calls f for the keys for which is returns true, many at once: each may take a round trip.
func (a *asking) each(is func(*apartKey) bool, f func(*apartKey)) {
	for keys := range slices.Chunk(a.keys, maxSettled) {
		var wg sync.WaitGroup
		for i := range keys {
			if k := &keys[i]; is(k) {
				wg.Go(func() { f(k) })
			}
		}
		wg.Wait()
	}
}

// settle ends what is held. If back is true, its events are given back, and it sets what has changed in
// the decisions; otherwise, they have happened, except those in flight, which are not over.
func (a *asking) settle(back bool) {
	ctx := context.WithoutCancel(a.ctx)
	a.each(func(k *apartKey) bool { return k.held != nil && (back || k.held.hold != 0 && !k.flies()) },
		func(k *apartKey) { k.settle(ctx, back) })
}

func (k *apartKey) settle(ctx context.Context, back bool) {
	if k.l != nil { // observers, if any, of others have seen their Hold
		k.held.set(isQuiet)
	}
	n := k.held.n
	if back {
		n = 0
	}
	if d, err := k.held.settle(ctx, n); err == nil && back {
		k.answer.Remaining, k.answer.ResetAfter = d.Remaining, d.ResetAfter
	}
}
