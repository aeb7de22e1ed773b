package kernel

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// waiting returns a waiter for a bucket whose turn is at an instant.
func waiting(at Instant) *Waiter {
	return NewWaiter(&Grant{at: at, due: at, n: 1, traces: []trace{{order: [2]uint64{1, at}}}}, at, false)
}

func TestLine(t *testing.T) {
	var ln Line
	first, second, third := waiting(10), waiting(20), waiting(30)
	for _, w := range []*Waiter{second, third, first} {
		ln.Insert(w, 5)
	}
	assert.Equal(t, []*Waiter{first, second, third}, ln.waiters)

	assert.Nil(t, ln.Cancel([]*Waiter{second}, 5), "one behind it stays")
	c := ln.Cancel([]*Waiter{third}, 5)
	assert.Equal(t, []*Waiter{second, third}, c.line)
	ln.Release()
	gone := progress{gone: true}
	ln.Settle(c, &Undone{cancelled: []*Waiter{third}, line: c.line, done: [][]progress{{gone, gone}}})
	assert.Equal(t, []*Waiter{first}, ln.waiters)

	assert.False(t, ln.Over(30))
	assert.True(t, ln.Over(31))
	assert.Nil(t, ln.Cancel([]*Waiter{first}, 11), "too late")
	assert.Zero(t, ln.Len())
}
