package history

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/ends"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// This file has the operations that reserve and hold events, and take them back.

// terms returns how a hold ends by itself.
func (o *Op) terms() (terms model.Terms, opts []ratelimit.EndOption) {
	if o.For != 0 {
		terms.For = o.For
		opts = append(opts, ratelimit.HoldFor(o.For))
	}
	if o.Back {
		terms.GiveBack = true
		opts = append(opts, ratelimit.GiveBack())
	}
	return terms, opts
}

// reserve reserves events, and may hold them.
func (p *Play) reserve(k *Key, o Op) {
	r := &reservation{of: k, key: k.Model, n: o.N}
	terms, opts := o.terms()
	most := ratelimit.Never
	if o.LimitsWait {
		most = o.Within
	}
	var refused error
	if p.flies || len(opts) > 0 {
		r.due, r.held, refused = k.Model.HoldWithin(p.now, o.N, terms, most)
	} else {
		r.due, r.model, refused = k.Model.Reserve(p.now, o.N, most)
	}
	var within []ratelimit.ReserveOption
	if o.LimitsWait {
		within = append(within, ratelimit.Within(most))
	}
	all := ends.OfReserve(opts, within...)
	got, d, err := p.limiter.Reserve(context.Background(), k.Name, o.N, all...)
	if !p.noError(err) {
		return
	}
	if d.Allowed != (refused == nil) || d.Allowed != (got != nil) {
		p.fail("want %v\n got %+v, reserved: %t", refused, d, got != nil)
		return
	}
	never := errors.Is(refused, ratelimit.ErrNever) && !k.Model.GivesBack()
	if never && d.RetryAfter != ratelimit.Never {
		p.fail("want a RetryAfter of Never\n got %+v", d)
	}
	if d.Allowed && d.Delay != got.Delay() {
		p.fail("want a Delay of %v\n got %+v", got.Delay(), d)
	}
	p.keepPromise(k, question{Reserve, o.N, most}, d.Allowed, d.RetryAfter)
	if d.Allowed {
		p.keep(o, r, got)
	}
}

// waitHold holds events in line, if that takes no time.
func (p *Play) waitHold(k *Key, o Op) {
	due, _, err := k.Model.Clone().Reserve(p.now, o.N, 0)
	if err != nil || due > uint64(p.now) {
		return
	}
	terms, opts := o.terms()
	r := &reservation{of: k, key: k.Model, n: o.N}
	var refused error
	r.due, r.held, refused = k.Model.HoldWithin(p.now, o.N, terms, ratelimit.Never)
	p.compareError(nil, refused)
	waiting := ends.OfHold(opts, ratelimit.Waiting())
	got, _, err := p.limiter.Hold(context.Background(), k.Name, o.N, waiting...)
	if !p.noError(err) {
		return
	}
	if got == nil {
		p.fail("want a hold, got none")
		return
	}
	p.keep(o, r, got)
}

func (p *Play) hold(k *Key, o Op) {
	terms, opts := o.terms()
	held, want := k.Model.Hold(p.now, o.N, terms)
	got, d, err := p.limiter.Hold(context.Background(), k.Name, o.N, ends.OfHold(opts)...)
	if !p.noError(err) {
		return
	}
	p.compare(k, want, d)
	p.keepPromise(k, takes(o.N), d.Allowed, d.RetryAfter)
	if (got != nil) != d.Allowed {
		p.fail("want a Reservation that is nil exactly if it is denied\n got %v, %+v", got, d)
		return
	}
	if got != nil {
		due := uint64(p.now) + uint64(d.Delay)
		p.keep(o, &reservation{of: k, key: k.Model, held: held, n: o.N, due: due}, got)
	}
}

// keep remembers a reservation.
func (p *Play) keep(o Op, r *reservation, got *ratelimit.Reservation) {
	r.Reservation, r.by = got, p.limiter
	r.of.told = nil
	p.compareDelay(r)
	p.made[o.Name] = r
	r.of.Made = append(r.of.Made, o.Name)
	if r.held != nil {
		r.of.Holds = append(r.of.Holds, o.Name)
	}
}

func (p *Play) compareDelay(r *reservation) {
	want := p.roundUp(time.Duration(max(r.due, uint64(p.now)) - uint64(p.now)))
	if got := r.Delay(); got != want {
		p.fail("want a Delay of %v\n got %v", want, got)
	}
}

// end settles, cancels or extends a reservation. It may have been settled or cancelled before, it
// may have ended, and its key may have been reset since.
func (p *Play) end(o Op, r *reservation) {
	p.resume(r)
	switch {
	case o.Verb == Extend:
		p.extend(r, o.For)
	case r.held == nil: // it is not held, so that it can only be cancelled
		p.compareDelay(r)
		r.of.told = nil
		r.over = true
		r.key.Cancel(p.now, r.model)
		r.Cancel()
		p.peek(r.of)
	case o.Verb == Cancel:
		r.of.told = nil
		r.Cancel()
		if !r.over {
			r.of.Model.Settle(p.now, r.held, 0)
		}
		r.over = true
		p.peek(r.of)
	default:
		p.settle(r, o.N)
	}
}

// resume lets another limiter than the one that has made a reservation end it, by its token.
func (p *Play) resume(r *reservation) {
	if p.limiter == r.by || r.over || r.Token() == "" {
		return
	}
	got, err := p.limiter.Resume(context.Background(), r.of.Name, r.Token())
	if p.noError(err) {
		r.Reservation, r.by = got, p.limiter
	}
}

func (p *Play) settle(r *reservation, n int) {
	d, err := r.Settle(context.Background(), n)
	if r.over {
		p.compareError(ratelimit.ErrEnded, err)
		return
	}
	if p.isTooMuch(r.of, err) {
		return
	}
	r.over, r.of.told = true, nil
	p.compare(r.of, r.of.Model.Settle(p.now, r.held, n), d)
	p.peek(r.of)
}

func (p *Play) extend(r *reservation, d time.Duration) {
	if r.held == nil || r.over {
		return
	}
	r.of.told = nil
	err := r.Extend(context.Background(), d)
	switch open := r.of.Model.Extend(p.now, r.held, d); {
	case open && p.Forgets && err != nil: // the key was forgotten when nothing counted any more
		p.compareError(ratelimit.ErrEnded, err)
		r.over = true
		isThis := func(name string) bool { return p.made[name] == r }
		r.of.Holds = slices.DeleteFunc(r.of.Holds, isThis)
	case !open && r.Token() != "":
		p.compareError(ratelimit.ErrEnded, err)
	default:
		p.noError(err)
	}
}
