package ratelimit

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/topk"
)

// deny tells t of n denials of key.
func deny(t *DeniedKeys, key string, n int) {
	for range n {
		t.Observe(context.Background(), Observation{Limiter: "api", Key: key, N: 1, Outcome: Denied})
	}
}

// keysOf returns the keys of a list.
func keysOf(list []DeniedKey) []string {
	keys := []string{}
	for _, d := range list {
		keys = append(keys, d.Key)
	}
	return keys
}

func TestTopDeniedListsKeys(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	top := TopDenied(10, WithTopClock(clk))
	l := Must(New(FixedWindow{Limit: 3, Window: time.Minute}, WithName("api"), WithClock(clk), WithObserver(top)))
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
	a := DeniedKey{Limiter: "api", Key: "a", Count: 2, Since: clk.Now().Add(-time.Second / 4), Last: clk.Now(), N: 2, RetryAfter: retry, Back: time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)}
	b := DeniedKey{Limiter: "api", Key: "b", Count: 1, Since: clk.Now(), Last: clk.Now(), N: 2, RetryAfter: retry, Back: a.Back}
	assert.Equal(t, []DeniedKey{a, b}, top.Top(10))
	assert.Equal(t, []DeniedKey{a}, top.Top(1))
	assert.Empty(t, top.Top(0))
	assert.Empty(t, top.Top(-1))

	_, err = l.Take(ctx, "b", 4)
	require.NoError(t, err)
	listed := top.Top(10)[1]
	assert.Equal(t, Never, listed.RetryAfter)
	assert.Zero(t, listed.Back, "it never comes back")
	assert.Equal(t, []string{"a", "b"}, keysOf(top.Top(10)), "of equals, in the order of their names")
	_, err = l.Reserve(ctx, "b", 4)
	require.ErrorIs(t, err, ErrNever)
	listed = top.Top(10)[0]
	assert.Equal(t, 3.0, listed.Count)
	assert.Equal(t, Never, listed.RetryAfter)
	assert.Zero(t, listed.Back)
}

// TestTopDeniedSince: a key that comes back to the list is denied since then, whichever parts have
// counted it.
func TestTopDeniedSince(t *testing.T) {
	clk := clock.NewMock()
	top := TopDenied(2, WithTopClock(clk), WithHalfLife(time.Minute))
	top.parts = make([]deniedPart, 2)
	for i := range top.parts {
		top.parts[i] = deniedPart{keys: topk.New[denial](8), weight: 1, next: &top.parts[1-i]}
	}
	begin := clk.Now()
	since := func() time.Duration { return top.Top(1)[0].Since.Sub(begin) }
	deny(top, "k", 4)
	clk.Add(2 * time.Minute)
	assert.Zero(t, since())
	other := func() { // a goroutine that finds the first part locked
		top.parts[0].mu.Lock()
		defer top.parts[0].mu.Unlock()
		deny(top, "k", 1)
	}
	other()
	assert.Zero(t, since())
	clk.Add(30 * time.Second)
	deny(top, "k", 1)
	assert.Zero(t, since(), "it was in the list all the time")
	clk.Add(10 * time.Minute)
	require.Empty(t, top.Top(1))
	other()
	assert.Equal(t, 12*time.Minute+30*time.Second, since())
	clk.Add(30 * time.Second)
	deny(top, "k", 1)
	assert.Equal(t, 12*time.Minute+30*time.Second, since())
	clk.Add(1)
	top.Observe(t.Context(), Observation{Key: "k", Limiter: "api", Outcome: Denied, Decision: Decision{Part: 2}})
	assert.Equal(t, 2, top.Top(1)[0].Part, "of the latest denial")
}

// TestTopDeniedTellsLimitersApart: the same key of two limiters is two keys.
func TestTopDeniedTellsLimitersApart(t *testing.T) {
	top := TopDenied(10, WithTopClock(clock.NewMock()))
	for _, name := range []string{"", "users", "orgs", "users"} {
		top.Observe(t.Context(), Observation{Limiter: name, Key: "k", Outcome: Denied})
	}
	for _, name := range []string{"", "users"} { // nor is a name part of a key
		top.Observe(t.Context(), Observation{Limiter: name, Key: "orgs", Outcome: Denied})
	}
	counts := map[string]float64{}
	for _, d := range top.Top(10) {
		counts[d.Limiter+"/"+d.Key] = d.Count
	}
	assert.Equal(t, map[string]float64{"/k": 1, "users/k": 2, "orgs/k": 1, "/orgs": 1, "users/orgs": 1}, counts)
}

// TestTopDeniedCountsOnlyDenials: no other outcome counts.
func TestTopDeniedCountsOnlyDenials(t *testing.T) {
	top := TopDenied(10)
	for o := range outcomes {
		top.Observe(t.Context(), Observation{Key: o.String(), Outcome: o})
	}
	assert.Equal(t, []string{"denied"}, keysOf(top.Top(10)))
}

func TestTopDeniedForgets(t *testing.T) {
	clk := clock.NewMock()
	top := TopDenied(2, WithTopClock(clk), WithHalfLife(time.Hour)) // counts eight keys
	deny(top, "yesterday", 1<<12)
	assert.Equal(t, float64(1<<12), top.Top(1)[0].Count)
	for i := range 13 {
		clk.Add(time.Hour)
		d := top.Top(1)[0]
		assert.InEpsilon(t, math.Exp2(float64(11-i)), d.Count, 0.001, "after %d half-lives", i+1)
	}
	clk.Add(time.Minute)
	assert.Empty(t, top.Top(1), "its count is below one half")

	// Two later denials outweigh many older ones.
	deny(top, "morning", 7)
	clk.Add(2 * time.Hour)
	deny(top, "noon", 2)
	assert.Equal(t, []string{"noon", "morning"}, keysOf(top.Top(2)))
	assert.InEpsilon(t, 7.0/4, top.Top(2)[1].Count, 0.001)

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
	assert.InEpsilon(t, 1/(math.Sqrt2-1), top.Top(1)[0].Count, 0.001)
}

// TestTopDeniedClockStepsBack: the list stands still meanwhile.
func TestTopDeniedClockStepsBack(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	top := TopDenied(2, WithTopClock(clk), WithHalfLife(time.Minute))
	deny(top, "k", 4)
	clk.Set(clk.Now().Add(-time.Hour))
	deny(top, "k", 4)
	d := top.Top(1)[0]
	assert.Equal(t, 8.0, d.Count)
	assert.Equal(t, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), d.Last)
}

// decayed counts denials exactly.
type decayed struct {
	halfLife time.Duration
	counts   map[string]float64
	total    float64
}

func (c *decayed) pass(d time.Duration) {
	f := math.Exp2(-float64(d) / float64(c.halfLife))
	c.total *= f
	for key := range c.counts {
		c.counts[key] *= f
	}
}

func (c *decayed) deny(key string) {
	c.counts[key]++
	c.total++
}

// check compares a list of k keys with the exact counts, apart from rounding.
func (c *decayed) check(t *testing.T, k int, list []DeniedKey) {
	t.Helper()
	const about = 1 + 1e-3
	listed := map[string]bool{}
	require.LessOrEqual(t, len(list), k)
	for i, d := range list {
		exact := c.counts[d.Key]
		require.False(t, listed[d.Key], "twice")
		require.LessOrEqual(t, d.Count, exact*about)
		require.LessOrEqual(t, exact, (d.Count+d.Error)*about)
		require.LessOrEqual(t, d.Error, c.total/float64(4*k)*about)
		require.GreaterOrEqual(t, d.Error, 0.0)
		if i > 0 {
			require.LessOrEqual(t, d.Count, list[i-1].Count)
		}
		listed[d.Key] = true
	}
	for key, exact := range c.counts {
		if exact > max(1.25*c.total/float64(k), 0.5+c.total/float64(4*k))*about && !listed[key] {
			t.Fatalf("%s has %v of %v denials, and is not in a list of %d", key, exact, c.total, k)
		}
	}
}

// TestTopDeniedBounds compares lists with exact counts while time passes. The denials go to
// parts at random, as those of many processors would.
func TestTopDeniedBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(random, 1.2, 1, 1<<16)
	for name, next := range map[string]func(i int) int{
		"zipf":          func(int) int { return int(zipf.Uint64()) },
		"all different": func(i int) int { return i },
		"circle":        func(i int) int { return i % 51 },
		"one among different ones": func(i int) int {
			if i%7 == 0 {
				return -1
			}
			return i
		},
		"attackers in turn": func(i int) int {
			if i%2 == 0 {
				return -i / 3000
			}
			return random.IntN(10_000)
		},
	} {
		for _, parts := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/parts=%d", name, parts), func(t *testing.T) {
				const k = 12
				clk := clock.NewMock()
				top := TopDenied(k, WithTopClock(clk), WithHalfLife(time.Minute))
				use(top, parts)
				exact := &decayed{time.Minute, map[string]float64{}, 0}
				for i := range int(budget.Histories(6_000, 6_000)) {
					key := fmt.Sprint(next(i))
					denyIn(top, random.IntN(parts), key)
					exact.deny(key)
					if i%100 == 99 {
						pause := time.Duration(random.IntN(5000)) * time.Millisecond
						clk.Add(pause)
						exact.pass(pause)
					}
					if i%500 == 499 {
						exact.check(t, k, top.Top(k))
					}
				}
			})
		}
	}
}

// denyIn tells the given part of a denial of key, by locking the others.
func denyIn(top *DeniedKeys, part int, key string) {
	for i := range top.parts {
		if i != part {
			top.parts[i].mu.Lock()
			defer top.parts[i].mu.Unlock()
		}
	}
	deny(top, key, 1)
}

// use makes top use n parts.
func use(top *DeniedKeys, n int) {
	one := top.parts[0].keys
	top.parts = make([]deniedPart, n)
	for i := range top.parts {
		p := &top.parts[i]
		*p = deniedPart{weight: 1, next: &top.parts[(i+1)%n]}
		p.keys = TopDenied(top.most).parts[0].keys
	}
	top.parts[0].keys = one
}

// TestTopDeniedSpreads: while a part is locked, denials are counted in another one, and Top
// adds them.
func TestTopDeniedSpreads(t *testing.T) {
	top := TopDenied(1, WithTopClock(clock.NewMock()))
	use(top, 3)
	denyIn(top, 0, "k")
	for _, key := range []string{"k", "k", "a", "a", "a", "b", "b", "b", "c", "d"} { // d in place of c
		denyIn(top, 1, key)
	}
	denyIn(top, 2, "k")
	assert.Len(t, top.parts[0].keys.Entries(), 1)
	assert.Len(t, top.parts[1].keys.Entries(), 4)
	assert.Len(t, top.parts[2].keys.Entries(), 1)
	d := top.Top(1)[0]
	assert.Equal(t, "k", d.Key)
	assert.Equal(t, 4.0, d.Count)
	assert.Zero(t, d.Error, "each part has it")

	for range 5 {
		denyIn(top, 0, "d")
	}
	d = top.Top(1)[0]
	assert.Equal(t, "d", d.Key)
	assert.Equal(t, 6.0, d.Count)
	assert.Equal(t, 1.0, d.Error, "it took the place of c, which had one")
	for range 7 {
		denyIn(top, 2, "e")
	}
	d = top.Top(1)[0]
	assert.Equal(t, "e", d.Key)
	assert.Equal(t, 7.0, d.Count)
	assert.Equal(t, 2.0, d.Error, "the second part has no key with less than two")
}

// TestTopDeniedCountsEach: no denial is lost if many goroutines are denied at once.
func TestTopDeniedCountsEach(t *testing.T) {
	const goroutines, each = 8, 2000
	top := TopDenied(10, WithHalfLife(1e6*time.Hour))
	use(top, 3)
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				deny(top, "everybody", 1)
				deny(top, fmt.Sprint("own ", g%4), 1)
				if i%500 == 0 {
					top.Top(10)
				}
			}
		})
	}
	all.Wait()
	list := top.Top(10)
	require.Len(t, list, 5)
	assert.InDelta(t, goroutines*each, list[0].Count, 0.01)
	for _, d := range list[1:] {
		assert.InDelta(t, goroutines*each/4, d.Count, 0.01)
		assert.Zero(t, d.Error)
	}
}

// TestTopDeniedKeepsLittle: long keys are cut where a character begins, and are told apart.
func TestTopDeniedKeepsLittle(t *testing.T) {
	long := strings.Repeat("x", 126)
	top := TopDenied(10, WithTopClock(clock.NewMock()))
	deny(top, long+"yy", 1)
	deny(top, long+"éé", 2)
	deny(top, long+"xéé", 3)
	deny(top, long+"xée", 4)
	deny(top, long+"\x80\x80\x80\x80\x80\x80", 5)
	list := top.Top(10)
	assert.Equal(t, []string{long[:125], long + "x", long + "x", long + "é", long + "yy"}, keysOf(list))
	for i, d := range list {
		assert.Equal(t, i < 4, d.Cut, d.Key)
	}
}

// TestTopDeniedMemory holds what the documentation says of it, with the longest keys and as
// many as there may be.
func TestTopDeniedMemory(t *testing.T) {
	budget.Alone(t)
	const k = 1000
	for _, length := range []int{16, 10_000} {
		var top *DeniedKeys
		name := strings.Repeat("k", length-10)
		heap := heapOf(func() {
			top = TopDenied(k)
			for i := range 9 * k {
				deny(top, fmt.Sprintf("%010d%s", i, name), 1)
			}
		})
		assert.Less(t, heap/k, float64(800+4*min(length, maxDeniedKey)), "keys of %d bytes", length)
		assert.Len(t, top.Top(k), k)
	}
}

func TestTopDeniedAllocatesNothing(t *testing.T) {
	top := TopDenied(10)
	l := Must(New(FixedWindow{Limit: 1, Window: 1000 * time.Hour}, WithName("api"), WithObserver(top)))
	for range 2 {
		l.Allow("k")
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { l.Allow("k") }))
	assert.InDelta(t, 1002, top.Top(1)[0].Count, 1)
	i, keys := 0, names(1000)
	for range 2000 {
		deny(top, keys[i%1000], 1)
		i++
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { deny(top, keys[i%1000], 1); i++ }), "nor for keys that replace others")
}

func TestTopDeniedOptions(t *testing.T) {
	clk := clock.NewMock()
	top := TopDenied(1, WithTopClock(clk))
	deny(top, "a", 2)
	clk.Add(5 * time.Minute)
	assert.Equal(t, 1.0, top.Top(1)[0].Count, "the default half-life")

	bad := TopDenied(-1, WithHalfLife(-1), WithTopClock(nil), nil)
	deny(bad, "a", 2)
	assert.Len(t, bad.Top(5), 1, "nothing panics until New returns the error")
	short := TopDenied(1, WithTopClock(clk), WithHalfLife(1))
	deny(short, "k", 1<<10)
	clk.Add(10)
	assert.Equal(t, 1.0, short.Top(1)[0].Count, "a half-life of a nanosecond")
}
