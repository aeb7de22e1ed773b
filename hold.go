package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/limit"
	"github.com/ratelimit-go/ratelimit/internal/param"
)

// newID returns the ID of a new hold. No other hold has it: among the holds that a key may have open,
// the chance that two have the same one is below 10⁻⁹.
func newID() uint64 { return 1 + rand.Uint64N(1<<53-1) }

// A HoldOption says how [Limiter.Hold], [Limiter.Reserve] and [For] hold events, and how long they wait.
type HoldOption func(*holding)

// A holding has the values of options.
type holding struct {
	holds   bool // whether the events are held
	last    time.Duration
	lastSet bool
	back    bool

	within    time.Duration // of a Reserve
	withinSet bool
	waits     bool // of a Hold
}

// longest returns the longest wait of a Reserve.
func (h *holding) longest() time.Duration {
	if h.withinSet {
		return h.within
	}
	return Never
}

// Within makes [Limiter.Reserve] reserve events only if their turn comes within maxWait. If maxWait is 0, they must be
// free now. It must not be negative.
func Within(maxWait time.Duration) HoldOption {
	return func(h *holding) { h.within, h.withinSet = maxWait, true }
}

// Waiting makes [Limiter.Hold] wait in line, as [Limiter.WaitN] does, and with its errors. The Decision says what is left only
// if the events were granted at once, and when to retry if they were denied.
func Waiting() HoldOption { return func(h *holding) { h.waits = true } }

// HoldFor makes a hold end by itself after d; that of a reservation, or of events that a [LeakyBucket]
// queues, d after these may happen. The default is ten minutes or, with an [InFlight], the longest
// Timeout. d must be positive. It should exceed the time that a request takes: a hold that has ended
// cannot be settled any more. [Reservation.Extend] moves the end.
func HoldFor(d time.Duration) HoldOption {
	return func(h *holding) { h.last, h.lastSet, h.holds = d, true, true }
}

// GiveBack gives the events of a hold back if it ends by itself, because its holder has crashed before
// they happened. Without GiveBack, they count as they were held. The events of an [InFlight] are over
// in either case.
func GiveBack() HoldOption { return func(h *holding) { h.back, h.holds = true, true } }

// A use is what options are for.
type use int

const (
	ofHold    use = iota
	ofReserve     // which holds nothing without options that say so
	ofBound
)

// newHolding returns err, or the values of options, and an error if they cannot be used.
func newHolding(err error, of use, opts []HoldOption) (holding, error) {
	if err != nil || len(opts) == 0 {
		return holding{holds: of != ofReserve}, err
	}
	return withOptions(of, opts)
}

// withOptions is newHolding for options, whose result is allocated.
func withOptions(of use, opts []HoldOption) (holding, error) {
	h := holding{holds: of != ofReserve}
	for i, opt := range opts {
		if opt == nil {
			return h, param.Invalid(fmt.Sprintf("option %d of a hold", i), nil, "must be the result of HoldFor, GiveBack, Within or Waiting")
		}
		opt(&h)
	}
	switch {
	case h.lastSet && h.last <= 0:
		return h, param.Invalid("HoldFor's d", h.last, "must be positive")
	case h.withinSet && of != ofReserve:
		return h, param.Invalid("the option Within", h.within, "is for Reserve; Hold waits with Waiting until its context ends")
	case h.within < 0:
		return h, param.Invalid("Within's maxWait", h.within, "must be at least 0, which means not to wait")
	case h.waits && of != ofHold:
		return h, param.Invalid("the option Waiting", "given to Reserve or For", "is for Hold")
	}
	return h, nil
}

// holding returns the values of the options of b, for a Hold.
func (b Bound) holding() (holding, error) {
	return newHolding(nil, ofBound, b.held())
}

// newHandle returns the Handle of a new hold of events that t grants, or none if they are not held. Those
// of an InFlight always are.
func newHandle(t *limit.Limit, h holding) kernel.Handle {
	if !h.holds && !t.Flies() {
		return kernel.Handle{}
	}
	last := h.last
	if !h.lastSet {
		last = t.HoldFor
	}
	return kernel.Handle{ID: newID(), For: last, Back: h.back}
}

// Extend makes the hold end by itself d from now, or from when its events may happen if that is ahead:
// earlier or later than it would have, for work that takes long. d must be positive, or the error matches
// [ErrInvalid]. If the hold has ended, or its key was forgotten, the error matches [ErrEnded]; if it was
// settled or cancelled, too; if the store fails, it is the error of the store, and the hold may or
// may not end later. Extend of a Reservation that holds nothing, or is no hold, does nothing. It costs a call
// of the store, or one for each key of a [HoldAll]; observers are not told.
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
	for _, p := range r.parts().of {
		errs = append(errs, p.r.Extend(ctx, d))
	}
	if !r.holds() {
		return errors.Join(errs...)
	}
	var res kernel.Answer
	err := r.l.applyBy(ctx, r.key, r.by, &kernel.Request{Op: kernel.OpExtend, Hold: kernel.Handle{ID: r.hold, For: r.fromNow(d)}, Grant: r.grant}, &res)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return r.l.failed(err)
	case !res.Held:
		return ErrEnded
	}
	r.l.waiters.Wake(r.key) // who waits for the end may have to look earlier
	return nil
}

// fromNow returns the time from now until d after the events may happen, or d if they may already.
func (r *Reservation) fromNow(d time.Duration) time.Duration {
	now, _ := r.l.timeline.Now() // which stands still if the clock has stepped back, as for the store
	delay := time.Duration(max(r.due, now) - now)
	return delay + min(d, math.MaxInt64-delay)
}
