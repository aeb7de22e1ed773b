package grpclimit_test

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
)

// TestExactly makes 10,000 calls in CI, and 100,000 at night (RATELIMIT_NIGHTLY=1).

// TestExactly checks that many calls, 100 at a time on one connection, are granted exactly as
// often as the limit says, and so are the messages of 100 streams.
func TestExactly(t *testing.T) {
	const streams = 100
	each, limit := 100, 3133
	if os.Getenv("RATELIMIT_NIGHTLY") != "" {
		each, limit = 1000, 31_337
	}
	var granted, refused atomic.Int64
	count := func(err error) bool {
		switch status.Code(err) {
		case codes.OK:
			granted.Add(1)
		case codes.ResourceExhausted:
			refused.Add(1)
		default:
			t.Error(err)
		}
		return err == nil
	}
	l, _ := limiter(t, ratelimit.SlidingLog{Limit: limit, Window: time.Hour})
	p := serve(t, new(service), perMessage(newServer(t, l)))
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			for range each {
				_, err := p.EmptyCall(t.Context(), new(grpc_testing.Empty))
				count(err)
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(limit), granted.Swap(0))
	assert.Equal(t, int64(streams*each-limit), refused.Swap(0))

	assert.NoError(t, l.Reset(t.Context(), "127.0.0.1"))
	for range streams {
		all.Go(func() {
			stream := p.open(t, t.Context())
			for count(exchange(stream)) {
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(limit), granted.Load())
	assert.Equal(t, int64(streams), refused.Load(), "the refusal ends a stream")
}
