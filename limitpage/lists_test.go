package limitpage

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/observe"
)

func TestShorten(t *testing.T) {
	for most, want := range map[int]string{
		0: "[[] [] []]",
		1: "[[] [9] []]",
		2: "[[5] [9] []]",
		3: "[[5] [9] [5]]",
		4: "[[5] [9 4] [5]]",
		5: "[[5 1] [9 4] [5]]",
		6: "[[5 1] [9 4] [5 1]]",
		7: "[[5 1] [9 4] [5 1]]",
	} {
		var lists []*[]observe.TopKey
		for _, counts := range [][]float64{{5, 1}, {9, 4}, {5, 1}} {
			list := new([]observe.TopKey)
			for _, count := range counts {
				*list = append(*list, observe.TopKey{Count: count})
			}
			lists = append(lists, list)
		}
		shorten(lists, most)
		var left [][]float64
		for _, list := range lists {
			var counts []float64
			for _, k := range *list {
				counts = append(counts, k.Count)
			}
			left = append(left, counts)
		}
		assert.Equal(t, want, fmt.Sprint(left), "%d keys", most)
	}
}

// TestFewKeys: a report has as many keys as a request asks for. Those that are left out count for
// the part of an All that denies most.
func TestFewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := New()
		both := ratelimit.All{
			ratelimit.FixedWindow{Limit: 4, Window: time.Minute}, ratelimit.FixedWindow{Limit: 6, Window: time.Hour},
		}
		var limiters []ratelimit.Limiter
		for i := range 3 {
			l := added(t, page, fmt.Sprint("limiter ", i), both)
			limiters = append(limiters, l)
			require.True(t, l.AllowN("first part", 4))
			require.False(t, l.AllowN("first part", 1))
			for k := range 5 {
				require.True(t, l.AllowN(fmt.Sprint("second part ", k), 4))
			}
		}
		time.Sleep(time.Minute)
		for _, l := range limiters {
			for k := range 5 {
				require.False(t, l.AllowN(fmt.Sprint("second part ", k), 3))
			}
		}
		keysOf := func(query string) (denied, used int) {
			for _, l := range get[sent](t, page, query).Limiters {
				denied, used = denied+len(l.Top), used+len(l.Used)
				assert.Equal(t, "6 in each hour", l.DeniedBy)
			}
			return denied, used
		}
		for query, want := range map[string][2]int{"": {18, 18}, "&keys=100": {18, 18}, "&keys=16": {16, 16}, "&keys=2": {2, 2}, "&keys=0": {0, 0}} {
			denied, used := keysOf(query)
			assert.Equal(t, want, [2]int{denied, used}, query)
		}
	})
}
