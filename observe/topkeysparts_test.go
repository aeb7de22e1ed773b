package observe

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/internal/budget"
	"github.com/ratelimit-go/ratelimit/internal/topk"
)

// The tests in this file choose the part of a TopKeys that counts a denial, and compare its list
// with exact counts. The tests of what a single goroutine sees are in topkeys_test.go.

// denied tells t of n denials of key.
func denied(t *TopKeys, key string, n int) {
	for range n {
		t.Observe(context.Background(), ratelimit.Observation{Limiter: "api", Key: key, N: 1, Outcome: ratelimit.Denied})
	}
}

// TestTopDeniedSince: a key that comes back to the list is denied since then, whichever parts have
// counted it.
func TestTopDeniedSince(t *testing.T) {
	clk := clock.NewMock()
	top, err := TopDenied(2, WithTopClock(clk), WithHalfLife(time.Minute))
	require.NoError(t, err)
	top.parts = make([]topPart, 2)
	for i := range top.parts {
		top.parts[i] = topPart{keys: topk.New[latest](8), weight: 1, next: &top.parts[1-i]}
	}
	begin := clk.Now()
	since := func() time.Duration { return top.Top(1)[0].Since.Sub(begin) }
	denied(top, "k", 4)
	clk.Add(2 * time.Minute)
	assert.Zero(t, since())
	other := func() { // a goroutine that finds the first part locked
		top.parts[0].mu.Lock()
		defer top.parts[0].mu.Unlock()
		denied(top, "k", 1)
	}
	other()
	assert.Zero(t, since())
	clk.Add(30 * time.Second)
	denied(top, "k", 1)
	assert.Zero(t, since(), "it was in the list all the time")
	clk.Add(10 * time.Minute)
	require.Empty(t, top.Top(1))
	other()
	assert.Equal(t, 12*time.Minute+30*time.Second, since())
	clk.Add(30 * time.Second)
	denied(top, "k", 1)
	assert.Equal(t, 12*time.Minute+30*time.Second, since())
	clk.Add(1)
	top.Observe(t.Context(), ratelimit.Observation{Key: "k", Limiter: "api", Outcome: ratelimit.Denied, Decision: ratelimit.Decision{Part: 2}})
	assert.Equal(t, 2, top.Top(1)[0].Part, "of the latest denial")
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
func (c *decayed) check(t *testing.T, k int, list []TopKey) {
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
// parts at random, as those of many processors would. Each test has random numbers of its own, so that
// one repeats what it did wherever it is run.
func TestTopDeniedBounds(t *testing.T) {
	tests := []struct {
		name string
		keys func(random *rand.Rand) (next func(i int) int)
	}{
		{"zipf", func(random *rand.Rand) func(i int) int {
			zipf := rand.NewZipf(random, 1.2, 1, 1<<16)
			return func(int) int { return int(zipf.Uint64()) }
		}},
		{"all different", func(*rand.Rand) func(i int) int {
			return func(i int) int { return i }
		}},
		{"circle", func(*rand.Rand) func(i int) int {
			return func(i int) int { return i % 51 }
		}},
		{"one among different ones", func(*rand.Rand) func(i int) int {
			return func(i int) int {
				if i%7 == 0 {
					return -1
				}
				return i
			}
		}},
		{"attackers in turn", func(random *rand.Rand) func(i int) int {
			return func(i int) int {
				if i%2 == 0 {
					return -i / 3000
				}
				return random.IntN(10_000)
			}
		}},
	}
	for _, tt := range tests {
		for _, parts := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/parts=%d", tt.name, parts), func(t *testing.T) {
				const k = 12
				random := budget.Rand(t)
				next := tt.keys(random)
				clk := clock.NewMock()
				top, err := TopDenied(k, WithTopClock(clk), WithHalfLife(time.Minute))
				require.NoError(t, err)
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
func denyIn(top *TopKeys, part int, key string) {
	for i := range top.parts {
		if i != part {
			top.parts[i].mu.Lock()
			defer top.parts[i].mu.Unlock()
		}
	}
	denied(top, key, 1)
}

// use makes top use n parts.
func use(top *TopKeys, n int) {
	one := top.parts[0].keys
	top.parts = make([]topPart, n)
	for i := range top.parts {
		p := &top.parts[i]
		*p = topPart{weight: 1, next: &top.parts[(i+1)%n]}
		p.keys = topk.New[latest](topSpares * top.most)
	}
	top.parts[0].keys = one
}

// TestTopDeniedSpreads: while a part is locked, denials are counted in another one, and Top
// adds them.
func TestTopDeniedSpreads(t *testing.T) {
	top, err := TopDenied(1, WithTopClock(clock.NewMock()))
	require.NoError(t, err)
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
	top, err := TopDenied(10, WithTopClock(clock.NewMock()))
	require.NoError(t, err)
	use(top, 3)
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range each {
				denied(top, "everybody", 1)
				denied(top, fmt.Sprint("own ", g%4), 1)
				if i%500 == 0 {
					top.Top(10)
				}
			}
		})
	}
	all.Wait()
	list := top.Top(10)
	require.Len(t, list, 5)
	assert.Equal(t, float64(goroutines*each), list[0].Count)
	for _, d := range list[1:] {
		assert.Equal(t, float64(goroutines*each/4), d.Count)
		assert.Zero(t, d.Error)
	}
}
