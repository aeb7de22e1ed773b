package byname_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/byname"
)

func TestMap(t *testing.T) {
	var m byname.Map[int]
	assert.Nil(t, m.Get("a"))
	assert.Empty(t, m.All())
	add := func(name string, v int) *int { return m.GetOrAdd(name, 2, func() *int { return &v }) }
	b := add("b", 1)
	before := m.All()
	a := add("a", 2)
	assert.Same(t, b, add("b", 3), "it has a value already")
	assert.Nil(t, add("c", 4), "there are enough")
	assert.Same(t, a, add("a", 5), "a full map still returns what it has")
	assert.Same(t, b, m.Get("b"))
	assert.Nil(t, m.Get("c"))
	assert.Equal(t, []*int{b, a}, m.All())
	assert.Equal(t, []*int{b}, before, "what was returned does not change")
}

// TestEachNameIsAddedOnce: goroutines that add the same names at once get the same values.
func TestEachNameIsAddedOnce(t *testing.T) {
	var m byname.Map[int]
	var all sync.WaitGroup
	var got [4][100]*int
	for g := range got {
		all.Go(func() {
			for i := range got[g] {
				got[g][i] = m.GetOrAdd(strconv.Itoa(i), 100, func() *int { return new(int) })
			}
		})
	}
	all.Wait()
	for g := range got {
		assert.Equal(t, m.All(), got[g][:])
		for i, v := range got[g] {
			assert.Same(t, got[0][i], v)
			assert.Same(t, v, m.Get(strconv.Itoa(i)))
		}
	}
}
