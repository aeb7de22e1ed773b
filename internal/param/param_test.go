package param_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ratelimit-go/ratelimit/internal/param"
)

func TestInvalid(t *testing.T) {
	err := param.Invalid("FixedWindow.Limit", -1, "must be at least 1")
	assert.ErrorIs(t, err, param.ErrInvalid)
	assert.EqualError(t, err, "ratelimit: FixedWindow.Limit is -1: it must be at least 1")

	assert.EqualError(t, param.Invalid("ctx", nil, "must not be nil"), "ratelimit: ctx is nil: it must not be nil")

	err = param.Within("All[2]", err)
	assert.ErrorIs(t, err, param.ErrInvalid)
	assert.EqualError(t, err, "ratelimit: All[2].FixedWindow.Limit is -1: it must be at least 1")

	assert.Equal(t, assert.AnError, param.Within("All[2]", assert.AnError), "not one of a parameter")
}

func TestInvalidIn(t *testing.T) {
	err := param.InvalidIn("httplimit", "WithStatus's code", 42, "must be from 400 to 599")
	assert.ErrorIs(t, err, param.ErrInvalid)
	assert.EqualError(t, err, "httplimit: WithStatus's code is 42: it must be from 400 to 599")
	assert.EqualError(t, param.Within("x", err), "httplimit: x.WithStatus's code is 42: it must be from 400 to 599")
}

func TestSame(t *testing.T) {
	p := new(int)
	slices := [1]any{[]int{}}
	for _, v := range []any{p, "a", [1]any{p}} {
		assert.True(t, param.Same(v, v), "%T", v)
		assert.False(t, param.Same(v, new(int)), "%T", v)
		assert.False(t, param.Same(v, slices), "%T", v)
	}
	assert.False(t, param.Same(slices, slices), "the type can be compared, and the value cannot")
	assert.False(t, param.Same([]int{}, []int{}))
}

func TestIsNil(t *testing.T) {
	for _, v := range []any{nil, (*int)(nil), (func())(nil), map[int]int(nil), []int(nil), chan int(nil)} {
		assert.True(t, param.IsNil(v), "%T", v)
	}
	for _, v := range []any{0, "", struct{}{}, new(int), func() {}, map[int]int{}, []int{}, make(chan int)} {
		assert.False(t, param.IsNil(v), "%T", v)
	}
}
