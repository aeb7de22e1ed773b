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

	err = param.Within("All[2]", err)
	assert.ErrorIs(t, err, param.ErrInvalid)
	assert.EqualError(t, err, "ratelimit: All[2].FixedWindow.Limit is -1: it must be at least 1")

	assert.Equal(t, assert.AnError, param.Within("All[2]", assert.AnError), "not one of a parameter")
}
