package byname_test

import (
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/byname"
)

func TestMap(t *testing.T) {
	var m byname.Map[int]
	assert.Empty(t, m.All())
	add := func(name string, v int) *int { return m.GetOrAdd(name, 2, func() *int { return &v }) }
	b := add("b", 1)
	before := m.All()
	a := add("a", 2)
	assert.Same(t, b, add("b", 3), "it has a value already")
	assert.Nil(t, add("c", 4), "there are enough")
	assert.Same(t, a, add("a", 5), "a full map still returns what it has")
	assert.Equal(t, []*int{b, a}, m.All())
	assert.Equal(t, []*int{b}, before, "what was returned does not change")
}

// TestEachNameIsAddedOnce: goroutines that add a name at once get the same value.
func TestEachNameIsAddedOnce(t *testing.T) {
	var m byname.Map[int]
	for i := range 100 {
		var all sync.WaitGroup
		var got [4]*int
		for g := range got {
			all.Go(func() {
				got[g] = m.GetOrAdd(strconv.Itoa(i), 100, func() *int {
					runtime.Gosched() // so that others find that there is none
					return new(int)
				})
			})
		}
		all.Wait()
		assert.Len(t, m.All(), i+1)
		for _, v := range got {
			assert.Same(t, m.All()[i], v)
		}
	}
}
