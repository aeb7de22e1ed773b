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

// TestLineTooLateBehindLingering: what is too late is not cancelled, even if it is still in the line
// because one before it was cancelled, whose events may have to be removed once more.
func TestLineTooLateBehindLingering(t *testing.T) {
	by := Compile(NewFixedWindow(2, 100, true, InMemory.Varying()), InMemory.Varying())
	reserved := func(at Instant) *Waiter {
		return NewWaiter(&Grant{by: by, at: at, due: at, n: 1, traces: []trace{{slot: at / 100 * 100}}}, at, false)
	}
	var ln Line
	first, second, last := reserved(110), reserved(120), reserved(250)
	for _, w := range []*Waiter{first, second, last} {
		ln.Insert(w, 50)
	}
	c := ln.Cancel([]*Waiter{first}, 105)
	ln.Release()
	ln.Settle(c, &Undone{cancelled: []*Waiter{first}, line: c.line, done: make([][]progress, 1)})
	assert.Nil(t, ln.Cancel([]*Waiter{second}, 130))
	assert.Equal(t, 3, ln.Len())
	assert.NotNil(t, ln.Cancel([]*Waiter{last}, 130))
}
