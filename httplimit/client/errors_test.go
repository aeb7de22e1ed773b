package client_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// TestTransportErrors checks what the errors of Transport say by net/http's convention: in
// themselves, where url.Error looks.
func TestTransportErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}))
		require.True(t, late.Allow("example.com"))
		full := ratelimit.Must(ratelimit.New(ratelimit.LeakyBucket{Rate: ratelimit.PerHour(1)}))
		require.True(t, full.Allow("example.com"))
		store := &ratelimit.MemoryStore{MaxKeys: 1, RefuseNew: true}
		crowded := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithStore(store), ratelimit.WithName("test")))
		require.True(t, crowded.Allow("somebody"))
		for name, tt := range map[string]struct {
			tr                 *client.Transport
			is                 error
			timeout, temporary bool
		}{
			"the turn is too late": {&client.Transport{Limiter: late}, context.DeadlineExceeded, true, true},
			"wrapped":              {&client.Transport{Limiter: wrapping{late}}, context.DeadlineExceeded, true, true},
			"the queue is full":    {&client.Transport{Limiter: full}, ratelimit.ErrQueueFull, false, true},
			"the store is full":    {&client.Transport{Limiter: crowded}, ratelimit.ErrFull, false, true},
			"no limiter":           {&client.Transport{}, ratelimit.ErrInvalid, false, false},
			"no key":               {&client.Transport{Limiter: late, Key: key.Header("X")}, key.ErrNone, false, false},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := tt.tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://example.com", nil))
			require.ErrorIs(t, err, tt.is, name)
			said, ok := err.(interface { // url.Error does not unwrap it either
				Timeout() bool
				Temporary() bool
			})
			require.True(t, ok, "%s: %T", name, err)
			assert.Equal(t, tt.timeout, said.Timeout(), name)
			assert.Equal(t, tt.temporary, said.Temporary(), name)
		}
		leaving, leave := context.WithCancel(t.Context())
		leave()
		_, err := (&client.Transport{Limiter: late}).RoundTrip(httptest.NewRequestWithContext(leaving, "GET", "http://example.com", nil))
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A wrapping limiter wraps the errors of another one.
type wrapping struct{ ratelimit.Limiter }

func (w wrapping) Wait(ctx context.Context, key string) error {
	return fmt.Errorf("the limit of %s: %w", key, w.Limiter.Wait(ctx, key))
}
