package history

import (
	"errors"
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/model"
)

// This file has the operations that reserve and hold events, and take them back.

// terms returns how a hold ends by itself, and whether the operation says so.
func (o *Op) terms() (terms model.Terms, said bool) {
	return model.Terms{For: o.For, GiveBack: o.Back}, o.For != 0 || o.Back
}

// reserve reserves or holds events.
func (p *Play) reserve(k *Key, o Op) {
	if o.Verb == WaitHold && !p.isNow(k, o.N) {
		return
	}
	r := &reservation{of: k, key: k.Model}
	var want ratelimit.Decision // of a Hold
	var refused error
	switch terms, said := o.terms(); {
	case o.Verb == Hold:
		r.held, want = k.Model.Hold(p.now, o.N, terms)
		r.due = uint64(p.now) + uint64(want.Delay)
	case o.Verb == WaitHold || p.flies || said:
		r.due, r.held, refused = k.Model.HoldWithin(p.now, o.N, terms, o.longestWait())
	default:
		r.due, r.model, refused = k.Model.Reserve(p.now, o.N, o.longestWait())
	}
	got := p.call(o, p.now)
	if !p.noError(got.err) {
		return
	}
	switch o.Verb {
	case Hold:
		p.compare(k, want, got.Decision)
		p.keepPromise(k, takes(o.N), got.Allowed, got.RetryAfter)
		if (got.made != nil) != got.Allowed {
			p.fail("want a Reservation that is nil exactly if it is denied\n got %+v", got)
		}
	case WaitHold:
		p.compareError(nil, refused)
		if got.made == nil {
			p.fail("want a hold, got none")
		}
	case Reserve:
		p.compareReserved(k, refused, got)
		p.keepPromise(k, question{Reserve, o.N, o.longestWait()}, got.Allowed, got.RetryAfter)
	}
	if got.made == nil || p.wrong != nil {
		return
	}
	r.made = p.made[o.Name]
	p.granted[o.Name] = r
	p.keep(k, o, r.held != nil, got.made.Delay())
	p.happen(o.Name, r.due, o.N)
	p.compareDelay(r)
}

// compareReserved compares the answer of a Reserve, which the model may have refused.
func (p *Play) compareReserved(k *Key, refused error, got answer) {
	if got.Allowed != (refused == nil) || got.Allowed != (got.made != nil) {
		p.fail("want %v\n got %+v, reserved: %t", refused, got.Decision, got.made != nil)
		return
	}
	never := errors.Is(refused, ratelimit.ErrNever) && !k.Model.GivesBack()
	if never && got.RetryAfter != ratelimit.Never {
		p.fail("want a RetryAfter of Never\n got %+v", got.Decision)
	}
	if got.Allowed && got.Delay != got.made.Delay() {
		p.fail("want a Delay of %v\n got %+v", got.made.Delay(), got.Decision)
	}
}

func (p *Play) compareDelay(r *reservation) {
	want := p.roundUp(time.Duration(max(r.due, uint64(p.now)) - uint64(p.now)))
	if got := r.made.Delay(); got != want {
		p.fail("want a Delay of %v\n got %v", want, got)
	}
}

// endOf settles, cancels or extends a reservation. It may have been settled or cancelled before, it
// may have ended, and its key may have been reset since.
func (p *Play) endOf(o Op, r *reservation) {
	over := r.made.over
	switch {
	case o.Verb == Extend:
		if r.held != nil && !over {
			r.of.told = nil
			p.compareExtended(o, r, p.call(o, p.now).err)
		}
	case o.Verb == Settle && r.held != nil:
		p.compareSettled(o, r, over, p.call(o, p.now))
	default: // what is not held can only be cancelled
		if r.held == nil {
			p.compareDelay(r)
			r.key.Cancel(p.now, r.model)
			if r.due > uint64(p.now) {
				p.turnOut(o.Name, 0)
			}
		} else if !over {
			p.settleModel(o, r, 0)
		}
		r.of.told = nil
		o.Verb = Cancel
		p.noError(p.call(o, p.now).err)
		p.peek(r.of)
	}
}

func (p *Play) compareSettled(o Op, r *reservation, over bool, got answer) {
	if over {
		p.compareError(ratelimit.ErrEnded, got.err)
		return
	}
	if p.isTooMuch(r.of, got.err) {
		return
	}
	r.of.told = nil
	p.compare(r.of, p.settleModel(o, r, o.N), got.Decision)
	p.peek(r.of)
}

// settleModel settles a hold of the model. If it has ended by itself, that gives nothing back.
func (p *Play) settleModel(o Op, r *reservation, n int) ratelimit.Decision {
	open := r.of.Model.Holds(p.now)
	d := r.of.Model.Settle(p.now, r.held, n)
	if r.of.Model.Holds(p.now) < open || n > p.Size(o.Name) {
		p.turnOut(o.Name, n)
	}
	return d
}

func (p *Play) compareExtended(o Op, r *reservation, err error) {
	switch open := r.of.Model.Extend(p.now, r.held, o.For); {
	case open && p.forget && err != nil: // the key was forgotten when nothing counted any more
		p.compareError(ratelimit.ErrEnded, err)
		r.made.over = true
		isThis := func(name string) bool { return p.granted[name] == r }
		r.of.Holds = slices.DeleteFunc(r.of.Holds, isThis)
	case !open && r.made.Token() != "":
		p.compareError(ratelimit.ErrEnded, err)
	default:
		p.noError(err)
	}
}
