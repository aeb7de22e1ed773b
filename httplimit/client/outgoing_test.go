package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestUnderWay adds requests, some of them at one instant, and removes them in another order.
func TestUnderWay(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var u underWay
	for _, s := range []int{1, 2, 2, 2, 5} {
		u.add(at(s))
	}
	for s, want := range []int{5, 4, 1, 1, 1, 0, 0} {
		assert.Len(t, u.after(at(s)), want, "after %d", s)
	}
	u.remove(at(2))
	assert.Equal(t, underWay{at(1), at(2), at(2), at(5)}, u)
	u.remove(at(3))
	u.remove(at(5))
	u.remove(at(1))
	assert.Equal(t, underWay{at(2), at(2)}, u)
}
