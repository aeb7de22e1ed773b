package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/ratelimit-go/ratelimit/internal/memory"
)

// An apartKey is a key that cannot be decided on with those in memory.
type apartKey struct {
	index int // the index of its Bound
	times int // how often the key was given; 0 if this is not the first Bound with it

	group any // that of [JointStates], or nil

	told     bool // whether decision is set
	decision Decision
	err      error
	held     *Reservation // nil if nothing is held
}

// addApart adds the key of the i-th Bound.
func addApart(apart []apartKey, of []Bound, i int) []apartKey {
	for k := range apart {
		if a := &apart[k]; a.times > 0 && of[a.index].equals(of[i]) {
			a.times++
			return append(apart, apartKey{index: i})
		}
	}
	return append(apart, apartKey{index: i, times: 1, group: of[i].group()})
}

// group returns the group in which the key may be decided on together with others, or nil.
func (b Bound) group() any {
	l, ok := bare(b.limiter)
	if !ok || l.local != nil || l.waiting.has(b.key) { // Hold does not overtake a Wait
		return nil
	}
	if j, ok := l.states.(joiner); ok && j.joint() != nil {
		return j.joint().Group(b.key)
	}
	return nil
}

// An asking is a TakeAll or HoldAll some of whose keys are apart.
type asking struct {
	ctx  context.Context
	n    int
	of   []Bound
	keys []apartKey
	hold bool // whether the keys may have to be settled
	errs []error
}

// take decides on the keys that are apart, and then on those of joint. parts are of the
// Reservation of the latter, if hold is set.
func (a *asking) take(joint *memory.Joint, hold bool, parts []part) (*Reservation, Decision, error) {
	together := a.ask() // whether the others are asked
	granted := together
	var failed error
	if together && len(joint.Asked) > 0 {
		granted, failed = decideTogether(joint, a.n, hold)
		a.fail(failed)
	}
	if !granted {
		a.giveBack()
	}
	m, joined := merging{least: math.MaxInt}, 0
	var held []part
	keys := a.keys
	for i := range a.of {
		if len(keys) > 0 && keys[0].index == i {
			k := &keys[0]
			if k.told {
				a.of[i].observe(a.ctx, a.events(k), &Result{Decision: k.decision}, granted, k.err)
				m.add(i, k.decision, k.times)
			}
			if k.held != nil {
				held = append(held, part{k.held, i, k.times})
			}
			keys = keys[1:]
		} else if together {
			a.of[i].observeJoint(a.ctx, a.n, &joint.Asked[joined], granted, failed)
			m.addJoint(i, joint, joined)
			joined++
		}
	}
	d, err := m.decision(), errors.Join(a.errs...)
	d.Allowed = granted
	if !granted || !hold {
		return nil, d, err
	}
	return reservedTogether(joint, a.n, parts, held...), d, err
}

// ask asks the keys until one refuses: those of a group together, and the others one after the
// other. It reports whether all have granted.
func (a *asking) ask() (granted bool) {
	var groups [][]*apartKey
	for i := range a.keys {
		if k := &a.keys[i]; k.times > 0 {
			groups = enter(groups, k)
		}
	}
	a.hold = a.hold || len(groups) > 1
	for _, keys := range groups {
		if !a.askGroup(keys) {
			return false
		}
	}
	return true
}

// enter adds a key to its group, or to a new one.
func enter(groups [][]*apartKey, k *apartKey) [][]*apartKey {
	for i, keys := range groups {
		if k.group != nil && keys[0].group == k.group {
			groups[i] = append(keys, k)
			return groups
		}
	}
	return append(groups, []*apartKey{k})
}

// askGroup asks the keys of a group, and reports whether all have granted.
func (a *asking) askGroup(keys []*apartKey) (granted bool) {
	if len(keys) == 1 {
		k := keys[0]
		b := a.of[k.index]
		if l, ok := bare(b.limiter); ok {
			b.limiter = l // its observers are told what comes of all keys
		}
		r, d, err := b.Hold(a.ctx, a.events(k))
		return a.tell(k, r, d, err)
	}
	var together, alone []*groupKey
	for _, k := range keys {
		b := a.of[k.index]
		g := &groupKey{apartKey: k, key: b.key}
		g.l, _ = bare(b.limiter)
		g.resets = g.l.resets.count.Load()
		if g.t, g.err = g.l.transitionOf(a.ctx, b.key); g.err != nil || g.t.Stateless() {
			alone = append(alone, g)
		} else {
			together = append(together, g)
		}
	}
	a.hold = a.hold || len(alone) > 0
	decided, granted := a.askTogether(together)
	if !decided {
		alone, granted = append(together, alone...), true
	}
	for _, g := range alone {
		granted = granted && a.askAlone(g)
	}
	return granted
}

// A groupKey is a key of a group.
type groupKey struct {
	*apartKey
	l      *limiter
	key    string
	t      *Transition
	err    error // of the lookup of t
	resets uint64
}

// askAlone asks one key.
func (a *asking) askAlone(g *groupKey) (granted bool) {
	r, res, err := g.l.hold(a.ctx, g.key, a.events(g.apartKey), g.t, g.err)
	return a.tell(g.apartKey, r, res.Decision, err)
}

// askTogether asks keys at once, if that is possible.
func (a *asking) askTogether(keys []*groupKey) (decided, granted bool) {
	if len(keys) < 2 {
		return false, false
	}
	op := OpTake
	if a.hold {
		op = OpHold
	}
	calls := make([]JointCall, len(keys))
	ask := keys[0].l.states.(joiner)
	for i, g := range keys {
		j := g.l.states.(joiner)
		req := Request{Op: op, N: a.events(g.apartKey), timeline: g.l.timeline}
		calls[i] = JointCall{States: j.joint(), Key: g.key, Transition: g.t, Request: req}
		if p := j.patience(); p > 0 && (ask.patience() == 0 || p < ask.patience()) {
			ask = j // the least patient of the limiters
		}
	}
	decided, err := a.applyAll(ask, calls, keys)
	if !decided && err == nil {
		return false, false
	}
	if err != nil {
		granted = true
		for _, g := range keys {
			g.err = err
			granted = granted && a.askAlone(g) // the policy decides
		}
		return true, granted
	}
	spent := allGranted(calls)
	granted = spent
	for i, g := range keys {
		c := &calls[i]
		_, err := readable(c.Result, nil)
		switch {
		case !c.Told:
		case err != nil && spent:
			g.err = err
			granted = granted && a.askAlone(g)
		case spent && a.hold:
			r := g.l.holding(g.key, c.Request.N, g.t, &c.Result, g.resets)
			a.tell(g.apartKey, r, c.Result.Decision, nil)
		default:
			a.tell(g.apartKey, nil, c.Result.Decision, err)
			g.held = nil
		}
	}
	return true, granted
}

// allGranted reports whether all calls are granted, so that their events are spent.
func allGranted(calls []JointCall) bool {
	return !slices.ContainsFunc(calls, func(c JointCall) bool { return !c.Told || !c.Result.Decision.Allowed })
}

// applyAll makes the calls for keys. If some of the events are in flight, it returns when the
// context ends, as applyOrRelease does.
func (a *asking) applyAll(ask joiner, calls []JointCall, keys []*groupKey) (decided bool, err error) {
	if !a.hold || a.ctx.Done() == nil || !slices.ContainsFunc(keys, func(g *groupKey) bool { return g.t.flies }) {
		return ask.applyAll(a.ctx, calls)
	}
	type answer struct {
		calls   []JointCall
		decided bool
		err     error
	}
	b, ok := unlessLate(a.ctx, func(ctx context.Context) answer {
		own := slices.Clone(calls)
		decided, err := ask.applyAll(ctx, own)
		return answer{own, decided, err}
	}, func(ctx context.Context, late answer) {
		for i, g := range keys {
			if c := &late.calls[i]; late.decided && late.err == nil && allGranted(late.calls) && c.Result.Grant != nil {
				_, _ = g.l.holding(g.key, c.Request.N, g.t, &c.Result, g.resets).giveBack(ctx)
			}
		}
	})
	if !ok {
		return true, a.ctx.Err()
	}
	copy(calls, b.calls)
	return b.decided, b.err
}

// events returns how many events to take of a key.
func (a *asking) events(k *apartKey) int { return times(k.times, a.n) }

// tell records the results of Hold of a key, and reports whether it has granted.
func (a *asking) tell(k *apartKey, r *Reservation, d Decision, err error) (granted bool) {
	if err != nil {
		a.fail(fmt.Errorf("bounds[%d]: %w", k.index, err))
	}
	k.told, k.decision, k.err = true, d, err
	if d.Allowed {
		if k.held = r; r == nil { // from a wrapper
			k.held = new(Reservation)
		}
	}
	return d.Allowed
}

// fail records an error, if there is one.
func (a *asking) fail(err error) {
	if err != nil {
		a.errs = append(a.errs, err)
	}
}

// giveBack settles what is held with 0, and sets what has changed in the decisions.
func (a *asking) giveBack() {
	ctx := context.WithoutCancel(a.ctx)
	for i := range a.keys {
		k := &a.keys[i]
		if k.held == nil {
			continue
		}
		if d, err := k.held.giveBack(ctx); err == nil {
			k.decision.Remaining, k.decision.ResetAfter = d.Remaining, d.ResetAfter
		}
	}
}
