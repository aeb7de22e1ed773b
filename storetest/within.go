package storetest

import (
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testWithin reserves with various maximum waits, and retries after RetryAfter.
func testWithin(s *suite) {
	subtests(s, Algorithms(), func(s *suite, alg ratelimit.Algorithm) {
		name := alg.String()
		other := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}
		for _, w := range []*withinTest{
			{s, s.bench(alg), name},
			{s, s.bench(other, ownLimit(&alg)), name + ", a limit of the key's own"},
		} {
			w.testWaits()
			w.testBounds()
		}
	})
}

// A withinTest makes reservations of one key.
type withinTest struct {
	*suite
	*bench
	name string
}

// testWaits reserves with several maximum waits, while the key grants no more events at once.
func (w *withinTest) testWaits() {
	limit := w.peek(w, "k").Limit
	for i, most := range []time.Duration{
		0, w.Tick, 150*time.Millisecond + w.Tick/2, 1234567 * time.Microsecond, 9 * time.Second,
		time.Hour, ratelimit.Never,
	} {
		for _, n := range []int{1, max(1, limit/2), limit} {
			w.AllowN("k", w.peek(w, "k").Remaining)
			if i%2 == 1 {
				w.reserveAhead()
			}
			before := w.peek(w, "k")
			r, d, err := w.Reserve(ctx, "k", n, ratelimit.Within(most))
			w.succeeded(err)
			if !d.Allowed {
				w.checkRefusal(n, most, r, d, before)
				r, d = w.retry(n, most, d.RetryAfter)
			}
			if r == nil || r.Delay() != d.Delay || d.Delay > most || d.RetryAfter != 0 {
				w.broken("%s: %d within %v were reserved with %+v", w.name, n, most, d)
			}
			w.clk.Advance(d.Delay)
		}
	}
}

// reserveAhead makes two other reservations, if they are granted.
func (w *withinTest) reserveAhead() {
	for range 2 {
		_, _, err := w.Reserve(ctx, "k", 1, ratelimit.Within(time.Second))
		w.succeeded(err)
	}
}

// checkRefusal checks the results of a Reserve that was refused, and that it changed nothing.
func (w *withinTest) checkRefusal(
	n int,
	most time.Duration,
	r *ratelimit.Reservation,
	d, before ratelimit.Decision,
) {
	if r != nil || d.RetryAfter <= 0 || d.RetryAfter == ratelimit.Never || d.Delay != 0 {
		w.broken("%s: %d within %v were refused with %v and %+v", w.name, n, most, r, d)
	}
	if after := w.peek(w, "k"); after != before {
		w.broken("%s: %d within %v were refused: before\n%+v\nafter\n%+v",
			w.name, n, most, before, after)
	}
}

// retry makes a refused reservation again twice. One tick before RetryAfter, the reservation must
// still be refused. At RetryAfter, it must be granted. retry returns the results of the second
// time.
func (w *withinTest) retry(
	n int,
	most, retryAfter time.Duration,
) (*ratelimit.Reservation, ratelimit.Decision) {
	w.clk.Advance(retryAfter - w.Tick)
	early, d, _ := w.Reserve(ctx, "k", n, ratelimit.Within(most))
	if early != nil || d.RetryAfter != w.Tick {
		w.broken("%s: %d within %v were asked for %v before RetryAfter (%v), with %+v",
			w.name, n, most, w.Tick, retryAfter, d)
	}
	w.clk.Advance(w.Tick)
	r, d, _ := w.Reserve(ctx, "k", n, ratelimit.Within(most))
	if r == nil {
		w.broken("%s: %d within %v were refused at RetryAfter: %+v", w.name, n, most, d)
	}
	return r, d
}

// testBounds reserves more events than the limit, and 0 events. The first request is never granted,
// and the second one always. Neither changes anything.
func (w *withinTest) testBounds() {
	before := w.peek(w, "k")
	limit := before.Limit
	r, d, err := w.Reserve(ctx, "k", limit+1, ratelimit.Within(ratelimit.Never))
	if r != nil || d.Allowed || d.RetryAfter != ratelimit.Never || err != nil {
		w.broken("%s: %d of a limit of %d: %v, %+v, %v", w.name, limit+1, limit, r, d, err)
	}
	r, d, err = w.Reserve(ctx, "k", 0, ratelimit.Within(0))
	if r == nil || !d.Allowed || err != nil {
		w.broken("%s: none of a limit of %d: %v, %+v, %v", w.name, limit, r, d, err)
	}
	if after := w.peek(w, "k"); after != before {
		w.broken("%s: asking for too many events, and for none, changed\n%+v\nto\n%+v",
			w.name, before, after)
	}
}
