package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/storetest"
)

var ctx = context.Background()

// midnight is when most tests begin: the start of a minute, an hour and a day.
var midnight = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// at returns a limiter on a clock that shows midnight.
func at(t testing.TB, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, *storetest.Clock) {
	t.Helper()
	clk := storetest.NewClock(midnight)
	l, err := ratelimit.New(alg, append([]ratelimit.Option{ratelimit.WithClock(clk)}, opts...)...)
	require.NoError(t, err)
	return l, clk
}

func take(t testing.TB, l ratelimit.Limiter, n int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(ctx, "key", n)
	require.NoError(t, err)
	return d
}

// The figures below are those of the descriptions that the algorithms were
// first written down in, or that people know them by.

func TestFigureSixtyTokensEverySixtySeconds(t *testing.T) {
	l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60), Refill: ratelimit.RefillInterval})
	clk.Advance(7 * time.Second) // the refills come after the first event, not on the minute
	for i := range 60 {
		require.True(t, l.Allow("key"), "event %d", i)
		clk.Advance(500 * time.Millisecond)
	}
	// 30 s after the first event all are spent, and nothing trickles in.
	assert.Equal(t, ratelimit.Decision{Limit: 60, RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}, take(t, l, 1))
	clk.Advance(30*time.Second - 1)
	assert.Equal(t, time.Duration(1), take(t, l, 60).RetryAfter)
	clk.Advance(1)
	assert.True(t, l.AllowN("key", 60))
	assert.False(t, l.Allow("key"))
}

func TestFigureTenThousandPerRollingDay(t *testing.T) {
	l, clk := at(t, ratelimit.RollingWindow{Quota: 10_000, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 1000})
	for hour := range 10 {
		require.True(t, l.AllowN("key", 1000), "hour %d", hour)
		require.False(t, l.Allow("key"), "hour %d", hour)
		clk.Advance(time.Hour)
	}
	for hour := 10; hour < 24; hour++ {
		require.False(t, l.Allow("key"), "hour %d", hour)
		require.Equal(t, time.Duration(24-hour)*time.Hour, take(t, l, 1).RetryAfter)
		clk.Advance(time.Hour)
	}
	for hour := 24; hour < 34; hour++ {
		require.True(t, l.AllowN("key", 1000), "hour %d", hour)
		require.False(t, l.Allow("key"), "hour %d", hour)
		clk.Advance(time.Hour)
	}
}

// The figure itself, 9·0.75 + 5 = 11.75 > 10, is in TestFigureWeightedPair of
// the kernel: no grant under a limit of 10 leads there. Under one of 13 it does.
func TestFigureWeightedPairOfWindows(t *testing.T) {
	for limit, fits := range map[int]bool{12: false, 13: true} {
		l, clk := at(t, ratelimit.SlidingWindow{Limit: limit, Window: time.Minute})
		require.True(t, l.AllowN("key", 9))
		clk.Advance(time.Minute)
		require.True(t, l.AllowN("key", 3))
		clk.Advance(15 * time.Second) // a quarter in: 9·0.75 + 3 = 9.75
		require.True(t, l.AllowN("key", 2))
		assert.Equal(t, fits, l.Allow("key"), "11.75 + 1 under a limit of %d", limit)
	}
}

func TestFigureLeakyBucketSpacesABurst(t *testing.T) {
	l, _ := at(t, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 10})
	for i := range 20 {
		d := take(t, l, 1)
		if i < 10 {
			assert.True(t, d.Allowed)
			assert.Equal(t, time.Duration(i)*500*time.Millisecond, d.Delay)
		} else {
			assert.False(t, d.Allowed)
			assert.Equal(t, 500*time.Millisecond, d.RetryAfter)
		}
	}
}

func TestFigureTenPerSecondIsOneEach100ms(t *testing.T) {
	l, clk := at(t, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)})
	for ms := range 1000 {
		assert.Equal(t, ms%100 == 0, l.Allow("key"), "%d ms", ms)
		clk.Advance(time.Millisecond)
	}
}

func TestFigureEntryOneWindowOldNoLongerCounts(t *testing.T) {
	l, clk := at(t, ratelimit.SlidingLog{Limit: 1, Window: time.Second})
	require.True(t, l.Allow("key"))
	clk.Advance(time.Second - 1)
	assert.Equal(t, time.Duration(1), take(t, l, 1).RetryAfter)
	clk.Advance(1)
	assert.True(t, l.Allow("key"))
}

func TestFigureGuavaWarmsUp(t *testing.T) {
	l, clk := at(t, ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: time.Second})
	trace := ""
	for range 10 {
		trace += map[bool]string{true: "T", false: "F"}[l.Allow("key")]
		clk.Advance(250 * time.Millisecond)
	}
	assert.Equal(t, "TFFFFFTFFF", trace)

	// 100 a second, 3 s to warm up: 150 cold permits take 3 s, the next 150 1.5 s.
	l, clk = at(t, ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second})
	assert.Equal(t, 300, peek(t, l).Limit)
	require.True(t, l.AllowN("key", 150))
	assert.Equal(t, 3*time.Second, take(t, l, 1).RetryAfter)
	clk.Advance(3 * time.Second)
	require.True(t, l.AllowN("key", 150))
	assert.Equal(t, 1500*time.Millisecond, take(t, l, 1).RetryAfter)
}

func TestFigureFixedWindowDoublesAtTheBorder(t *testing.T) {
	l, clk := at(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute})
	clk.Advance(time.Minute - 1)
	require.True(t, l.AllowN("key", 5))
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5), "the documented worst case")

	l, clk = at(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute, Start: ratelimit.StartOnFirstEvent})
	clk.Advance(time.Minute - 1)
	require.True(t, l.AllowN("key", 5))
	clk.Advance(time.Minute - 1)
	require.False(t, l.Allow("key"))
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5))
}

// TestSlidingWindowWorstCase measures what the documentation admits: in any
// span of Window·(1−1/Segments) at most Limit, in any of Window less than
// twice that; and that the latter happens.
func TestSlidingWindowWorstCase(t *testing.T) {
	budget.Alone(t)
	const limit, window = 10, 60
	for segments := 1; segments <= 6; segments++ {
		worst := 0
		for first := range 60 { // when the first burst comes
			l, clk := at(t, ratelimit.SlidingWindow{Limit: limit, Window: window * time.Second, Segments: segments})
			var granted []time.Time
			clk.Advance(time.Duration(first) * time.Second)
			for range 20 * window { // then greedily, ten times a second
				for l.Allow("key") {
					granted = append(granted, clk.Now())
				}
				clk.Advance(100 * time.Millisecond)
			}
			exact := window * time.Second * time.Duration(segments-1) / time.Duration(segments)
			assert.LessOrEqual(t, most(granted, exact), limit, "%d segments", segments)
			worst = max(worst, most(granted, window*time.Second))
		}
		assert.Less(t, worst, 2*limit, "%d segments", segments)
		assert.GreaterOrEqual(t, worst, 2*limit-2, "%d segments: the bound is not as bad as documented", segments)
	}
}

// most returns the most instants in any span of length d, its start excluded.
func most(instants []time.Time, d time.Duration) (n int) {
	from := 0
	for to, last := range instants {
		for last.Sub(instants[from]) >= d && from < to {
			from++
		}
		n = max(n, to-from+1)
	}
	return n
}

func peek(t testing.TB, l ratelimit.Limiter) ratelimit.Decision {
	t.Helper()
	d, err := l.Peek(ctx, "key")
	require.NoError(t, err)
	return d
}

func TestNegativeAndZero(t *testing.T) {
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	require.True(t, l.AllowN("key", 2))

	_, err := l.Take(ctx, "key", -3)
	assert.ErrorIs(t, err, ratelimit.ErrNegative)
	assert.ErrorContains(t, err, "-3")
	_, err = l.Reserve(ctx, "key", math.MinInt)
	assert.ErrorIs(t, err, ratelimit.ErrNegative)
	assert.ErrorIs(t, l.WaitN(ctx, "key", -1), ratelimit.ErrNegative)
	assert.False(t, l.AllowN("key", -1))

	d := take(t, l, 0)
	assert.True(t, d.Allowed, "0 events are always granted")
	assert.Zero(t, d.Remaining)
	assert.NoError(t, l.WaitN(ctx, "key", 0))
	r, err := l.Reserve(ctx, "key", 0)
	require.NoError(t, err)
	assert.Zero(t, r.Delay())
	r.Cancel()
	assert.Equal(t, d.ResetAfter, peek(t, l).ResetAfter)
}

func TestNever(t *testing.T) {
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	d := take(t, l, 3)
	assert.Equal(t, ratelimit.Decision{Limit: 2, Remaining: 2, RetryAfter: ratelimit.Never}, d)
	assert.ErrorIs(t, l.WaitN(ctx, "key", 3), ratelimit.ErrNever)
	_, err := l.Reserve(ctx, "key", 3)
	assert.ErrorIs(t, err, ratelimit.ErrNever)
	assert.ErrorContains(t, err, "3 at once with a limit of 2")
}

func TestEndedContextSpendsNothing(t *testing.T) {
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	ended, cancel := context.WithCancel(ctx)
	cancel()
	d, err := l.Take(ended, "key", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, d.Allowed)
	_, err = l.Peek(ended, "key")
	assert.ErrorIs(t, err, context.Canceled)
	_, err = l.Reserve(ended, "key", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, l.Wait(ended, "key"), context.Canceled)
	assert.ErrorIs(t, l.Reset(ended, "key"), context.Canceled)
	assert.Equal(t, 2, peek(t, l).Remaining)
}

func TestReserveTellsItsTurn(t *testing.T) {
	l, clk := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	var line []*ratelimit.Reservation
	for i := range 4 {
		r, err := l.Reserve(ctx, "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Duration(i)*time.Second, r.Delay())
		line = append(line, r)
	}
	clk.Advance(1500 * time.Millisecond)
	assert.Zero(t, line[1].Delay(), "its turn has come")
	assert.Equal(t, 500*time.Millisecond, line[2].Delay())
	line[1].Cancel() // too late: it counts as having happened
	assert.Equal(t, 2500*time.Millisecond, take(t, l, 1).RetryAfter)
	line[3].Cancel() // the last in the line gives its place back
	line[3].Cancel()
	assert.Equal(t, 1500*time.Millisecond, take(t, l, 1).RetryAfter)
}

// A window forgets a reservation that is cancelled in the middle of the line.
func TestCancelInTheMiddle(t *testing.T) {
	l, clk := at(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute})
	require.True(t, l.AllowN("key", 3))
	first, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)
	second, err := l.Reserve(ctx, "key", 2)
	require.NoError(t, err)
	require.Equal(t, time.Minute, second.Delay())
	first.Cancel()
	clk.Advance(time.Minute)
	assert.Equal(t, 1, peek(t, l).Remaining)
}

// TestCancelNeverForgivesWhatHappened cancels reservations in every order and
// checks that what was granted before them still counts.
func TestCancelNeverForgivesWhatHappened(t *testing.T) {
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				l, _ := at(t, alg)
				limit := peek(t, l).Limit
				require.True(t, l.AllowN("key", limit))
				before := peek(t, l)
				var line [3]*ratelimit.Reservation
				for i, n := range [3]int{1, limit, max(1, limit-1)} {
					r, err := l.Reserve(ctx, "key", n)
					if errors.Is(err, ratelimit.ErrQueueFull) {
						return
					}
					require.NoError(t, err)
					line[i] = r
				}
				for _, i := range order {
					line[i].Cancel()
				}
				after := peek(t, l)
				assert.LessOrEqual(t, after.Remaining, before.Remaining)
				assert.GreaterOrEqual(t, after.RetryAfter, before.RetryAfter, "order %v", order)
			}
		})
	}
}

// TestAllReportsItsParts checks the fields of an All's decision by hand.
func TestAllReportsItsParts(t *testing.T) {
	l, clk := at(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 3},
		ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 4},
	})
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: time.Hour}, take(t, l, 2))
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, ResetAfter: time.Hour, Delay: 200 * time.Millisecond}, take(t, l, 1))
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: time.Second, ResetAfter: time.Hour}, take(t, l, 1))
	clk.Advance(2 * time.Second)
	require.True(t, take(t, l, 2).Allowed)
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: time.Hour - 2*time.Second, ResetAfter: time.Hour - 2*time.Second, Part: 1}, take(t, l, 1))
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: ratelimit.Never, ResetAfter: time.Hour - 2*time.Second}, take(t, l, 4))
}

func TestMust(t *testing.T) {
	assert.NotNil(t, ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})))
	assert.Panics(t, func() { ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{})) })
}

// TestMetamorphic runs one trace over many keys through every configuration of
// stores. That it is answered by a bounded store, one that is shared, or one
// that is asked by many names must make no difference.
func TestMetamorphic(t *testing.T) {
	budget.Alone(t)
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			shared, clk := ratelimit.NewMemoryStore(), storetest.NewClock(midnight)
			var limiters []ratelimit.Limiter
			for _, opts := range [][]ratelimit.Option{
				nil,
				{ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1000))), ratelimit.WithName("test")},
				{ratelimit.WithStore(shared), ratelimit.WithName("one")},
				{ratelimit.WithStore(shared), ratelimit.WithName("another")},
			} {
				l, err := ratelimit.New(alg, append(opts, ratelimit.WithClock(clk))...)
				require.NoError(t, err)
				limiters = append(limiters, l)
			}
			rng := newRand(t)
			limit := peek(t, limiters[0]).Limit
			reset := time.Second
			for range 3000 {
				key := fmt.Sprint("key ", rng.IntN(50))
				n := 1 + rng.IntN(min(limit, 4))
				step := time.Duration(rng.Int64N(int64(reset)/8 + 1))
				if rng.IntN(100) == 0 {
					step = reset
				}
				var want ratelimit.Decision
				clk.Advance(step)
				for i, l := range limiters {
					d, err := l.Take(ctx, key, n)
					require.NoError(t, err)
					if i == 0 {
						want, reset = d, min(d.ResetAfter, 24*time.Hour)
					}
					require.Equal(t, want, d, "configuration %d", i)
				}
			}
		})
	}
}

// A reservation from before a Reset is not taken out of what happened after.
func TestCancelAfterReset(t *testing.T) {
	l, _ := at(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute})
	before, err := l.Reserve(ctx, "key", 2)
	require.NoError(t, err)
	other, err := l.Reserve(ctx, "other", 2)
	require.NoError(t, err)
	require.NoError(t, l.Reset(ctx, "key"))
	require.True(t, l.AllowN("key", 3))
	after, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)

	before.Cancel()
	assert.Zero(t, peek(t, l).Remaining)
	other.Cancel()
	d, err := l.Peek(ctx, "other")
	require.NoError(t, err)
	assert.Equal(t, 3, d.Remaining, "the reset of another key makes no difference")
	after.Cancel()
	assert.Equal(t, time.Minute, peek(t, l).RetryAfter)

	// However many resets of others there were.
	before, err = l.Reserve(ctx, "other", 2)
	require.NoError(t, err)
	for i := range 5000 {
		require.NoError(t, l.Reset(ctx, fmt.Sprint(i)))
	}
	before.Cancel()
	d, err = l.Peek(ctx, "other")
	require.NoError(t, err)
	assert.Equal(t, 3, d.Remaining)
}

// Refused events that were logged stay logged when a reservation from before
// them is cancelled, even if the log had to drop as many as it gained.
func TestCancelKeepsRefusedEvents(t *testing.T) {
	l, clk := at(t, ratelimit.SlidingLog{Limit: 12, Window: 10 * time.Second, CountDenied: true})
	for range 12 {
		require.True(t, l.Allow("key"))
		clk.Advance(1)
	}
	r, err := l.Reserve(ctx, "key", 12)
	require.NoError(t, err)
	clk.Advance(5 * time.Second)
	for range 6 {
		require.False(t, l.Allow("key"))
		clk.Advance(1)
	}
	r.Cancel()
	clk.Advance(5 * time.Second)
	require.Equal(t, 6, peek(t, l).Remaining)
}

// Each of these was wrong once.
func TestRegressions(t *testing.T) {
	// The number of events at one instant overflowed into its mark.
	l, _ := at(t, ratelimit.SlidingLog{Limit: math.MaxInt, Window: time.Second, CountDenied: true})
	require.True(t, l.AllowN("key", math.MaxInt))
	require.False(t, l.AllowN("key", math.MaxInt))
	require.False(t, l.Allow("key"))

	// A reservation whose turn never comes was spent all the same.
	const unit = time.Duration(math.MaxInt64 / math.MaxInt) // more where an int is small
	l, clk := at(t, ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 7, Per: 10 * unit}, Capacity: math.MaxInt - 1})
	require.True(t, l.AllowN("key", math.MaxInt-1))
	clk.Advance(2 * unit)
	before := peek(t, l)
	_, err := l.Reserve(ctx, "key", 1)
	require.ErrorIs(t, err, ratelimit.ErrNever)
	require.Equal(t, before, peek(t, l))

	// A bucket that had only been filled ahead of time passed for full.
	l, _ = at(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(5), Burst: 4},
		ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(100), Capacity: 9},
	})
	require.True(t, l.AllowN("key", 4))
	for _, n := range []int{4, 2} {
		_, err = l.Reserve(ctx, "key", n)
		require.NoError(t, err)
	}

	// A refusal was not logged if the wait for it overflowed.
	l, clk = at(t, ratelimit.All{
		ratelimit.SlidingLog{Limit: 100, Window: 50 * 365 * 24 * time.Hour, CountDenied: true},
		ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: 100 * 365 * 24 * time.Hour}, Capacity: 100},
	})
	require.True(t, l.AllowN("key", 100))
	clk.Advance(25 * 365 * 24 * time.Hour)
	require.False(t, l.AllowN("key", 100))
	clk.Advance(25 * 365 * 24 * time.Hour)
	require.False(t, l.Allow("key"))
}

func TestNameAndStoreOf(t *testing.T) {
	store := ratelimit.NewMemoryStore()
	l := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithName("api"), ratelimit.WithStore(store)))
	assert.Equal(t, "api", ratelimit.NameOf(l))
	assert.Same(t, store, ratelimit.StoreOf(l))
	own := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
	require.True(t, own.Allow("k"))
	assert.Empty(t, ratelimit.NameOf(own))
	assert.Equal(t, 1, ratelimit.StoreOf(own).(*ratelimit.MemoryStore).Len())
	assert.Empty(t, ratelimit.NameOf(nil))
	assert.Nil(t, ratelimit.StoreOf(nil))
}

func TestClockOf(t *testing.T) {
	clk := clock.NewMock()
	assert.Same(t, clk, ratelimit.ClockOf(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 1}, ratelimit.WithClock(clk)))))
	assert.WithinDuration(t, time.Now(), ratelimit.ClockOf(ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 1}))).Now(), time.Hour)
	assert.Nil(t, ratelimit.ClockOf(nil))
}
