package kernel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hold is settled in an All whose log has no entry any more, because it was given back in
// another way.
func TestSettleAfterTheLogIsEmpty(t *testing.T) {
	hour := uint64(time.Hour)
	c := Compile(NewAll([]Kernel{NewSlidingLog(5, hour, false), NewFixedWindow(5, hour, true, InMemory.Varying())}, InMemory), InMemory)
	at := &Reading{Now: 3 * hour}
	var a Answer
	st, _ := c.Step(nil, &Request{Op: OpHold, N: 2, Fixed: at}, &a)
	grant := a.Grant
	st, _ = c.Step(st, &Request{Op: OpReturn, N: 2, Taken: 3 * hour, Fixed: at}, &a)
	require.True(t, a.Allowed)
	_, changed := c.Step(st, &Request{Op: OpSettle, N: 0, Grant: grant, Fixed: at}, &a)
	assert.False(t, changed)
	assert.Equal(t, 5, a.Remaining)
}

// A settlement is short, and has nothing to take back if the state is of other parameters, or if
// the key was reset.
func TestAppendSettlement(t *testing.T) {
	second := uint64(time.Second / time.Microsecond)
	enc := Encoding{Tick: 1000, Portable: true, Varies: true}
	c := Compile(NewFixedWindow(10, second, true, enc), enc)
	var a Answer
	_, _ = c.Step(make([]uint64, 2), &Request{Op: OpHold, N: 5, Fixed: &Reading{Now: 7}}, &a)
	b, more := c.AppendSettlement([]byte("x"), a.Grant, 3, false)
	assert.Equal(t, -2, more)
	assert.Len(t, b, 1+16+32)
	for _, tt := range []struct {
		by   *Compiled
		n    int
		lost bool
		more int
	}{
		{c, 3, true, 0},
		{c, 7, true, 2},
		{c, 5, false, 0},
		{c, 9, false, 4},
		{Compile(NewFixedWindow(11, second, true, enc), enc), 3, false, 0},
		{Compile(NewFixedWindow(11, second, true, enc), enc), 6, false, 1},
	} {
		b, more := tt.by.AppendSettlement(nil, a.Grant, tt.n, tt.lost)
		assert.Equal(t, tt.more, more)
		assert.Empty(t, b)
	}
	_, more = c.AppendSettlement(nil, nil, 3, false)
	assert.Zero(t, more)
}
