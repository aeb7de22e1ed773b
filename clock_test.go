package ratelimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

func TestCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk, stop, err := ratelimit.NewCoarseClock(10 * time.Millisecond)
		require.NoError(t, err)
		begin := time.Now()
		time.Sleep(19 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 10*time.Millisecond, clk.Now().Sub(begin), "the reading of 9 ms ago")
		assert.Equal(t, 10*time.Millisecond, clk.Since(begin))
		assert.Equal(t, 20*time.Millisecond, clk.Until(begin.Add(30*time.Millisecond)))

		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		time.Sleep(time.Second)
		synctest.Wait()
		// The token was taken at the reading of 10 ms, so it is back at 1,010 ms. The time is 1,019
		// ms.
		require.True(t, l.Allow("key"))
		require.False(t, l.Allow("key"))
		assert.Equal(t, 1019*time.Millisecond, clk.Since(begin), "a denial reads the clock")
		require.NoError(t, l.Wait(t.Context(), "key"))
		// A reading of the clock is up to 10 ms old.
		assert.InDelta(t, 2010*time.Millisecond, time.Since(begin), float64(10*time.Millisecond))

		// A clock that was stopped shows the exact time, and its goroutine has ended.
		time.Sleep(5 * time.Millisecond)
		stop()
		stop()
		synctest.Wait()
		assert.Equal(t, time.Since(begin), clk.Since(begin))
		time.Sleep(time.Millisecond)
		assert.Equal(t, time.Since(begin), clk.Since(begin))
		require.False(t, l.AllowN("key", 1) && l.Allow("key"))
	})
	_, _, err := ratelimit.NewCoarseClock(0)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// TestCoarseClockWhoseGoroutineIsLate has a clock whose goroutine never gets a processor. All calls
// of a limiter still keep the rate, and waits are exact.
func TestCoarseClockWhoseGoroutineIsLate(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"one word": ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 10},
		"wide": ratelimit.All{
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 10},
			ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000), Burst: 11},
		},
		"log":    ratelimit.SlidingLog{Limit: 10, Window: 10 * time.Millisecond},
		"denied": ratelimit.SlidingLog{Limit: 10, Window: 10 * time.Millisecond, CountDenied: true},
	} {
		asks := map[string]func(l ratelimit.Limiter) bool{
			"Allow": func(l ratelimit.Limiter) bool { return l.Allow("key") },
			"Take": func(l ratelimit.Limiter) bool {
				d, err := l.Take(t.Context(), "key", 1)
				return d.Allowed && err == nil
			},
			"Peek": func(l ratelimit.Limiter) bool {
				d, err := l.Peek(t.Context(), "key")
				return d.Allowed && err == nil && l.Allow("key")
			},
			"TakeAll": func(l ratelimit.Limiter) bool {
				d, err := ratelimit.TakeAll(t.Context(), 1, ratelimit.For(l, "key"), ratelimit.For(l, "second key"))
				return d.Allowed && err == nil
			},
		}
		step := 500 * time.Microsecond
		if name == "denied" {
			step = 1001 * time.Microsecond // or it would never let anyone in again
		}
		for method, ask := range asks {
			synctest.Test(t, func(t *testing.T) {
				clk := ratelimit.LateCoarseClock()
				l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(clk)))
				granted := 0
				for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(step) {
					if ask(l) {
						granted++
					}
				}
				assert.GreaterOrEqual(t, granted, 950, "%s, %s", name, method)
				assert.LessOrEqual(t, granted, 1011, "%s, %s", name, method)
			})
		}
		synctest.Test(t, func(t *testing.T) {
			l := ratelimit.Must(ratelimit.New(alg, ratelimit.WithClock(ratelimit.LateCoarseClock())))
			time.Sleep(time.Second)
			require.True(t, l.AllowN("key", 10))
			time.Sleep(4 * time.Millisecond)
			begin := time.Now()
			r, _, err := l.Reserve(t.Context(), "key", 5)
			require.NoError(t, err)
			assert.LessOrEqual(t, r.Delay(), 10*time.Millisecond, name)
			require.NoError(t, l.Wait(t.Context(), "key"))
			assert.LessOrEqual(t, time.Since(begin), 20*time.Millisecond, name)

			require.True(t, l.AllowN("other", 10))
			time.Sleep(9 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			require.NoError(t, l.WaitN(ctx, "other", 10), "%s: 1 ms is left", name)
		})
	}
}

// TestCoarseClock_Denies: a denial reads the clock once more, and not until the events are granted.
func TestCoarseClock_Denies(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket": ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		"window": ratelimit.FixedWindow{Limit: 2, Window: time.Hour, Start: ratelimit.StartOnFirstEvent},
	} {
		for _, opts := range [][]ratelimit.Option{
			nil,
			{ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {})},
			{ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil })},
		} {
			l := ratelimit.Must(ratelimit.New(alg, append(opts, ratelimit.WithClock(ratelimit.LateCoarseClock()))...))
			d, err := l.Charge(t.Context(), "new", 2)
			require.NoError(t, err)
			require.Zero(t, d.Remaining, name)
			require.True(t, l.AllowN("key", 2), name)
			require.False(t, l.Allow("key"), name)
			d, err = l.Take(t.Context(), "key", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed, name)
			d, err = l.Peek(t.Context(), "key")
			require.NoError(t, err)
			require.False(t, d.Allowed, name)
			all, err := l.TakeEach(t.Context(), []string{"key", "new"}, 1, nil)
			require.NoError(t, err)
			require.False(t, all[0].Allowed || all[1].Allowed, name)
			d, err = l.Charge(t.Context(), "key", 1)
			require.NoError(t, err)
			require.Zero(t, d.Remaining, name)
		}
	}
}

// TestCoarseClockGrantsAtMost holds the bound of a coarse clock: a span has at most the events that
// the limit allows in that span plus one resolution. Some span reaches the bound.
func TestCoarseClockGrantsAtMost(t *testing.T) {
	const each, resolution = 10 * time.Millisecond, 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		clk, stop, err := ratelimit.NewCoarseClock(resolution)
		require.NoError(t, err)
		defer stop()
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.Every(each)}, ratelimit.WithClock(clk)))
		rng := budget.Rand(t)
		var granted []time.Time
		closest := time.Hour
		for range 5000 {
			time.Sleep(time.Duration(rng.Int64N(2*int64(each))) / time.Duration(1+50*rng.IntN(2)))
			synctest.Wait()
			if !l.Allow("key") {
				continue
			}
			now := time.Now()
			for i := len(granted) - 1; i >= max(0, len(granted)-10); i-- {
				span := now.Sub(granted[i])
				events := len(granted) - i + 1
				require.LessOrEqual(t, events, 1+int((span+resolution)/each), "in %v", span)
				closest = min(closest, span)
			}
			granted = append(granted, now)
		}
		assert.Less(t, closest, each/20, "events can be that close")
	})
}

// TestClockSetFromAfar: a clock that shows a time far away when New is called, and
// is set to today later, is followed, and the keys used up before are idle.
func TestClockSetFromAfar(t *testing.T) {
	today := time.Date(2026, 11, 21, 22, 58, 30, 0, time.UTC)
	for _, first := range []time.Time{time.Unix(0, 0), time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC)} {
		clk := stepclock.New()
		clk.Set(first)
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, ratelimit.WithClock(clk)))
		require.True(t, l.AllowN("key", 10))
		require.False(t, l.Allow("key"))
		clk.Set(today)
		require.True(t, l.AllowN("key", 10), "from %v", first)
		require.False(t, l.Allow("key"))
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		assert.Equal(t, 30*time.Second, d.RetryAfter, "aligned to minutes, from %v", first)
		clk.Advance(30 * time.Second)
		assert.True(t, l.Allow("key"), "from %v", first)

		clk.Set(first)
		assert.True(t, l.AllowN("key", 9))
		assert.False(t, l.Allow("key"), "a clock that steps back mints nothing")
		clk.Set(today.Add(2 * time.Minute))
		assert.True(t, l.AllowN("key", 10))
	}
}

// TestClockThatLeapsFar: wherever a clock began, time stands still at the last instant, and nothing
// is granted twice.
func TestClockThatLeapsFar(t *testing.T) {
	for _, first := range []time.Time{
		{},
		time.Date(1582, 10, 15, 1, 2, 3, 0, time.UTC),
		time.Date(1850, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC),
		time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		clk := stepclock.New()
		clk.Set(first)
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithClock(clk)))
		require.True(t, l.AllowN("key", 10))
		clk.Set(first.AddDate(50, 0, 0))
		require.True(t, l.AllowN("key", 10), "50 years after %v", first)
		require.False(t, l.Allow("key"))
		clk.Set(first.AddDate(150, 0, 0))
		require.True(t, l.AllowN("key", 10), "from %v", first)
		for _, years := range []int{150, 151, 550, 1950, 50, 0, 200} { // more than a Duration has
			clk.Set(first.AddDate(years, 0, 0))
			require.False(t, l.Allow("key"), "%v", clk.Now())
			require.Equal(t, kernel.MaxInstant, ratelimit.NowOf(l))
		}
	}
}

// A setClock has a wall clock that is set; its monotonic clock does not change then.
type setClock struct {
	*stepclock.Clock
	wall time.Duration // by how much the wall clock was set since the limiter was made
}

func (c *setClock) Now() time.Time { return c.Clock.Now().Add(c.wall) }

// TestWallSetBetweenLimiters: limiters on one store agree on the time.
func TestWallSetBetweenLimiters(t *testing.T) {
	clk := &setClock{Clock: stepclock.New()}
	s := &ratelimit.MemoryStore{MaxKeys: 1}
	one := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithStore(s),
		ratelimit.WithClock(clk), ratelimit.WithName("one")))
	require.True(t, one.AllowN("key", 10))
	clk.wall = 2 * time.Hour
	two := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(10)}, ratelimit.WithStore(s),
		ratelimit.WithClock(clk), ratelimit.WithName("two")))
	require.True(t, two.Allow("key"))
	assert.EqualValues(t, 1, s.Stats().Evictions, "the first key was in use, and that is counted")

	s = new(ratelimit.MemoryStore)
	clk.wall = 0
	one = ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.WithStore(s),
		ratelimit.WithName("test"), ratelimit.WithClock(clk)))
	require.True(t, one.AllowN("key", 10))
	clk.wall = 2 * time.Hour
	two = ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.WithStore(s),
		ratelimit.WithName("test"), ratelimit.WithClock(clk)))
	assert.False(t, two.Allow("key"), "of the same name, and the window is the same")
}

// TestWallSet: a wall clock that is set forward, or goes on while a machine is suspended, makes
// time pass. One that is set back changes nothing.
func TestWallSet(t *testing.T) {
	clk := &setClock{Clock: stepclock.New()}
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Hour}, ratelimit.WithClock(clk)))
	set := func(by time.Duration) time.Duration {
		clk.wall += by
		clk.Advance(10 * time.Millisecond)
		d, err := l.Peek(t.Context(), "key")
		require.NoError(t, err)
		return d.RetryAfter
	}
	require.True(t, l.AllowN("key", 10))
	require.Equal(t, 30*time.Minute-10*time.Millisecond, set(30*time.Minute), "the window ends when the wall clock shows so")
	require.Zero(t, set(30*time.Minute))
	require.True(t, l.AllowN("key", 10))
	require.Equal(t, time.Hour-30*time.Millisecond, set(-time.Hour), "it mints nothing")
	require.Equal(t, time.Hour-40*time.Millisecond, set(time.Hour))
	require.Equal(t, 30*time.Minute-50*time.Millisecond, set(30*time.Minute))
}

func TestOneClockPerStore(t *testing.T) {
	alg := ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}
	mock, other := clock.NewMock(), clock.NewMock()
	coarse, stop, err := ratelimit.NewCoarseClock(time.Millisecond)
	require.NoError(t, err)
	defer stop()
	type uncomparable struct {
		clock.Clock
		_ []int
	}
	open := func(s ratelimit.Store, name string, opts ...ratelimit.Option) error {
		_, err := ratelimit.New(alg, append(opts, ratelimit.WithStore(s), ratelimit.WithName(name))...)
		return err
	}

	s := new(ratelimit.MemoryStore)
	require.NoError(t, open(s, "a", ratelimit.WithClock(mock)))
	require.NoError(t, open(s, "b", ratelimit.WithClock(mock)))
	for _, opts := range [][]ratelimit.Option{{}, {ratelimit.WithClock(other)}, {ratelimit.WithClock(clock.New())},
		{ratelimit.WithClock(coarse)}, {ratelimit.WithClock(uncomparable{Clock: mock})}} {
		err := open(s, "c", opts...)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "WithClock's clock is")
		assert.ErrorContains(t, err, "must be the clock of the other limiters on this store (a *clock.Mock)")
	}
	assert.Equal(t, 2, ratelimit.Spaces(s), "what was refused has left nothing")

	s = new(ratelimit.MemoryStore)
	require.NoError(t, open(s, "a"))
	require.NoError(t, open(s, "b"))
	require.NoError(t, open(s, "c", ratelimit.WithClock(clock.New())), "that is the system's, too")
	assert.ErrorContains(t, open(s, "d", ratelimit.WithClock(mock)),
		"is of type *clock.Mock: it must be the clock of the other limiters on this store (a *clock.clock)")

	type wrapped struct{ *ratelimit.MemoryStore }
	s = new(ratelimit.MemoryStore)
	require.NoError(t, open(wrapped{s}, "a", ratelimit.WithClock(coarse)))
	require.NoError(t, open(wrapped{s}, "b", ratelimit.WithClock(coarse)))
	assert.ErrorIs(t, open(wrapped{s}, "c"), ratelimit.ErrInvalid)
}

// TestClockBehind checks that the durations returned while a clock is behind an
// earlier reading include the gap.
func TestClockBehind(t *testing.T) {
	l, _, clk := fakes.Stepped(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 2},
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(1), Capacity: 2},
	})
	require.True(t, l.Allow("key"))
	clk.Advance(-time.Hour)
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: 2, ResetAfter: time.Hour + 2*time.Second, Delay: time.Hour + time.Second}, d)
	d, err = l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, time.Hour+time.Second, d.RetryAfter)
	clk.Advance(time.Hour + time.Second)
	assert.True(t, l.Allow("key"))

	// Time stands still at its end, and nothing panics.
	before := ratelimit.NowOf(l)
	for range 100 {
		clk.Advance(200 * 365 * 24 * time.Hour)
		l.Allow("key")
		now := ratelimit.NowOf(l)
		require.GreaterOrEqual(t, now, before)
		require.LessOrEqual(t, now, kernel.MaxInstant)
		before = now
	}
	assert.Equal(t, kernel.MaxInstant, before)
	clk.Advance(-290 * 365 * 24 * time.Hour)
	l.Allow("key")
}
