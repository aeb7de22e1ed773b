package decide_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// This file has the operations of a schedule that reserve and hold events, and take them back.

// terms chooses how a hold ends by itself.
func (s *schedule) terms() (terms model.Terms, opts []ratelimit.EndOption) {
	if s.choices.below(2) == 0 {
		terms.For = s.lasting()
		opts = append(opts, ratelimit.HoldFor(terms.For))
	}
	if s.choices.below(3) == 0 {
		terms.GiveBack = true
		opts = append(opts, ratelimit.GiveBack())
	}
	return terms, opts
}

// lasting chooses how long a hold lasts.
func (s *schedule) lasting() time.Duration {
	span := pick(s.choices, s.spans...)
	switch s.choices.below(6) {
	case 0:
		return span
	case 1:
		return math.MaxInt64
	case 2:
		return 1 + s.choices.within(span)/16
	}
	return 1 + s.choices.within(span)
}

// reserve reserves events, and may hold them.
func (s *schedule) reserve(k *scheduleKey, n int) {
	r := &scheduleReservation{key: k.model, n: n}
	var (
		got     *ratelimit.Reservation
		err     error
		wantErr error
	)
	terms, opts := s.terms()
	switch due, _, cannot := k.model.Clone().Reserve(s.now, n, 0); {
	case s.choices.below(2) == 0 && cannot == nil && due == uint64(s.now):
		s.log("WaitHold(%q, %d), %+v", k.name, n, terms)
		r.due, r.held, wantErr = k.model.HoldWithin(s.now, n, terms, ratelimit.Never)
		got, _, err = s.limiter.Hold(context.Background(), k.name, n, ends.OfHold(opts, ratelimit.Waiting())...)
	case len(opts) > 0:
		s.log("Reserve(%q, %d), %+v", k.name, n, terms)
		r.due, r.held, wantErr = k.model.HoldWithin(s.now, n, terms, ratelimit.Never)
		var d ratelimit.Decision
		got, d, err = s.limiter.Reserve(context.Background(), k.name, n, ends.OfReserve(opts, ratelimit.Within(ratelimit.Never))...)
		s.noError(err)
		if d.Allowed != (wantErr == nil) {
			s.fail("want %v, got %+v", wantErr, d)
		}
		if wantErr != nil {
			return
		}
	default:
		s.log("Reserve(%q, %d)", k.name, n)
		if s.flies {
			r.due, r.held, wantErr = k.model.HoldWithin(s.now, n, terms, ratelimit.Never)
		} else {
			r.due, r.model, wantErr = k.model.Reserve(s.now, n, ratelimit.Never)
		}
		got, _, err = s.limiter.Reserve(context.Background(), k.name, n)
	}
	s.compareError(nil, err)
	if (wantErr == nil) != (got != nil) {
		s.fail("%v, and reserved is %t", wantErr, got != nil)
	}
	if got != nil {
		s.keep(k, r, got)
	}
}

// keep remembers a reservation or a hold.
func (s *schedule) keep(k *scheduleKey, r *scheduleReservation, got *ratelimit.Reservation) {
	r.limiter = got
	s.compareDelay(r)
	s.mark(got.Delay())
	if r.held != nil {
		k.holds = append(k.holds, r)
	} else {
		k.reservations = append(k.reservations, r)
	}
}

// account holds and settles events, and charges some.
func (s *schedule) account(k *scheduleKey) {
	for range 1 + s.choices.below(4) {
		s.advance(k)
		s.notice(k)
		switch s.choices.below(8) {
		default:
			s.hold(k, s.events(k))
		case 3, 4, 5:
			s.settle(k)
		case 6:
			s.charge(k, 1+s.choices.below(12))
		case 7:
			s.extend(k)
		}
	}
}

func (s *schedule) hold(k *scheduleKey, n int) {
	terms, opts := s.terms()
	s.log("Hold(%q, %d), %+v", k.name, n, terms)
	held, want := k.model.Hold(s.now, n, terms)
	r, got, err := s.limiter.Hold(context.Background(), k.name, n, ends.OfHold(opts)...)
	s.noError(err)
	s.compare(k, want, got)
	if (r != nil) != got.Allowed {
		s.fail("a Reservation that is nil exactly if it is denied is right")
	}
	if r != nil {
		s.keep(k, &scheduleReservation{key: k.model, held: held, n: n, due: uint64(s.now) + uint64(got.Delay)}, r)
	}
}

// settle settles one of the latest holds of k. It may have been settled or cancelled before, it may
// have ended, or k may have been reset since.
func (s *schedule) settle(k *scheduleKey) {
	i := s.latest(k.holds)
	if i < 0 {
		return
	}
	r := k.holds[i]
	n := pick(s.choices, 0, 0, r.n, min(r.n, math.MaxInt/4)+s.choices.below(6), s.choices.below(min(r.n, math.MaxInt-1)+1))
	s.log("Settle(%q, %d) of hold %d, of %d", k.name, n, i, r.n)
	if n == 0 && s.choices.below(2) == 0 {
		r.limiter.Cancel()
		if !r.over {
			k.model.Settle(s.now, r.held, 0)
		}
		r.over = true
		s.peek(k)
		return
	}
	d, err := r.limiter.Settle(context.Background(), n)
	if r.over {
		s.compareError(ratelimit.ErrEnded, err)
		return
	}
	if s.tooMuch(k, err) {
		return
	}
	r.over = true
	s.compare(k, k.model.Settle(s.now, r.held, n), d)
	s.peek(k)
}

// latest chooses one of the latest reservations, or returns −1.
func (s *schedule) latest(all []*scheduleReservation) int {
	if len(all) == 0 {
		return -1
	}
	return len(all) - 1 - s.choices.below(min(4, len(all)))
}

// ended is called when some holds of k have ended by themselves. In a WarmingUp, it makes a difference which of
// them is ended first: then the answers must be no more generous, and the schedule forgets the key.
func (s *schedule) ended(k *scheduleKey, many int) {
	s.notice(k)
	if !s.floats || many == 1 {
		s.peek(k)
		return
	}
	got, err := s.limiter.Peek(context.Background(), k.name)
	s.noError(err)
	want := k.model.Peek(s.now)
	if got.Allowed && !want.Allowed || got.Remaining > want.Remaining || got.RetryAfter < want.RetryAfter {
		s.fail("want no more than %+v\n got %+v", want, got)
	}
	s.reset(k)
}

// surprises reports whether events may come back before they are said to: turns after what comes back
// find a WarmingUp colder.
func (s *schedule) surprises(k *scheduleKey) bool {
	return s.floats && k.model.Holds(s.now) > 0
}

func (s *schedule) extend(k *scheduleKey) {
	i := s.latest(k.holds)
	if i < 0 || k.holds[i].over {
		return
	}
	r, d := k.holds[i], s.lasting()
	s.log("Extend(%q, %d) of hold %d", k.name, d, i)
	err := r.limiter.Extend(context.Background(), d)
	switch open := k.model.Extend(s.now, r.held, d); {
	case open && s.evicts && err != nil: // the key was evicted when nothing counted any more
		s.compareError(ratelimit.ErrEnded, err)
		k.holds = slices.Delete(k.holds, i, i+1)
	case !open && r.limiter.Token() != "":
		s.compareError(ratelimit.ErrEnded, err)
	default:
		s.noError(err)
	}
}

// cancel cancels one of the latest reservations made on k. It may have been
// cancelled before, its time may have come, or k may have been reset since.
func (s *schedule) cancel(k *scheduleKey) {
	i := s.latest(k.reservations)
	if i < 0 {
		return
	}
	r := k.reservations[i]
	s.compareDelay(r)
	s.log("Cancel(%q), reservation %d", k.name, i)
	r.over = true
	r.key.Cancel(s.now, r.model)
	r.limiter.Cancel()
	s.peek(k)
}

// wait waits, if that takes no time: the events may happen at once, or the
// deadline is too near.
func (s *schedule) wait(k *scheduleKey, n int) {
	maxWait := ratelimit.Never
	ctx := context.Background()
	if s.choices.below(4) > 0 {
		maxWait = min(k.last.RetryAfter, farthest) / time.Duration(1+s.choices.below(2))
		maxWait = max(0, maxWait+time.Duration(s.choices.below(3)-1))
		ctx = deadlineContext{ctx, time.Unix(0, s.now).Add(maxWait)}
	}
	due, _, err := k.model.Clone().Reserve(s.now, n, maxWait)
	switch {
	case err == nil && due > uint64(s.now):
		return
	case err != nil && n <= k.model.Limit() && (s.flies || k.model.Holds(s.now) > 0):
		return // held events may come back, so that this waits until its deadline
	}
	var want error
	if s.flies {
		_, _, want = k.model.HoldWithin(s.now, n, model.Terms{}, maxWait)
	} else {
		_, _, want = k.model.Reserve(s.now, n, maxWait)
	}
	s.log("WaitN(%q, %d) for at most %d", k.name, n, maxWait)
	if n == 1 {
		s.compareError(want, s.limiter.Wait(ctx, k.name))
	} else {
		s.compareError(want, s.limiter.WaitN(ctx, k.name, n))
	}
}

// A deadlineContext has a deadline by the clock of the test.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

// forget lets the store evict keys, if it does so.
func (s *schedule) forget(k *scheduleKey) {
	if !s.evicts {
		return
	}
	s.log("others are exhausted")
	for i := range 4 {
		_, err := s.limiter.Take(context.Background(), fmt.Sprint("other ", s.now, i), k.model.Limit())
		s.noError(err)
	}
}

// notice gives k a new model if the store has evicted it.
func (s *schedule) notice(k *scheduleKey) {
	if !s.evicts {
		return
	}
	got, err := s.limiter.Peek(context.Background(), k.name)
	s.noError(err)
	if fresh := model.New(s.alg, 1); got == fresh.Peek(s.now) && got != k.model.Peek(s.now) {
		s.log("%q was evicted", k.name)
		k.model = fresh
	}
}

func (s *schedule) reset(k *scheduleKey) {
	s.log("Reset(%q)", k.name)
	s.noError(s.limiter.Reset(context.Background(), k.name))
	k.model = model.New(s.alg, 1)
}

func (s *schedule) compareDelay(r *scheduleReservation) {
	want := time.Duration(max(r.due, uint64(s.now)) - uint64(s.now))
	if got := r.limiter.Delay(); got != want {
		s.fail("Delay: want %d, got %d", want, got)
	}
}
