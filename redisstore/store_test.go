package redisstore

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

// TestClose: Close has the server asked once more about holds that may be open, and leaves nothing that goes on.
func TestClose(t *testing.T) {
	for name, tt := range map[string]struct {
		back bool // whether the server answers again
		left int
	}{"answers": {true, 30}, "is away": {false, 29}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: 1000 * time.Hour})
				s, l := f.store(t)
				r, _, err := l.Hold(t.Context(), "k", 1)
				require.NoError(t, err)
				f.Set(func() { f.Fail = errors.New("EOF") })
				_, err = r.Settle(t.Context(), 0)
				require.ErrorContains(t, err, "EOF")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if tt.back {
					f.Set(func() { f.Fail = nil })
				}
				require.NoError(t, s.Close(t.Context()))
				f.Set(func() { f.Fail = nil })
				time.Sleep(time.Hour)
				synctest.Wait()
				d, err := l.Peek(t.Context(), "k")
				require.NoError(t, err)
				assert.Equal(t, tt.left, d.Remaining)
			})
		})
	}
}

// TestStore_Printed: a limiter says that its states are in Redis.
func TestStore_Printed(t *testing.T) {
	_, l := newFakeServer(t, ratelimit.FixedWindow{Limit: 30, Window: time.Hour}).store(t)
	assert.Equal(t, `ratelimit.Limiter "test": 30 in each hour, in Redis`, fmt.Sprint(l))
}
