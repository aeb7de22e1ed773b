package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What was made until a reset is forgotten, even if its events are for a later time. The rest can
// still be taken back.
func TestForget(t *testing.T) {
	enc := Encoding{Tick: 1000, Portable: true, Varies: true}
	second := uint64(time.Second / time.Microsecond)
	c := Compile(NewFixedWindow(10, second, true, enc), enc)
	var a Answer
	at := func(tick uint64) *Reading { return &Reading{Now: tick * 1000} }
	st, _ := c.Step(make([]uint64, c.Width()), &Request{Op: OpTake, N: 10, Fixed: at(1)}, &a)
	reserve := func(tick uint64) *Grant {
		st, _ = c.Step(st, &Request{Op: OpReserve, N: 2, MaxWait: time.Hour, Fixed: at(tick)}, &a)
		require.True(t, a.Allowed)
		return a.Grant.(*Grant)
	}
	early, late := reserve(5), reserve(7)
	require.Equal(t, second, early.at)

	ln := &Line{}
	one, two := NewWaiter(early, early.due*1000, false), NewWaiter(late, late.due*1000, false)
	ln.Insert(one, 0)
	ln.Insert(two, 0)
	all := ln.Cancel([]*Waiter{one, two}, 0)
	require.NotNil(t, all)
	assert.Equal(t, Instant(5), firstMade(all.line))
	rest := Forget(Forget(all, 3), 5)
	assert.Equal(t, Instant(7), firstMade(rest.line))
	none := Forget(rest, 7)
	assert.Empty(t, none.line)
	assert.Len(t, none.forgotten, 2)

	st, changed := c.Step(st, &Request{Op: OpCancel, Grant: rest, Fixed: at(9)}, &a)
	require.True(t, changed)
	assert.Equal(t, uint64(2), st[1], "the events of the early one are those of others")
	ln.Release()
	ln.Settle(all, a.Grant.(*Undone))
	assert.Zero(t, ln.Len())
}
