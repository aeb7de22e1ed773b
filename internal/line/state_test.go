package line

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit/internal/kernel"
)

// Each step of a line is one of the transitions that PlaceState lists. The line prints the states.
func TestLine_States(t *testing.T) {
	var lines Lines
	var first, second, third *Place
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{
			"the first place asks",
			func() {
				first = lines.enter(Entrant{Terms: Terms{N: 1}})
				step(t, Ask, first, 1)
			},
			[]string{"1 asking of 1, 0 giving back", "1. for 1: asked by its caller"},
		},
		{
			"the next one rests while the first one asks",
			func() {
				second = lines.enter(Entrant{Terms: Terms{N: 1}})
				step(t, Rest, second, 1)
			},
			[]string{
				"1 asking of 1, 0 giving back",
				"1. for 1: asked by its caller",
				"2. for 1: resting until it is woken",
			},
		},
		{
			"a denial lets the first place rest until it asks again",
			func() {
				first.Denied("why", 3)
				step(t, Rest, first, 2)
			},
			[]string{
				"0 asking of 1, 0 giving back",
				"1. for 1: resting until 00:00:00.000000003",
				"2. for 1: resting until it is woken",
			},
		},
		{
			"the first place asks again, and gets a turn that comes later",
			func() {
				step(t, Ask, first, 3)
				first.Granted(5, "turn", 20, 1)
				step(t, Rest, first, 3)
			},
			[]string{
				"0 asking of 1, 0 giving back",
				"1. for 1: resting until 00:00:00.000000005, with a turn at 00:00:00.000000005",
				"2. for 1: resting until it is woken",
			},
		},
		{
			"a caller that leaves does not take its turn along",
			func() { require.Equal(t, Left, first.Leave(4).Do) },
			[]string{
				"0 asking of 1, 0 giving back",
				"1. for 1: resting until it is woken, with a turn at 00:00:00.000000005",
			},
		},
		{
			"another caller asks for the next place",
			func() {
				third = lines.enter(Entrant{Terms: Terms{N: 1}})
				require.Same(t, third, lines.Behind("key", nil, 5).For)
			},
			[]string{
				"1 asking of 1, 0 giving back",
				"1. for 1: resting until it is woken, with a turn at 00:00:00.000000005",
				"2. for 1: asked by another caller",
			},
		},
		{
			"a place that was asked for in vain rests",
			func() { third.InVain(5) },
			[]string{
				"0 asking of 1, 0 giving back",
				"1. for 1: resting until it is woken, with a turn at 00:00:00.000000005",
				"2. for 1: resting until 00:00:00.000000005",
			},
		},
		{
			"a place whose turn has come is served",
			func() { step(t, Served, second, 5) },
			[]string{
				"0 asking of 1, 0 giving back",
				"1. for 1: resting until 00:00:00.000000005",
			},
		},
		{
			"turns that fit no place are given back",
			func() {
				third.Granted(9, "turn", 20, 1)
				lines.Renew("key")
				step(t, GiveBack, third, 6)
			},
			[]string{"0 asking of 1, 1 giving back", "1. for 1: resting"},
		},
		{
			"until they have been given back, nobody asks",
			func() { step(t, Rest, third, 6) },
			[]string{"0 asking of 1, 1 giving back", "1. for 1: resting until it is woken"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.do()
			var printed string
			lines.look(func(ln *Line) { printed = ln.String() })
			assert.Equal(t, tt.want, strings.Split(printed, "\n"))
		})
	}
	assert.Equal(t, "a place that is gone", first.String())
	assert.Equal(t, Gone, second.state)
	assert.Equal(t, "place 1 of 1, resting until it is woken", third.String())
	third.Cancelled()
	require.Equal(t, Left, third.Leave(kernel.Forever).Do)
	assert.False(t, lines.Has("key"))
}
