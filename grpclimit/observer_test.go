package grpclimit_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestObserverSeesShadow checks that an observer sees what WithShadow lets pass, under the name of
// the limiter that is tried.
func TestObserverSeesShadow(t *testing.T) {
	seen := make(chan string, 2)
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithName("api, shadow"),
		ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
			seen <- fmt.Sprint(o.Limiter, ": ", o.Call, " ", o.Outcome)
		})))
	p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {}))))
	require.NoError(t, p.call(t.Context()))
	assert.Equal(t, "api, shadow: take granted", <-seen)
	require.NoError(t, p.call(t.Context()))
	assert.Equal(t, "api, shadow: take denied", <-seen)
}
