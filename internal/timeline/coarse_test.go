package timeline

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestCoarseRefresh: only a later reading is one.
func TestCoarseRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Coarse
		c.Init()
		assert.False(t, c.Refresh())
		time.Sleep(time.Nanosecond)
		assert.Zero(t, c.SinceBase())
		assert.True(t, c.Refresh())
		assert.False(t, c.Refresh())
		assert.Equal(t, time.Nanosecond, c.SinceBase())
		c.Stop()
		time.Sleep(time.Nanosecond)
		assert.False(t, c.Refresh(), "each reading is a later one")
		assert.Equal(t, 2*time.Nanosecond, c.SinceBase())
	})
}

// TestCoarseBeginsAtItsBase: until the first tick, no time has passed.
func TestCoarseBeginsAtItsBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Coarse
		c.Init()
		time.Sleep(time.Millisecond)
		assert.Zero(t, c.SinceBase())
	})
}
