package ratelimit

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
	"github.com/ratelimit-go/ratelimit/internal/stepclock"
)

// TestClockSetFromAfar: a clock that shows a time far away when New is called, and
// is set to today later, is followed, and the keys used up before are idle.
func TestClockSetFromAfar(t *testing.T) {
	today := time.Date(2026, 11, 21, 22, 58, 30, 0, time.UTC)
	for _, first := range []time.Time{
		{},
		time.Date(1582, 10, 15, 1, 2, 3, 0, time.UTC),
		time.Date(1850, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC),
		time.Unix(0, 0),
	} {
		clk := stepclock.New()
		clk.Set(first)
		l := Must(New(FixedWindow{Limit: 10, Window: time.Minute}, WithClock(clk)))
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

// TestClockThatLeapsFar: time goes on after steps longer than a Duration.
func TestClockThatLeapsFar(t *testing.T) {
	clk := stepclock.New()
	l := Must(New(TokenBucket{Rate: PerHour(10)}, WithClock(clk)))
	for range 4 {
		require.True(t, l.AllowN("key", 10))
		require.False(t, l.Allow("key"))
		clk.Set(clk.Now().AddDate(400, 0, 0))
		require.True(t, l.AllowN("key", 10), "%v", clk.Now())
		clk.Advance(6 * time.Minute)
		require.True(t, l.Allow("key"), "%v", clk.Now())
		require.False(t, l.Allow("key"))
		clk.Advance(time.Hour)
	}
}

// A setClock has a wall clock that is set; its monotonic clock does not change then.
type setClock struct {
	*stepclock.Clock
	wall time.Duration // by how much the wall was set since the limiter was made
}

func (c *setClock) Now() time.Time { return c.Clock.Now().Add(c.wall) }

// TestWallSetBetweenLimiters: limiters on one store agree on the time.
func TestWallSetBetweenLimiters(t *testing.T) {
	clk := &setClock{Clock: stepclock.New()}
	s := NewMemoryStore(WithMaxKeys(1))
	one := Must(New(TokenBucket{Rate: PerHour(10)}, WithStore(s), WithClock(clk), WithName("one")))
	require.True(t, one.AllowN("key", 10))
	clk.wall = 2 * time.Hour
	two := Must(New(TokenBucket{Rate: PerHour(10)}, WithStore(s), WithClock(clk), WithName("two")))
	require.True(t, two.Allow("key"))
	assert.EqualValues(t, 1, s.Stats().Evictions, "the first key was in use, and that is counted")

	s = NewMemoryStore()
	clk.wall = 0
	one = Must(New(FixedWindow{Limit: 10, Window: time.Hour}, WithStore(s), WithName("test"), WithClock(clk)))
	require.True(t, one.AllowN("key", 10))
	clk.wall = 2 * time.Hour
	two = Must(New(FixedWindow{Limit: 10, Window: time.Hour}, WithStore(s), WithName("test"), WithClock(clk)))
	assert.False(t, two.Allow("key"), "of the same name, and the window is the same")
}

// TestWallSet: a wall clock that is set forward, or goes on while a machine is suspended, makes time
// pass. One that is set back changes nothing.
func TestWallSet(t *testing.T) {
	clk := &setClock{Clock: stepclock.New()}
	l := Must(New(FixedWindow{Limit: 10, Window: time.Hour}, WithClock(clk)))
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
	alg := TokenBucket{Rate: PerSecond(1)}
	mock, other := clock.NewMock(), clock.NewMock()
	coarse, err := NewCoarseClock(time.Millisecond)
	require.NoError(t, err)
	defer coarse.Stop()
	type uncomparable struct {
		clock.Clock
		_ []int
	}
	open := func(s Store, name string, opts ...Option) error {
		_, err := New(alg, append(opts, WithStore(s), WithName(name))...)
		return err
	}

	s := NewMemoryStore()
	require.NoError(t, open(s, "a", WithClock(mock)))
	require.NoError(t, open(s, "b", WithClock(mock)))
	for _, opts := range [][]Option{{}, {WithClock(other)}, {WithClock(clock.New())}, {WithClock(coarse)}, {WithClock(uncomparable{Clock: mock})}} {
		err := open(s, "c", opts...)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, "WithClock's clock is")
		assert.ErrorContains(t, err, "*clock.Mock at 0x")
	}
	assert.Len(t, s.spaces, 2, "what was refused has left nothing")

	s = NewMemoryStore()
	require.NoError(t, open(s, "a"))
	require.NoError(t, open(s, "b"))
	require.NoError(t, open(s, "c", WithClock(clock.New())), "that is the system's, too")
	assert.ErrorContains(t, open(s, "d", WithClock(mock)), "the system's clock")

	type wrapped struct{ *MemoryStore }
	s = NewMemoryStore()
	require.NoError(t, open(wrapped{s}, "a", WithClock(coarse)))
	require.NoError(t, open(wrapped{s}, "b", WithClock(coarse)))
	assert.ErrorIs(t, open(wrapped{s}, "c"), ErrInvalid)
}

// TestClockBehind checks that the durations returned while a clock is behind an
// earlier reading include the gap.
func TestClockBehind(t *testing.T) {
	l, _, clk := newTestLimiter(t, All{
		TokenBucket{Rate: PerSecond(1), Burst: 2},
		LeakyBucket{Rate: PerSecond(1), Capacity: 2},
	})
	require.True(t, l.Allow("key"))
	clk.Advance(-time.Hour)
	d, err := l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, Decision{Allowed: true, Limit: 2, ResetAfter: time.Hour + 2*time.Second, Delay: time.Hour + time.Second}, d)
	d, err = l.Take(t.Context(), "key", 1)
	require.NoError(t, err)
	assert.Equal(t, time.Hour+time.Second, d.RetryAfter)
	clk.Advance(time.Hour + time.Second)
	assert.True(t, l.Allow("key"))

	// Time goes on, more and more slowly towards its end, and nothing panics.
	before, _ := l.timeline.Now()
	for range 100 {
		clk.Advance(200 * 365 * 24 * time.Hour)
		l.Allow("key")
		now, _ := l.timeline.Now()
		require.GreaterOrEqual(t, now, before)
		require.LessOrEqual(t, now, kernel.MaxInstant)
		before = now
	}
	assert.Greater(t, before, kernel.MaxInstant-uint64(2*7*24*time.Hour))
	clk.Advance(-290 * 365 * 24 * time.Hour)
	l.Allow("key")
}
