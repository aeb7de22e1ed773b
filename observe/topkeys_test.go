package observe_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/fakes"
	"github.com/ratelimit-go/ratelimit/observe"
)

// top returns what TopDenied does.
func top(t testing.TB, k int, opts ...observe.TopOption) *observe.TopKeys {
	t.Helper()
	denied, err := observe.TopDenied(k, opts...)
	require.NoError(t, err)
	return denied
}

// deny tells t of n denials of key.
func deny(t *observe.TopKeys, key string, n int) {
	for range n {
		t.Observe(context.Background(), ratelimit.Observation{Limiter: "api", Key: key, N: 1, Outcome: ratelimit.Denied})
	}
}

// keysOf returns the keys of a list.
func keysOf(list []observe.TopKey) []string {
	keys := []string{}
	for _, d := range list {
		keys = append(keys, d.Key)
	}
	return keys
}

func TestTopDeniedListsKeys(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	top := top(t, 10, observe.WithTopClock(clk))
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 3, Window: time.Minute}, ratelimit.WithName("api"),
		ratelimit.WithClock(clk), ratelimit.WithObserver(top.Observe)))
	ctx := t.Context()
	assert.Empty(t, top.Top(10))
	assert.NotNil(t, top.Top(10), "to be encoded as an empty array")

	l.AllowN("a", 3)
	l.AllowN("b", 2)
	require.Empty(t, top.Top(10), "only denials count")
	l.Allow("a")
	clk.Add(time.Second / 4)
	_, err := l.Take(ctx, "a", 2)
	require.NoError(t, err)
	_, err = l.Take(ctx, "b", 2)
	require.NoError(t, err)
	retry := 54*time.Second + 3*time.Second/4 - 6
	a := observe.TopKey{Limiter: "api", Key: "a", Count: 2, Since: clk.Now().Add(-time.Second / 4), Last: clk.Now(),
		N: 2, RetryAfter: retry, Back: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)}
	b := observe.TopKey{Limiter: "api", Key: "b", Count: 1, Since: clk.Now(), Last: clk.Now(), N: 2, RetryAfter: retry, Back: a.Back}
	assert.Equal(t, []observe.TopKey{a, b}, top.Top(10))
	assert.Equal(t, []observe.TopKey{a}, top.Top(1))
	assert.Empty(t, top.Top(0))
	assert.Empty(t, top.Top(-1))

	_, err = l.Take(ctx, "b", 4)
	require.NoError(t, err)
	listed := top.Top(10)[1]
	assert.Equal(t, ratelimit.Never, listed.RetryAfter)
	assert.Zero(t, listed.Back, "it never comes back")
	assert.Equal(t, []string{"a", "b"}, keysOf(top.Top(10)), "of equals, in the order of their names")
	_, d, err := l.Reserve(ctx, "b", 4)
	require.NoError(t, err)
	require.Equal(t, ratelimit.Never, d.RetryAfter)
	listed = top.Top(10)[0]
	assert.Equal(t, 3.0, listed.Count)
	assert.Equal(t, ratelimit.Never, listed.RetryAfter)
	assert.Zero(t, listed.Back)
}

// TestTopDeniedTellsLimitersApart: the same key of two limiters is two keys.
func TestTopDeniedTellsLimitersApart(t *testing.T) {
	top := top(t, 10, observe.WithTopClock(clock.NewMock()))
	for _, name := range []string{"", "users", "orgs", "users"} {
		top.Observe(t.Context(), ratelimit.Observation{Limiter: name, Key: "k", Outcome: ratelimit.Denied})
	}
	for _, name := range []string{"", "users"} { // nor is a name part of a key
		top.Observe(t.Context(), ratelimit.Observation{Limiter: name, Key: "orgs", Outcome: ratelimit.Denied})
	}
	for _, name := range []string{"a", "b"} { // nor does it matter that a name is also a key
		for _, key := range []string{"a", "b"} {
			top.Observe(t.Context(), ratelimit.Observation{Limiter: name, Key: key, Outcome: ratelimit.Denied})
		}
	}
	counts := map[string]float64{}
	for _, d := range top.Top(10) {
		counts[d.Limiter+"/"+d.Key] = d.Count
	}
	assert.Equal(t, map[string]float64{
		"/k": 1, "users/k": 2, "orgs/k": 1, "/orgs": 1, "users/orgs": 1, "a/a": 1, "a/b": 1, "b/a": 1, "b/b": 1,
	}, counts)
}

// TestTopDeniedCountsOnlyDenials: no other outcome counts.
func TestTopDeniedCountsOnlyDenials(t *testing.T) {
	top := top(t, 10)
	for o := ratelimit.Outcome(0); !strings.HasPrefix(o.String(), "Outcome("); o++ {
		top.Observe(t.Context(), ratelimit.Observation{Key: o.String(), Outcome: o})
	}
	assert.Equal(t, []string{"denied"}, keysOf(top.Top(10)))
}

func TestTopDeniedForgets(t *testing.T) {
	clk := clock.NewMock()
	top := top(t, 2, observe.WithTopClock(clk), observe.WithHalfLife(time.Hour)) // counts eight keys
	deny(top, "yesterday", 1<<12)
	assert.Equal(t, float64(1<<12), top.Top(1)[0].Count)
	for i := range 13 {
		clk.Add(time.Hour)
		d := top.Top(1)[0]
		assert.Equal(t, math.Exp2(float64(11-i)), d.Count, "after %d half-lives", i+1)
	}
	clk.Add(time.Minute)
	assert.Empty(t, top.Top(1), "its count is below one half")

	// Two later denials outweigh many older ones.
	deny(top, "morning", 7)
	clk.Add(2 * time.Hour)
	deny(top, "noon", 2)
	assert.Equal(t, []string{"noon", "morning"}, keysOf(top.Top(2)))
	assert.InDelta(t, 7.0/4, top.Top(2)[1].Count, 1e-9) // weights are powers of a float

	// Years without a denial, at whose end the old counts are nothing.
	clk.Add(10 * 365 * 24 * time.Hour)
	assert.Empty(t, top.Top(2))
	deny(top, "new", 3)
	deny(top, "newer", 1)
	deny(top, "newest", 2)
	require.Equal(t, []string{"new", "newest"}, keysOf(top.Top(2)))
	assert.Equal(t, 3.0, top.Top(2)[0].Count)

	// For weeks, a denial each half hour: the sum of the weights has a limit.
	for range 2 * 24 * 21 {
		deny(top, "steady", 1)
		clk.Add(time.Hour / 2)
	}
	assert.InEpsilon(t, 1/(math.Sqrt2-1), top.Top(1)[0].Count, 0.001) // the sum for ever, of which weeks are a part
}

// TestTopDeniedRemembersTheLeastCount: a key whose count is one half is still in the list. If it is
// denied then, it has been in the list since its first denial.
func TestTopDeniedRemembersTheLeastCount(t *testing.T) {
	clk := clock.NewMock()
	top := top(t, 2, observe.WithTopClock(clk), observe.WithHalfLife(time.Hour))
	since := func() time.Duration { return top.Top(1)[0].Since.Sub(time.Unix(0, 0)) }
	deny(top, "k", 1)
	clk.Add(time.Hour)
	assert.Equal(t, 0.5, top.Top(1)[0].Count)
	deny(top, "k", 1)
	assert.Zero(t, since())
	clk.Add(2 * time.Hour)
	require.Empty(t, top.Top(1))
	deny(top, "k", 1)
	assert.Equal(t, 3*time.Hour, since(), "it had left the list")
}

// TestTopDeniedClockStepsBack: the list stands still meanwhile.
func TestTopDeniedClockStepsBack(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	top := top(t, 2, observe.WithTopClock(clk), observe.WithHalfLife(time.Minute))
	deny(top, "k", 4)
	clk.Set(clk.Now().Add(-time.Hour))
	deny(top, "k", 4)
	d := top.Top(1)[0]
	assert.Equal(t, 8.0, d.Count)
	assert.Equal(t, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), d.Last)
}

// TestTopDeniedKeepsLittle: long keys are cut where a character begins, and are told apart.
func TestTopDeniedKeepsLittle(t *testing.T) {
	long := strings.Repeat("x", 126)
	top := top(t, 10, observe.WithTopClock(clock.NewMock()))
	deny(top, long+"yy", 1)
	deny(top, long+"éé", 2)
	deny(top, long+"xéé", 3)
	deny(top, long+"xée", 4)
	deny(top, long+"\x80\x80\x80\x80\x80\x80", 5)
	deny(top, strings.Repeat("\x80", 200), 6)
	list := top.Top(10)
	assert.Equal(t, []string{strings.Repeat("\x80", 125), long[:125], long + "x", long + "x", long + "é", long + "yy"}, keysOf(list))
	for i, d := range list {
		assert.Equal(t, i < 5, d.Cut, d.Key)
	}
}

// TestTopDeniedMemory holds what the documentation says of it, with the longest keys and as
// many as there may be.
func TestTopDeniedMemory(t *testing.T) {
	budget.Alone(t)
	const k = 1000
	for _, length := range []int{16, 10_000} {
		var all *observe.TopKeys
		name := strings.Repeat("k", length-10)
		heap := fakes.HeapOf(func() {
			all = top(t, k)
			for i := range 9 * k {
				deny(all, fmt.Sprintf("%010d%s", i, name), 1)
			}
		})
		assert.Less(t, heap/k, float64(800+4*min(length, 128)), "keys of %d bytes", length)
		assert.Len(t, all.Top(k), k)
	}
}

func TestTopDeniedAllocatesNothing(t *testing.T) {
	top := top(t, 10, observe.WithTopClock(clock.NewMock()))
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 1, Window: 1000 * time.Hour},
		ratelimit.WithName("api"), ratelimit.WithObserver(top.Observe)))
	for range 2 {
		l.Allow("k")
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { l.Allow("k") }))
	assert.Equal(t, 1002.0, top.Top(1)[0].Count)
	i, keys := 0, fakes.Names(1000)
	for range 2000 {
		deny(top, keys[i%1000], 1)
		i++
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { deny(top, keys[i%1000], 1); i++ }), "nor for keys that replace others")
}

func TestTopDeniedOptions(t *testing.T) {
	clk := clock.NewMock()
	usual := top(t, 1, observe.WithTopClock(clk))
	deny(usual, "a", 2)
	clk.Add(5 * time.Minute)
	assert.Equal(t, 1.0, usual.Top(1)[0].Count, "the default half-life")

	short := top(t, 1, observe.WithTopClock(clk), observe.WithHalfLife(1))
	deny(short, "k", 1<<10)
	clk.Add(10)
	assert.Equal(t, 1.0, short.Top(1)[0].Count, "a half-life of a nanosecond")
}

// TestTopUsedCountsEvents: events count when they are granted, by whichever call, and when they are
// charged. Nothing else counts, and nothing is subtracted.
func TestTopUsedCountsEvents(t *testing.T) {
	clk := clock.NewMock()
	top, err := observe.TopUsed(10, observe.WithTopClock(clk))
	require.NoError(t, err)
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Minute},
		ratelimit.WithName("api"), ratelimit.WithClock(clk), ratelimit.WithObserver(top.Observe)))
	ctx := t.Context()
	counts := func() map[string]float64 {
		all := map[string]float64{}
		for _, k := range top.Top(10) {
			all[k.Key] = k.Count
		}
		return all
	}
	l.AllowN("allowed", 9)
	l.AllowN("denied", 11)
	l.AllowN("nothing", 0)
	_, err = l.Charge(ctx, "charged", 12)
	require.NoError(t, err)
	for key, n := range map[string]int{"settled for less": 1, "settled": 3, "settled for more": 7, "cancelled": -1} {
		r, _, err := l.Hold(ctx, key, 3)
		require.NoError(t, err)
		if n < 0 {
			r.Cancel()
			continue
		}
		_, err = r.Settle(ctx, n)
		require.NoError(t, err)
	}
	_, _, err = l.Reserve(ctx, "reserved", 10)
	require.NoError(t, err)
	_, _, err = l.Reserve(ctx, "reserved", 8)
	require.NoError(t, err)
	withheld, err := ratelimit.TakeAll(ctx, 2, ratelimit.For(l, "withheld"), ratelimit.For(l, "charged"))
	require.NoError(t, err)
	require.False(t, withheld.Allowed)
	assert.Equal(t, map[string]float64{
		"allowed": 9, "charged": 12, "settled for less": 3, "settled": 3, "settled for more": 7, "cancelled": 3, "reserved": 18,
	}, counts())

	first := top.Top(1)[0]
	assert.Equal(t, observe.TopKey{Limiter: "api", Key: "reserved", Count: 18, Since: clk.Now(), Last: clk.Now(), N: 8}, first)
	clk.Add(5 * time.Minute)
	assert.Equal(t, 9.0, top.Top(1)[0].Count, "half as much after the half-life")
}

// TestTopUsedFailures: FailOpen lets events happen, which are used. A charge that failed uses nothing.
func TestTopUsedFailures(t *testing.T) {
	top, err := observe.TopUsed(10, observe.WithTopClock(clock.NewMock()))
	require.NoError(t, err)
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow{Limit: 10, Window: time.Minute}, ratelimit.WithStore(fakes.Down(context.DeadlineExceeded)),
		ratelimit.WithName("api"), ratelimit.WithFailureLog(nil), ratelimit.WithObserver(top.Observe)))
	require.True(t, l.AllowN("allowed", 3))
	_, err = l.Charge(t.Context(), "charged", 3)
	require.Error(t, err)
	assert.Equal(t, []string{"allowed"}, keysOf(top.Top(10)))
}

// TestTopUsedDenials: keys that use nothing take no places of keys that do.
func TestTopUsedDenials(t *testing.T) {
	top, err := observe.TopUsed(1, observe.WithTopClock(clock.NewMock()))
	require.NoError(t, err)
	use := func(key string) {
		top.Observe(t.Context(), ratelimit.Observation{Limiter: "api", Key: key, N: 1, Granted: 1})
	}
	for _, key := range []string{"a", "b", "c", "d"} { // as many as are counted
		use(key)
	}
	for _, key := range fakes.Names(100) {
		deny(top, key, 1)
	}
	use("a")
	a := top.Top(1)[0]
	assert.Equal(t, "a", a.Key)
	assert.Equal(t, []float64{2, 0}, []float64{a.Count, a.Error})
}

// TestTopUsedWeighsEvents: one call for many events is above many calls for one.
func TestTopUsedWeighsEvents(t *testing.T) {
	top, err := observe.TopUsed(2, observe.WithTopClock(clock.NewMock()))
	require.NoError(t, err)
	for key, n := range map[string]int{"much": 1000, "most": math.MaxInt, "few": 3} {
		top.Observe(t.Context(), ratelimit.Observation{Key: key, N: n, Granted: n})
	}
	for range 999 {
		top.Observe(t.Context(), ratelimit.Observation{Key: "often", N: 1, Granted: 1})
	}
	assert.Equal(t, []string{"most", "much"}, keysOf(top.Top(2)))
}

func TestTopUsedBadOptions(t *testing.T) {
	_, err := observe.TopUsed(0)
	require.ErrorIs(t, err, ratelimit.ErrInvalid)
	require.EqualError(t, err, "observe: TopUsed's k is 0: it must be between 1 and a million")
	_, err = observe.TopUsed(1, nil)
	require.ErrorContains(t, err, "option 0 of TopUsed is nil")
}

func TestTopDeniedBadOptions(t *testing.T) {
	for want, bad := range map[string]struct {
		k    int
		opts []observe.TopOption
	}{
		"TopDenied's k is 0":           {0, nil},
		"TopDenied's k is 1000001":     {1_000_001, nil},
		"WithHalfLife's d is 0s":       {1, []observe.TopOption{observe.WithHalfLife(0)}},
		"WithTopClock's clock is nil":  {1, []observe.TopOption{observe.WithTopClock((*clock.Mock)(nil))}},
		"option 1 of TopDenied is nil": {1, []observe.TopOption{observe.WithHalfLife(1), nil}},
	} {
		none, err := observe.TopDenied(bad.k, bad.opts...)
		assert.Nil(t, none)
		require.ErrorIs(t, err, ratelimit.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
}
