package storetest

import (
	"errors"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testHolds settles and extends open holds, and lets them end by themselves. testExact does the
// same in random schedules.
func testHolds(s *suite) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"FixedWindow": ratelimit.FixedWindow{Limit: 10, Window: 30 * 24 * time.Hour},
		"TokenBucket": ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 10},
		"SlidingLog":  ratelimit.SlidingLog{Limit: 10, Window: 30 * 24 * time.Hour},
		"All": ratelimit.All{
			ratelimit.RollingWindow{Quota: 10, Window: 24 * time.Hour, Period: time.Hour},
			ratelimit.TokenBucket{Rate: ratelimit.PerDay(1), Burst: 20},
		},
	} {
		h := &holdTest{s, s.bench(alg), name}
		h.testEnds()
		h.testSettled()
		h.testResumed(alg)
	}
}

// A holdTest holds events of a key that grants 10 events. None of them comes back with time.
type holdTest struct {
	*suite
	*bench
	name string
}

func (h *holdTest) hold(n int, opts ...ratelimit.HoldOption) *ratelimit.Reservation {
	r, d, err := h.Hold(ctx, "k", n, opts...)
	h.decided(d, err)
	if r == nil {
		h.broken("%s: a hold of %d was denied: %+v", h.name, n, d)
	}
	return r
}

func (h *holdTest) settle(r *ratelimit.Reservation, n int) {
	h.decided(r.Settle(ctx, n))
}

func (h *holdTest) left(l ratelimit.Limiter, want int, when string) {
	if d := h.decided(l.Peek(ctx, "k")); d.Remaining != want {
		h.broken("%s: %d may be taken %s, not %d", h.name, d.Remaining, when, want)
	}
}

// testEnds lets holds end by themselves.
func (h *holdTest) testEnds() {
	const usual = 10 * time.Minute
	counted, back := h.hold(1), h.hold(2, ratelimit.GiveBack())
	longer := h.hold(4, ratelimit.HoldFor(time.Hour), ratelimit.GiveBack())
	h.clk.Advance(usual - h.Tick)
	h.left(h, 3, "before holds have ended")
	h.clk.Advance(h.Tick)
	h.left(h, 5, "when a hold of 2 has ended that gives back, and one of 1 that does not")
	h.settle(counted, 0)
	h.settle(back, 0)
	h.left(h, 5, "after both were settled too late")
	if err := longer.Extend(ctx, time.Hour); err != nil {
		h.broken("%s: an open hold cannot be extended: %v", h.name, err)
	}
	h.clk.Advance(time.Hour - h.Tick)
	h.left(h, 5, "before a hold has ended that was extended")
	h.clk.Advance(h.Tick)
	h.left(h, 9, "when a hold of 4 has ended that was extended, and gives back")
	if err := longer.Extend(ctx, time.Hour); !errors.Is(err, ratelimit.ErrEnded) {
		h.broken("%s: a hold that has ended was extended: %v", h.name, err)
	}
	h.reset(h.bench, "k")
}

// testSettled settles holds that were made at one instant, in another order than they were made,
// and with events of other callers in between. It also settles a hold that was made before a Reset.
func (h *holdTest) testSettled() {
	first, second, third := h.hold(1), h.hold(2), h.hold(3)
	h.settle(second, 1)
	h.left(h, 5, "after 6 were held, and a hold of 2 was settled with 1")
	h.AllowN("k", 1)
	h.settle(third, 0)
	h.settle(first, 3)
	h.left(h, 5, "after 1 was taken, and holds of 3 and 1 were settled with 0 and 3")
	forgotten := h.hold(4)
	h.reset(h.bench, "k")
	h.hold(5)
	h.settle(forgotten, 0)
	h.left(h, 5, "after a Reset, a hold of 5, and a settlement of one of before")
	h.reset(h.bench, "k")
}

// testResumed settles holds by their tokens on another handle, as another process would.
func (h *holdTest) testResumed(alg ratelimit.Algorithm) {
	token, other := h.hold(4).Token(), h.hold(3).Token()
	after := h.bench
	if h.Reopen != nil {
		after = h.reopened(h.bench, alg)
	}
	resume := func(token string, n int) {
		r, err := after.Resume(ctx, "k", token)
		if err != nil {
			h.broken("%s: Resume of the token %q: %v", h.name, token, err)
		}
		h.decided(r.Settle(ctx, n))
	}
	resume(token, 1)
	h.left(after, 6, "after 7 were held, and a hold of 4 was resumed and settled with 1")
	resume(token, 0)
	h.left(after, 6, "after the same hold was settled once more")
	resume(other, 0)
	h.left(after, 9, "after the other hold was settled with 0")
}
