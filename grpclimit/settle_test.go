package grpclimit_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestSettleGetsTheResult checks that a call is settled by an HTTP status, and by no bytes.
func TestSettleGetsTheResult(t *testing.T) {
	type result struct {
		status  int
		written int64
	}
	results := make(chan result, 1)
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	s := newServer(t, l, httplimit.WithSettleAtEnd(func(_ *http.Request, status int, written int64) int {
		results <- result{status, written}
		return 1
	}))
	for err, want := range map[error]result{
		nil:                                    {200, 0},
		status.Error(codes.Aborted, "a fault"): {500, 0},
	} {
		p := serve(t, &service{
			unary:  func(context.Context, *grpc_testing.SimpleRequest) error { return err },
			duplex: func(duplexServer) error { return err },
		}, limitedBy(s))
		assert.Equal(t, status.Code(err), status.Code(p.call(t.Context())))
		assert.Equal(t, want, <-results, "a call that ends with %v", err)
		_, got := p.open(t, t.Context()).Recv()
		require.Error(t, got)
		assert.Equal(t, want, <-results, "a stream that ends with %v", err)
	}
}
