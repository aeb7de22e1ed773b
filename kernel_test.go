package ratelimit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func kernelOf(t testing.TB, alg Algorithm) kernel {
	t.Helper()
	_, k, err := compile(alg, inMemory)
	require.NoError(t, err)
	return k
}

// TestFigureWeightedPair is the example of the definition: 9 before, 5 now, a
// quarter in, limit 10: 9·0.75 + 5 = 11.75, refused.
func TestFigureWeightedPair(t *testing.T) {
	const w = uint64(time.Minute)
	k := kernelOf(t, SlidingWindow{Limit: 10, Window: time.Minute})
	st := k.spend(make([]uint64, k.width()), 7*w, 9)
	now := 8*w + w/4
	st = k.spend(st, now, 5)
	assert.Zero(t, k.room(st, now))
	// 9·(1−e) + 5 + 1 ≤ 10 from e = 5/9 on: 33⅓ s.
	assert.Equal(t, 8*w+33_333_333_334, k.ready(st, now, 1))
	// Compared exactly, not after flooring: ⌊9·0.75⌋ + 1 + 3 = 10 would fit, 10.75 does not.
	st = k.spend(make([]uint64, k.width()), 7*w, 9)
	st = k.spend(st, now, 1)
	assert.Equal(t, 2, k.room(st, now))
	assert.Greater(t, k.ready(st, now, 3), now)
}

// TestWidths holds the table of docs/design.md, and what each algorithm's
// documentation says a key costs.
func TestWidths(t *testing.T) {
	for _, tt := range []struct {
		alg   Algorithm
		words int
	}{
		{TokenBucket{Rate: PerSecond(10)}, 1},
		{TokenBucket{Rate: PerMinute(60)}, 1},
		{TokenBucket{Rate: PerSecond(3), Burst: 1e9}, 1}, // thirds of a nanosecond
		{TokenBucket{Rate: PerSecond(60)}, 1},            // thirds too
		{TokenBucket{Rate: PerSecond(7)}, 2},             // sevenths
		{TokenBucket{Rate: PerDay(1), Burst: 50_000}, 1}, // 137 years to fill
		{TokenBucket{Rate: PerDay(1), Burst: 60_000}, 2}, // 164 years
		{TokenBucket{Rate: PerSecond(1), Refill: RefillInterval}, 2},
		{LeakyBucket{Rate: PerSecond(10), Capacity: 10}, 1},
		{FixedWindow{Limit: 1e9, Window: time.Second}, 1},
		{FixedWindow{Limit: math.MaxInt32, Window: time.Microsecond}, 2},
		{FixedWindow{Limit: 3, Window: 1}, 2}, // the last of one word would be gone
		{FixedWindow{Limit: 10, Window: time.Second, Start: StartOnFirstEvent}, 2},
		{SlidingWindow{Limit: 10, Window: time.Minute}, 2},
		{SlidingWindow{Limit: 10, Window: time.Minute, Segments: 60}, 1 + 31},
		{RollingWindow{Quota: 10_000, Window: 24 * time.Hour, Period: time.Hour}, 1 + 12},
		{SlidingLog{Limit: 10, Window: time.Second}, 0},
		{WarmingUp{Rate: PerSecond(10), Warmup: time.Second}, 2},
		{All{TokenBucket{Rate: PerSecond(10)}, RollingWindow{Quota: 4, Window: 2, Period: 1}}, 1 + 2},
		{All{TokenBucket{Rate: PerSecond(10)}, SlidingLog{Limit: 4, Window: 2}}, 0},
	} {
		assert.Equal(t, tt.words, kernelOf(t, tt.alg).width(), "%T%+v", tt.alg, tt.alg)
	}
}

// TestWidthOfHugeLimits has the rows of the table that a 32-bit int cannot name.
func TestWidthOfHugeLimits(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		return
	}
	below, above := int64(math.MaxUint32), int64(math.MaxUint32+1)
	assert.Equal(t, 2, kernelOf(t, SlidingWindow{Limit: int(below), Window: time.Minute}).width())
	assert.Equal(t, 3, kernelOf(t, SlidingWindow{Limit: int(above), Window: time.Minute}).width())
	assert.Equal(t, 1+24, kernelOf(t, RollingWindow{Quota: int(above), Window: 24 * time.Hour, Period: time.Hour}).width())
}

// TestLogGrowsWithUse checks that the memory of a SlidingLog follows what is
// in the window, not Limit, and that it does not keep what has left it.
func TestLogGrowsWithUse(t *testing.T) {
	k := kernelOf(t, SlidingLog{Limit: math.MaxInt, Window: time.Second})
	var st []uint64
	for i := range uint64(1000) {
		st = k.spend(st, i, 1)
	}
	assert.Len(t, st, logHeader+1000, "a word for each event")
	assert.Equal(t, math.MaxInt-1000, k.room(st, 1000))
	grown := cap(st)

	st = k.spend(st, uint64(time.Second)+998, 5)
	assert.Len(t, st, logHeader+1+2, "one left, and two words for five at once")
	assert.Less(t, cap(st), grown/2, "memory is given back")

	now := uint64(time.Hour)
	for range 100_000 { // a steady flow of about 100 in the window
		now += uint64(10 * time.Millisecond)
		st = k.spend(st, now, 1)
		require.LessOrEqual(t, len(st), logHeader+2*100+2)
	}
	require.LessOrEqual(t, cap(st), 1024)
}

// TestLogKeepsRefusedThatMatter checks that refused events do not grow a log
// beyond its limit.
func TestLogKeepsRefusedThatMatter(t *testing.T) {
	k := kernelOf(t, SlidingLog{Limit: 10, Window: time.Second, CountDenied: true})
	st := k.spend(nil, 1, 10)
	for i := range uint64(10_000) {
		var changed bool
		st, changed = k.refuse(st, 2+i, 1+int(i%10))
		require.True(t, changed)
		require.LessOrEqual(t, st[0], uint64(10+20), "those before, and those at one instant")
		require.LessOrEqual(t, len(st), logHeader+2*(2*10))
	}
}

// TestExtremes drives every kernel at the ends of the integers: nothing
// panics, and the answers stay within their bounds.
func TestExtremes(t *testing.T) {
	const huge = math.MaxInt
	const long = time.Duration(math.MaxInt64)
	var algorithms []Algorithm
	for _, events := range []int{1, 2, 3, 7, 1e9, huge - 1, huge} {
		for _, span := range []time.Duration{1, 2, 3, time.Second, 1e18 + 3, long - 1, long} {
			rate := Rate{events, span}
			for _, size := range []int{1, 2, 1e9 + 7, huge - 1, huge} {
				algorithms = append(algorithms,
					TokenBucket{Rate: rate, Burst: size},
					TokenBucket{Rate: rate, Burst: size, Refill: RefillInterval},
					LeakyBucket{Rate: rate, Capacity: size},
					FixedWindow{Limit: size, Window: span},
					FixedWindow{Limit: size, Window: span, Start: StartOnFirstEvent},
					SlidingWindow{Limit: size, Window: span},
					SlidingLog{Limit: size, Window: span},
					SlidingLog{Limit: size, Window: span, CountDenied: true},
					RollingWindow{Quota: size, Window: span, Period: span, PeriodLimit: events},
				)
			}
			for _, factor := range []float64{1, 3, math.MaxInt32} {
				algorithms = append(algorithms, WarmingUp{Rate: rate, Warmup: span, ColdFactor: factor},
					WarmingUp{Rate: rate, Warmup: 1, ColdFactor: factor})
			}
		}
	}
	for _, span := range []time.Duration{1 << 20, 1 << 62} {
		algorithms = append(algorithms,
			SlidingWindow{Limit: huge, Window: span, Segments: 1 << 10},
			RollingWindow{Quota: huge, Window: span, Period: span / (1 << 10), PeriodLimit: huge - 1})
	}
	instants := []instant{0, 1, uint64(time.Second), 1_800_000_000e9 + 1, maxInstant - 1, maxInstant}
	for _, alg := range algorithms {
		k := kernelOf(t, alg)
		limit := k.limit()
		require.Positive(t, limit, "%T%+v", alg, alg)
		for _, first := range instants {
			st := make([]uint64, k.width())
			for _, now := range instants {
				if now < first {
					continue
				}
				for _, n := range []int{1, limit/2 + 1, limit} {
					room := k.room(st, now)
					require.GreaterOrEqual(t, room, 0, "%T%+v", alg, alg)
					require.LessOrEqual(t, room, limit, "%T%+v", alg, alg)
					at := k.ready(st, now, n)
					require.GreaterOrEqual(t, at, now, "%T%+v", alg, alg)
					require.Equal(t, at == now, n <= room, "%T%+v: %d at %d: room %d, ready %d", alg, alg, n, now, room, at)
					if at > now && at <= maxInstant {
						require.LessOrEqual(t, n, k.room(st, at), "%T%+v: %d at %d, ready at %d", alg, alg, n, now, at)
						require.Greater(t, n, k.room(st, at-1), "%T%+v: %d at %d, ready before %d", alg, alg, n, now, at)
					}
					if at == now {
						st = k.spend(st, now, n)
						require.Greater(t, k.fresh(st), now, "%T%+v", alg, alg)
					}
				}
			}
			if fresh := k.fresh(st); fresh <= maxInstant {
				require.Equal(t, limit, k.room(st, fresh), "%T%+v: not fresh at %d", alg, alg, fresh)
			}
		}
	}
}

// TestFreshWaitsForTheFrontier checks that a key is not forgotten before the
// latest instant that was told, even if all that counts is gone before.
func TestFreshWaitsForTheFrontier(t *testing.T) {
	for _, alg := range []Algorithm{
		FixedWindow{Limit: 10, Window: time.Second},
		SlidingWindow{Limit: 10, Window: time.Second},
		RollingWindow{Quota: 10, Window: time.Second, Period: time.Second},
		SlidingLog{Limit: 10, Window: time.Second},
	} {
		k := kernelOf(t, alg)
		st := k.spend(make([]uint64, k.width()), 10, 10)
		var line []*waiter
		for range 3 {
			g := &grant{by: k, n: 3}
			g.at = k.ready(st, 10, g.n)
			g.due = g.at
			st, g.traces = k.reserve(st, 10, g.at, g.n, nil)
			line = append(line, &waiter{grant: g, parts: make([]progress, 1)})
		}
		for _, w := range line[:2] { // the last one stays
			w.asked = true
			v := view{kernel: k, now: 10, tick: 1}
			var out any
			st, _, out = v.undo(st, &cancellation{line: line})
			for w, to := range out.(*undone).done[0] {
				w.parts[0] = to
			}
			w.asked, w.cancelled = false, true
		}
		assert.GreaterOrEqual(t, k.fresh(st), line[2].at, "%T", alg)
		assert.GreaterOrEqual(t, k.ready(st, 10, 1), line[2].at, "%T: nobody gets ahead", alg)
	}
}

func TestInstantOf(t *testing.T) {
	for _, at := range []time.Time{
		{}, // year 1
		time.Date(1969, 12, 31, 23, 59, 59, 5, time.UTC),
		time.Date(2100, 1, 1, 0, 0, 0, 7, time.UTC),
		time.Date(3000, 6, 1, 12, 0, 0, 0, time.UTC),
		time.Date(-4000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got := instantOf(at)
		assert.LessOrEqual(t, got, maxInstant, at)
		shown := time.Unix(0, int64(got)).UTC()
		assert.Equal(t, at.Weekday(), shown.Weekday(), at)
		assert.Equal(t, at.Format("15:04:05.000000000"), shown.Format("15:04:05.000000000"), at)
	}
	for _, at := range []time.Time{time.Unix(0, 0), time.Unix(0, 1), time.Date(2099, 12, 31, 23, 59, 59, 999_999_999, time.UTC)} {
		assert.EqualValues(t, at.UnixNano(), instantOf(at), at)
	}
}

// TestClockBehind checks that the durations told while a clock is behind an
// earlier reading include the gap.
func TestClockBehind(t *testing.T) {
	l, _, clk := newTestLimiter(t, All{
		TokenBucket{Rate: PerSecond(1), Burst: 2},
		LeakyBucket{Rate: PerSecond(1), Capacity: 2},
	})
	require.True(t, l.Allow("key"))
	clk.advance(-time.Hour)
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, Decision{Allowed: true, Limit: 2, ResetAfter: time.Hour + 2*time.Second, Delay: time.Hour + time.Second}, d)
	d, err = l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, time.Hour+time.Second, d.RetryAfter)
	clk.advance(time.Hour + time.Second)
	assert.True(t, l.Allow("key"))

	// Time goes on, more and more slowly towards its end, and nothing panics.
	before, _ := l.timeline.now()
	for range 100 {
		clk.advance(200 * 365 * 24 * time.Hour)
		l.Allow("key")
		now, _ := l.timeline.now()
		require.GreaterOrEqual(t, now, before)
		require.LessOrEqual(t, now, maxInstant)
		before = now
	}
	assert.Greater(t, before, maxInstant-2*week)
	clk.advance(-290 * 365 * 24 * time.Hour)
	l.Allow("key")
}

func TestApplyRefusesNonsense(t *testing.T) {
	at := time.Unix(1, 0)
	for _, alg := range everyWidth {
		tr, err := NewTransition(alg)
		require.NoError(t, err)
		for _, req := range []Request{{N: 1}, Request{N: -1}.At(at), Request{Op: OpReturn + 1}.At(at)} {
			_, _, _, err := tr.Apply(nil, req)
			assert.ErrorIs(t, err, ErrInvalid)
		}
		for _, size := range []int{1, 7, 9, 8 * 999} {
			state := make([]byte, size)
			for i := range state {
				state[i] = 0xff
			}
			_, _, res, err := tr.Apply(state, Request{N: 1}.At(at))
			require.NoError(t, err)
			assert.ErrorIs(t, res.StateErr(), ErrState, "%T, %d bytes", alg, size)
		}
	}
}

// FuzzApply gives transitions states that anybody may have written: they are
// refused or worked with, and nothing panics.
func FuzzApply(f *testing.F) {
	algorithms := append([]Algorithm{
		TokenBucket{Rate: PerSecond(7)},
		TokenBucket{Rate: PerSecond(7), Refill: RefillInterval},
		FixedWindow{Limit: 7, Window: time.Second},
		FixedWindow{Limit: 7, Window: time.Second, Start: StartOnFirstEvent},
		SlidingWindow{Limit: 7, Window: time.Second},
		RollingWindow{Quota: 7, Window: time.Second, Period: time.Second / 4, PeriodLimit: 3},
		SlidingLog{Limit: 7, Window: time.Second, CountDenied: true},
		WarmingUp{Rate: PerSecond(7), Warmup: time.Second},
	}, everyWidth...)
	transitions := make([]*Transition, len(algorithms))
	for i, alg := range algorithms {
		t, err := NewTransition(alg)
		require.NoError(f, err)
		transitions[i] = t
		var state []byte
		for n := range 3 {
			state, _, _, err = t.Apply(state, Request{N: 1}.At(time.Unix(int64(n), 5)))
			require.NoError(f, err)
			f.Add(i, state, 1, int64(n))
		}
	}
	f.Fuzz(func(t *testing.T, which int, state []byte, n int, sec int64) {
		tr := transitions[uint(which)%uint(len(transitions))]
		for op := OpTake; op <= OpReserve; op++ {
			req := Request{Op: op, N: max(0, n), MaxWait: Never}.At(time.Unix(sec, 0))
			if op == OpReserve {
				req.N = max(1, n)
			}
			_, _, res, err := tr.Apply(state, req)
			if err == nil {
				require.LessOrEqual(t, res.Decision.Remaining, tr.kernel.limit())
				require.GreaterOrEqual(t, res.Decision.Remaining, 0)
			}
		}
	})
}
