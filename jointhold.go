package ratelimit

import (
	"context"
	"errors"
	"iter"

	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has what becomes of the events that a HoldAll holds of several keys.

// jointHold are the reservations of the keys of a HoldAll.
type jointHold struct {
	parts  []jointPart // one for each Bound
	varies bool        // whether the keys spend different numbers of events
}

// A jointPart is the reservation of a key, for one of its Bounds.
type jointPart struct {
	reservation *Reservation
	first       int // the index of the first Bound with the key
}

// keys returns the Reservation of each key of a HoldAll, once, by the index of its first Bound,
// and none for others.
func (r *Reservation) keys() iter.Seq2[int, *Reservation] {
	return func(yield func(int, *Reservation) bool) {
		if r == nil || r.joint == nil {
			return
		}
		for i, p := range r.joint.parts {
			if p.first == i && !yield(i, p.reservation) {
				return
			}
		}
	}
}

// cancelKeys cancels what was not settled before.
func (r *Reservation) cancelKeys(ctx context.Context) {
	all := make([]settlement, len(r.joint.parts))
	for i, p := range r.keys() {
		all[i].isFirst = !p.set(isOver)
		if all[i].isFirst {
			p.cancelQuietly(ctx, &all[i])
		}
	}
	r.observeKeys(ctx, all)
}

// settleJoint settles the keys of a HoldAll. has returns the number of events that have happened
// for the i-th Bound, and least is the least of these numbers. If has is nil, as many events have
// happened as were held.
func (r *Reservation) settleJoint(
	ctx context.Context,
	least int,
	has func(i int) int,
) (Decision, error) {
	if err := r.l.check(ctx, least); err != nil {
		return Decision{}, err
	}
	if r.set(isOver) {
		return Decision{}, errSettled
	}
	return r.settleKeys(ctx, has)
}

// settleKeys is settleJoint without checks.
func (r *Reservation) settleKeys(ctx context.Context, has func(i int) int) (Decision, error) {
	ctx = context.WithoutCancel(ctx) // all or none
	all := r.settlementsOf(has)
	m := merger{varies: r.joint.varies}
	var errs []error
	for i, p := range r.keys() {
		s := &all[i]
		s.isFirst = !p.set(isOver)
		if !s.isFirst {
			continue // an earlier call has settled this key, when another key had no room
		}
		if has == nil && p.holdsNothing() {
			continue
		}
		s.err = p.settleMarkedOver(ctx, s.n, &s.decision)
		if s.err != nil {
			errs = append(errs, s.err)
		}
		m.add(i, (*step.Decision)(&s.decision), p.n)
	}
	err := errors.Join(errs...)
	if err != nil && changedNothing(err) {
		r.clear(isOver)
	}
	r.observeKeys(ctx, all)
	return m.decision(), err
}

// settlementsOf returns for each key how many of its events have happened, by the index of its
// first Bound. That is the sum for all its Bounds or, if has is nil, as many as were held.
func (r *Reservation) settlementsOf(has func(i int) int) []settlement {
	all := make([]settlement, len(r.joint.parts))
	for i, p := range r.joint.parts {
		s := &all[p.first]
		if has == nil {
			s.n = p.reservation.happened()
		} else {
			s.n = addSaturating(s.n, has(i))
		}
	}
	return all
}

// observeKeys tells observers what has become of the keys of a HoldAll, by the index of the first
// Bound of each. All keys have been settled by then, so that none is left over if an observer
// panics.
func (r *Reservation) observeKeys(ctx context.Context, all []settlement) {
	for i, p := range r.keys() {
		if s := &all[i]; s.isFirst {
			p.observeSettlement(ctx, s.n, s.decision, s.err)
		}
	}
}
