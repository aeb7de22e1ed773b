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
	b, more := c.AppendSettlement([]byte("x"), a.Grant, 3, false, false)
	assert.Equal(t, -2, more)
	assert.Len(t, b, 1+25+32)
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
		b, more := tt.by.AppendSettlement(nil, a.Grant, tt.n, tt.lost, false)
		assert.Equal(t, tt.more, more)
		assert.Empty(t, b)
	}
	_, more = c.AppendSettlement(nil, nil, 3, false, false)
	assert.Zero(t, more)
}

// What is in flight is released whatever happened, even if the limit has changed, so a script is
// told; but not if the key was reset, or if nothing was held. Only other parts are charged.
func TestAppendSettlementOfEventsInFlight(t *testing.T) {
	enc := Encoding{Tick: 1000, Portable: true, Varies: true}
	of := func(limit int, timeout uint64) *Compiled {
		return Compile(NewAll([]Kernel{NewInFlight(limit, timeout), NewFixedWindow(limit, 1000, true, enc)}, enc), enc)
	}
	c := of(10, 500)
	var a Answer
	_, _ = c.Step(nil, &Request{Op: OpHold, N: 5, Fixed: &Reading{Now: 7000}}, &a)
	require.True(t, a.Allowed)
	other := Compile(NewAll([]Kernel{NewInFlight(10, 500), NewInFlight(10, 500)}, enc), enc)
	for _, tt := range []struct {
		by    *Compiled
		grant any
		n     int
		lost  bool
		more  int
		held  float64 // what leaves the InFlight
		bytes int
	}{
		{c, a.Grant, 3, false, -2, 5, 25 + 32},
		{c, a.Grant, 5, false, 0, 5, 25},
		{c, a.Grant, 9, false, 4, 5, 25},
		{c, a.Grant, 3, true, 0, 0, 0},
		{c, a.Grant, 5, true, 0, 0, 0},
		{c, a.Grant, 9, true, 4, 0, 25},
		{of(10, 501), a.Grant, 3, false, 0, 5, 25},
		{of(10, 501), a.Grant, 9, false, 4, 5, 25},
		{other, a.Grant, 3, false, 0, 0, 0},
		{other, a.Grant, 9, false, 4, 0, 25},
		{c, Nothing, 0, false, 0, 0, 0},
		{c, Nothing, 2, false, 2, 0, 25},
	} {
		b, more := tt.by.AppendSettlement(nil, tt.grant, tt.n, tt.lost, false)
		assert.Equal(t, tt.more, more)
		if assert.Len(t, b, tt.bytes) && tt.bytes > 0 {
			assert.Equal(t, appendFloat(nil, tt.held), b[16:24])
		}
	}
}
