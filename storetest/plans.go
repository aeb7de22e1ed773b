package storetest

import (
	"slices"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// testPlans compares the algorithms that need no state with the reference model, and lets a
// key have one of them for a while.
func testPlans(s *suite) {
	subtests(s, Plans(), func(s *suite, plan ratelimit.Algorithm) {
		compare(s, plan)
		s.keepsUsage(plan)
	})
	testUnlimitedParts(s)
}

// testUnlimitedParts adds unlimited parts to an All, and removes them. It checks that the events
// that a key has used stay used.
func testUnlimitedParts(s *suite) {
	for name, alg := range Algorithms() {
		parts := partsOf(alg)
		limits := []ratelimit.All{
			parts,
			append(ratelimit.All{ratelimit.Unlimited{}}, parts...),
			append(slices.Clone(parts), ratelimit.Unlimited{}, ratelimit.Unlimited{}),
		}
		var limit, constant ratelimit.Algorithm = parts, parts
		b := s.bench(parts, ownLimit(&limit))
		same := s.bench(parts, ownLimit(&constant))
		for i := range 12 {
			limit = limits[i%len(limits)]
			want := s.take(same, "k", 1)
			got := s.take(b, "k", 1)
			got.Part = want.Part
			if got != want {
				s.broken("%s, as %v: want %+v\ngot %+v", name, limit, want, got)
			}
			b.clk.Advance(s.roundUp(50 * time.Millisecond))
			same.clk.Advance(s.roundUp(50 * time.Millisecond))
		}
	}
}

// keepsUsage gives a key a plan as its limit for a while. It checks that the key is then as if it
// had got no requests meanwhile.
func (s *suite) keepsUsage(plan ratelimit.Algorithm) {
	for name, alg := range Algorithms() {
		limit := alg
		b := s.bench(plan, ownLimit(&limit))
		same := s.bench(alg, ownLimit(&alg))
		for range 2 {
			s.take(b, "k", 1)
			s.take(same, "k", 1)
		}
		limit = nil // that of the limiter
		d := s.take(b, "k", 1)
		if d.Allowed != (d.Limit > 0) || d.ResetAfter > 0 {
			s.broken("%+v decides %+v on a key that had %s", plan, d, name)
		}
		s.decided(b.Charge(ctx, "k", 3))
		if r, _, _ := b.Reserve(ctx, "k", 2); r != nil {
			s.decided(r.Settle(ctx, 1))
		}
		limit = alg
		for range 2 {
			if want, got := s.peek(same, "k"), s.peek(b, "k"); got != want {
				s.broken("%s, %+v for a while: want %+v\ngot %+v", name, plan, want, got)
			}
			b.clk.Advance(s.roundUp(50 * time.Millisecond))
			same.clk.Advance(s.roundUp(50 * time.Millisecond))
		}
	}
}
