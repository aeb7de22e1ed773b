package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
)

// This file has what becomes of the events of one key; jointhold.go, of those of several. Whoever
// has the Reservation settles it, once. So does whoever has its token and its key, in any process,
// by a limiter of the same store, name and kind of algorithm (token.go). If somebody else has
// settled it before, or it has ended by itself (HoldFor and GiveBack, in hold.go), only what
// exceeds the number held counts. A reservation that is no hold gives back its events only before
// its turn.

// A Reservation holds events that [Limiter.Hold] has spent, or that [Limiter.Reserve] has reserved
// for later. Any number of goroutines may call its methods at once. The zero Reservation is due at
// once and holds nothing, like those of FailOpen. So does a nil one, which comes with a denial: its
// methods do nothing, so that Release may be deferred before d.Allowed is looked at.
type Reservation struct {
	l   *limiter       // nil if nothing is held, and for a HoldAll
	n   int            // the number of events that are held
	due kernel.Instant // when the events may happen

	status atomic.Uint32 // what has become of it: bits that follow
	lasts  atomic.Uint32 // how many seconds it lasts at most, from due on; 0 if that is not known
	key    string
	limit  *limit.Limit // that made it; nil if the store failed
	holdID uint64       // the ID by which the store finds it; 0 if there is nothing to find
	joint  *jointHold   // of a HoldAll

	// By how many events it is less or more that Release settles it with than n: not 0 if a Settle
	// with another number could not be made, because the store has refused it.
	unsettled atomic.Int64
}

// happened returns how many events Release says have happened.
func (r *Reservation) happened() int { return r.n + int(r.unsettled.Load()) }

const (
	isOver  = 1 << iota // it was cancelled or settled; only the store knows if its hold is open
	isAhead             // it was made ahead of time
	isQuiet             // observers are not told of it, because they are told of the whole call
)

func (r *Reservation) is(bit uint32) bool { return r.status.Load()&bit != 0 }
func (r *Reservation) clear(bit uint32)   { r.status.And(^bit) }

// set returns whether the bit was set before.
func (r *Reservation) set(bit uint32) (before bool) { return r.status.Or(bit)&bit != 0 }

// Parts returns the Reservations of the keys of a [HoldAll], in the order of its Bounds, each of
// which can be settled by itself, and has a Token. For a key that was given several times, it is
// the same one, which has the events of all. Any other Reservation is the only part of itself; nil
// has none.
func (r *Reservation) Parts() []*Reservation {
	switch {
	case r == nil:
		return nil
	case r.joint == nil:
		return []*Reservation{r}
	}
	all := make([]*Reservation, len(r.joint.parts))
	for i, p := range r.joint.parts {
		all[i] = p.reservation
	}
	return all
}

// Delay returns the time until the reserved events may happen. 0 means that they may happen now.
func (r *Reservation) Delay() (d time.Duration) {
	if r != nil && r.l != nil {
		return r.l.timeline.Until(r.due)
	}
	for _, p := range r.keys() {
		d = max(d, p.Delay())
	}
	return d
}

// Cancel says that the events will not happen. Calling it twice is harmless. Before their turn, and
// of a hold also after it, Cancel is [Reservation.Settle] with 0: the key is then as if they had
// not been reserved or held, in whatever order reservations are cancelled. Later reservations keep
// their times, and nothing is granted before the latest of these. Once the events of a reservation
// that is no hold may happen (Delay is 0), they count as having happened, and Cancel does nothing.
// It has no error: observers are told, as of every Cancel. If the store fails, the limiter goes on
// to cancel it in the background, until the store answers.
func (r *Reservation) Cancel() {
	if r == nil || r.set(isOver) {
		return
	}
	ctx := context.Background()
	var s settlement
	r.cancelQuietly(ctx, &s)
	r.observeSettlement(ctx, 0, Decision{}, s.err)
}

// cancelQuietly is Cancel without checks. It does not tell the observers of r, and sets the error.
func (r *Reservation) cancelQuietly(ctx context.Context, s *settlement) {
	switch {
	case r.joint != nil:
		r.cancelKeys(ctx)
	case r.l == nil:
	case r.isHold() || r.holdID != 0 && r.Delay() > 0:
		s.err = r.sendSettlement(ctx, 0, nil)
	}
}

// A settlement is what becomes of a Reservation, or of a part of that of a HoldAll.
type settlement struct {
	n        int // how many events have happened; 0 if it is cancelled
	decision Decision
	err      error
	isFirst  bool // whether the Reservation was not over before
}

// Wait waits until the reserved events may happen, by the limiter's clock, and returns nil when
// they may. If ctx ends before that, Wait returns ctx's error, and cancels the reservation, unless
// it is a hold.
func (r *Reservation) Wait(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	err := r.await(ctx)
	if err != nil && r.is(isAhead) {
		r.Cancel()
	}
	return err
}

// await waits until the events may happen, and returns nil when they may.
func (r *Reservation) await(ctx context.Context) error {
	for _, p := range r.keys() {
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	if r == nil || r.l == nil {
		return nil
	}
	err := r.l.sleep(ctx, r.due, nil)
	if r.Delay() == 0 { // even if ctx has just ended: the events are spent
		return nil
	}
	return err
}

// Settle says that n of the held events have happened, which may be fewer or more. The key is then
// as if n events had been taken at the time of the hold; if n exceeds the number held, the rest
// counts now, as with [Limiter.Charge]. For a Reservation of [HoldAll], ns has a number for each
// Bound, in the order in which they were given, or one for all. The Decision is what Peek returns
// afterwards. Settle counts once: afterwards, or after Cancel, the error matches [ErrEnded], and
// nothing changes. It is no error that the hold is not open any more, because it has ended by
// itself, see [HoldFor], or another process has settled it, or its key was reset: then only what
// exceeds the number held counts. A handler whose client may have left passes
// [context.WithoutCancel] of the request's context. [docs/holds.md] has the exceptions, and says
// after which errors Settle can be called again.
//
// [docs/holds.md]:
// https://github.com/ratelimit-go/ratelimit/blob/main/docs/holds.md#exactly-what-comes-back-and-what-is-owed
func (r *Reservation) Settle(ctx context.Context, ns ...int) (Decision, error) {
	if r == nil && len(ns) > 1 {
		return r.settleFor(ctx, slices.Min(ns))
	}
	want := 1
	if r != nil && r.joint != nil {
		want = len(r.joint.parts)
	}
	if len(ns) != want && len(ns) != 1 {
		return Decision{}, param.Invalid(
			"the count of Settle's numbers",
			len(ns),
			fmt.Sprintf("must be %d, one for each Bound of HoldAll, or 1 for all", want),
		)
	}
	if len(ns) == 1 {
		return r.settleFor(ctx, ns[0])
	}
	return r.settleJoint(ctx, slices.Min(ns), func(i int) int { return ns[i] })
}

// setLasts notes how long a hold lasts at most, once its events may happen.
func (r *Reservation) setLasts(d time.Duration) {
	r.lasts.Store(uint32(min(d/time.Second+1, math.MaxUint32)))
}

// openFor returns how long the hold is open at most from now on, or 0 if that is not known.
func (r *Reservation) openFor() time.Duration {
	lasts := time.Duration(r.lasts.Load()) * time.Second
	if lasts == 0 {
		return 0
	}
	return r.l.timeline.Until(r.due) + lasts
}

// settleFor is Settle with one number.
func (r *Reservation) settleFor(ctx context.Context, n int) (d Decision, err error) {
	if r == nil {
		r = new(Reservation)
	}
	if r.joint != nil {
		return r.settleJoint(ctx, n, func(int) int { return n })
	}
	if err := r.l.check(ctx, n); err != nil {
		return Decision{}, err
	}
	if r.set(isOver) {
		return Decision{}, errSettled
	}
	err = r.settleMarkedOver(ctx, n, &d)
	r.observeSettlement(ctx, n, d, err)
	return d, err
}

// settleMarkedOver settles a Reservation that the caller has just marked as over. It does not tell
// observers, and sets d as sendSettlement does.
func (r *Reservation) settleMarkedOver(ctx context.Context, n int, d *Decision) (err error) {
	if r.joint != nil { // of a HoldAll, which a limiter that New has not made has passed on
		merged, err := r.settleKeys(ctx, func(int) int { return n })
		if d != nil {
			*d = merged
		}
		return err
	}
	err = r.sendSettlement(ctx, n, d)
	if err != nil && changedNothing(err) {
		if limit.WasNotExecuted(err) {
			r.unsettled.Store(int64(n - r.n))
		}
		r.clear(isOver)
	}
	return err
}

// giveBack settles a Reservation with 0 that no caller has got.
func (r *Reservation) giveBack(ctx context.Context) { r.settleQuietly(ctx, 0) }

// settleQuietly settles a Reservation without telling observers. Of the program's code, it calls
// only the store and, if the store fails, the logger. So it does not wait for a lookup, and no
// lookup can panic in it.
func (r *Reservation) settleQuietly(ctx context.Context, n int) {
	r.set(isQuiet)
	if !r.set(isOver) {
		_ = r.settleMarkedOver(ctx, n, nil)
	}
}

// sendSettlement has the store settle r for n. It sets d, unless that is nil: then nobody is to see
// the Decision, and none is made, because a Decision might need a lookup. Without a Decision, n is
// at most the number of events that are held.
func (r *Reservation) sendSettlement(ctx context.Context, n int, d *Decision) (err error) {
	if r.l == nil {
		if d != nil {
			d.Allowed = true
		}
		return nil
	}
	if r.limit == nil { // the store failed, so that nothing is held
		if d == nil && n == 0 {
			return nil
		}
		return r.countUnheld(ctx, n, d)
	}
	changesNothing := r.limit.Stateless() || r.holdID == 0 && n <= r.n
	if changesNothing {
		if d != nil {
			*d, err = r.l.Peek(ctx, r.key)
		}
		return err
	}
	c := newCall(ctx, step.OpSettle, r.key, n)
	c.Limit, c.Request.Of = r.limit, r.n
	c.Request.Hold = step.Handle{ID: r.holdID, For: r.openFor()} // no store finds an ID of 0
	c.isUnseen = d == nil
	if r.is(isQuiet) { // r belongs to a call that has looked the limit up
		c.presentLimit = r.limit
	}
	err = r.l.tell(&c)
	if d != nil {
		*d = Decision(c.Answer.Decision)
	}
	return c.countError(n-r.n, err)
}

// countUnheld settles events that a FailurePolicy has allowed, so that nothing is held. It counts
// all events that have happened, except in an InFlight, where they are over. It sets d, unless that
// is nil.
func (r *Reservation) countUnheld(ctx context.Context, n int, d *Decision) (err error) {
	c := newCall(ctx, step.OpCharge, r.key, n)
	c.Limit, c.unknown, err = r.l.limitFor(ctx, r.key)
	if err != nil {
		return err
	}
	if c.Limit.Releases() {
		c.Request.Op = step.OpSettle // of nothing: no store finds an ID of 0
	}
	err = r.l.tell(&c)
	if d != nil {
		*d = Decision(c.Answer.Decision)
	}
	return c.countError(n, err)
}

// changedNothing reports whether err is that of a settlement without effect, which can be made
// again: its events could not be counted, or the store has certainly not executed it.
func changedNothing(err error) bool {
	return errors.Is(err, ErrDebt) || errors.Is(err, ErrFull) || limit.WasNotExecuted(err)
}

// Release says that what the events were held for is over, and has cost as many as were held. The
// events of an [InFlight] are over; all other algorithms, also in the same [All], keep them.
// Release is Settle with the number of events held, and has its errors. After a Settle that can be
// called again because the store has refused it, Release is that Settle: so it may be deferred.
// Pass [context.WithoutCancel] of a request's context, because Release does nothing after ctx has
// ended.
func (r *Reservation) Release(ctx context.Context) error {
	if r == nil {
		return nil
	}
	if r.joint != nil {
		_, err := r.settleJoint(ctx, 0, nil)
		return err
	}
	if !r.holdsNothing() {
		_, err := r.settleFor(ctx, r.happened())
		return err
	}
	if err := r.l.check(ctx, 0); err != nil {
		return err
	}
	if r.set(isOver) {
		return errSettled
	}
	r.observeSettlement(ctx, 0, Decision{}, nil)
	return nil
}

// holdsNothing reports whether a FailurePolicy has allowed the events, so that none are held. Then
// Release, which returns no Decision, does not ask the store, which may still be away.
func (r *Reservation) holdsNothing() bool {
	return r.l != nil && r.limit == nil && r.joint == nil && r.happened() == 0
}

// Extend makes the hold end by itself d from now, or from when its events may happen if that is
// ahead: earlier or later than it would have. d must be positive, or the error matches
// [ErrInvalid]. If the hold has ended, was settled, or its key was forgotten, the error matches
// [ErrEnded]; if the store fails, it is the error of the store, and the hold may or may not end
// later. Extend of a Reservation that is no hold does nothing. It costs a call of the store, or one
// for each key of a [HoldAll]; observers are not told.
func (r *Reservation) Extend(ctx context.Context, d time.Duration) error {
	if r == nil {
		return nil
	}
	if err := r.l.check(ctx, 0); err != nil {
		return err
	}
	switch {
	case d <= 0:
		return param.Invalid("Extend's d", d, "must be positive")
	case r.is(isOver):
		return errSettled
	}
	var errs []error
	for _, p := range r.keys() {
		errs = append(errs, p.Extend(ctx, d))
	}
	if !r.isHold() {
		return errors.Join(errs...)
	}
	// Which stands still if the clock has stepped back, as for the store.
	now, _ := r.l.timeline.Now()
	delay := time.Duration(max(r.due, now) - now)
	c := newCall(ctx, step.OpExtend, r.key, 0)
	c.Limit, c.Request.Hold = r.limit, step.Handle{
		ID:  r.holdID,
		For: delay + min(d, math.MaxInt64-delay),
	}
	r.l.apply(&c)
	switch {
	case c.Err != nil && ctx.Err() != nil:
		return ctx.Err()
	case c.Err != nil:
		return r.l.storeError(r.key, c.Err)
	case !c.Answer.Held:
		return ErrEnded
	}
	r.setLasts(d)
	r.l.wakeLine(r.key) // who waits for the end may have to look earlier
	return nil
}

// isHold reports whether r is a hold, and not only a reservation, which ends at its turn.
func (r *Reservation) isHold() bool { return r != nil && r.holdID%2 == 1 }
