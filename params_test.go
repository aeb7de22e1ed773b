package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestBadParameters checks that each parameter that cannot be used is refused
// with an error that names it and its value.
func TestBadParameters(t *testing.T) {
	ten := ratelimit.PerSecond(10)
	for _, tt := range []struct {
		alg  ratelimit.Algorithm
		says []string
	}{
		{nil, []string{"Algorithm", "nil"}},
		{(*ratelimit.TokenBucket)(nil), []string{"Algorithm", "nil"}},
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
		"option 1 of New is nil":            nil,
		"WithStore":                         ratelimit.WithStore(nil),
		"WithClock":                         ratelimit.WithClock(nil),
		"WithStore's store is nil":          ratelimit.WithStore((*ratelimit.MemoryStore)(nil)),
		"WithClock's clock is nil":          ratelimit.WithClock((*clock.Mock)(nil)),
		"Fallback's limiter":                ratelimit.WithFailurePolicy(ratelimit.Fallback(nil)),
		"WithMaxKeys's n is -1":             ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(-1))),
		"WithMaxKeys's n is 0":              ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(0))),
		"TopDenied's k is 0":                ratelimit.WithObserver(ratelimit.TopDenied(0)),
		"TopDenied's k is 1000001":          ratelimit.WithObserver(ratelimit.TopDenied(1_000_001)),
		"WithHalfLife's d is 0s":            ratelimit.WithObserver(ratelimit.TopDenied(1, ratelimit.WithHalfLife(0))),
		"WithTopClock's clock is nil":       ratelimit.WithObserver(ratelimit.TopDenied(1, ratelimit.WithTopClock((*clock.Mock)(nil)))),
		"option 1 of TopDenied is nil":      ratelimit.WithObserver(ratelimit.TopDenied(1, ratelimit.WithHalfLife(1), nil)),
		"WithFullPolicy's policy is 3":      ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithFullPolicy(3))),
		"option 1 of NewMemoryStore is nil": ratelimit.WithStore(ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(1), nil, nil)),
	} {
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithName("test"), opt)
		assert.Nil(t, l)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, part)
	}
}

// What outlives the process needs a name. In memory, limiters without one share nothing.
func TestStoreNeedsName(t *testing.T) {
	for _, name := range [][]ratelimit.Option{nil, {ratelimit.WithName("")}} {
		l, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, append(name, ratelimit.WithStore(newMapDB().store()))...)
		assert.Nil(t, l)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
		assert.ErrorContains(t, err, "WithName")
		for _, own := range [][]ratelimit.Option{nil, {ratelimit.WithStore(ratelimit.NewMemoryStore())}} {
			_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, append(own, name...)...)
			assert.NoError(t, err)
		}
	}
}

// A pointer to an algorithm is one, too, and is copied.
func TestPointerToAlgorithm(t *testing.T) {
	alg := &ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)}
	tr, err := ratelimit.NewTransition(alg)
	require.NoError(t, err)
	alg.Burst = 7
	assert.Equal(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 2}, tr.Algorithm())

	// So is what an All is made of, however it is put together.
	inner := &ratelimit.All{&ratelimit.FixedWindow{Limit: 1, Window: 1}, alg}
	tr, err = ratelimit.NewTransition(ratelimit.All{ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3)}, inner})
	require.NoError(t, err)
	(*inner)[0] = alg
	alg.Burst = 8
	assert.Equal(t, ratelimit.All{
		ratelimit.LeakyBucket{Rate: ratelimit.PerSecond(3), Capacity: 1},
		ratelimit.FixedWindow{Limit: 1, Window: 1},
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2), Burst: 7},
	}, tr.Algorithm())
}

func TestNilContext(t *testing.T) {
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)})
	var none context.Context
	_, err := l.Take(none, "key", 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	assert.ErrorIs(t, l.Wait(none, "key"), ratelimit.ErrInvalid)
}

// A context that is nil is an error also where it is not needed yet.
func TestNilContextOfReservation(t *testing.T) {
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)})
	require.True(t, l.Allow("key"))
	r, err := l.Reserve(t.Context(), "key", 1)
	require.NoError(t, err)
	var none context.Context
	assert.ErrorIs(t, r.Wait(none), ratelimit.ErrInvalid)
	assert.Equal(t, time.Second, r.Delay())
}

// The zero Reservation is what a Limiter of one's own can return.
func TestZeroReservation(t *testing.T) {
	var r ratelimit.Reservation
	assert.Zero(t, r.Delay())
	assert.NoError(t, r.Wait(t.Context()))
	r.Cancel()
}

type storeOfNothing struct{}

func (storeOfNothing) Open(string, *ratelimit.Transition) (ratelimit.States, error) { return nil, nil }

func TestStoreThatOpensNothing(t *testing.T) {
	_, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithStore(storeOfNothing{}), ratelimit.WithName("test"))
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}

// What AlgorithmOf returns is the caller's to change.
func TestAlgorithmOfIsACopy(t *testing.T) {
	alg := ratelimit.All{ratelimit.FixedWindow{Limit: 3, Window: time.Second}}
	l, _ := at(t, alg)
	ratelimit.AlgorithmOf(l).(ratelimit.All)[0] = nil
	assert.Equal(t, alg, ratelimit.AlgorithmOf(l))
}

func TestZeroMemoryStore(t *testing.T) {
	s := &ratelimit.MemoryStore{}
	s.Shrink()
	assert.Zero(t, s.Stats())
	l, _ := at(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(2)}, ratelimit.WithStore(s), ratelimit.WithName("test"))
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
		l, _ := at(t, alg)
		assert.Equal(t, limit, peek(t, l).Limit, "%+v", alg)
	}
	// Segments 0 is 1, ColdFactor 0 is 3: the same answers.
	for _, pair := range [][2]ratelimit.Algorithm{
		{ratelimit.SlidingWindow{Limit: 4, Window: time.Second}, ratelimit.SlidingWindow{Limit: 4, Window: time.Second, Segments: 1}},
		{ratelimit.WarmingUp{Rate: ratelimit.PerSecond(4), Warmup: time.Second}, ratelimit.WarmingUp{Rate: ratelimit.PerSecond(4), Warmup: time.Second, ColdFactor: 3}},
	} {
		a, clkA := at(t, pair[0])
		b, clkB := at(t, pair[1])
		for range 40 {
			require.Equal(t, take(t, a, 1), take(t, b, 1))
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
	for s, want := range map[string]string{
		"1.5/s": "3/2s", "0.5/s": "1/2s", ".25/m": "1/4m0s", "2.0/h": "2/h", " 1.05 / 250ms ": "21/5s",
	} {
		_, err := ratelimit.ParseRate(s)
		require.ErrorContains(t, err, "write "+want, s)
		_, err = ratelimit.ParseRate(want)
		assert.NoError(t, err)
	}
	for _, s := range []string{"1.5e3/s", "0.0/s", "-1.5/s", "1.-5/s", "1.5/x", "0.1/300000h", "1.5/0s", "0.0000000000000000000001/s", "0.000001/106751d"} {
		_, err := ratelimit.ParseRate(s)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid, s)
		assert.Contains(t, err.Error(), "not a number", s)
		assert.NotContains(t, err.Error(), "write", s)
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

// A duration of 292 years reads badly.
func TestNeverReadsAsNever(t *testing.T) {
	l, _ := at(t, ratelimit.FixedWindow{Limit: 1, Window: time.Hour})
	d := take(t, l, 2)
	for _, format := range []string{"%v", "%+v", "%s"} {
		text := fmt.Sprintf(format, d)
		assert.Contains(t, text, "Allowed:false Limit:1 Remaining:1 RetryAfter:never ResetAfter:0s", text)
	}
}
