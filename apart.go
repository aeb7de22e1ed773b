package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/memory"
)

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
	if !a.holds() {
		res, err := k.l.takeBy(a.ctx, key, k.n, k.t, k.failed)
		return a.tell(k, nil, res, err)
	}
	var res kernel.Answer
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
		return k.held.holds() && k.held.lasts > 0 && k.answer.Delay < delay
	}
	errs := make([]error, len(a.of))
	a.each(late, func(k *apartKey) {
		r := k.held
		req := kernel.Request{Op: kernel.OpExtend, Hold: kernel.Handle{ID: r.hold, For: kernel.Handle{For: r.lasts}.After(delay)}, Grant: r.grant}
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
