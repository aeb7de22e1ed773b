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
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/storetest"
)

var ctx = context.Background()

// This file has figures that people know, what the methods and functions of the package do with
// zeros, wrong arguments and ended contexts (TestBad…, TestNil…, TestZero…), and what New fills in.
// The laws of decisions are in internal/laws/decide.

// The tests TestFigure… check numbers from the descriptions in which the algorithms were first
// published, or from those by which people know them.

func TestFigureSixtyTokensEverySixtySeconds(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(60), Refill: ratelimit.RefillInterval})
	clk.Advance(7 * time.Second) // the refills come after the first event, not on the minute
	for i := range 60 {
		require.True(t, l.Allow("key"), "event %d", i)
		clk.Advance(500 * time.Millisecond)
	}
	// 30 s after the first event all are spent, and nothing trickles in.
	assert.Equal(t, ratelimit.Decision{Limit: 60, RetryAfter: 30 * time.Second, ResetAfter: 30 * time.Second}, fakes.Take(t, l, 1))
	clk.Advance(30*time.Second - 1)
	assert.Equal(t, time.Duration(1), fakes.Take(t, l, 60).RetryAfter)
	clk.Advance(1)
	assert.True(t, l.AllowN("key", 60))
	assert.False(t, l.Allow("key"))
}

func TestFigureTenThousandPerRollingDay(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.RollingWindow{Quota: 10_000, Window: 24 * time.Hour, Period: time.Hour, PeriodLimit: 1000})
	for hour := range 10 {
		require.True(t, l.AllowN("key", 1000), "hour %d", hour)
		require.False(t, l.Allow("key"), "hour %d", hour)
		clk.Advance(time.Hour)
	}
	for hour := 10; hour < 24; hour++ {
		require.False(t, l.Allow("key"), "hour %d", hour)
		require.Equal(t, time.Duration(24-hour)*time.Hour, fakes.Take(t, l, 1).RetryAfter)
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
		l, clk := fakes.At(t, ratelimit.SlidingWindow{Limit: limit, Window: time.Minute})
		require.True(t, l.AllowN("key", 9))
		clk.Advance(time.Minute)
		require.True(t, l.AllowN("key", 3))
		clk.Advance(15 * time.Second) // a quarter in: 9·0.75 + 3 = 9.75
		require.True(t, l.AllowN("key", 2))
		assert.Equal(t, fits, l.Allow("key"), "11.75 + 1 under a limit of %d", limit)
	}
}

func TestFigureLeakyBucketSpacesABurst(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(2), Capacity: 10})
	for i := range 20 {
		d := fakes.Take(t, l, 1)
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
	l, clk := fakes.At(t, ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)})
	for ms := range 1000 {
		assert.Equal(t, ms%100 == 0, l.Allow("key"), "%d ms", ms)
		clk.Advance(time.Millisecond)
	}
}

func TestFigureEntryOneWindowOldNoLongerCounts(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.SlidingLog{Limit: 1, Window: time.Second})
	require.True(t, l.Allow("key"))
	clk.Advance(time.Second - 1)
	assert.Equal(t, time.Duration(1), fakes.Take(t, l, 1).RetryAfter)
	clk.Advance(1)
	assert.True(t, l.Allow("key"))
}

func TestFigureGuavaWarmsUp(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.WarmingUp{Rate: ratelimit.PerSecond(1), Warmup: time.Second})
	trace := ""
	for range 10 {
		trace += map[bool]string{true: "T", false: "F"}[l.Allow("key")]
		clk.Advance(250 * time.Millisecond)
	}
	assert.Equal(t, "TFFFFFTFFF", trace)

	// 100 a second, 3 s to warm up: 150 cold permits take 3 s, the next 150 1.5 s.
	l, clk = fakes.At(t, ratelimit.WarmingUp{Rate: ratelimit.PerSecond(100), Warmup: 3 * time.Second})
	assert.Equal(t, 300, fakes.Peek(t, l).Limit)
	require.True(t, l.AllowN("key", 150))
	assert.Equal(t, 3*time.Second, fakes.Take(t, l, 1).RetryAfter)
	clk.Advance(3 * time.Second)
	require.True(t, l.AllowN("key", 150))
	assert.Equal(t, 1500*time.Millisecond, fakes.Take(t, l, 1).RetryAfter)
}

func TestFigureFixedWindowDoublesAtTheBorder(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute})
	clk.Advance(time.Minute - 1)
	require.True(t, l.AllowN("key", 5))
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5), "the documented worst case")

	l, clk = fakes.At(t, ratelimit.FixedWindow{Limit: 5, Window: time.Minute, Start: ratelimit.StartOnFirstEvent})
	clk.Advance(time.Minute - 1)
	require.True(t, l.AllowN("key", 5))
	clk.Advance(time.Minute - 1)
	require.False(t, l.Allow("key"))
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5))
}

func TestFigureLockoutCountsAnew(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.Lockout{Limit: 5, Window: time.Minute, First: time.Second})
	require.True(t, l.Allow("key"))
	clk.Advance(time.Minute - 1)
	require.True(t, l.AllowN("key", 3), "the fourth of a count")
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5), "of the next count: eight within a minute, the documented worst case without a lock")
	clk.Advance(time.Second - 1)
	require.False(t, l.Allow("key"))
	clk.Advance(1)
	require.True(t, l.AllowN("key", 5), "after a lock")
}

// TestSlidingWindowWorstCase measures the documented worst case: at most Limit events in any span
// of Window·(1−1/Segments), and less than twice as many in any span of Window. It checks that more
// than Limit events in a Window do happen.
func TestSlidingWindowWorstCase(t *testing.T) {
	budget.Alone(t)
	const limit, window = 10, 60
	for segments := 1; segments <= 6; segments++ {
		worst := 0
		for first := range 60 { // when the first burst comes
			l, clk := fakes.At(t, ratelimit.SlidingWindow{Limit: limit, Window: window * time.Second, Segments: segments})
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

func TestNegativeAndZero(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	require.True(t, l.AllowN("key", 2))

	_, err := l.Take(ctx, "key", -3)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorContains(t, err, "-3")
	_, _, err = l.Reserve(ctx, "key", math.MinInt)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorIs(t, l.WaitN(ctx, "key", -1), ratelimit.ErrInvalid)
	assert.False(t, l.AllowN("key", -1))

	d := fakes.Take(t, l, 0)
	assert.True(t, d.Allowed, "0 events are always granted")
	assert.Zero(t, d.Remaining)
	assert.NoError(t, l.WaitN(ctx, "key", 0))
	r, _, err := l.Reserve(ctx, "key", 0)
	require.NoError(t, err)
	assert.Zero(t, r.Delay())
	r.Cancel()
	assert.Equal(t, d.ResetAfter, fakes.Peek(t, l).ResetAfter)
}

func TestNever(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	d := fakes.Take(t, l, 3)
	assert.Equal(t, ratelimit.Decision{Limit: 2, Remaining: 2, RetryAfter: ratelimit.Never}, d)
	assert.ErrorIs(t, l.WaitN(ctx, "key", 3), ratelimit.ErrNever)
	assert.ErrorContains(t, l.WaitN(ctx, "key", 3), "3 at once with a limit of 2")
	r, reserved, err := l.Reserve(ctx, "key", 3)
	require.NoError(t, err)
	assert.Nil(t, r)
	assert.Equal(t, d, reserved)
}

func TestEndedContextSpendsNothing(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	ended, cancel := context.WithCancel(ctx)
	cancel()
	d, err := l.Take(ended, "key", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, d.Allowed)
	_, err = l.Peek(ended, "key")
	assert.ErrorIs(t, err, context.Canceled)
	_, _, err = l.Reserve(ended, "key", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, l.Wait(ended, "key"), context.Canceled)
	assert.ErrorIs(t, l.Reset(ended, "key"), context.Canceled)
	assert.Equal(t, 2, fakes.Peek(t, l).Remaining)
}

func TestReserveTellsItsTurn(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	var line []*ratelimit.Reservation
	for i := range 4 {
		r, _, err := l.Reserve(ctx, "key", 1)
		require.NoError(t, err)
		require.Equal(t, time.Duration(i)*time.Second, r.Delay())
		line = append(line, r)
	}
	clk.Advance(1500 * time.Millisecond)
	assert.Zero(t, line[1].Delay(), "its turn has come")
	assert.Equal(t, 500*time.Millisecond, line[2].Delay())
	line[1].Cancel() // too late: it counts as having happened
	assert.Equal(t, 2500*time.Millisecond, fakes.Take(t, l, 1).RetryAfter)
	line[3].Cancel() // the last in the line gives its place back
	line[3].Cancel()
	assert.Equal(t, 1500*time.Millisecond, fakes.Take(t, l, 1).RetryAfter)
}

// A window forgets a reservation that is cancelled, even in the middle of the line.
func TestCancelInTheMiddle(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute})
	require.True(t, l.AllowN("key", 3))
	first, _, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)
	second, _, err := l.Reserve(ctx, "key", 2)
	require.NoError(t, err)
	require.Equal(t, time.Minute, second.Delay())
	first.Cancel()
	clk.Advance(time.Minute)
	assert.Equal(t, 1, fakes.Peek(t, l).Remaining)
}

// TestCancelNeverForgivesWhatHappened cancels reservations in every order and
// checks that what was granted before them still counts.
func TestCancelNeverForgivesWhatHappened(t *testing.T) {
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				l, _ := fakes.At(t, alg)
				limit := fakes.Peek(t, l).Limit
				require.True(t, l.AllowN("key", limit))
				before := fakes.Peek(t, l)
				var line [3]*ratelimit.Reservation
				for i, n := range [3]int{1, limit, max(1, limit-1)} {
					r, _, err := l.Reserve(ctx, "key", n)
					if errors.Is(err, ratelimit.ErrQueueFull) {
						return
					}
					require.NoError(t, err)
					line[i] = r
				}
				for _, i := range order {
					line[i].Cancel()
				}
				after := fakes.Peek(t, l)
				assert.LessOrEqual(t, after.Remaining, before.Remaining)
				assert.GreaterOrEqual(t, after.RetryAfter, before.RetryAfter, "order %v", order)
			}
		})
	}
}

// TestAllReportsItsParts checks the fields of an All's decision by hand.
func TestAllReportsItsParts(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 3},
		ratelimit.FixedWindow{Limit: 5, Window: time.Hour},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10), Capacity: 4},
	})
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, Remaining: 1, ResetAfter: time.Hour}, fakes.Take(t, l, 2))
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 3, ResetAfter: time.Hour, Delay: 200 * time.Millisecond}, fakes.Take(t, l, 1))
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: time.Second, ResetAfter: time.Hour}, fakes.Take(t, l, 1))
	clk.Advance(2 * time.Second)
	require.True(t, fakes.Take(t, l, 2).Allowed)
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: time.Hour - 2*time.Second, ResetAfter: time.Hour - 2*time.Second, Part: 1}, fakes.Take(t, l, 1))
	assert.Equal(t, ratelimit.Decision{Limit: 3, RetryAfter: ratelimit.Never, ResetAfter: time.Hour - 2*time.Second}, fakes.Take(t, l, 4))
}

func TestMust(t *testing.T) {
	assert.NotNil(t, ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})))
	assert.Panics(t, func() { ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{})) })
}

// TestMetamorphic runs one trace over many keys through every configuration of stores. The answers
// must be the same whether a store is bounded, shared, or used under many names.
func TestMetamorphic(t *testing.T) {
	budget.Alone(t)
	for name, alg := range storetest.Algorithms() {
		t.Run(name, func(t *testing.T) {
			shared, clk := new(ratelimit.MemoryStore), storetest.NewClock(fakes.Midnight)
			var limiters []ratelimit.Limiter
			for _, opts := range [][]ratelimit.Option{
				nil,
				{ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: 1000}), ratelimit.WithName("test")},
				{ratelimit.WithStore(shared), ratelimit.WithName("one")},
				{ratelimit.WithStore(shared), ratelimit.WithName("another")},
			} {
				l, err := ratelimit.New(alg, append(opts, ratelimit.WithClock(clk))...)
				require.NoError(t, err)
				limiters = append(limiters, l)
			}
			rng := fakes.Rand(t)
			limit := fakes.Peek(t, limiters[0]).Limit
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

// A reservation that was made before a Reset gives back no events that were spent after the Reset.
func TestCancelAfterReset(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 3, Window: time.Minute})
	require.True(t, l.AllowN("key", 2))
	require.True(t, l.AllowN("other", 2))
	before, _, err := l.Reserve(ctx, "key", 2)
	require.NoError(t, err)
	other, _, err := l.Reserve(ctx, "other", 2)
	require.NoError(t, err)
	require.NoError(t, l.Reset(ctx, "key"))
	require.True(t, l.AllowN("key", 3))
	after, _, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)
	turn := fakes.Peek(t, l)

	before.Cancel()
	assert.Equal(t, turn, fakes.Peek(t, l))
	other.Cancel()
	d, err := l.Peek(ctx, "other")
	require.NoError(t, err)
	assert.Equal(t, 1, d.Remaining, "the reset of another key makes no difference")
	after.Cancel()
	assert.Equal(t, time.Minute, fakes.Peek(t, l).RetryAfter)
}

// Refused events that were logged stay logged when an earlier reservation is cancelled, even if the
// log had to drop as many events as it gained.
func TestCancelKeepsRefusedEvents(t *testing.T) {
	l, clk := fakes.At(t, ratelimit.SlidingLog{Limit: 12, Window: 10 * time.Second, CountDenied: true})
	for range 12 {
		require.True(t, l.Allow("key"))
		clk.Advance(1)
	}
	r, _, err := l.Reserve(ctx, "key", 12)
	require.NoError(t, err)
	clk.Advance(5 * time.Second)
	for range 6 {
		require.False(t, l.Allow("key"))
		clk.Advance(1)
	}
	r.Cancel()
	clk.Advance(5 * time.Second)
	require.Equal(t, 6, fakes.Peek(t, l).Remaining)
}

// TestRegressions has faults that were found and mended.
func TestRegressions(t *testing.T) {
	// The number of events at one instant overflowed into its mark.
	l, _ := fakes.At(t, ratelimit.SlidingLog{Limit: fakes.MostEvents, Window: time.Second, CountDenied: true})
	require.True(t, l.AllowN("key", fakes.MostEvents))
	require.False(t, l.AllowN("key", fakes.MostEvents))
	require.False(t, l.Allow("key"))

	// A reservation whose turn never comes was spent all the same.
	const unit = time.Duration(math.MaxInt64 / math.MaxInt) // more where an int is small
	l, clk := fakes.At(t, ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 7, Per: 30 * unit}, Capacity: fakes.MostEvents - 1})
	require.True(t, l.AllowN("key", fakes.MostEvents-1))
	clk.Advance(6 * unit)
	before := fakes.Peek(t, l)
	_, d, err := l.Reserve(ctx, "key", 1)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Never, d.RetryAfter)
	require.Equal(t, before, fakes.Peek(t, l))

	// A bucket that had been refilled up to a later instant was taken for full.
	l, _ = fakes.At(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerMinute(5), Burst: 4},
		ratelimit.LeakyBucket{Rate: ratelimit.PerMinute(100), Capacity: 9},
	})
	require.True(t, l.AllowN("key", 4))
	for _, n := range []int{4, 2} {
		_, _, err = l.Reserve(ctx, "key", n)
		require.NoError(t, err)
	}

	// A refusal was not logged if the wait for it overflowed.
	l, clk = fakes.At(t, ratelimit.All{
		ratelimit.SlidingLog{Limit: 100, Window: 50 * 365 * 24 * time.Hour, CountDenied: true},
		ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: 100 * 365 * 24 * time.Hour}, Capacity: 100},
	})
	require.True(t, l.AllowN("key", 100))
	clk.Advance(25 * 365 * 24 * time.Hour)
	require.False(t, l.AllowN("key", 100))
	clk.Advance(25 * 365 * 24 * time.Hour)
	require.False(t, l.Allow("key"))
}

func TestDescribe(t *testing.T) {
	store := new(ratelimit.MemoryStore)
	l := ratelimit.Must(ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithName("api"), ratelimit.WithStore(store)))
	assert.Equal(t, "api", l.Describe().Name)
	assert.Same(t, store, l.Describe().Store)
	own := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}))
	require.True(t, own.Allow("k"))
	assert.Empty(t, own.Describe().Name)
	assert.Equal(t, 1, own.Describe().Store.(*ratelimit.MemoryStore).Len())
}

func TestDescribeClock(t *testing.T) {
	clk := clock.NewMock()
	assert.Same(t, clk, ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 1}, ratelimit.WithClock(clk))).Describe().Clock)
	assert.WithinDuration(t, time.Now(), ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 1})).Describe().Clock.Now(), time.Hour)
}

// A Bound without a limiter is an error.
func TestBoundWithoutLimiter(t *testing.T) {
	ctx := context.Background()
	for _, b := range []ratelimit.Bound{{}, ratelimit.For(nil, "k")} {
		_, err := ratelimit.TakeAll(ctx, 1, b)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		_, _, err = ratelimit.HoldAll(ctx, 1, b)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.Nil(t, b.Limiter())
	}
}

// A type of a user that embeds an algorithm is refused: the library cannot know the meaning of its
// other fields, or whether its values can be compared. A pointer is refused as well, because its
// fields may change.
func TestForeignAlgorithm(t *testing.T) {
	type tagged struct {
		ratelimit.TokenBucket
		Labels []string
	}
	type pointing struct{ *ratelimit.TokenBucket }
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	for name, alg := range map[string]ratelimit.Algorithm{
		"embedded":            tagged{TokenBucket: bucket},
		"a pointer to it":     &tagged{TokenBucket: bucket},
		"a pointer":           &bucket,
		"a pointer to an All": &ratelimit.All{bucket},
		"a nil pointer":       (*ratelimit.TokenBucket)(nil),
		"an embedded pointer": pointing{&bucket},
		"an embedded nil":     pointing{},
		"embedded All":        struct{ ratelimit.All }{ratelimit.All{bucket}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, alg := range []ratelimit.Algorithm{alg, ratelimit.All{bucket, alg}, ratelimit.All{ratelimit.All{alg}}} {
				_, err := ratelimit.New(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
				assert.ErrorContains(t, err, "must be one of this package's own")
				_, err = fakes.NewLimit(alg)
				require.ErrorIs(t, err, ratelimit.ErrInvalid)
			}
			assert.Nil(t, ratelimit.Share(alg, 2))

			// An algorithm of a lookup that is refused does not affect the lookups of other keys.
			limits := map[string]ratelimit.Algorithm{
				"foreign": alg,
				"parts":   ratelimit.All{bucket, alg},
				"good":    ratelimit.FixedWindow{Limit: 3, Window: time.Hour},
			}
			l, err := ratelimit.New(bucket, ratelimit.WithLimits(func(_ context.Context, key string) (ratelimit.Algorithm, error) {
				return limits[key], nil
			}))
			require.NoError(t, err)
			for range 2 {
				for _, key := range []string{"foreign", "parts"} {
					_, err = l.Take(t.Context(), key, 1)
					require.ErrorIs(t, err, ratelimit.ErrInvalid)
				}
				assert.True(t, l.Allow("good"))
			}
		})
	}
}

// TestZeroFields: Describe returns parameters with defaults filled in, so that its
// callers need not know the defaults.
func TestZeroFields(t *testing.T) {
	rate := ratelimit.PerSecond(7)
	for _, tt := range []struct{ given, want ratelimit.Algorithm }{
		{ratelimit.TokenBucket{Rate: rate}, ratelimit.TokenBucket{Rate: rate, Burst: 7}},
		{ratelimit.TokenBucket{Rate: rate, Burst: 3}, ratelimit.TokenBucket{Rate: rate, Burst: 3}},
		{ratelimit.LeakyBucket{Rate: rate}, ratelimit.LeakyBucket{Rate: rate, Capacity: 1}},
		{ratelimit.SlidingWindow{Limit: 5, Window: time.Minute}, ratelimit.SlidingWindow{Limit: 5, Window: time.Minute, Segments: 1}},
		{ratelimit.WarmingUp{Rate: rate, Warmup: time.Second}, ratelimit.WarmingUp{Rate: rate, Warmup: time.Second, ColdFactor: 3}},
		{ratelimit.RollingWindow{Quota: 5, Window: time.Hour, Period: time.Minute}, ratelimit.RollingWindow{Quota: 5, Window: time.Hour, Period: time.Minute}},
		{
			ratelimit.All{ratelimit.LeakyBucket{Rate: rate}, ratelimit.All{ratelimit.TokenBucket{Rate: rate}}},
			ratelimit.All{ratelimit.LeakyBucket{Rate: rate, Capacity: 1}, ratelimit.TokenBucket{Rate: rate, Burst: 7}},
		},
	} {
		l := ratelimit.Must(ratelimit.New(tt.given))
		assert.Equal(t, tt.want, l.Describe().Algorithm)
		if _, several := tt.given.(ratelimit.All); !several {
			assert.Equal(t, ratelimit.Share(tt.want, 2), ratelimit.Share(tt.given, 2))
		}
	}
}

func TestShare(t *testing.T) {
	second := ratelimit.PerSecond
	for _, tt := range []struct{ whole, quarter ratelimit.Algorithm }{
		{ratelimit.TokenBucket{Rate: second(100)}, ratelimit.TokenBucket{Rate: second(25), Burst: 25}},
		{ratelimit.TokenBucket{Rate: second(10), Burst: 3}, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 10, Per: 4 * time.Second}, Burst: 1}},
		{
			ratelimit.TokenBucket{Rate: second(9), Refill: ratelimit.RefillInterval},
			ratelimit.TokenBucket{Rate: second(2), Burst: 2, Refill: ratelimit.RefillInterval},
		},
		{ratelimit.LeakyBucket{Rate: second(1)}, ratelimit.LeakyBucket{Rate: ratelimit.Rate{Events: 1, Per: 4 * time.Second}, Capacity: 1}},
		{ratelimit.FixedWindow{Limit: 1000, Window: time.Hour}, ratelimit.FixedWindow{Limit: 250, Window: time.Hour}},
		{
			ratelimit.CalendarWindow{Limit: 1000, Every: ratelimit.Month, Zone: "Asia/Tokyo", Start: 31, Hour: 4},
			ratelimit.CalendarWindow{Limit: 250, Every: ratelimit.Month, Zone: "Asia/Tokyo", Start: 31, Hour: 4},
		},
		{ratelimit.SlidingWindow{Limit: 10, Window: time.Hour, Segments: 2}, ratelimit.SlidingWindow{Limit: 2, Window: time.Hour, Segments: 2}},
		{ratelimit.SlidingLog{Limit: 1, Window: time.Hour, CountDenied: true}, ratelimit.SlidingLog{Limit: 1, Window: time.Hour, CountDenied: true}},
		{
			ratelimit.RollingWindow{Quota: 100, Window: 24 * time.Hour, Period: time.Hour},
			ratelimit.RollingWindow{Quota: 25, Window: 24 * time.Hour, Period: time.Hour},
		},
		{
			ratelimit.Lockout{Limit: 10, Window: time.Hour, First: time.Minute, Longest: time.Hour},
			ratelimit.Lockout{Limit: 2, Window: time.Hour, First: time.Minute, Longest: time.Hour},
		},
		{ratelimit.Lockout{Limit: 3, Window: time.Hour, First: time.Minute}, ratelimit.Lockout{Limit: 1, Window: time.Hour, First: time.Minute}},
		{ratelimit.WarmingUp{Rate: second(100), Warmup: time.Second}, ratelimit.WarmingUp{Rate: second(25), Warmup: time.Second, ColdFactor: 3}},
		{
			ratelimit.All{ratelimit.FixedWindow{Limit: 8, Window: time.Hour}, ratelimit.All{ratelimit.TokenBucket{Rate: second(4)}}},
			ratelimit.All{ratelimit.FixedWindow{Limit: 2, Window: time.Hour}, ratelimit.All{ratelimit.TokenBucket{Rate: second(1), Burst: 1}}},
		},
		{
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: ratelimit.Never}},
			ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1, Per: ratelimit.Never}, Burst: 1},
		},
		{nil, nil},
	} {
		assert.Equal(t, tt.quarter, ratelimit.Share(tt.whole, 4))
	}
	for name, alg := range storetest.Algorithms() {
		for _, n := range []int{-1, 0, 1, 2, 7, 1 << 30} {
			_, err := ratelimit.New(ratelimit.Share(alg, n))
			assert.NoError(t, err, "%s, %d", name, n)
		}
		if _, several := alg.(ratelimit.All); !several {
			assert.Equal(t, ratelimit.Must(ratelimit.New(alg)).Describe().Algorithm, ratelimit.Share(alg, 1), name)
		}
	}
	itself := ratelimit.All{nil}
	itself[0] = itself
	_, err := ratelimit.New(ratelimit.Share(itself, 4))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)

	// A share of an invalid algorithm is invalid.
	_, err = ratelimit.New(ratelimit.Share(ratelimit.FixedWindow{Limit: -1, Window: time.Hour}, 4))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// TestSlidingWindowRetryAfter: an event counts until Segments whole segments have passed after the
// segment of the event. In the last of them, it counts in part.
func TestSlidingWindowRetryAfter(t *testing.T) {
	for segments, want := range map[int]time.Duration{
		0: 2 * time.Minute,
		1: 2 * time.Minute,
		2: 90 * time.Second,
		6: 70 * time.Second,
	} {
		clk := clock.NewMock() // at the Unix epoch, where a segment begins
		l, err := ratelimit.New(ratelimit.SlidingWindow{Limit: 1, Window: time.Minute, Segments: segments}, ratelimit.WithClock(clk))
		require.NoError(t, err)
		require.True(t, l.Allow("key"))
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, want, d.RetryAfter, "%d segments", segments)
	}
}

// TestBadParameters checks that each parameter that cannot be used is refused
// with an error that names it and its value.
func TestBadParameters(t *testing.T) {
	ten := ratelimit.PerSecond(10)
	for _, tt := range []struct {
		alg  ratelimit.Algorithm
		says []string
	}{
		{nil, []string{"Algorithm", "nil"}},
		{(*ratelimit.TokenBucket)(nil), []string{"Algorithm", "*ratelimit.TokenBucket"}},
		{ratelimit.TokenBucket{}, []string{"TokenBucket.Rate.Events is 0"}},
		{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: -1, Per: 1}}, []string{"TokenBucket.Rate.Events is -1"}},
		{ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 1}}, []string{"TokenBucket.Rate.Per is 0s"}},
		{ratelimit.TokenBucket{Rate: ratelimit.Every(-time.Second)}, []string{"TokenBucket.Rate.Per is -1s"}},
		{ratelimit.TokenBucket{Rate: ten, Burst: -5}, []string{"TokenBucket.Burst is -5"}},
		{ratelimit.TokenBucket{Rate: ten, Refill: 2}, []string{"TokenBucket.Refill is 2"}},
		{ratelimit.LeakyBucket{}, []string{"LeakyBucket.Rate.Events is 0"}},
		{ratelimit.LeakyBucket{Rate: ten, Capacity: -1}, []string{"LeakyBucket.Capacity is -1"}},
		{ratelimit.FixedWindow{Window: time.Second}, []string{"FixedWindow.Limit is 0"}},
		{ratelimit.FixedWindow{Limit: 1}, []string{"FixedWindow.Window is 0s"}},
		{ratelimit.FixedWindow{Limit: 1, Window: 1, Start: -1}, []string{"FixedWindow.Start is -1"}},
		{ratelimit.SlidingWindow{Window: time.Second}, []string{"SlidingWindow.Limit is 0"}},
		{ratelimit.SlidingWindow{Limit: 1, Window: -1}, []string{"SlidingWindow.Window is -1ns"}},
		{ratelimit.SlidingWindow{Limit: 1, Window: 1, Segments: -1}, []string{"SlidingWindow.Segments is -1"}},
		{ratelimit.SlidingWindow{Limit: 1, Window: 10, Segments: 3}, []string{"SlidingWindow.Segments is 3", "10ns"}},
		{ratelimit.SlidingWindow{Limit: 1, Window: 1 << 40, Segments: 1 << 21}, []string{"SlidingWindow.Segments is 2097152", "1048576"}},
		{ratelimit.SlidingLog{Limit: -1, Window: 1}, []string{"SlidingLog.Limit is -1"}},
		{ratelimit.SlidingLog{Limit: 1}, []string{"SlidingLog.Window is 0s"}},
		{ratelimit.RollingWindow{Window: 1, Period: 1}, []string{"RollingWindow.Quota is 0"}},
		{ratelimit.RollingWindow{Quota: 1, Period: 1}, []string{"RollingWindow.Window is 0s"}},
		{ratelimit.RollingWindow{Quota: 1, Window: 1}, []string{"RollingWindow.Period is 0s"}},
		{ratelimit.RollingWindow{Quota: 1, Window: 10, Period: 3}, []string{"RollingWindow.Period is 3ns", "10ns"}},
		{ratelimit.RollingWindow{Quota: 1, Window: time.Hour, Period: 1}, []string{"RollingWindow.Period is 1ns", "1048576"}},
		{ratelimit.RollingWindow{Quota: 1, Window: 1, Period: 1, PeriodLimit: -2}, []string{"RollingWindow.PeriodLimit is -2"}},
		{ratelimit.Lockout{Window: 1, First: 1}, []string{"Lockout.Limit is 0"}},
		{ratelimit.Lockout{Limit: 1, First: 1}, []string{"Lockout.Window is 0s"}},
		{ratelimit.Lockout{Limit: 1, Window: 1}, []string{"Lockout.First is 0s"}},
		{ratelimit.Lockout{Limit: 1, Window: 1, First: time.Minute, Longest: time.Second}, []string{"Lockout.Longest is 1s", "at least First, 1m0s, or 0"}},
		{ratelimit.Lockout{Limit: 1, Window: 1, First: 1, Longest: -1}, []string{"Lockout.Longest is -1ns"}},
		{ratelimit.WarmingUp{Warmup: 1}, []string{"WarmingUp.Rate.Events is 0"}},
		{ratelimit.WarmingUp{Rate: ten}, []string{"WarmingUp.Warmup is 0s"}},
		{ratelimit.WarmingUp{Rate: ten, Warmup: 1, ColdFactor: 0.5}, []string{"WarmingUp.ColdFactor is 0.5"}},
		{ratelimit.WarmingUp{Rate: ten, Warmup: 1, ColdFactor: math.NaN()}, []string{"WarmingUp.ColdFactor is NaN"}},
		{ratelimit.WarmingUp{Rate: ten, Warmup: 1, ColdFactor: math.Inf(1)}, []string{"WarmingUp.ColdFactor is +Inf"}},
		{ratelimit.All{}, []string{"All is empty"}},
		{selfish(), []string{"too deep"}},
		{make(ratelimit.All, 2000), []string{"All[0]", "nil"}},
		{wide(2000), []string{"All is too long", "1024"}},
		{ratelimit.All{ratelimit.TokenBucket{Rate: ten}, nil}, []string{"All[1]", "nil"}},
		{ratelimit.All{ratelimit.All{ratelimit.FixedWindow{Limit: 1}}}, []string{"All[0][0].FixedWindow.Window is 0s"}},
	} {
		l, err := ratelimit.New(tt.alg)
		assert.Nil(t, l, "%+v", tt.alg)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, "%+v", tt.alg)
		for _, part := range tt.says {
			assert.ErrorContains(t, err, part)
		}
	}
}

// selfish returns an All that is its own part.
func selfish() ratelimit.All {
	a := make(ratelimit.All, 1)
	a[0] = a
	return a
}

func wide(n int) (a ratelimit.All) {
	for range n {
		a = append(a, ratelimit.FixedWindow{Limit: 1, Window: 1})
	}
	return a
}

func TestBadOptions(t *testing.T) {
	for part, opt := range map[string]ratelimit.Option{
		"option 1 of New is nil":          nil,
		"WithStore":                       ratelimit.WithStore(nil),
		"WithClock":                       ratelimit.WithClock(nil),
		"WithStore's store is nil":        ratelimit.WithStore((*ratelimit.MemoryStore)(nil)),
		"WithClock's clock is nil":        ratelimit.WithClock((*clock.Mock)(nil)),
		"Fallback's limiter":              ratelimit.WithFailurePolicy(ratelimit.Fallback(nil)),
		"MemoryStore's MaxKeys is -1":     ratelimit.WithStore(&ratelimit.MemoryStore{MaxKeys: -1}),
		"MemoryStore's RefuseNew is true": ratelimit.WithStore(&ratelimit.MemoryStore{RefuseNew: true}),
		"WithObserver's observer is nil":  ratelimit.WithObserver(nil),
	} {
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithName("test"), opt)
		assert.Nil(t, l)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, part)
	}
}

// A limiter whose states outlive the process needs a name. In memory, limiters without a name share
// nothing.
func TestStoreNeedsName(t *testing.T) {
	for _, name := range [][]ratelimit.Option{nil, {ratelimit.WithName("")}} {
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, append(name, ratelimit.WithStore(fakes.NewMapDB().Store()))...)
		assert.Nil(t, l)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "WithName")
		for _, own := range [][]ratelimit.Option{nil, {ratelimit.WithStore(new(ratelimit.MemoryStore))}} {
			_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, append(own, name...)...)
			assert.NoError(t, err)
		}
	}
}

// New copies the parts of an All, however they are nested.
func TestPartsAreCopied(t *testing.T) {
	inner := ratelimit.All{ratelimit.FixedWindow{Limit: 1, Window: 1}}
	outer := ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3)}, inner}
	tr, err := fakes.NewLimit(outer)
	require.NoError(t, err)
	outer[0], inner[0] = ratelimit.Blocked{}, ratelimit.Blocked{}
	assert.Equal(t, ratelimit.All{
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 1},
		ratelimit.FixedWindow{Limit: 1, Window: 1},
	}, tr.Known)
}

func TestNilContext(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	var none context.Context
	_, err := l.Take(none, "key", 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorIs(t, l.Wait(none, "key"), ratelimit.ErrInvalid)
}

// A nil context is an error, even if the call does not need a context.
func TestNilContextOfReservation(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	require.True(t, l.Allow("key"))
	r, _, err := l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	var none context.Context
	assert.ErrorIs(t, r.Wait(none), ratelimit.ErrInvalid)
	assert.Equal(t, time.Second, r.Delay())
}

// A Limiter of a user can return the zero Reservation.
func TestZeroReservation(t *testing.T) {
	var r ratelimit.Reservation
	assert.Zero(t, r.Delay())
	assert.NoError(t, r.Wait(t.Context()))
	r.Cancel()
}

// The caller of Describe may change the algorithm that it returns.
func TestDescribedAlgorithmIsACopy(t *testing.T) {
	alg := ratelimit.All{ratelimit.FixedWindow{Limit: 3, Window: time.Second}}
	l, _ := fakes.At(t, alg)
	l.Describe().Algorithm.(ratelimit.All)[0] = nil
	assert.Equal(t, alg, l.Describe().Algorithm)
}

func TestZeroMemoryStore(t *testing.T) {
	s := &ratelimit.MemoryStore{}
	s.Shrink()
	assert.Zero(t, s.Stats())
	l, _ := fakes.At(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)}, ratelimit.WithStore(s), ratelimit.WithName("test"))
	assert.True(t, l.Allow("key"))
	assert.Equal(t, 1, s.Len())
}

func TestDefaults(t *testing.T) {
	for limit, alg := range map[int]ratelimit.Algorithm{
		10: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		20: ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10), Burst: 20},
		1:  ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(10)},
		30: ratelimit.RollingWindow{Quota: 30, Window: time.Hour, Period: time.Minute},
		8:  ratelimit.RollingWindow{Quota: 30, Window: time.Hour, Period: time.Minute, PeriodLimit: 8},
		5:  ratelimit.WarmingUp{Rate: ratelimit.PerSecond(5), Warmup: time.Second},
	} {
		l, _ := fakes.At(t, alg)
		assert.Equal(t, limit, fakes.Peek(t, l).Limit, "%+v", alg)
	}
	// Segments of 0 mean 1, and a ColdFactor of 0 means 3: the answers are the same.
	for _, pair := range [][2]ratelimit.Algorithm{
		{ratelimit.SlidingWindow{Limit: 4, Window: time.Second}, ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 1}},
		{
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(4), Warmup: time.Second},
			ratelimit.WarmingUp{Rate: ratelimit.PerSecond(4), Warmup: time.Second, ColdFactor: 3},
		},
	} {
		a, clkA := fakes.At(t, pair[0])
		b, clkB := fakes.At(t, pair[1])
		for range 40 {
			require.Equal(t, fakes.Take(t, a, 1), fakes.Take(t, b, 1))
			clkA.Advance(130 * time.Millisecond)
			clkB.Advance(130 * time.Millisecond)
		}
	}
}

func TestParseRate(t *testing.T) {
	for s, want := range map[string]ratelimit.Rate{
		"10/s":        ratelimit.PerSecond(10),
		"100/1m":      ratelimit.PerMinute(100),
		"100/m":       ratelimit.PerMinute(100),
		"7/h":         ratelimit.PerHour(7),
		"10000/24h":   ratelimit.PerDay(10000),
		"1/d":         ratelimit.PerDay(1),
		"3/7d":        {Events: 3, Per: 7 * 24 * time.Hour},
		"5/250ms":     {Events: 5, Per: 250 * time.Millisecond},
		"1/1h30m":     ratelimit.Every(90 * time.Minute),
		" 5 / 250ms ": {Events: 5, Per: 250 * time.Millisecond},
		"2/µs":        {Events: 2, Per: time.Microsecond},
		"2/us":        {Events: 2, Per: time.Microsecond},
		"1/ns":        ratelimit.Every(1),
	} {
		got, err := ratelimit.ParseRate(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, got, s)
	}
	for _, s := range []string{
		"", "/", "10", "10/", "/s", "ten/s", "10/x", "0/s", "-1/s", "10/0s", "10/-1s", "10/s/s", "1.5/s",
		"99999999999999999999/s", "1/99999999999h", "1/106752d", "1/-1d", "1/d1", "1/1.5d",
	} {
		r, err := ratelimit.ParseRate(s)
		assert.Zero(t, r, s)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, s)
	}
	for _, s := range []string{"1.5/s", "0.5/s", "2.0/h", "1.5e3/s", "-1.5/s", "1.5/x"} {
		_, err := ratelimit.ParseRate(s)
		assert.ErrorContains(t, err, "not a whole number of events", s)
	}
	_, err := ratelimit.ParseRate("10")
	assert.ErrorContains(t, err, `"10"`)
	assert.ErrorContains(t, err, "10/s")
}

func TestRateString(t *testing.T) {
	for want, r := range map[string]ratelimit.Rate{
		"10/s":     ratelimit.PerSecond(10),
		"1/250ms":  ratelimit.Every(250 * time.Millisecond),
		"60/m":     ratelimit.PerMinute(60),
		"1/d":      ratelimit.PerDay(1),
		"3/7d":     {Events: 3, Per: 7 * 24 * time.Hour},
		"3/36h":    {Events: 3, Per: 36 * time.Hour},
		"2/us":     {Events: 2, Per: time.Microsecond},
		"4/1h1m1s": {Events: 4, Per: time.Hour + time.Minute + time.Second},
	} {
		assert.Equal(t, want, r.String())
	}
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"10/s", "5/250ms", "1/106751d", "/", "0x1/1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ratelimit.ParseRate(s)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalid)
			return
		}
		again, err := ratelimit.ParseRate(r.String())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

// Even if a lookup has a limit for every key, New needs one for keys without, and says so.
func TestLimitOfKeysWithoutALimit(t *testing.T) {
	lookup := ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, nil })
	for _, alg := range []ratelimit.Algorithm{nil, (*ratelimit.TokenBucket)(nil)} {
		l, err := ratelimit.New(alg, lookup)
		assert.Nil(t, l)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		require.ErrorContains(t, err, "the lookup of WithLimits returns nil, such as Blocked{}")
		_, err = ratelimit.New(alg)
		assert.NotContains(t, err.Error(), "WithLimits")
	}
	l, err := ratelimit.New(ratelimit.Blocked{}, lookup)
	require.NoError(t, err)
	assert.False(t, l.Allow("key"))
}

// A Decision prints Never as a word, because 292 years would be hard to read.
func TestNeverReadsAsNever(t *testing.T) {
	l, _ := fakes.At(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	d := fakes.Take(t, l, 2)
	for _, format := range []string{"%v", "%+v", "%s"} {
		text := fmt.Sprintf(format, d)
		assert.Contains(t, text, "Allowed:false Limit:1 Remaining:1 RetryAfter:never ResetAfter:0s", text)
	}
}
