package ratelimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
)

var five = ratelimit.InFlight{Limit: 5, Timeout: time.Minute}

// held returns a hold that is granted.
func held(t *testing.T, l ratelimit.Limiter, key string, n int) *ratelimit.Reservation {
	t.Helper()
	r, d, err := l.Hold(context.Background(), key, n)
	require.NoError(t, err)
	require.True(t, d.Allowed, "%+v", d)
	require.NotNil(t, r)
	return r
}

// A waiterOf is a goroutine that waits in a bubble. Its fields are set when it is done.
type waiterOf struct {
	n      int
	cancel context.CancelFunc
	done   atomic.Bool
	r      *ratelimit.Reservation
	err    error
	at     time.Time // when it was done
}

func waitFor(t *testing.T, l ratelimit.Limiter, key string, n int) *waiterOf {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &waiterOf{n: n, cancel: cancel}
	go func() {
		w.r, w.err = l.WaitHold(ctx, key, n)
		w.at = time.Now()
		w.done.Store(true)
	}()
	return w
}

// remaining returns how many events of "key" would be granted now.
func remaining(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	d, err := l.Peek(t.Context(), "key")
	require.NoError(t, err)
	return d.Remaining
}
