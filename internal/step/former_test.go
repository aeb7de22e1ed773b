package step

import (
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// rivals returns, for each kind, two limits whose states differ.
func rivals(t *testing.T) map[string][2]*Machine {
	enc := kernel.InMemory.Varying()
	compile := func(k kernel.Kernel, err error) *Machine {
		require.NoError(t, err)
		return NewMachine(k, enc)
	}
	bucket := func(events int, per time.Duration, burst int) *Machine {
		return compile(kernel.NewTokenBucket(events, per, per, burst, enc, ""))
	}
	queue := func(events int, per time.Duration, capacity int) *Machine {
		return compile(kernel.NewLeakyBucket(events, per, per, capacity, enc, ""))
	}
	fixed := func(limit int, length uint64, aligned bool) *Machine {
		return compile(kernel.NewFixedWindow(limit, length, aligned, enc), nil)
	}
	all := func(parts ...*Machine) *Machine {
		var kernels []kernel.Kernel
		for _, part := range parts {
			kernels = append(kernels, part.Kernel)
		}
		return compile(NewAll(kernels, enc), nil)
	}
	log := func(limit int, window uint64) *Machine {
		return compile(kernel.NewSlidingLog(limit, window, false), nil)
	}
	interval := func(refill, burst int, per uint64) *Machine {
		return compile(kernel.NewIntervalBucket(refill, burst, per), nil)
	}
	sliding := func(limit int, segments, length uint64) *Machine {
		return compile(kernel.NewSlidingWindow(limit, segments, length, enc), nil)
	}
	rolling := func(quota, periodLimit int, periods, length uint64) *Machine {
		return compile(kernel.NewRollingWindow(quota, periodLimit, periods, length), nil)
	}
	warming := func(events int, warmup time.Duration) *Machine {
		return compile(kernel.NewWarmingUp(events, time.Second, warmup, 3, enc), nil)
	}
	return map[string][2]*Machine{
		"bucket: burst and rate": {bucket(100, time.Second, 1), bucket(1, time.Second, 100)},
		"bucket: rate":           {bucket(10, time.Second, 10), bucket(30, 2*time.Second, 10)},
		"leaky: rate":            {queue(10, time.Second, 10), queue(5, time.Second, 3)},
		"interval: per":          {interval(10, 10, second), interval(5, 5, second/2)},
		"interval: burst":        {interval(40, 3, second), interval(5, 5, second)},
		"fixed: window":          {fixed(10, second, true), fixed(20, 2*second, true)},
		"fixed: a long window":   {fixed(10, second, true), fixed(15, 60*second, true)},
		"fixed: equal limits":    {fixed(7, second, true), fixed(7, 2*second, true)},
		"fixed: start":           {fixed(10, second, true), fixed(10, second, false)},
		"sliding: segments":      {sliding(10, 5, second/5), sliding(10, 10, second/10)},
		"sliding: window":        {sliding(10, 1, second), sliding(20, 1, 2*second)},
		"rolling: period":        {rolling(10, 0, 5, second/5), rolling(10, 0, 10, second/10)},
		"rolling: period limit":  {rolling(10, 3, 5, second/5), rolling(7, 0, 5, second/5)},
		"log: window":            {log(10, second), log(20, 2*second)},
		"log: a long window":     {log(10, second), log(15, 60*second)},
		"warming up":             {warming(10, time.Second), warming(5, 2*time.Second)},
		"all": {
			all(log(10, second), bucket(100, time.Minute, 5)),
			all(log(20, 2*second), bucket(200, time.Minute, 20)),
		},
	}
}

// A shared is a key that several limits are asked of.
type shared struct {
	from   *Machine
	st     State
	grants []grantAt
}

type grantAt struct {
	at      kernel.Instant
	n       int
	by      *Machine
	charged int // how many of them the other limit was charged
}

func (s *shared) ask(c *Machine, now kernel.Instant, op Op, n int) (a Answer) {
	req := Request{Op: op, N: n, Fixed: &Reading{Now: now, Own: true}}
	var changed bool
	if s.from, s.st, changed = c.StepFrom(s.from, s.st, &req, &a); a.Allowed && changed {
		s.grants = append(s.grants, grantAt{now, n, c, n})
	}
	return a
}

// alone returns how many events c grants if it is asked for one every step until end.
func alone(c *Machine, end, step kernel.Instant) int {
	s := shared{from: c, st: PlainState(c.NewState())}
	for now := begun; now < begun+end; now += step {
		s.ask(c, now, OpTake, 1)
	}
	return len(s.grants)
}

// TestFormer_NeitherStarves: two limits that are asked in any order grant in the long run no less than
// 0.9 of what the stricter grants alone.
func TestFormer_NeitherStarves(t *testing.T) {
	const step = 5 * ms
	long := 20 * second
	if budget.Nightly() {
		long = 60 * second
	}
	orders := map[string]func(asked int, rng *rand.Rand) int{ // which limit is asked next
		"one after the other": func(asked int, _ *rand.Rand) int { return asked % 2 },
		"each for a while":    func(asked int, _ *rand.Rand) int { return asked / int(3*second/step) % 2 },
		"at random":           func(_ int, rng *rand.Rand) int { return rng.IntN(2) },
	}
	for name, limits := range rivals(t) {
		stricter := min(alone(limits[0], long, step), alone(limits[1], long, step))
		for order, next := range orders {
			for seed := range budget.Seeds(t, 4) {
				rng := rand.New(rand.NewPCG(seed, 0))
				first, looks := limits[seed%2], seed%4 > 1
				s := shared{from: first, st: PlainState(first.NewState())}
				for asked := range int(long / step) {
					now, c := begun+kernel.Instant(asked)*step, limits[next(asked, rng)]
					if looks && rng.IntN(3) == 0 {
						s.ask(c, now, OpPeek, 1)
					}
					s.ask(c, now, OpTake, 1)
				}
				assert.GreaterOrEqual(t, len(s.grants), stricter*9/10, "%s, %s, seed %d", name, order, seed)
			}
		}
	}
}

// TestFormer_Debt: ten minutes of a higher rate beside a lower one, used up all the time, are soon paid when only
// the lower one is asked.
func TestFormer_Debt(t *testing.T) {
	enc := kernel.InMemory.Varying()
	bucket := func(events int) *Machine { return bucketOf(t, events, time.Second, events) }
	queue := func(events int) *Machine {
		k, err := kernel.NewLeakyBucket(events, time.Second, time.Second, events, enc, "")
		require.NoError(t, err)
		return NewMachine(k, enc)
	}
	interval := func(events int) *Machine { return NewMachine(kernel.NewIntervalBucket(events, events, second), enc) }
	warming := func(events int) *Machine {
		return NewMachine(kernel.NewWarmingUp(events, time.Second, time.Second, 3, enc), enc)
	}
	for name, tt := range map[string]struct {
		limit func(events int) *Machine
		most  time.Duration // RetryAfter: (burst + 1) / rate, or twice a burst if it comes back at once
	}{
		"token":    {bucket, 1100 * time.Millisecond},
		"leaky":    {queue, 1100 * time.Millisecond},
		"interval": {interval, 2 * time.Second},
		"warming":  {warming, 2500 * time.Millisecond}, // of 10 permits, 5 take twice as long when it was idle
	} {
		for _, how := range []Op{OpTake, OpCharge, OpReserve, OpHold} {
			low, high := tt.limit(10), tt.limit(100)
			s := keyOf(low)
			s.ask(low, begun, OpTake, 1)
			now, id, most := begun, uint64(0), tt.most
			if how == OpReserve {
				most += 10 * time.Millisecond // the latest one is for then
			}
			for ; now < begun+600*second; now += 100 * ms {
				id++
				req := Request{Op: how, N: 10, MaxWait: 10 * time.Millisecond}
				if how == OpHold {
					req.Hold = hour(id)
				}
				s.send(high, now, req)
				if id%5 == 0 { // or else the limit would go
					require.LessOrEqual(t, s.ask(low, now, OpTake, 1).RetryAfter, most, "%s, %d", name, how)
				}
				if how == OpHold { // the one before the last one
					s.send(high, now, Request{Op: OpSettle, N: 10, Of: 10, Hold: hour(id - 1)})
				}
			}
			now -= 100 * ms
			if how != OpHold {
				assert.LessOrEqual(t, s.from.FreshIn(s.st), now+uint64(most)+s.from.two.memory, "%s, %d: it stays until the former one goes", name, how)
			}
			a := s.ask(low, now, OpTake, 1)
			assert.False(t, a.Allowed, "%s, %d", name, how)
			assert.LessOrEqual(t, a.RetryAfter, most, "%s, %d", name, how)
			assert.GreaterOrEqual(t, a.RetryAfter, time.Second, "%s, %d: it owes what was granted last", name, how)
			assert.True(t, s.ask(low, now+uint64(a.RetryAfter), OpTake, 1).Allowed, "%s, %d", name, how)
		}
	}
}

// TestFormer_DebtOfItsOwn: what a bucket owes by itself is not less because another limit grants.
func TestFormer_DebtOfItsOwn(t *testing.T) {
	low, high := bucketOf(t, 10, time.Second, 10), bucketOf(t, 100, time.Second, 100)
	s := keyOf(high)
	s.ask(high, begun, OpCharge, 1)
	s.ask(low, begun, OpCharge, 50)
	retry := s.ask(low, begun, OpPeek, 1).RetryAfter
	require.Greater(t, retry, 3*time.Second)
	require.True(t, s.ask(high, begun, OpTake, 10).Allowed)
	assert.Equal(t, retry, s.ask(low, begun, OpPeek, 1).RetryAfter)
}

// TestFormer_HigherBurst: a limit that grants more than the former one, which it is similar to, counts what the present
// one has granted, too. Of that, no hold from before gives back anything.
func TestFormer_HigherBurst(t *testing.T) {
	low, high, next := bucketOf(t, 10, time.Second, 3), bucketOf(t, 100, time.Second, 20), bucketOf(t, 10, time.Second, 20)
	s := keyOf(low)
	s.ask(low, begun, OpTake, 1)
	require.True(t, s.ask(high, begun, OpTake, 19).Allowed)
	assert.Equal(t, 100*time.Millisecond, s.ask(next, begun, OpTake, 1).RetryAfter, "20 are granted")

	fast, slow, faster := bucketOf(t, 100, time.Second, 10), bucketOf(t, 10, time.Second, 20), bucketOf(t, 100, time.Second, 20)
	s = keyOf(fast)
	s.send(fast, begun, Request{Op: OpHold, N: 2, Hold: hour(1)})
	s.ask(slow, begun, OpTake, 10)
	now := begun + 60*ms // 11.4 are missing, or 6
	require.True(t, s.ask(faster, now, OpTake, 1).Allowed)
	require.Equal(t, 7, s.ask(faster, now, OpPeek, 1).Remaining)
	s.send(faster, now, Request{Op: OpSettle, Hold: hour(1)})
	assert.Equal(t, 7, s.ask(faster, now, OpPeek, 1).Remaining)
	assert.Equal(t, 9, s.ask(slow, now, OpPeek, 1).Remaining)
}

// TestFormer_DebtTakenBack: of a grant that a bucket has not counted in full, no more comes back than it has counted.
func TestFormer_DebtTakenBack(t *testing.T) {
	low, high := bucketOf(t, 10, time.Second, 10), bucketOf(t, 100, time.Second, 100)
	s := keyOf(low)
	s.ask(low, begun, OpTake, 1)
	s.ask(high, begun, OpTake, 15)
	require.Equal(t, 700*time.Millisecond, s.ask(low, begun, OpPeek, 1).RetryAfter)
	granted, _ := s.send(high, begun, Request{Op: OpHold, N: 50, Hold: hour(1)})
	require.True(t, granted.Allowed)
	require.Equal(t, 1100*time.Millisecond, s.ask(low, begun, OpPeek, 1).RetryAfter)
	require.Equal(t, 34, s.ask(high, begun, OpPeek, 1).Remaining)
	s.send(high, begun, Request{Op: OpSettle, Hold: hour(1)})
	assert.Equal(t, 84, s.ask(high, begun, OpPeek, 1).Remaining)
	assert.Equal(t, 1100*time.Millisecond, s.ask(low, begun, OpPeek, 1).RetryAfter)
}

// gainsOf returns how long a bucket that has just been emptied takes to gain each of its next events, for
// half a minute.
func gainsOf(c *Machine) (after []kernel.Instant) {
	st := c.Spend(c.NewState(), begun, c.Limit())
	for now := begun; now < begun+30*second; {
		now = c.Ready(st, now, 1)
		st = c.Spend(st, now, 1)
		after = append(after, now-begun)
	}
	return after
}

// bounded checks that no span that ends with a grant by a bucket has more events than that bucket grants
// in it: its Limit, and what comes back in the span. Of what the other limit has granted, those count that it was
// charged.
func bounded(t *testing.T, name string, limits [2]*Machine, grants []grantAt) {
	gains := map[*Machine][]kernel.Instant{limits[0]: gainsOf(limits[0]), limits[1]: gainsOf(limits[1])}
	most := func(c *Machine, span kernel.Instant) uint64 {
		if c.Kind() == "intervalBucket" { // the first refill may come at once
			span += gains[c][0]
		}
		gained := sort.Search(len(gains[c]), func(i int) bool { return gains[c][i] > span })
		require.Less(t, gained, len(gains[c]))
		return uint64(c.Limit() + gained)
	}
	for i, first := range grants {
		sums := map[*Machine]int{}
		for _, last := range grants[i:min(len(grants), i+500)] {
			for _, c := range limits {
				if c == last.by {
					sums[c] += last.n
				} else {
					sums[c] += min(last.n, last.charged)
				}
			}
			if sum := sums[last.by]; uint64(sum) > most(last.by, last.at-first.at) {
				t.Fatalf("%s: %d events in %d ns", name, sum, last.at-first.at)
			}
		}
	}
}

// TestFormer_ThereAndBack: whatever is asked of another limit, what counts under one still does.
func TestFormer_ThereAndBack(t *testing.T) {
	for name, limits := range rivals(t) {
		for i, c := range limits {
			other := limits[1-i]
			for _, ask := range []struct {
				op Op
				n  int
			}{{OpPeek, 1}, {OpTake, other.Limit()}, {OpTake, other.Limit() + 1}} {
				s := shared{from: c, st: PlainState(c.NewState())}
				used := (c.Limit() + 1) / 2
				require.True(t, s.ask(c, begun, OpTake, used).Allowed, name)
				const after = 5 * ms // nothing is idle yet
				a := s.ask(other, begun+after, ask.op, ask.n)
				want := shared{from: c, st: PlainState(c.NewState())}
				want.ask(c, begun, OpTake, used)
				if a.Allowed && ask.op == OpTake {
					want.ask(c, begun+after, OpCharge, ask.n)
				}
				for later := range kernel.Instant(4) {
					now := begun + after + later*second/4
					got, want := s.ask(c, now, OpPeek, 1), want.ask(c, now, OpPeek, 1)
					assert.Equal(t, want, got, "%s %d: %+v, later %d", name, i, ask, later)
				}
			}
		}
	}
}

// TestFormer_RetryAfter: one tick earlier, the same request is still denied; then it is granted.
func TestFormer_RetryAfter(t *testing.T) {
	for name, limits := range rivals(t) {
		denied := 0
		for seed := range budget.Seeds(t, budget.Histories(75, 300)) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := shared{from: limits[0], st: PlainState(limits[0].NewState())}
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
					then := shared{from: s.from, st: s.st.Clone()}
					b := then.ask(c, now+uint64(a.RetryAfter)-early, OpTake, n)
					require.Equal(t, early == 0, b.Allowed, "%s, seed %d: %v after %d ms", name, seed, a.RetryAfter, (now-begun)/ms)
				}
				rest := shared{from: s.from, st: s.st.Clone()}
				if left := rest.ask(c, now, OpPeek, 1).Remaining; left > 0 {
					assert.True(t, rest.ask(c, now, OpTake, left).Allowed, name)
				}
			}
		}
		assert.Positive(t, denied, name)
	}
}

// TestFormer_DenialForfeitsNothing: what a hold gives back in a bucket that owes its burst is the same
// after the other limit has denied.
func TestFormer_DenialForfeitsNothing(t *testing.T) {
	first, second := bucketOf(t, 1, 2*time.Second, 2), bucketOf(t, 1, 3*time.Second, 1)
	s := shared{from: first, st: PlainState(first.NewState())}
	s.send(first, begun, Request{Op: OpHold, N: 1, Hold: Handle{ID: 1, For: time.Second, Back: true}})
	s.ask(second, begun, OpCharge, 1)
	before := s.ask(second, begun, OpPeek, 1).RetryAfter
	require.Equal(t, 3*time.Second, before)
	require.False(t, s.ask(first, begun, OpTake, 1).Allowed)
	assert.Equal(t, before, s.ask(second, begun, OpPeek, 1).RetryAfter)
}

// bucketOf returns a TokenBucket.
func bucketOf(t *testing.T, events int, per time.Duration, burst int) *Machine {
	k, err := kernel.NewTokenBucket(events, per, per, burst, kernel.InMemory.Varying(), "")
	require.NoError(t, err)
	return NewMachine(k, kernel.InMemory.Varying())
}

func logOf(limit int, window uint64) *Machine {
	return NewMachine(kernel.NewSlidingLog(limit, window, false), kernel.InMemory.Varying())
}

// TestFormer_Third: a limit that is neither the present nor the former one adopts the level of the one
// that was asked last, and nothing else.
func TestFormer_Third(t *testing.T) {
	a, b, c := bucketOf(t, 4, 10*time.Second, 1), bucketOf(t, 2, 20*time.Second, 2), bucketOf(t, 3, 10*time.Second, 1)
	s := shared{from: a, st: PlainState(a.NewState())}
	require.True(t, s.ask(a, begun, OpTake, 1).Allowed)
	require.True(t, s.ask(b, begun, OpTake, 1).Allowed)
	denied := s.ask(c, begun+5*second, OpTake, 1)
	assert.Equal(t, Answer{Decision: Decision{Limit: 1, RetryAfter: 5 * time.Second, ResetAfter: 5 * time.Second}, Idle: denied.Idle}, denied)
	assert.False(t, s.ask(c, begun+10*second-1, OpTake, 1).Allowed)
	assert.True(t, s.ask(c, begun+10*second, OpTake, 1).Allowed)
	assert.Equal(t, []*Machine{b, c}, s.from.Limits())

	// What the former one remembers, a third one does not.
	s = shared{from: logOf(10, 3600*second), st: PlainState(nil)}
	s.ask(s.from, begun, OpTake, 10)
	s.ask(logOf(10, second), begun+2*second, OpTake, 1)
	assert.Equal(t, 9, s.ask(logOf(10, 7200*second), begun+2*second, OpPeek, 1).Remaining)
}

// TestFormer_ThreeInTurns: not even three limits that are asked in turns starve the key.
func TestFormer_ThreeInTurns(t *testing.T) {
	for name, create := range map[string]func(n uint64) kernel.Kernel{
		"fixed": func(n uint64) kernel.Kernel {
			return kernel.NewFixedWindow(int(10*n), n*second, n%2 == 0, kernel.InMemory.Varying())
		},
		"interval": func(n uint64) kernel.Kernel { return kernel.NewIntervalBucket(int(10*n), int(10*n), n*second) },
		"rolling":  func(n uint64) kernel.Kernel { return kernel.NewRollingWindow(10, 0, 2*n, second/2/n) },
	} {
		var limits []*Machine
		for n := range uint64(3) {
			limits = append(limits, NewMachine(create(n+1), kernel.InMemory.Varying()))
		}
		s := shared{from: limits[0], st: PlainState(limits[0].NewState())}
		for turn := range 12_000 {
			s.ask(limits[turn%len(limits)], begun+uint64(turn)*5*ms, OpTake, 1)
		}
		assert.GreaterOrEqual(t, len(s.grants), 60*10*9/10, name)
	}
}

// TestFormer_Goes: the former limit goes when it was not asked for as long as either remembers, whether the
// key is idle or not, and not before a time that it has named. Until then, its log is bounded.
func TestFormer_Goes(t *testing.T) {
	for name, limits := range rivals(t) {
		s := shared{from: limits[0], st: PlainState(limits[0].NewState())}
		s.ask(limits[0], begun, OpTake, 1)
		s.ask(limits[1], begun+ms, OpTake, 1)
		require.Len(t, s.from.Limits(), 2, name)
		memory := s.from.two.memory
		for now := begun; now < begun+memory; now += memory / 500 {
			s.ask(limits[1], now, OpTake, 1)
			require.Len(t, s.from.Limits(), 2, "%s after %d ms", name, (now-begun)/ms)
		}
		for now := begun + memory; now < begun+3*memory; now += memory / 500 {
			s.ask(limits[1], now, OpTake, 1)
		}
		assert.Equal(t, limits[1], s.from, name)
	}
	slow, fast := logOf(10, 3600*second), logOf(100, second)
	s := shared{from: slow, st: PlainState(slow.NewState())}
	s.ask(slow, begun, OpTake, 1)
	for now := begun; now < begun+60*second; now += 20 * ms {
		require.True(t, s.ask(fast, now, OpTake, 1).Allowed)
	}
	assert.Less(t, len(s.st.Words), 300)
	assert.Equal(t, time.Duration(3600*second-200*ms), s.ask(slow, begun+60*second, OpTake, 1).RetryAfter, "as if it had all")

	// A denial is asking. It changes the state once after a grant, and seldom otherwise.
	s = shared{from: slow, st: PlainState(slow.NewState())}
	s.ask(slow, begun, OpTake, 10)
	changes := 0
	for i := range kernel.Instant(1000) {
		s.ask(fast, begun+i*10*second, OpTake, 1)
		require.False(t, s.ask(slow, begun+i*10*second, OpTake, 1).Allowed)
		before := s.st.Clone()
		require.False(t, s.ask(slow, begun+i*10*second, OpTake, 1).Allowed)
		require.False(t, s.ask(fast, begun+i*10*second, OpTake, 100).Allowed)
		if !slices.Equal(before.Words, s.st.Words) {
			changes++
		}
	}
	assert.Equal(t, []*Machine{slow, fast}, s.from.Limits())
	assert.Less(t, changes, 10)

	// It stays until the time that it has named, although it does not remember anything for so long.
	a, b := bucketOf(t, 1, time.Second, 1), bucketOf(t, 100, time.Second, 100)
	s = shared{from: a, st: PlainState(a.NewState())}
	s.ask(a, begun, OpTake, 1)
	s.ask(b, begun, OpTake, 99)
	require.Equal(t, 2*time.Second, s.ask(a, begun, OpTake, 1).RetryAfter)
	s.ask(b, begun+2*second-1, OpTake, 0)
	require.False(t, s.ask(a, begun+2*second-1, OpTake, 1).Allowed)
	assert.True(t, s.ask(a, begun+2*second, OpTake, 1).Allowed)
}

// TestFormer_Present: what names no limit is answered by the one that granted last, whatever was asked since.
func TestFormer_Present(t *testing.T) {
	a, b := logOf(10, second), logOf(20, 2*second)
	s := shared{from: a, st: PlainState(a.NewState())}
	limit := func(now kernel.Instant) int {
		asked, _ := s.send(logOf(30, second), now, Request{Op: OpSettle, Hold: hour(9)})
		return asked.Limit
	}
	s.ask(a, begun, OpTake, 10)
	s.ask(b, begun, OpTake, 21)
	assert.Equal(t, 10, limit(begun))
	s.ask(b, begun, OpTake, 1)
	s.ask(a, begun, OpTake, 1)
	assert.Equal(t, 20, limit(begun))
	s.ask(b, begun+2*second-1, OpTake, 9)
	s.ask(a, begun+2*second-1, OpTake, 1)
	assert.Equal(t, 10, limit(begun+2*second-1))
	s.ask(b, begun+2*second-1, OpTake, 100)
	s.ask(b, begun+2*second-1, OpPeek, 1)
	assert.Equal(t, 10, limit(begun+2*second-1))
}

// TestFormer_Valid: whatever is Valid does no harm.
func TestFormer_Valid(t *testing.T) {
	for name, limits := range rivals(t) {
		s := shared{from: limits[0], st: PlainState(limits[0].NewState())}
		s.ask(limits[0], begun, OpTake, 1)
		s.ask(limits[1], begun+ms, OpTake, 1)
		valid := 0
		for i := range s.st.Words {
			if i < formerHeader {
				assert.False(t, s.from.ValidIn(State{s.st.Words[:i], s.st.Form}), "%s: the first %d words", name, i)
			}
			for _, to := range []uint64{0, 1, s.st.Words[i] + 1, 1 << 52, kernel.MaxInstant, 1 << 63, kernel.Forever} {
				mangled := shared{from: s.from, st: s.st.Clone()}
				if mangled.st.Words[i] = to; !s.from.ValidIn(mangled.st) {
					continue
				}
				valid++
				for j := range kernel.Instant(4) {
					mangled.ask(limits[j%2], begun+j*second, OpTake, 1)
				}
				if !strings.Contains(name, "leaky") { // whose turns may end after MaxInstant
					assert.True(t, mangled.from.ValidIn(mangled.st), "%s: word %d is %d", name, i, to)
				}
			}
		}
		assert.Positive(t, valid, name)
	}
}
