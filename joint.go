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

// This file has TakeAll, HoldAll and the settlement of what HoldAll holds. It finds the groups of
// keys that one store can decide on together, asks the groups in turn, and gives back what was
// granted if a later group refuses. How a store in memory decides on a group is in
// internal/memory/joint.go.

// TakeAll spends n events of each of several keys, or the number that [Bound.N] has given to a key,
// if all of them grant them now, and otherwise spends nothing: a request may belong to a user, to
// an organisation and to the whole service. The Decision is that of an [All] whose parts are the
// keys: Part is the index of the Bound that decided. The error is that of [Limiter.Take], or one
// for each key that failed; if there is no Bound, or one has no limiter, it matches [ErrInvalid].
//
//	d, err := ratelimit.TakeAll(ctx, 1,
//		ratelimit.For(users, user), ratelimit.For(orgs, org), ratelimit.For(service, ""))
//
// The limiters may have different algorithms and stores: [docs/algorithms.md] says for which of
// them the call is atomic, and what it asks in which order otherwise.
//
// [docs/algorithms.md]:
// https://github.com/ratelimit-go/ratelimit/blob/main/docs/algorithms.md#several-keys-for-one-event-takeall
func TakeAll(ctx context.Context, n int, of ...Bound) (d Decision, err error) {
	if err := checkBounds(ctx, n, of); err != nil {
		return Decision{}, err
	}
	if !takeAllWords(n, of, &d) {
		_, d, err = decideJointly(ctx, n, of, false)
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
	if err := checkBounds(ctx, n, of); err != nil {
		return nil, Decision{}, err
	}
	return decideJointly(ctx, n, of, true)
}

// takeAllWords is TakeAll for a few keys in memory whose states are one word, and faster than
// decideJointly. It sets d, or returns false if the keys are not of this kind.
func takeAllWords(n int, of []Bound, d *Decision) (isSet bool) {
	if len(of) > memory.MostWords {
		return false
	}
	var words [memory.MostWords]memory.Word
	for i, b := range of {
		l, ok := b.limiter.(*limiter)
		if !ok || l.fast == nil || l.lines.Any() ||
			!words[i].Load(l.fast, l.timeline, b.key, b.events(n)) {
			return false
		}
	}
	if !memory.TakeWords(words[:len(of)]) {
		return false
	}
	m := merger{varies: varies(of)}
	var ans step.Answer
	for i, b := range of {
		words[i].Answer(&ans)
		m.add(i, &ans.Decision, b.events(n))
	}
	*d = m.decision()
	return true
}

// decideJointly is TakeAll and HoldAll. Without holds, the Reservation is nil.
func decideJointly(
	ctx context.Context,
	n int,
	of []Bound,
	holds bool,
) (r *Reservation, d Decision, err error) {
	j := jointCalls.Get().(*jointCall)
	defer j.release()
	finished := false
	defer func() {
		if !finished { // code of the caller has panicked, so that nobody gets what the keys hold
			j.granted = false
			j.endHolds()
		}
	}()
	j.ctx, j.holdsAll = ctx, holds
	j.add(of, n)
	j.arrange()
	j.granted = j.askGroups()
	if j.granted && holds {
		j.delayHolds()
		r = j.newReservation(n)
	} else {
		j.endHolds()
	}
	d = j.decision()
	finished = true
	return r, d, errors.Join(j.errs...)
}

// newReservation returns the Reservation of what all keys hold.
func (j *jointCall) newReservation(n int) *Reservation {
	parts := make([]jointPart, len(j.keys))
	for i := range parts {
		first := j.keys[i].first
		parts[i] = jointPart{j.keys[first].reservation, first}
	}
	return &Reservation{n: n, joint: &jointHold{parts: parts, varies: j.varies}}
}

// decision returns the merged decision, and tells the observers of each key.
func (j *jointCall) decision() Decision {
	m := merger{varies: j.varies}
	for i := range j.keys {
		k := &j.keys[i]
		if k.first == i && k.Answered {
			k.observeKey(j.ctx, j.granted)
			m.add(i, &k.Answer.Decision, k.n)
		}
	}
	d := m.decision()
	d.Allowed = j.granted
	return d
}

// checkBounds returns an error if the arguments of a TakeAll cannot be used, or ctx has ended.
func checkBounds(ctx context.Context, n int, of []Bound) error {
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
			return param.Within(fmt.Sprintf("bounds[%d]", i), errNoLimiter)
		case b.n < 0:
			return param.Invalid(fmt.Sprintf("bounds[%d].N", i), b.n, "must be at least 0")
		case b.options != nil:
			if _, err := b.holdOptions(); err != nil {
				return param.Within(fmt.Sprintf("bounds[%d]", i), err)
			}
		}
	}
	return nil
}

// varies reports whether a Bound has a number of its own.
func varies(of []Bound) bool {
	return slices.ContainsFunc(of, func(b Bound) bool { return b.hasOwnN })
}

// A jointCall is one TakeAll or HoldAll in progress. It asks its keys in groups, one after the
// other, until one refuses. The keys of a group are decided on together, if that is possible:
//
//   - In memory (memory/joint.go), the shards of all keys are locked in one order, and their words
//     are owned. The clock is read once, all keys are asked, and then all spend or none.
//   - In Redis (redisstore/joint.go), one script asks every key before it spends in any.
type jointCall struct {
	ctx      context.Context
	holdsAll bool         // whether this is HoldAll
	varies   bool         // whether the keys spend different numbers of events
	keys     []jointKey   // one for each Bound
	inOrder  []*jointKey  // the first of equal keys, in the order in which they are asked
	index    keyIndex     // of the keys in inOrder, if they are many; else nil
	calls    []limit.Call // of the keys in inOrder
	granted  bool         // whether all keys have granted
	errs     []error
}

// A jointKey is one key of a jointCall.
type jointKey struct {
	givenKey
	keyWay
	keyReply
}

// A givenKey is a key as one Bound gives it.
type givenKey struct {
	bound Bound
	index int // of bound
	first int // the index of the first Bound with the key
	// How many events the key is asked for. The first of equal keys is asked for the sum.
	n int
	l *limiter // nil if New has not made it
	// Whether another limiter, with a lookup of its own, has the key as well.
	isSharedWithLookup bool
}

// A keyWay says what decides on a key, and when it is asked; see lookUp.
type keyWay struct {
	limit   *limit.Limit
	unknown error // why limit is not that of the key, but New's
	phase   phase
	group   any // see [limit.JointStates]; nil if the key is in memory or asked alone
	leader  int // the index of the first key of the group
}

// A keyReply is what came of asking for a key.
type keyReply struct {
	*limit.Call               // nil unless the key is the first of equal ones
	err          error        // of its Answer
	storeFailure error        // of the call for its group
	reservation  *Reservation // what the key holds, if anything
}

// jointCalls keeps the memory of calls that have ended.
var jointCalls = sync.Pool{New: func() any { return new(jointCall) }}

// maxKeptKeys is the most keys of a call whose memory is kept.
const maxKeptKeys = 64

// release keeps the memory of j for another call.
func (j *jointCall) release() {
	if cap(j.keys) > maxKeptKeys {
		return
	}
	clear(j.keys)
	clear(j.inOrder)
	clear(j.calls)
	*j = jointCall{keys: j.keys[:0], inOrder: j.inOrder[:0], calls: j.calls[:0]}
	jointCalls.Put(j)
}

// add adds the keys, for n events of each. It copies the Bounds, so that they may be on their
// caller's stack.
func (j *jointCall) add(of []Bound, n int) {
	j.varies = varies(of)
	j.keys = slices.Grow(j.keys, len(of))[:len(of)]
	for i := range of {
		k := &j.keys[i]
		k.bound, k.index, k.first, k.n = of[i], i, i, of[i].events(n)
		k.l, _ = k.bound.limiter.(*limiter)
		if first := j.firstEqual(k); first != nil {
			k.first, first.n, j.varies = first.index, addSaturating(first.n, k.n), true
			continue
		}
		j.appendKey(k)
	}
}

// appendKey adds k to those that are asked.
func (j *jointCall) appendKey(k *jointKey) {
	j.inOrder = append(j.inOrder, k)
	switch {
	case len(j.inOrder) == minIndexedKeys:
		j.index = make(keyIndex)
		for _, first := range j.inOrder {
			j.index.add(first)
		}
	case len(j.inOrder) > minIndexedKeys:
		j.index.add(k)
	}
}

// minIndexedKeys is the number of keys from which on a map finds those that are equal. Fewer are
// compared with each other.
const minIndexedKeys = 32

// A keyIndex has the keys of a call by their identities. Most lists have one key.
type keyIndex map[keyIdentity][]*jointKey

// A keyIdentity tells keys apart, also equal keys of different limiters.
type keyIdentity struct {
	// owner is what the limiter keeps states in if that is memory, which limiters may share, and
	// otherwise the limiter. It is nil for a limiter that New has not made: those may not be
	// comparable.
	owner any
	key   string
}

func (k *jointKey) identity() keyIdentity {
	id := keyIdentity{key: k.bound.key}
	switch {
	case k.l == nil:
	case k.l.local != nil:
		id.owner = k.l.local
	default:
		id.owner = k.l
	}
	return id
}

func (x keyIndex) add(k *jointKey) {
	id := k.identity()
	x[id] = append(x[id], k)
}

// firstEqual returns the first key that is the same as k and has the same limit, or nil.
func (j *jointCall) firstEqual(k *jointKey) *jointKey {
	others := j.inOrder
	if j.index != nil {
		others = j.index[k.identity()]
	}
	for _, other := range others {
		switch {
		case !k.equals(other):
		case k.l == other.l || k.l.ownLimits == nil && other.l.ownLimits == nil:
			return other
		default: // lookups of several limiters may differ
			k.isSharedWithLookup = true
		}
	}
	return nil
}

// equals reports whether k and other are the same key: of one limiter, or in memory, where limiters
// may share their states. It is false if the limiters cannot be compared.
func (k *jointKey) equals(other *jointKey) bool {
	switch l, o := k.l, other.l; {
	case l == nil || o == nil:
		return k.bound.key == other.bound.key && param.Same(k.bound.limiter, other.bound.limiter)
	case l != o && (l.local == nil || l.local != o.local):
		return false
	}
	return k.bound.key == other.bound.key
}

// arrange arranges the keys in groups, in the order in which they are asked, and makes their calls.
func (j *jointCall) arrange() {
	isSorted := true
	var groups groupLeaders
	for i, k := range j.inOrder {
		k.lookUp(j.ctx)
		if k.phase != inMemory { // where all keys are one group
			k.leader = groups.leaderOf(k, i)
		}
		isSorted = isSorted && (i == 0 || compareOrder(j.inOrder[i-1], k) <= 0)
	}
	if !isSorted {
		slices.SortStableFunc(j.inOrder, compareOrder)
	}
	j.calls = slices.Grow(j.calls, len(j.inOrder))[:len(j.inOrder)]
	for i, k := range j.inOrder {
		k.Call = &j.calls[i]
		k.Key, k.Request.N = k.bound.key, k.n
		if k.l != nil {
			k.States, k.Limit, k.Request.Clock = k.l.states, k.limit, k.l.timeline
		}
	}
}

// compareOrder orders keys by their phases, and those of one phase by their groups. Keys of one
// group are equal.
func compareOrder(k, other *jointKey) int {
	return cmp.Or(cmp.Compare(k.phase, other.phase), cmp.Compare(k.leader, other.leader))
}

// groupLeaders has the index of the first key of each group.
type groupLeaders struct{ first map[any]int }

// leaderOf returns the index of the first key of the group of k, which is the i-th key.
func (g *groupLeaders) leaderOf(k *jointKey, i int) int {
	if k.group == nil {
		return i
	}
	leader, isKnown := g.first[k.group]
	if isKnown {
		return leader
	}
	if g.first == nil {
		g.first = make(map[any]int)
	}
	g.first[k.group] = i
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

// lookUp looks up what decides on the key, and whether it can be decided on together with others.
func (k *jointKey) lookUp(ctx context.Context) {
	k.phase = isForeign
	if k.l == nil {
		return
	}
	l, key := k.l, k.bound.key
	var ended error
	k.limit, k.unknown, ended = l.limitFor(ctx, key)
	k.phase = inStores
	switch {
	case ended != nil || k.limit.Stateless(): // if ctx has ended, askAlone asks nobody
		k.phase = needsNoStore
	case k.isSharedWithLookup || l.lines.Has(key): // Hold does not overtake a Wait
	case l.local != nil:
		k.phase = inMemory
	default:
		if states, ok := l.states.(limit.JointStates); ok {
			k.group = states.Group(key)
		}
	}
}

// flies reports whether the key has an InFlight.
func (k *jointKey) flies() bool { return k.limit != nil && k.limit.Releases() }

// maxJoint bounds the calls of [limit.JointStates.ApplyAll], except in memory.
const maxJoint = 1024

// askGroups asks the groups until one refuses. It reports whether all have granted.
func (j *jointCall) askGroups() (granted bool) {
	for from, to := 0, 0; from < len(j.inOrder); from = to {
		k := j.inOrder[from]
		most := maxJoint
		if k.phase == inMemory {
			most = len(j.inOrder)
		}
		to = from + 1
		for to < len(j.inOrder) && compareOrder(j.inOrder[to], k) == 0 && to-from < most {
			to++
		}
		// If all other keys have granted, a TakeAll need not hold the events of the last ones.
		holds := j.holdsAll || to < len(j.inOrder)
		if !j.askGroup(j.inOrder[from:to], j.calls[from:to], holds) {
			return false
		}
	}
	return true
}

// askGroup asks the keys of a group, together if that is possible, and reports whether all have
// granted. holds is whether their events are held, and not only taken.
func (j *jointCall) askGroup(keys []*jointKey, calls []limit.Call, holds bool) (granted bool) {
	if keys[0].phase == inMemory || len(keys) > 1 {
		decided, err := j.askTogether(keys, calls, holds)
		if decided && err == nil {
			j.markStandIns(keys)
			return recordHolds(keys, holds) && j.askEach(unanswered(keys), holds)
		}
		for _, k := range keys {
			// The store may have begun to decide.
			k.Answered, k.Answer, k.storeFailure = false, step.Answer{}, err
		}
	}
	return j.askEach(keys, holds)
}

// unanswered returns the keys that a store could not decide on together with the others.
func unanswered(keys []*jointKey) (left []*jointKey) {
	for _, k := range keys {
		if !k.Answered {
			left = append(left, k)
		}
	}
	return left
}

// askEach asks the keys of a group, one after the other, until one refuses. Until the last one has
// granted, the others are held.
func (j *jointCall) askEach(keys []*jointKey, holds bool) (granted bool) {
	for i, k := range keys {
		if !j.askAlone(k, holds || i < len(keys)-1) {
			return false
		}
	}
	return true
}

// askTogether asks the store of the keys to decide on them together.
func (j *jointCall) askTogether(
	keys []*jointKey, calls []limit.Call, holds bool,
) (decided bool, err error) {
	if holds {
		for _, k := range keys {
			k.Request.Op, k.Request.Hold = step.OpHold, newHandle(k.limit, j.holdOptionsOf(k))
		}
	}
	decided, err = keys[0].States.(limit.JointStates).ApplyAll(j.ctx, calls)
	if !decided && err == nil || keys[0].phase == inMemory {
		return decided, err
	}
	for _, k := range keys {
		switch {
		case err != nil:
			k.l.noteFailure(k.Call, err)
		case k.Answered && !k.Answer.Unasked:
			k.l.logAnswer(j.ctx, k.l.storeFailures)
		}
	}
	return decided, err
}

// markStandIns marks the decisions on keys whose limits are not known: the limits of New have made
// these.
func (j *jointCall) markStandIns(keys []*jointKey) {
	for _, k := range keys {
		if k.unknown == nil || !k.Answered {
			continue
		}
		c := call{Call: *k.Call, unknown: k.unknown}
		k.err = c.markStandIn()
		k.Answer = c.Answer
		j.addError(k)
	}
}

// addError adds the error of k to the errors of the call.
func (j *jointCall) addError(k *jointKey) {
	j.errs = append(j.errs, fmt.Errorf("bounds[%d]: %w", k.index, k.err))
}

// recordHolds records what the keys hold that were answered, and reports whether all of these have
// granted, so that their events are spent.
func recordHolds(keys []*jointKey, holds bool) (granted bool) {
	for _, k := range keys {
		if k.Answered && !k.Answer.Allowed {
			return false
		}
	}
	if holds {
		for _, k := range keys {
			if k.Answered {
				k.reservation = k.l.newReservation(k.Call)
			}
		}
	}
	return true
}

// askAlone asks a key as Hold or Take do, and reports whether it has granted. If the store has
// failed, the FailurePolicy decides.
func (j *jointCall) askAlone(k *jointKey, holds bool) (granted bool) {
	if k.l == nil {
		k.reservation, k.Answer.Decision, k.err = j.askForeign(&k.bound, k.n, holds)
	} else {
		k.err = k.l.check(j.ctx, k.n)
	}
	if k.l != nil && (k.err == nil || k.storeFailure != nil) {
		c := call{Call: *k.Call, ctx: j.ctx}
		c.unknown, c.Err = k.unknown, k.storeFailure
		if holds {
			c.Request.Op, c.hold = step.OpHold, j.holdOptionsOf(k)
			c.holdOptions = k.bound.optionList()
		}
		k.reservation, k.err = k.l.spend(&c)
		k.Answer = c.Answer
	}
	if j.holdsAll && k.Answer.Allowed && k.reservation == nil {
		k.reservation = new(Reservation) // a fallback or a foreign limiter has returned none
	}
	k.Answered = true
	if k.err != nil {
		j.addError(k)
	}
	return k.Answer.Allowed
}

// askForeign asks a limiter that New has not made.
func (j *jointCall) askForeign(
	b *Bound, n int, holds bool,
) (r *Reservation, _ step.Decision, err error) {
	var d Decision
	switch {
	case j.holdsAll:
		r, d, err = b.limiter.Hold(j.ctx, b.key, n, b.optionList()...)
	case holds:
		// For as long as its algorithm says: events of an InFlight would be over too early
		// otherwise, and whether it has one is not known.
		r, d, err = b.limiter.Hold(j.ctx, b.key, n)
	default:
		d, err = b.limiter.Take(j.ctx, b.key, n)
	}
	return r, step.Decision(d), err
}

// holdOptionsOf says how a key is held. A TakeAll holds it only until all keys have been asked. The
// exception is an InFlight, in which the events count until the Timeout.
func (j *jointCall) holdOptionsOf(k *jointKey) holdOptions {
	switch {
	case j.holdsAll:
	case k.flies():
		return holdOptions{isHeld: true}
	default:
		return holdOptions{isHeld: true, holdFor: maxJointDuration, holdForSet: true}
	}
	h, _ := k.bound.holdOptions()
	return h
}

// maxJointDuration is how long a TakeAll may take to ask all keys. After that, events that a store
// has granted, and that TakeAll has not settled, count as if they had been taken.
const maxJointDuration = time.Minute

// delayHolds lets each hold of a HoldAll begin when the events of all keys may happen, as the hold
// of an All does. The holds of keys that were decided on together do so already.
func (j *jointCall) delayHolds() {
	longest := time.Duration(0)
	for _, k := range j.inOrder {
		longest = max(longest, k.Answer.Delay)
	}
	for _, k := range j.inOrder {
		r := k.reservation
		if !r.isHold() || k.Answer.Delay >= longest {
			continue
		}
		r.due = max(r.due, r.l.timeline.In(longest))
		k.Answer.Delay = longest
		err := r.Extend(context.WithoutCancel(j.ctx), newHandle(r.limit, j.holdOptionsOf(k)).For)
		if err != nil && !errors.Is(err, ErrEnded) {
			j.errs = append(j.errs, fmt.Errorf("bounds[%d]: %w", k.index, err))
		}
	}
}

// maxAtOnce bounds the calls that are made at once, so that no store has too much to do.
const maxAtOnce = 128

// endHolds ends the holds of the keys. If the call was denied, their events are given back. If a
// TakeAll was granted, the events have happened, except events in flight, which are not over.
// Stores that are not in memory are told of many keys at once, because each may take a round trip.
func (j *jointCall) endHolds() {
	var elsewhere []*jointKey
	for _, k := range j.inOrder {
		r := k.reservation
		switch {
		case r == nil || !k.Answer.Allowed:
		case j.granted && k.l != nil && (r.holdID == 0 || k.flies()):
		case k.l == nil || k.l.local != nil:
			k.endHold(j.ctx, j.granted)
		default:
			elsewhere = append(elsewhere, k)
		}
	}
	for some := range slices.Chunk(elsewhere, maxAtOnce) {
		var all sync.WaitGroup
		for _, k := range some {
			all.Go(func() {
				logvalve.Safely("the settlement of a hold", func() { k.endHold(j.ctx, j.granted) })
			})
		}
		all.Wait()
	}
}

// endHold ends the hold of the key. If its events are given back, endHold sets what this changes in
// the answer.
func (k *jointKey) endHold(ctx context.Context, granted bool) {
	r := k.reservation
	isOwn := k.l != nil // the observers, if any, of a foreign limiter have seen its Hold
	if isOwn {
		r.set(isQuiet)
	}
	ctx = context.WithoutCancel(ctx)
	switch {
	case isOwn && r.limit == nil && r.joint == nil:
		// A FailurePolicy has allowed the events, and nothing is held.
	case isOwn && granted:
		r.settleQuietly(ctx, r.n) // if this fails, the limiter repeats it
	case granted:
		for _, part := range r.Parts() {
			if part.isHold() && !part.limit.Releases() {
				_, _ = part.settleFor(ctx, part.n) // likewise
			}
		}
	default:
		d, err := r.settleFor(ctx, 0)
		if err == nil {
			k.Answer.Remaining, k.Answer.ResetAfter = d.Remaining, d.ResetAfter
		}
	}
}
