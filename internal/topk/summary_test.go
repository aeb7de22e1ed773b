package topk

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/budget"
)

// A stream is a sequence of items, item i of which is at(i).
type stream struct {
	name string
	at   func(i int) uint64
}

// streams are some that are usual, and some that are hard on SpaceSaving with room for k.
func streams(t *testing.T, k int) []stream {
	random := budget.Rand(t)
	zipf := rand.NewZipf(random, 1.1, 1, 1<<20)
	fresh := func(i int) uint64 { return 1<<32 + uint64(i) }
	return []stream{
		{"zipf", func(int) uint64 { return zipf.Uint64() }},
		{"uniform", func(int) uint64 { return random.Uint64N(uint64(20 * k)) }},
		{"all different", fresh},
		{"in a circle, one more than there is room for", func(i int) uint64 { return uint64(i % (k + 1)) }},
		{"one among different ones", func(i int) uint64 {
			if i%k == 0 {
				return 0
			}
			return fresh(i)
		}},
		{"a heavy one that stops, then different ones", func(i int) uint64 {
			if i < 5000 {
				return 0
			}
			return fresh(i)
		}},
		{"different ones, then a heavy one", func(i int) uint64 {
			if i > 15_000 {
				return 0
			}
			return fresh(i)
		}},
		{"each as often as it takes to stay, then replaced", func(i int) uint64 { return uint64(i / 7) }},
	}
}

// TestBounds compares a Summary with exact counts, at every thousandth item.
func TestBounds(t *testing.T) {
	for _, k := range []int{1, 2, 10, 100} {
		for _, in := range streams(t, k) {
			t.Run(in.name, func(t *testing.T) {
				s, exact, total := New[struct{}](k), map[uint64]float64{}, 0.0
				for i := range 20_000 {
					id, weight := in.at(i), float64(1+i%3)
					e, _ := s.Add(id, weight)
					require.Equal(t, id, e.ID)
					exact[id] += weight
					total += weight
					if i == 10_000 {
						s.Scale(0.5)
						total /= 2
						for id := range exact {
							exact[id] /= 2
						}
					}
					if i%1000 == k {
						checkBounds(t, s, exact, total)
					}
				}
				checkBounds(t, s, exact, total)
			})
		}
	}
}

func checkBounds(t *testing.T, s *Summary[struct{}], exact map[uint64]float64, total float64) {
	t.Helper()
	floor := s.Floor()
	require.LessOrEqual(t, floor, total/float64(s.room))
	require.LessOrEqual(t, len(s.Entries()), s.room)
	in, sum := map[uint64]bool{}, 0.0
	for _, e := range s.Entries() {
		require.LessOrEqual(t, e.Error, floor)
		require.LessOrEqual(t, exact[e.ID], e.Count)
		require.GreaterOrEqual(t, exact[e.ID], e.Count-e.Error)
		require.False(t, in[e.ID], "twice")
		require.GreaterOrEqual(t, e.Count, floor)
		in[e.ID], sum = true, sum+e.Count
	}
	require.Equal(t, total, sum) // all weights are multiples of 1/2
	for id, weight := range exact {
		if !in[id] && weight > floor {
			t.Fatalf("item %d has %v, and is not in the summary, whose floor is %v", id, weight, floor)
		}
	}
}

func TestFewItemsAreExact(t *testing.T) {
	s := New[string](3)
	for i, id := range []uint64{7, 8, 7, 9, 7, 8} {
		e, added := s.Add(id, 1)
		assert.Equal(t, i == 0 || i == 1 || i == 3, added, i)
		assert.Zero(t, e.Error)
		e.Value += "x"
	}
	assert.ElementsMatch(t, []Entry[string]{{7, 3, 0, "xxx"}, {8, 2, 0, "xx"}, {9, 1, 0, "x"}}, s.Entries())
	assert.Equal(t, 1.0, s.Floor())
	e, added := s.Add(10, 1)
	assert.True(t, added)
	assert.Equal(t, Entry[string]{10, 2, 1, "x"}, *e, "it replaces the one with the least count")
	assert.Zero(t, New[string](3).Floor())
	_, _ = New[string](0).Add(1, 1) // has room for one
}

// TestAddAllocatesNothing once a Summary is full.
func TestAddAllocatesNothing(t *testing.T) {
	s := New[struct{}](100)
	id := uint64(0)
	add := func() {
		id++
		s.Add(id, 1)
		s.Add(id, 1)
	}
	for range 1000 {
		add()
	}
	assert.Zero(t, testing.AllocsPerRun(10_000, add))
}
