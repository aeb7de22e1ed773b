package ratelimit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

func TestCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk, err := ratelimit.NewCoarseClock(10 * time.Millisecond)
		require.NoError(t, err)
		begin := time.Now()
		time.Sleep(19 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, 10*time.Millisecond, clk.Now().Sub(begin), "the reading of 9 ms ago")
		assert.Equal(t, 10*time.Millisecond, clk.Since(begin))
		assert.Equal(t, 20*time.Millisecond, clk.Until(begin.Add(30*time.Millisecond)))

		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1)}, ratelimit.WithClock(clk)))
		require.True(t, l.Allow("key"))
		time.Sleep(time.Second)
		synctest.Wait()
		// The token of the reading at 10 ms is back at 1,010 ms; it is 1,019.
		require.True(t, l.Allow("key"))
		require.False(t, l.Allow("key"))
		require.NoError(t, l.Wait(t.Context(), "key"))
		assert.InDelta(t, 2010*time.Millisecond, time.Since(begin), float64(10*time.Millisecond))

		// Once stopped, it is exact, and has left nothing behind.
		time.Sleep(5 * time.Millisecond)
		clk.Stop()
		clk.Stop()
		synctest.Wait()
		assert.Equal(t, time.Since(begin), clk.Since(begin))
		time.Sleep(time.Millisecond)
		assert.Equal(t, time.Since(begin), clk.Since(begin))
	})
	_, err := ratelimit.NewCoarseClock(0)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
}
