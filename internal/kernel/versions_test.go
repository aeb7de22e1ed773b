package kernel

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// rivals returns, for each kind, two limits whose states differ.
func rivals(t *testing.T) map[string][2]*Compiled {
	enc := InMemory.Varying()
	compile := func(k Kernel, err error) *Compiled {
		require.NoError(t, err)
		return Compile(k, enc)
	}
	bucket := func(events int, per time.Duration, burst int) *Compiled {
		return compile(NewTokenBucket(events, per, per, burst, enc, ""))
	}
	queue := func(events int, per time.Duration, capacity int) *Compiled {
		return compile(NewLeakyBucket(events, per, per, capacity, enc, ""))
	}
	fixed := func(limit int, length uint64, aligned bool) *Compiled {
		return compile(NewFixedWindow(limit, length, aligned, enc), nil)
	}
	all := func(parts ...*Compiled) *Compiled {
		var kernels []Kernel
		for _, part := range parts {
			kernels = append(kernels, part.Kernel)
		}
		return compile(NewAll(kernels, enc), nil)
	}
	log := func(limit int, window uint64) *Compiled { return compile(NewSlidingLog(limit, window, false), nil) }
	return map[string][2]*Compiled{
		"bucket: burst and rate": {bucket(100, time.Second, 1), bucket(1, time.Second, 100)},
		"bucket: rate":           {bucket(10, time.Second, 10), bucket(30, 2*time.Second, 10)},
		"leaky: rate":            {queue(10, time.Second, 10), queue(5, time.Second, 3)},
		"interval: per":          {compile(NewIntervalBucket(10, 10, second), nil), compile(NewIntervalBucket(5, 5, second/2), nil)},
		"interval: burst":        {compile(NewIntervalBucket(40, 3, second), nil), compile(NewIntervalBucket(5, 5, second), nil)},
		"fixed: window":          {fixed(10, second, true), fixed(20, 2*second, true)},
		"fixed: a long window":   {fixed(10, second, true), fixed(15, 60*second, true)},
		"fixed: equal limits":    {fixed(7, second, true), fixed(7, 2*second, true)},
		"fixed: start":           {fixed(10, second, true), fixed(10, second, false)},
		"sliding: segments":      {compile(NewSlidingWindow(10, 5, second/5, enc), nil), compile(NewSlidingWindow(10, 10, second/10, enc), nil)},
		"sliding: window":        {compile(NewSlidingWindow(10, 1, second, enc), nil), compile(NewSlidingWindow(20, 1, 2*second, enc), nil)},
		"rolling: period":        {compile(NewRollingWindow(10, 0, 5, second/5), nil), compile(NewRollingWindow(10, 0, 10, second/10), nil)},
		"rolling: period limit":  {compile(NewRollingWindow(10, 3, 5, second/5), nil), compile(NewRollingWindow(7, 0, 5, second/5), nil)},
		"log: window":            {log(10, second), log(20, 2*second)},
		"log: a long window":     {log(10, second), log(15, 60*second)},
		"warming up":             {compile(NewWarmingUp(10, time.Second, time.Second, 3, enc), nil), compile(NewWarmingUp(5, time.Second, 2*time.Second, 3, enc), nil)},
		"all":                    {all(log(10, second), bucket(100, time.Minute, 5)), all(log(20, 2*second), bucket(200, time.Minute, 20))},
	}
}

// A shared is a key that several limits are asked of.
type shared struct {
	from   *Compiled
	st     []uint64
	grants []grantAt
}

type grantAt struct {
	at Instant
	n  int
}

func (s *shared) ask(c *Compiled, now Instant, op Op, n int) (a Answer) {
	req := Request{Op: op, N: n, Fixed: &Reading{Now: now, Own: true}}
	var changed bool
	if s.from, s.st, changed = c.StepFrom(s.from, s.st, &req, &a); a.Allowed && changed {
		s.grants = append(s.grants, grantAt{now, n})
	}
	return a
}

// alone returns how many events c grants if it is asked for one every step until end.
func alone(c *Compiled, end, step Instant) int {
	s := shared{from: c, st: c.NewState()}
	for now := begun; now < begun+end; now += step {
		s.ask(c, now, OpTake, 1)
	}
	return len(s.grants)
}

// TestVersions_Law: two limits that are asked in any order grant in the long run no less than 0.9 of
// what the stricter grants alone, and never more than the looser would have granted.
func TestVersions_Law(t *testing.T) {
	const step = 5 * ms
	long := 20 * second
	if budget.Nightly() {
		long = 60 * second
	}
	for name, limits := range rivals(t) {
		stricter := min(alone(limits[0], long, step), alone(limits[1], long, step))
		for seed := range uint64(8) {
			rng := rand.New(rand.NewPCG(seed, 0))
			s := shared{from: limits[seed%2], st: limits[seed%2].NewState()}
			turn, asked := 0, [2]Instant{}
			for now := begun; now < begun+long; now += step {
				turn++
				switch seed {
				case 0, 1: // one after the other
				case 2, 3:
					turn = int((now - begun) / (3 * second)) // for a while
				default:
					turn = rng.IntN(2)
				}
				if seed > 5 && rng.IntN(3) == 0 {
					s.ask(limits[turn%2], now, OpPeek, 1)
				}
				s.ask(limits[turn%2], now, OpTake, 1)
				if asked[turn%2] == 0 {
					asked[turn%2] = now
				}
			}
			assert.GreaterOrEqual(t, len(s.grants), stricter*9/10, "%s, seed %d", name, seed)
			if seed == 2 || seed == 3 || name == "warming up" {
				continue // a limit that is not asked bounds nothing, and warmth is converted in proportion
			}
			s.grants = slices.DeleteFunc(s.grants, func(g grantAt) bool { return g.at < max(asked[0], asked[1]) })
			if _, _, carries := limits[0].leaves()[0].pace(); carries {
				bounded(t, name, limits, s.grants)
				continue
			}
			if a, b := limits[0].leaves()[0], limits[1].leaves()[0]; !looser(a, 0, b, 1) && !looser(b, 1, a, 0) {
				continue // neither is the looser one
			}
			assert.True(t, slices.ContainsFunc(limits[:], func(c *Compiled) bool {
				replay := shared{from: c, st: c.NewState()}
				return !slices.ContainsFunc(s.grants, func(g grantAt) bool { return !replay.ask(c, g.at, OpTake, g.n).Allowed })
			}), "%s, seed %d: no limit alone grants as much", name, seed)
		}
	}
}

// bounded checks that no span has more events than one of the limits grants in it: its Limit, and
// what comes back in the span.
func bounded(t *testing.T, name string, limits [2]*Compiled, grants []grantAt) {
	most := func(span Instant) (most uint64) {
		for _, c := range limits {
			events, ticks, _ := c.leaves()[0].pace()
			if _, lumps := c.Kernel.(*intervalBucket); lumps {
				span += ticks
			}
			most = max(most, uint64(c.Limit())+span*events/ticks)
		}
		return most
	}
	for i, first := range grants {
		sum := 0
		for _, last := range grants[i:min(len(grants), i+500)] {
			if sum += last.n; uint64(sum) > most(last.at-first.at) {
				t.Fatalf("%s: %d events in %d ns", name, sum, last.at-first.at)
			}
		}
	}
}

// TestVersions_Four: not even more limits than a key has states of starve it, if they are asked in turns.
func TestVersions_Four(t *testing.T) {
	for name, create := range map[string]func(n uint64) Kernel{
		"fixed":    func(n uint64) Kernel { return NewFixedWindow(int(10*n), n*second, n%2 == 0, InMemory.Varying()) },
		"interval": func(n uint64) Kernel { return NewIntervalBucket(int(10*n), int(10*n), n*second) },
		"rolling":  func(n uint64) Kernel { return NewRollingWindow(10, 0, 2*n, second/2/n) },
	} {
		var limits []*Compiled
		for n := range uint64(MostVersions + 1) {
			limits = append(limits, Compile(create(n+1), InMemory.Varying()))
		}
		s := shared{from: limits[0], st: limits[0].NewState()}
		for turn := range 12_000 {
			s.ask(limits[turn%len(limits)], begun+uint64(turn)*5*ms, OpTake, 1)
		}
		assert.GreaterOrEqual(t, len(s.grants), 540, name)
	}
}

// TestVersions_ThereAndBack: whatever is asked of another limit, what counts under one still does.
func TestVersions_ThereAndBack(t *testing.T) {
	for name, limits := range rivals(t) {
		for i, c := range limits {
			other := limits[1-i]
			for _, ask := range []struct {
				op Op
				n  int
			}{{OpPeek, 1}, {OpTake, other.Limit()}, {OpTake, other.Limit() + 1}} {
				s := shared{from: c, st: c.NewState()}
				used := (c.Limit() + 1) / 2
				require.True(t, s.ask(c, begun, OpTake, used).Allowed, name)
				const after = 5 * ms // nothing is idle yet
				a := s.ask(other, begun+after, ask.op, ask.n)
				want := shared{from: c, st: c.NewState()}
				want.ask(c, begun, OpTake, used)
				if a.Allowed && ask.op == OpTake {
					want.ask(c, begun+after, OpCharge, ask.n)
				}
				for later := range Instant(4) {
					now := begun + after + later*second/4
					got, want := s.ask(c, now, OpPeek, 1), want.ask(c, now, OpPeek, 1)
					assert.Equal(t, want.ResetAfter, got.ResetAfter, "%s %d: %+v, later %d", name, i, ask, later)
					assert.Equal(t, want, got, "%s %d: %+v, later %d", name, i, ask, later)
				}
			}
		}
	}
}

// TestVersions_RetryAfter: one tick earlier, the same request is still denied; then it is granted.
func TestVersions_RetryAfter(t *testing.T) {
	for name, limits := range rivals(t) {
		denied := 0
		for seed := range budget.Histories(75, 300) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := shared{from: limits[0], st: limits[0].NewState()}
			now := begun
			for range 40 {
				now += rng.Uint64N(second / 8)
				c := limits[rng.IntN(2)]
				n := 1 + rng.IntN(min(3, c.Limit()))
				a := s.ask(c, now, OpTake, n)
				if a.Allowed {
					continue
				}
				denied++
				for _, early := range []uint64{1, 0} {
					then := shared{from: s.from, st: slices.Clone(s.st)}
					b := then.ask(c, now+uint64(a.RetryAfter)-early, OpTake, n)
					require.Equal(t, early == 0, b.Allowed, "%s, seed %d: %v after %d ms", name, seed, a.RetryAfter, (now-begun)/ms)
				}
				rest := shared{from: s.from, st: slices.Clone(s.st)}
				if left := rest.ask(c, now, OpPeek, 1).Remaining; left > 0 {
					assert.True(t, rest.ask(c, now, OpTake, left).Allowed, name)
				}
			}
		}
		assert.Positive(t, denied, name)
	}
}

// TestVersions_Busy: a limit that is no longer asked goes even if the key never is idle, and until then
// its log is bounded.
func TestVersions_Busy(t *testing.T) {
	for name, limits := range rivals(t) {
		s := shared{from: limits[0], st: limits[0].NewState()}
		s.ask(limits[0], begun, OpTake, 1)
		for now := begun; now < begun+700*second; now += 90 * ms {
			s.ask(limits[1], now, OpTake, 1)
		}
		assert.Equal(t, limits[1], s.from, name)
	}
	slow := Compile(NewSlidingLog(10, 3600*second, false), InMemory.Varying())
	fast := Compile(NewSlidingLog(100, second, false), InMemory.Varying())
	s := shared{from: slow, st: slow.NewState()}
	s.ask(slow, begun, OpTake, 1)
	for now := begun; now < begun+60*second; now += 20 * ms {
		require.True(t, s.ask(fast, now, OpTake, 1).Allowed)
	}
	assert.Less(t, len(s.st), 300)
	assert.Equal(t, time.Duration(3600*second-200*ms), s.ask(slow, begun+60*second, OpTake, 1).RetryAfter, "as if it had all")
}

// TestVersions_Witness: a limit that is asked for the first time counts what any other remembers.
func TestVersions_Witness(t *testing.T) {
	log := func(seconds uint64) *Compiled {
		return Compile(NewSlidingLog(10, seconds*second, false), InMemory.Varying())
	}
	s := shared{from: log(3600), st: nil}
	s.ask(s.from, begun, OpTake, 10)
	s.ask(log(1), begun+2*second, OpTake, 1)
	for _, seconds := range []uint64{1800, 7200} {
		a := s.ask(log(seconds), begun+4*second, OpPeek, 1)
		assert.Zero(t, a.Remaining)
		assert.Equal(t, time.Duration((seconds-2)*second), a.ResetAfter)
	}

	bucket := func(per time.Duration) *Compiled {
		k, err := NewTokenBucket(1, per, per, 10, InMemory.Varying(), "")
		require.NoError(t, err)
		return Compile(k, InMemory.Varying())
	}
	s = shared{from: bucket(time.Hour), st: bucket(time.Hour).NewState()}
	s.ask(s.from, begun, OpTake, 10)
	s.ask(bucket(time.Second), begun+second, OpTake, 1)
	s.ask(bucket(time.Second), begun+9*second, OpTake, 1)
	assert.Equal(t, 7, s.ask(bucket(time.Minute), begun+9*second, OpPeek, 1).Remaining, "tokens came back by the second since")
}

// TestVersions_Idle: what is no longer asked goes when it is idle, and no more than MostVersions stay.
func TestVersions_Idle(t *testing.T) {
	limitOf := func(seconds uint64) *Compiled {
		return Compile(NewSlidingLog(10, seconds*second, false), InMemory.Varying())
	}
	a, b := limitOf(10), limitOf(1)
	s := shared{from: a, st: a.NewState()}
	s.ask(a, begun, OpTake, 1)
	s.ask(b, begun+second, OpTake, 1)
	assert.Equal(t, []*Compiled{a, b}, s.from.Versions())
	s.ask(b, begun+11*second-1, OpTake, 1)
	assert.Len(t, s.from.Versions(), 2, "it counts what b grants")
	s.ask(b, begun+21*second-1, OpTake, 1)
	assert.Equal(t, b, s.from)
	for i := range uint64(5) {
		s.ask(limitOf(20+i), begun+22*second, OpTake, 1)
	}
	assert.Len(t, s.from.Versions(), MostVersions)
	assert.True(t, s.from.Valid(s.st))
}

// TestPassiveBindsNothing: a limit that is not asked, and is not the looser one, delays nothing.
func TestPassiveBindsNothing(t *testing.T) {
	of := NewFixedWindow(1, second, true, InMemory.Varying())
	k := &passive{Kernel: of, enc: InMemory.Varying()}
	st := of.Spend(make([]uint64, of.Width()), begun+5*second, 1)
	assert.Zero(t, k.frontier(st))
	assert.Equal(t, begun, k.Ready(st, begun, 1))
	k.binds = true
	assert.Equal(t, begun+5*second, k.frontier(st))
	assert.Equal(t, begun+6*second, k.Ready(st, begun, 1))
}
