package ratelimit

import (
	"context"
	"time"

	"github.com/benbjohnson/clock"
)

// ReserveWithin implements [Limiter].
func (l *limiter) ReserveWithin(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, Decision, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, Decision{}, err
	}
	if maxWait < 0 {
		return nil, Decision{}, invalid("maxWait", maxWait, "must be at least 0, which means not to wait, or Never for any wait")
	}
	r := &Reservation{l: l, key: key}
	if n == 0 {
		d, err := l.Take(ctx, key, 0)
		return r, d, err
	}
	m := l.mark(key)
	t, res, err := l.apply(ctx, key, Request{Op: OpReserve, N: n, MaxWait: maxWait})
	if err != nil {
		d, err := l.degraded(ctx, t, err, func(fallback Limiter) (d Decision, err error) {
			r, d, err = fallback.ReserveWithin(context.WithoutCancel(ctx), key, n, maxWait)
			return d, err
		})
		if !d.Allowed {
			r = nil
		}
		return r, d, err
	}
	d := res.Decision
	if !d.Allowed {
		return nil, d, nil
	}
	d.Delay = res.Wait
	return l.reserved(key, res, m), d, nil
}

// Wait waits until the reserved events may happen; nil means that they may. The
// limiter's clock measures the wait. If ctx ends before, Wait gives the place back
// as [Reservation.Cancel] does and returns ctx's error.
func (r *Reservation) Wait(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return r.wait(ctx)
}

// refused is the decision on a reservation that st refuses. Without other
// requests, the turn is the same instant whenever it is reserved, and room in a
// queue that has none now comes when all grant: so the same reservation succeeds
// once there is room and the turn is no more than MaxWait away.
func (v *view) refused(st []uint64, req *Request) Decision {
	never := Decision{RetryAfter: Never}
	at := v.ready(st, req.N)
	if at > maxInstant/v.tick {
		return v.describe(st, req.N, never)
	}
	turn := v.until(after(at, v.hold(st, at)))
	if turn == Never {
		return v.describe(st, req.N, never)
	}
	var room time.Duration
	if v.full(st, v.now, req.N) {
		room = v.until(at)
	}
	// A wait of a part of a tick is too short for that tick.
	tick := time.Duration(v.tick)
	near := turn - max(0, req.MaxWait)/tick*tick
	d := v.describe(st, req.N, Decision{RetryAfter: max(room, near)})
	if near > room {
		d.Part = v.lastTurn(st, req.N)
	}
	return d
}

// lastTurn returns the index of the part in which the turn of n events comes last.
func (v *view) lastTurn(st []uint64, n int) (index int) {
	k, ok := v.kernel.(*all)
	if !ok {
		return 0
	}
	var last instant
	i := 0
	for part, st := range k.states(st) {
		at := part.ready(st, v.now, n)
		if turn := after(at, part.hold(st, at)); turn > last {
			index, last = i, turn
		}
		i++
	}
	return index
}

// ClockOf returns the clock by which l tells the time, as [WithClock] set it, or
// the system's. It is nil if l was not made by [New] and has no method Clock that
// returns one.
func ClockOf(l Limiter) clock.Clock {
	if l, ok := l.(interface{ Clock() clock.Clock }); ok {
		return l.Clock()
	}
	return nil
}

func (l *limiter) Clock() clock.Clock { return l.timeline.clk }
