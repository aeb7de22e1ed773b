package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testWithin reserves with various maximum waits, and retries after RetryAfter.
func testWithin(s *suite) {
	subtests(s, Algorithms(), func(s *suite, alg ratelimit.Algorithm) {
		name := fmt.Sprintf("%T%+v", alg, alg)
		s.within(name, s.bench(alg))
		s.within(
			name+", a limit of the key's own",
			s.bench(
				ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)},
				ratelimit.WithLimits(
					func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil },
				),
			),
		)
	})
}

func (s *suite) within(name string, b *bench) {
	decision := must[ratelimit.Decision](s)
	limit := decision(b.Peek(ctx, "k")).Limit
	for i, most := range []time.Duration{0, s.Tick, 150*time.Millisecond + s.Tick/2, 1234567 * time.Microsecond, 9 * time.Second, time.Hour, ratelimit.Never} {
		for _, n := range []int{1, max(1, limit/2), limit} {
			b.AllowN("k", decision(b.Peek(ctx, "k")).Remaining)
			if i%2 == 1 { // with other reservations pending, if they are granted
				for range 2 {
					if _, _, err := b.Reserve(ctx, "k", 1, ratelimit.Within(time.Second)); err != nil {
						s.Fatalf("%s: the store failed: %v", name, err)
					}
				}
			}
			before := decision(b.Peek(ctx, "k"))
			r, d, err := b.Reserve(ctx, "k", n, ratelimit.Within(most))
			if err != nil {
				s.Fatalf("%s: the store failed: %v", name, err)
			}
			if !d.Allowed {
				if r != nil || d.RetryAfter <= 0 || d.RetryAfter == ratelimit.Never ||
					d.Delay != 0 {
					s.broken("%s: %d within %v were refused with %v and %+v", name, n, most, r, d)
				}
				if after := decision(b.Peek(ctx, "k")); after != before {
					s.broken(
						"%s: %d within %v were refused: before\n%+v\nafter\n%+v",
						name,
						n,
						most,
						before,
						after,
					)
				}
				b.clk.Advance(d.RetryAfter - s.Tick)
				if r, early, _ := b.Reserve(ctx, "k", n, ratelimit.Within(most)); r != nil ||
					early.RetryAfter != s.Tick {
					s.broken(
						"%s: %d within %v were asked for %v before RetryAfter (%v), with %+v",
						name,
						n,
						most,
						s.Tick,
						d.RetryAfter,
						early,
					)
				}
				b.clk.Advance(s.Tick)
				r, d, _ = b.Reserve(ctx, "k", n, ratelimit.Within(most))
				if r == nil {
					s.broken("%s: %d within %v were refused at RetryAfter: %+v", name, n, most, d)
				}
			}
			if r == nil || r.Delay() != d.Delay || d.Delay > most || d.RetryAfter != 0 {
				s.broken("%s: %d within %v were reserved with %+v", name, n, most, d)
			}
			b.clk.Advance(d.Delay)
		}
	}
	before := decision(b.Peek(ctx, "k"))
	if r, d, err := b.Reserve(ctx, "k", limit+1, ratelimit.Within(ratelimit.Never)); r != nil ||
		d.Allowed ||
		d.RetryAfter != ratelimit.Never ||
		err != nil {
		s.broken("%s: %d of a limit of %d: %v, %+v, %v", name, limit+1, limit, r, d, err)
	}
	if r, d, err := b.Reserve(ctx, "k", 0, ratelimit.Within(0)); r == nil || !d.Allowed ||
		err != nil {
		s.broken("%s: none of a limit of %d: %v, %+v, %v", name, limit, r, d, err)
	}
	if after := decision(b.Peek(ctx, "k")); after != before {
		s.broken(
			"%s: asking for too many events, and for none, changed\n%+v\nto\n%+v",
			name,
			before,
			after,
		)
	}
}
