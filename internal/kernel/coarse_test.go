package kernel

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestManyDenialsReadRarely: if denials are frequent, few of them read the clock; if
// they are rare, each does.
func TestManyDenialsReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Coarse
		c.Init()
		for range 20_000_000 { // at one instant; about a million do, by chance more
			require.False(t, c.Renew())
			if c.odds.Load() <= rarely {
				break
			}
		}
		assert.LessOrEqual(t, c.odds.Load(), uint32(rarely), "they are as rare as can be")
		time.Sleep(1500 * time.Microsecond)
		c.Tick()
		assert.Equal(t, uint32(always), c.odds.Load())
		time.Sleep(time.Nanosecond)
		assert.True(t, c.Renew())
		assert.False(t, c.Renew())
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
