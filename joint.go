package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/logvalve"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// TakeAll spends n events of each of several keys, or the number that [Bound.N] has given to a key,
// if all of them grant them now, and otherwise spends nothing: a request may belong to a user, to
// an organisation and to the whole service.
//
//	d, err := ratelimit.TakeAll(ctx, 1,
//		ratelimit.For(users, user), ratelimit.For(orgs, org), ratelimit.For(service, ""))
//
// The limiters may have different algorithms and stores. A key that is given several times spends
// the sum.
//
// The Decision is that of an [All] whose parts are the keys: Limit and Remaining are the least,
// RetryAfter, ResetAfter and Delay the greatest, and Part is the index of the Bound that decided.
// If the keys spend different numbers of events, or one is given several times, Limit and Remaining
// are those of Part: the key that refuses for longest or, if the events are granted, has room for
// the fewest such calls. The error is that of [Limiter.Take], or one for each key that failed. If
// there is no Bound, or one has no limiter, it matches [ErrInvalid].
//
// # In memory
//
// TakeAll is atomic for the keys of limiters that [New] has made on any [MemoryStore]: no other
// call finds the events spent in some keys and not in others, or, if the request is denied, spent
// at all. As with an All, every [SlidingLog] with CountDenied counts a request that another key
// denies. If a store with RefuseNew has no room for the new keys, they are asked one after the
// other, as those of several stores are.
//
// # In Redis
//
// TakeAll is one call, and atomic for all processes, if the keys are of one Store of package
// redisstore, whose server has all keys. In a cluster or a ring, the keys must have the same {tag}:
// see the section "Several keys" of that package. If a key is known to be exhausted without a call,
// the Decision tells only of such keys.
//
// # Several stores
//
// Otherwise, TakeAll asks one group of keys after the other, and holds what they grant until all
// have: first the keys in other stores, in the order in which they are given, then those in memory,
// and at last those of limiters that New has not made, of which TakeAll calls Take, and HoldAll
// Hold. A group is the keys that one call can decide on, or a single key, such as one that is also
// given with another limiter of the same name and lookups of their own ([WithLimits]).
//
// As soon as a key refuses, or its store fails and its [FailurePolicy] does not allow the request,
// TakeAll settles the holds before it with 0, and asks no further keys, so that the Decision tells
// only of those before. Until then, other calls may be denied what they would have been granted
// otherwise, and what [Reservation.Settle] or another limiter's Take does not give back stays
// spent. But TakeAll never grants more than each limiter would.
func TakeAll(ctx context.Context, n int, of ...Bound) (d Decision, err error) {
	if err := checkTogether(ctx, n, of); err != nil {
		return Decision{}, err
	}
	if !takeWords(n, of, &d) {
		_, d, err = takeTogether(ctx, n, of, false)
	}
	return d, err
}

// HoldAll is [TakeAll], and returns one Reservation of the events in all keys if they are granted,
// and otherwise nil. Each key is held as the options of [For] say, from when the events of all may
// happen, after the Delay; a key that is given several times, as those of the first. Settle has a
// number for each Bound, or one for all, settles the keys one after the other, and returns the
// decisions of all, merged like those of TakeAll. It checks ctx once, before the first. If a key
// has no room for the events ([ErrDebt] or [ErrFull]), the others are settled, and Settle can be
// called again for that key. [Reservation.Parts] has the Reservations of the keys.
//
// In memory, HoldAll makes an allocation for each key, and three more; up to two more for a key of
// which a hold has just ended by itself.
func HoldAll(ctx context.Context, n int, of ...Bound) (*Reservation, Decision, error) {
	if err := checkTogether(ctx, n, of); err != nil {
		return nil, Decision{}, err
	}
	return takeTogether(ctx, n, of, true)
}

// takeWords is a faster takeTogether without hold, for a few keys in memory whose states are one
// word. It sets d, or returns false if it cannot be used.
func takeWords(n int, of []Bound, d *Decision) (ok bool) {
	if len(of) > memory.MostWords {
		return false
	}
	var words [memory.MostWords]memory.Word
	for i, b := range of {
		l, ok := b.limiter.(*limiter)
		if !ok || l.fast == nil || l.waiters.Any() ||
			!words[i].Load(l.fast, l.timeline, b.key, b.events(n)) {
			return false
		}
	}
	if !memory.TakeWords(words[:len(of)]) {
		return false
	}
	m := merging{varies: varies(of)}
	var a step.Answer
	for i, b := range of {
		words[i].Answer(&a)
		m.add(i, &a.Decision, b.events(n))
	}
	*d = m.decision()
	return true
}

// takeTogether is TakeAll and HoldAll. Without hold, the Reservation is nil.
func takeTogether(
	ctx context.Context,
	n int,
	of []Bound,
	hold bool,
) (r *Reservation, d Decision, err error) {
	a := askings.Get().(*asking)
	defer a.close()
	finished := false
	defer func() {
		if !finished { // code of the caller has panicked, so that nobody gets what the keys hold
			a.granted = false
			a.end()
		}
	}()
	a.ctx, a.all = ctx, hold
	a.add(of, n)
	a.arrange()
	a.granted = a.ask()
	if a.granted && hold {
		a.delay()
		held := make([]part, len(a.keys))
		for i := range held {
			first := a.keys[i].first
			held[i] = part{a.keys[first].r, first}
		}
		r = &Reservation{n: n, all: &parts{of: held, varies: a.varies}}
	} else {
		a.end()
	}
	m := merging{varies: a.varies}
	for i := range a.keys {
		if k := &a.keys[i]; k.first == i && k.Answered {
			k.observe(ctx, a.granted)
			m.add(i, &k.Answer.Decision, k.n)
		}
	}
	d = m.decision()
	d.Allowed = a.granted
	finished = true
	return r, d, errors.Join(a.errs...)
}

// checkTogether returns an error if nothing need be asked.
func checkTogether(ctx context.Context, n int, of []Bound) error {
	if err := (*limiter)(nil).check(ctx, n); err != nil {
		return err
	}
	if len(of) == 0 {
		return param.Invalid("bounds", "empty", "must have at least one Bound")
	}
	for i := range of {
		b := &of[i]
		switch {
		case b.limiter == nil:
			return param.Within(fmt.Sprintf("bounds[%d]", i), errUnbound)
		case b.n < 0:
			return param.Invalid(fmt.Sprintf("bounds[%d].N", i), b.n, "must be at least 0")
		case b.options != nil:
			if _, err := b.holding(); err != nil {
				return param.Within(fmt.Sprintf("bounds[%d]", i), err)
			}
		}
	}
	return nil
}

// varies reports whether a Bound has a number of its own.
func varies(of []Bound) bool {
	return slices.ContainsFunc(of, func(b Bound) bool { return b.hasN })
}

// parts are the reservations of the keys of a HoldAll.
type parts struct {
	of     []part // for each Bound
	varies bool   // whether the keys spend different numbers of events
}

// A part is the reservation of a key, for one of its Bounds.
type part struct {
	r     *Reservation
	first int // the index of the first Bound with the key
}

// An asking is a TakeAll or HoldAll. What is atomic is decided below. In memory, the shards of all
// keys are locked in one order, their words are owned, the clock is read once, all keys are asked,
// and then all spend or none (memory/joint.go). In Redis, one script asks every key before it
// spends in any (redisstore/joint.go). It asks the keys in groups, one after the other, until one
// refuses. Those of a group are decided on together.
type asking struct {
	ctx    context.Context
	all    bool         // whether this is HoldAll
	varies bool         // whether the keys spend different numbers of events
	keys   []asked      // of each Bound
	order  []*asked     // the first of equal ones, as they are asked
	index  keyIndex     // of those in order, if they are many; else nil
	calls  []limit.Call // of those in order
	// Whether all keys but those that are asked now have granted, so that these need not be held.
	last    bool
	granted bool
	errs    []error
}

// An asked is a key of an asking.
type asked struct {
	bound   Bound
	index   int          // of bound
	first   int          // the index of the first Bound with the key
	n       int          // how many events it is asked for; of the first, for all that are equal
	l       *limiter     // nil if New has not made it
	t       *limit.Limit // by which it is decided; see limitFor
	unknown error        // likewise
	failed  error        // of the store
	again   bool         // whether another limiter, with a lookup of its own, has the key as well
	group   any          // that of [limit.JointStates]; nil if the key is in memory, or asked alone
	phase   phase
	rank    int          // the same in a group, of which the one with the least is asked first
	r       *Reservation // what it holds, if anything

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
	*a = asking{keys: a.keys[:0], order: a.order[:0], calls: a.calls[:0]}
	askings.Put(a)
}

// add adds the keys, for n events of each. It copies the Bounds, so that they may be on their
// caller's stack.
func (a *asking) add(of []Bound, n int) {
	a.varies = varies(of)
	a.keys = slices.Grow(a.keys, len(of))[:len(of)]
	for i := range of {
		k := &a.keys[i]
		k.bound, k.index, k.first, k.n = of[i], i, i, of[i].events(n)
		k.l, _ = k.bound.limiter.(*limiter)
		if first := a.repeated(k); first != nil {
			k.first, first.n, a.varies = first.index, sum(first.n, k.n), true
			continue
		}
		a.enter(k)
	}
}

// enter adds k to those that are asked.
func (a *asking) enter(k *asked) {
	a.order = append(a.order, k)
	switch {
	case len(a.order) == fewKeys:
		a.index = make(keyIndex)
		for _, first := range a.order {
			a.index.add(first)
		}
	case len(a.order) > fewKeys:
		a.index.add(k)
	}
}

// fewKeys is the number of keys from which on a map finds those that are equal. Fewer are compared
// with each other.
const fewKeys = 32

// A keyIndex has the keys of an asking, by where they are: most lists have one.
type keyIndex map[home][]*asked

// A home is a key, and what tells it from the same one of other limiters: their states in memory,
// which some limiters share, or the limiter. It is nil for limiters that New has not made, which
// may not be comparable.
type home struct {
	of  any
	key string
}

func (k *asked) home() home {
	h := home{key: k.bound.key}
	switch {
	case k.l == nil:
	case k.l.local != nil:
		h.of = k.l.local
	default:
		h.of = k.l
	}
	return h
}

func (x keyIndex) add(k *asked) {
	h := k.home()
	x[h] = append(x[h], k)
}

// repeated returns the first key that is the same as k and has the same limit, or nil.
func (a *asking) repeated(k *asked) *asked {
	others := a.order
	if a.index != nil {
		others = a.index[k.home()]
	}
	for _, other := range others {
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

// equals reports whether k and other are the same key: of one limiter, or in memory, where limiters
// may share their states. It is false if the limiters cannot be compared.
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
	var groups leaders
	for i, k := range a.order {
		k.look(a.ctx)
		k.rank = len(a.order) * int(k.phase)
		if k.phase != inMemory {
			k.rank += groups.of(k, i)
		}
		sorted = sorted && (i == 0 || a.order[i-1].rank <= k.rank)
	}
	if !sorted {
		slices.SortStableFunc(a.order, func(k, other *asked) int { return k.rank - other.rank })
	}
	a.calls = slices.Grow(a.calls, len(a.order))[:len(a.order)]
	for i, k := range a.order {
		k.Call = &a.calls[i]
		k.Key, k.Request.N = k.bound.key, k.n
		if k.l != nil {
			k.States, k.Limit, k.Request.Clock = k.l.states, k.t, k.l.timeline
		}
	}
}

// leaders have the index of the first key of each group.
type leaders struct{ first map[any]int }

// of returns the index of the first key of the group of k, the i-th one.
func (l *leaders) of(k *asked, i int) int {
	if k.group == nil {
		return i
	}
	first, known := l.first[k.group]
	if known {
		return first
	}
	if l.first == nil {
		l.first = make(map[any]int)
	}
	l.first[k.group] = i
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

// look looks up what decides on the key, and whether it can be decided on together with others.
func (k *asked) look(ctx context.Context) {
	k.phase = isForeign
	if k.l == nil {
		return
	}
	l, key := k.l, k.bound.key
	var ended error
	k.t, k.unknown, ended = l.limitFor(ctx, key)
	k.phase = inStores
	switch {
	case ended != nil || k.t.Stateless(): // if ctx has ended, askAlone asks nobody
		k.phase = needsNoStore
	case k.again || l.waiters.Has(key): // Hold does not overtake a Wait
	case l.local != nil:
		k.phase = inMemory
	default:
		if states, ok := l.states.(limit.JointStates); ok {
			k.group = states.Group(key)
		}
	}
}

// flies reports whether the key has an InFlight.
func (k *asked) flies() bool { return k.t != nil && k.t.Releases() }

// maxJoint bounds the calls of [limit.JointStates.ApplyAll], except in memory.
const maxJoint = 1024

// ask asks the groups until one refuses. It reports whether all have granted.
func (a *asking) ask() (granted bool) {
	for from, to := 0, 0; from < len(a.order); from = to {
		k := a.order[from]
		most := maxJoint
		if k.phase == inMemory {
			most = len(a.order)
		}
		to = from + 1
		for to < len(a.order) && a.order[to].rank == k.rank && to-from < most {
			to++
		}
		a.last = to == len(a.order)
		if !a.askGroup(a.order[from:to], a.calls[from:to]) {
			return false
		}
	}
	return true
}

// askGroup asks the keys of a group, together if that is possible, and reports whether all have
// granted.
func (a *asking) askGroup(keys []*asked, calls []limit.Call) (granted bool) {
	if keys[0].phase == inMemory || len(keys) > 1 {
		decided, err := a.applyAll(keys, calls)
		if decided && err == nil {
			a.standIn(keys)
			return a.answered(keys)
		}
		for _, k := range keys {
			// The store may have begun to decide.
			k.Answered, k.Answer, k.failed = false, step.Answer{}, err
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

// applyAll asks the store of the keys to decide on them together. If some of the events are in
// flight, it returns when the context ends, as applyOrRelease does.
func (a *asking) applyAll(keys []*asked, calls []limit.Call) (bool, error) {
	if a.holds() {
		for _, k := range keys {
			k.Request.Op, k.Request.Hold = step.OpHold, newHandle(k.t, a.holding(k))
		}
	}
	ask := keys[0].States.(limit.JointStates)
	if !a.holds() || keys[0].phase == inMemory || a.ctx.Done() == nil ||
		!slices.ContainsFunc(keys, (*asked).flies) {
		return ask.ApplyAll(a.ctx, calls)
	}
	limiters := make([]*limiter, len(keys))
	for i, k := range keys {
		limiters[i] = k.l
	}
	return applyOrRelease(a.ctx, calls, limiters, ask.ApplyAll)
}

// standIn marks the decisions on keys whose limits are not known, which New's have made.
func (a *asking) standIn(keys []*asked) {
	for _, k := range keys {
		if k.unknown == nil || !k.Answered {
			continue
		}
		c := call{Call: *k.Call, unknown: k.unknown}
		k.err = c.standIn()
		k.Answer = c.Answer
		a.failed(k)
	}
}

// failed adds the error of k to those of a.
func (a *asking) failed(k *asked) {
	a.errs = append(a.errs, fmt.Errorf("bounds[%d]: %w", k.index, k.err))
}

// answered records what the keys hold, and reports whether all have granted, so that their events
// are spent.
func (a *asking) answered(keys []*asked) (granted bool) {
	for _, k := range keys {
		if !k.Answered || !k.Answer.Allowed {
			return false
		}
	}
	if a.holds() {
		for _, k := range keys {
			k.r = k.l.held(k.Call)
		}
	}
	return true
}

// askAlone asks a key as Hold or Take do, and reports whether it has granted. If the store has
// failed, the FailurePolicy decides.
func (a *asking) askAlone(k *asked) (granted bool) {
	if k.l == nil {
		k.r, k.Answer.Decision, k.err = a.askForeign(&k.bound, k.n)
	} else {
		k.err = k.l.check(a.ctx, k.n)
	}
	if k.l != nil && (k.err == nil || k.failed != nil) {
		c := call{Call: *k.Call, ctx: a.ctx}
		c.unknown, c.Err = k.unknown, k.failed
		if a.holds() {
			c.Request.Op, c.h, c.opts = step.OpHold, a.holding(k), k.bound.held()
		}
		k.r, k.err = k.l.do(&c)
		k.Answer = c.Answer
	}
	if a.all && k.Answer.Allowed {
		k.r = cmp.Or(k.r, new(Reservation)) // of a fallback or a limiter that returns none
	}
	k.Answered = true
	if k.err != nil {
		a.failed(k)
	}
	return k.Answer.Allowed
}

// askForeign asks a limiter that New has not made.
func (a *asking) askForeign(b *Bound, n int) (r *Reservation, _ step.Decision, err error) {
	var d Decision
	if a.all {
		r, d, err = b.limiter.Hold(a.ctx, b.key, n, b.held()...)
	} else {
		d, err = b.limiter.Take(a.ctx, b.key, n)
	}
	return r, step.Decision(d), err
}

// holds reports whether the keys that are asked now are held.
func (a *asking) holds() bool { return a.all || !a.last }

// holding says how a key is held: by a TakeAll, only until all are asked, unless it has an
// InFlight, in which the events then count until the Timeout.
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

// delay lets the holds of a HoldAll last from when the events of all keys may happen, as that of an
// All does. Keys that are decided on together have done so.
func (a *asking) delay() {
	longest := time.Duration(0)
	for _, k := range a.order {
		longest = max(longest, k.Answer.Delay)
	}
	for _, k := range a.order {
		if k.r == nil || !k.r.isHold() || k.Answer.Delay >= longest {
			continue
		}
		k.r.due = max(k.r.due, k.r.l.timeline.In(longest))
		k.Answer.Delay = longest
		last := newHandle(k.r.by, a.holding(k)).For
		err := k.r.Extend(context.WithoutCancel(a.ctx), last)
		if err != nil && !errors.Is(err, ErrEnded) {
			a.errs = append(a.errs, fmt.Errorf("bounds[%d]: %w", k.index, err))
		}
	}
}

// maxAtOnce bounds the calls that are made at once, so that no store has too much to do.
const maxAtOnce = 128

// end ends what the keys hold: it is given back, or, of a TakeAll that is granted, it has happened,
// except what is in flight, which is not over. Keys that are not in memory are told many at once,
// because each may take a round trip.
func (a *asking) end() {
	var elsewhere []*asked
	for _, k := range a.order {
		switch {
		case k.r == nil || !k.Answer.Allowed || a.granted && (k.r.hold == 0 || k.flies()):
		case k.l == nil || k.l.local != nil:
			k.end(a.ctx, a.granted)
		default:
			elsewhere = append(elsewhere, k)
		}
	}
	for some := range slices.Chunk(elsewhere, maxAtOnce) {
		var all sync.WaitGroup
		for _, k := range some {
			all.Go(func() { logvalve.Safely(func() { k.end(a.ctx, a.granted) }) })
		}
		all.Wait()
	}
}

// end ends what the key holds. If that is given back, it sets what has changed in the answer.
func (k *asked) end(ctx context.Context, granted bool) {
	own := k.l != nil // observers, if any, of others have seen their Hold
	if own {
		k.r.set(isQuiet)
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case own && k.r.by == nil && k.r.all == nil:
		// A FailurePolicy has allowed it, and nothing is held.
	case own && granted:
		k.r.settleQuietly(ctx, k.r.n) // if it fails, the hold ends by itself
	case granted:
		_, _ = k.r.settle(ctx, k.r.n) // likewise
	default:
		d, err := k.r.settle(ctx, 0)
		if err == nil {
			k.Answer.Remaining, k.Answer.ResetAfter = d.Remaining, d.ResetAfter
		}
	}
}
