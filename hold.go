package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
	"github.com/ratelimit-go/ratelimit/internal/step"
	"github.com/ratelimit-go/ratelimit/internal/stray"
)

// This file has Hold, and the options that say how events are held, and how a hold ends by itself.
// Who may settle or cancel it is in reservation.go.

// Hold implements [Limiter].
func (l *limiter) Hold(
	ctx context.Context,
	key string,
	n int,
	opts ...HoldOption,
) (r *Reservation, d Decision, _ error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	h, err := optionsOfHold(opts)
	if err != nil {
		return nil, Decision{}, err
	}
	switch {
	case h.waitsInLine:
		until := ctx
		if h.until != nil {
			until = h.until
		}
		r, d, err = l.waitFor(&waiter{
			l: l, ctx: ctx, until: until, key: key, n: n, hold: h, options: opts,
		})
		d.Allowed = err == nil
		return r, d, err
	case !h.isHeld:
		d, err = l.take(ctx, CallHold, key, n)
		return nil, d, err
	}
	c := newCall(ctx, step.OpHold, key, n)
	c.hold, c.holdOptions = h, opts
	r, err = l.spend(&c)
	l.observeCall(ctx, CallHold, &c.Call, r, err)
	return r, Decision(c.Answer.Decision), err
}

// A HoldOption says how [Limiter.Hold] holds events: [HoldFor], [GiveBack], [Waiting],
// [WaitingUntil] or [Spending].
type HoldOption interface{ setForHold(h *holdOptions) }

// A ReserveOption says how [Limiter.Reserve] reserves events: [HoldFor], [GiveBack] or [Within].
type ReserveOption interface{ setForReserve(h *holdOptions) }

// An EndOption says how a hold ends that nobody settles: [HoldFor] or [GiveBack]. It is an option
// of [Limiter.Hold], [Limiter.Reserve] and [For].
type EndOption interface {
	HoldOption
	ReserveOption
}

// Within makes [Limiter.Reserve] reserve events only if their turn comes within maxWait. If maxWait
// is 0, they must be free now. It must not be negative.
func Within(maxWait time.Duration) ReserveOption { return within(maxWait) }

type within time.Duration

func (w within) setForReserve(h *holdOptions) { h.maxWait = time.Duration(w) }

// Waiting makes [Limiter.Hold] wait in line, as [Limiter.WaitN] does, and with its errors. The
// Decision says what is left only if the events were granted at once, and when to retry if they
// were denied.
func Waiting() HoldOption { return waiting{} }

type waiting struct{ until context.Context }

func (w waiting) setForHold(h *holdOptions) { h.waitsInLine, h.until = true, w.until }

// WaitingUntil is [Waiting], no longer than until the context until ends. Unlike the end of the
// context of Hold, that interrupts no call of the store. So a server that lets requests wait for a
// second does not lose a decision that it has waited for, because the store was slow.
func WaitingUntil(until context.Context) HoldOption { return waiting{until} }

// Spending makes [Limiter.Hold] spend the events for good, as [Limiter.Take] does: the Reservation
// is nil. With [Waiting], it is [Limiter.WaitN] with a Decision, which a server tells its client.
func Spending() HoldOption { return spending{} }

type spending struct{}

func (spending) setForHold(h *holdOptions) { h.spends = true }

// HoldFor makes a hold end by itself after d; that of a reservation, or of events that a
// [LeakyBucket] queues, d after these may happen. The default is ten minutes or, with an
// [InFlight], the longest Timeout. d must be positive. It should exceed the time that a request
// takes: of a hold that has ended, Settle counts only what exceeds the number held.
// [Reservation.Extend] moves the end.
func HoldFor(d time.Duration) EndOption { return lasting(d) }

type lasting time.Duration

func (d lasting) setForReserve(h *holdOptions) { d.setForHold(h) }
func (d lasting) setForHold(h *holdOptions) {
	h.holdFor, h.holdForSet, h.isHeld = time.Duration(d), true, true
}

// GiveBack gives the events of a hold back if it ends by itself, because its holder has crashed
// before they happened. Without GiveBack, they count as they were held. Use it for jobs of a queue,
// and not where a client can stretch the time until the settlement by reading its answer slowly:
// such a client would pay nothing. The events of an [InFlight] are over in either case. RetryAfter
// counts on what is given back by itself. So while such holds are open, a denial takes as long as
// some copies of the state, as many as the logarithm of their number.
func GiveBack() EndOption { return givingBack{} }

type givingBack struct{}

func (g givingBack) setForReserve(h *holdOptions) { g.setForHold(h) }
func (givingBack) setForHold(h *holdOptions)      { h.givesBack, h.isHeld = true, true }

// holdOptions are the values of the options of a Hold, a Reserve or a Bound.
type holdOptions struct {
	isHeld     bool // whether the events are held
	holdFor    time.Duration
	holdForSet bool
	givesBack  bool

	maxWait time.Duration // of a Reserve: the longest wait

	// Of a Hold:
	waitsInLine bool
	until       context.Context // the end of the wait, if it is not that of the call
	spends      bool            // whether the events are not held after all
}

// optionsOfHold returns the values of the options of a Hold.
func optionsOfHold(opts []HoldOption) (holdOptions, error) {
	h := holdOptions{isHeld: true}
	if len(opts) == 0 {
		return h, nil // and is not allocated
	}
	set := h
	for i, opt := range opts {
		if opt == nil {
			return h, errNoOption(i, "HoldFor, GiveBack, Waiting, WaitingUntil or Spending")
		}
		opt.setForHold(&set)
	}
	err := set.check()
	if set.spends {
		set.isHeld, set.holdForSet, set.givesBack = false, false, false
	}
	return set, err
}

// optionsOfReserve returns the values of the options of a Reserve, which holds nothing without any.
func optionsOfReserve(opts []ReserveOption) (holdOptions, error) {
	h := holdOptions{maxWait: Never}
	if len(opts) == 0 {
		return h, nil
	}
	set := h
	for i, opt := range opts {
		if opt == nil {
			return h, errNoOption(i, "HoldFor, GiveBack or Within")
		}
		opt.setForReserve(&set)
	}
	return set, set.check()
}

// errNoOption is the error of an option that is nil.
func errNoOption(i int, functions string) error {
	return param.Invalid(
		fmt.Sprintf("option %d of a hold", i),
		nil,
		"must be the result of "+functions,
	)
}

// check returns an error if the values cannot be used.
func (h *holdOptions) check() error {
	switch {
	case h.holdForSet && h.holdFor <= 0:
		return param.Invalid("HoldFor's d", h.holdFor, "must be positive")
	case h.maxWait < 0:
		return param.Invalid(
			"Within's maxWait",
			h.maxWait,
			"must be at least 0, which means not to wait",
		)
	}
	return nil
}

// newHandle returns the Handle of new events that t grants. If they are not held, it is only that
// of their turn. Those of an InFlight always are.
func newHandle(lim *limit.Limit, h holdOptions) step.Handle {
	last := time.Duration(0)
	switch {
	case h.holdForSet:
		last = h.holdFor
	case h.isHeld || lim.Releases():
		last = lim.HoldFor
	}
	return step.Handle{ID: newID(last), For: last, Back: h.givesBack}
}

// newID returns an ID by which a store finds a hold or, if that lasts for no time, a reservation.
// No other one of the key has it: among as many as a key may have, the chance that two have the
// same one is below 10⁻⁸.
func newID(last time.Duration) uint64 {
	id := 2 + rand.Uint64N(1<<53-3)&^1
	if last > 0 {
		id--
	}
	return id
}

// newReservation returns the Reservation of what an OpHold or OpReserve has granted.
func (l *limiter) newReservation(c *limit.Call) *Reservation {
	ans := &c.Answer
	due := ans.Due
	if due == 0 { // the store has a clock of its own
		due = l.timeline.In(max(ans.Wait, ans.Delay))
	}
	r := &Reservation{l: l, n: c.Request.N, due: due, key: c.Key, limit: c.Limit}
	if ans.Held {
		r.holdID = c.Request.Hold.ID
		r.setLasts(c.Request.Hold.For)
		if ans.Wait > 0 {
			r.set(isAhead)
		}
	}
	return r
}

// noteFailure notes that a store has not answered a call, but returned err. It has the hold of the
// call settled later. If the call was to open the hold, that may be open, but nobody has it: so it
// is settled with 0. If the call was to settle the hold, that is repeated, except that events
// beyond those held do not count then: an error has told the caller of these.
func (l *limiter) noteFailure(c *limit.Call, err error) {
	if errors.Is(err, ErrState) {
		return // the key has begun afresh, without its holds
	}
	lasts := c.Request.Hold.For
	req := step.Request{Op: step.OpSettle, Clock: l.timeline}
	req.Hold.ID = c.Request.Hold.ID
	switch c.Request.Op {
	case step.OpHold, step.OpReserve:
		if limit.WasNotExecuted(err) {
			return
		}
		req.Of = c.Request.N
		if c.Limit.Delays() {
			lasts = 0 // from an instant that is not known
		} else {
			lasts += min(max(0, c.Request.MaxWait), Never-lasts)
		}
	case step.OpSettle:
		req.Of, req.N = c.Request.Of, min(c.Request.N, c.Request.Of)
	default:
		return
	}
	if req.Hold.ID == 0 {
		return
	}
	key, lim := c.Key, c.Limit
	end := func() (found bool, err error) {
		ans, err := l.states.Apply(limit.Repeating(), key, lim, req)
		switch {
		case errors.Is(err, ErrState): // as above
			return true, nil
		case err == nil && ans.Held:
			l.wakeLine(key)
		}
		return ans.Held, err
	}
	l.strays.Add(stray.Hold{ID: req.Hold.ID, Lasts: lasts, End: end})
}

// outlast waits until the delay of held events is over. If ctx ends before, they did not happen.
func (r *Reservation) outlast(ctx context.Context) error {
	err := r.await(ctx)
	if err != nil {
		r.giveBack(context.WithoutCancel(ctx))
	}
	return err
}
