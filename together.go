package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/memory"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// TakeAll spends n events of each of several keys if all of them grant them now, and otherwise
// spends nothing: a request may belong to a user, to an organisation and to the whole service.
//
//	d, err := ratelimit.TakeAll(ctx, 1,
//		ratelimit.For(users, user), ratelimit.For(orgs, org), ratelimit.For(service, ""))
//
// The limiters may have different algorithms and stores. A key that is given k times spends k·n
// events, and its Limit and Remaining are divided by k.
//
// The Decision is that of an [All] whose parts are the keys. Limit and Remaining are the least,
// RetryAfter, ResetAfter and Delay the greatest of the keys. Part is the index of the Bound that
// decided.
//
// # In memory
//
// TakeAll is atomic for the keys of limiters that [New] has made on a [MemoryStore], including
// the default one, even if the stores differ: no other call finds the events spent in some keys
// and not in others, or, if the request is denied, spent at all. The order of the keys does not
// matter. As with an All, every [SlidingLog] with CountDenied counts a request that another key
// denies. If TakeAll has more keys of a store with [WithMaxKeys] than the store may hold, it
// returns an error that matches [ErrFull].
//
// # In Redis
//
// TakeAll is one call, and atomic for all processes, if the keys are of one Store of package
// redisstore, whose server has all keys. In a cluster or a ring, the keys must have the same
// {tag}: see the section "Several keys" of that package. Other stores may have [JointStates] to
// do the same. If a key is known to be exhausted without a call, the Decision tells only of such
// keys.
//
// # Several stores
//
// If the keys are not all in memory or all in one Redis, TakeAll holds those that are not in
// memory first, in the order in which they are given: the keys that one call can decide on
// together, and any other key with [Limiter.Hold]. These are keys in other stores or other slots of
// a cluster, of limiters that New has not made, and those whose limit cannot be looked up. Keys
// that are [Unlimited] or [Blocked] come before them, and need no call. In the end, TakeAll decides
// on the keys in memory. As soon as a key refuses, or fails and its [FailurePolicy]
// does not allow the request, TakeAll settles the holds before it with 0, and asks no further
// keys, so that the Decision tells only of those before. Until it has settled the holds, other
// calls may be denied what they would have been granted otherwise, and what
// [Reservation.Settle] does not give back stays spent. But TakeAll never grants more than each
// of the limiters would.
//
// # Errors
//
// The error is that of [Limiter.Take], or one for each key that failed. If there is no Bound, or
// one has no limiter, it matches [ErrInvalid].
func TakeAll(ctx context.Context, n int, of ...Bound) (d Decision, err error) {
	if err := checkTogether(ctx, n, of); err != nil {
		return Decision{}, err
	}
	if !takeWords(n, of, &d) {
		_, d, err = takeTogether(ctx, n, of, false)
	}
	return d, err
}

// HoldAll is [TakeAll], and returns one Reservation of the events in all keys if they are
// granted. Its Settle settles all of them with the same number, one after the other, and returns
// the decisions of all, merged like those of TakeAll. It checks ctx once, before the first. If a
// key has no room for the events ([ErrDebt] or [ErrFull]), the others are settled, and Settle can
// be called again for that key. If the events are denied, the Reservation is nil.
//
// In memory, HoldAll makes two allocations for each key, or three with an All, and three more.
func HoldAll(ctx context.Context, n int, of ...Bound) (*Reservation, Decision, error) {
	if err := checkTogether(ctx, n, of); err != nil {
		return nil, Decision{}, err
	}
	return takeTogether(ctx, n, of, true)
}

// takeWords is a faster takeTogether without hold, for a few keys in memory whose states are one
// word. It sets d, or returns false if it cannot be used.
func takeWords(n int, of []Bound, d *Decision) (ok bool) {
	var words [memory.MostWords]memory.Word
	if len(of) > len(words) {
		return false
	}
	for i, b := range of {
		l, ok := b.limiter.(*limiter) // not one with observers
		if !ok || l.fast == nil || l.waiting.any() || !words[i].Load(l.fast, l.timeline, b.key, n) {
			return false
		}
	}
	if !memory.TakeWords(words[:len(of)], n) {
		return false
	}
	m := merging{least: math.MaxInt}
	var a kernel.Answer
	for i := range of {
		words[i].Answer(&a)
		m.add(i, decision(&a), 1)
	}
	*d = m.decision()
	return true
}

// takeTogether is TakeAll and HoldAll. Without hold, the Reservation is nil.
func takeTogether(ctx context.Context, n int, of []Bound, hold bool) (_ *Reservation, _ Decision, err error) {
	joint := memory.NewJoint()
	defer joint.Close()
	var held []part
	if hold {
		held = make([]part, 0, len(of))
	}
	var apart []apartKey
	for i, b := range of {
		if repeats(apart, of, i) {
			apart = append(apart, apartKey{index: i})
			continue
		}
		own := b.decider(ctx)
		if r, ok := own.join(joint, b.key, hold); !ok {
			apart = addApart(apart, of, i, own)
		} else if hold {
			held = append(held, part{r: r, index: i})
		}
	}
	m := merging{least: math.MaxInt}
	if len(apart) > 0 {
		kept := append([]Bound(nil), of...) // so that of may be on its caller's stack
		asking := asking{ctx: ctx, n: n, of: kept, hold: hold || len(joint.Asked) > 0, keys: apart}
		return asking.take(joint, hold, held)
	}
	granted, err := decideTogether(joint, n, hold)
	for i, b := range of {
		b.observeJoint(ctx, n, &joint.Asked[i], granted, err)
	}
	if err != nil {
		return nil, Decision{}, err
	}
	for i := range joint.Asked {
		m.addJoint(i, joint, i)
	}
	if !granted || !hold {
		return nil, m.decision(), nil
	}
	return reservedTogether(joint, n, held), m.decision(), nil
}

// checkTogether returns an error if nothing need be asked.
func checkTogether(ctx context.Context, n int, of []Bound) error {
	if err := (*limiter)(nil).check(ctx, n); err != nil {
		return err
	}
	if len(of) == 0 {
		return param.Invalid("TakeAll's bounds", "empty", "must have at least one Bound")
	}
	for i, b := range of {
		if b.limiter == nil {
			return param.Within(fmt.Sprintf("TakeAll's bounds[%d]", i), errUnbound)
		}
	}
	return nil
}

// A decider is what decides on a key.
type decider struct {
	l      *limiter // nil if New has not made it
	t      *Transition
	failed error  // of the lookup of t
	resets uint64 // the limiter's count of them before the key is asked
}

// decider looks up what decides on the key.
func (b Bound) decider(ctx context.Context) (own decider) {
	if own.l, _ = bare(b.limiter); own.l != nil {
		own.resets = own.l.resets.count.Load()
		own.t, own.failed = own.l.transitionOf(ctx, b.key)
	}
	return own
}

// join adds the key to those that are decided on together, if it can be. With hold, it returns
// its part of the Reservation.
func (own *decider) join(joint *memory.Joint, key string, hold bool) (r *Reservation, ok bool) {
	l, t := own.l, own.t
	switch {
	case l == nil || l.local == nil:
		return nil, false
	case own.failed != nil || t.Stateless(): // Hold asks the FailurePolicy, or needs no state
		return nil, false
	case l.waiting.has(key): // Hold does not overtake a Wait
		return nil, false
	}
	e := joint.Add()
	e.Clock, e.Key = l.timeline, key
	switch s := l.local; {
	case l.own != nil:
		var err error
		if e.Limit, err = s.limitOf(t); err != nil {
			joint.Drop()
			return nil, false // Hold asks the FailurePolicy
		}
		e.Varied = s.varied
	case s.tables != nil:
		e.Tables = s.tables
	default:
		e.Logs, e.Kernel = s.logs, s.t.kernel
	}
	if hold {
		r = l.newReservation(0, 0, claim{key: key, by: t, resets: own.resets})
	}
	return r, true
}

// decideTogether decides on the keys in memory.
func decideTogether(joint *memory.Joint, n int, hold bool) (granted bool, err error) {
	op := kernel.OpTake
	if hold {
		op = kernel.OpHold
	}
	if granted, err = joint.Decide(op, n); err != nil {
		err = fmt.Errorf("%w: %w; see WithMaxKeys", ErrFull, err)
	}
	return granted, err
}

// A part of a Reservation is that of one key.
type part struct {
	r     *Reservation
	index int // the index of the first Bound with the key
	times int // how often the key was given
}

// reservedTogether returns the Reservation of the n events of each key that joint has granted,
// and of more. of are those of joint, in the order of its keys; it is used up.
func reservedTogether(joint *memory.Joint, n int, of []part, more ...part) *Reservation {
	all := of[:0]
	for i, p := range of {
		e := &joint.Asked[i]
		if e.Times == 0 {
			continue
		}
		p.r.n, p.r.due, p.r.claim.grant, p.times = n*e.Times, e.Answer.Due, e.Answer.Grant, e.Times
		all = append(all, p)
	}
	if len(more) > 0 {
		all = append(all, more...)
		slices.SortFunc(all, func(a, b part) int { return a.index - b.index })
	}
	return (*limiter)(nil).newReservation(n, 0, claim{grant: parts(all)})
}

// equals reports whether b and other are the same key of the same limiter. It is false if the
// limiters cannot be compared.
func (b Bound) equals(other Bound) bool {
	return b.key == other.key && param.Same(b.limiter, other.limiter)
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
	any     bool // whether there are any so far
	refused bool
	least   int // the least Remaining so far
}

// add adds the decision of the i-th key, which was given times times.
func (m *merging) add(i int, d Decision, times int) {
	if times > 1 {
		d.Limit /= times
		d.Remaining /= times
	}
	if !m.any {
		m.any, m.Limit = true, d.Limit
	}
	switch {
	case !d.Allowed && (!m.refused || d.RetryAfter > m.RetryAfter):
		m.refused, m.Part, m.RetryAfter = true, i, d.RetryAfter
	case !m.refused && d.Remaining < m.least:
		m.Part = i
	}
	m.least = min(m.least, d.Remaining)
	m.Limit = min(m.Limit, d.Limit)
	m.ResetAfter = max(m.ResetAfter, d.ResetAfter)
	m.Delay = max(m.Delay, d.Delay)
	m.Degraded = m.Degraded || d.Degraded
}

// addJoint adds the decision of the given key of joint, which is the i-th of all.
func (m *merging) addJoint(i int, joint *memory.Joint, key int) {
	if e := &joint.Asked[key]; e.Times > 0 {
		m.add(i, decision(&e.Answer), e.Times)
	}
}

// decision returns the merged decision.
func (m *merging) decision() Decision {
	d := m.Decision
	d.Remaining, d.Allowed = m.least, !m.refused
	if m.refused {
		d.Delay = 0
	}
	return d
}

// settleAll is Settle of a HoldAll.
func settleAll(ctx context.Context, all parts, n int) (Decision, error) {
	ctx = context.WithoutCancel(ctx) // all or none
	m := merging{least: math.MaxInt}
	var errs []error
	for _, p := range all {
		if p.r.is(isOver) {
			continue // an earlier call has settled it, when another part had no room
		}
		d, err := p.r.Settle(ctx, times(p.times, n))
		if err != nil {
			errs = append(errs, err)
		}
		m.add(p.index, d, p.times)
	}
	return m.decision(), errors.Join(errs...)
}

// delay returns the greatest Delay of the parts.
func (r *Reservation) delay() (d time.Duration) {
	for _, p := range r.parts() {
		d = max(d, p.r.Delay())
	}
	return d
}
