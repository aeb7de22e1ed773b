package grpclimit_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
)

// A slowStream is that of a server which sends its first message after a second.
type slowStream struct{ grpc.ClientStream }

func (slowStream) SendMsg(any) error { return nil }

func (slowStream) RecvMsg(any) error {
	time.Sleep(time.Second)
	return nil
}

// TestClientReturnsByTwosAndFours checks how many calls and streams begin after a rest. The streams
// stay open.
func TestClientReturnsByTwosAndFours(t *testing.T) {
	unary := func(ctx context.Context, c *grpclimit.Client, answer error) (granted time.Time) {
		_ = c.Unary(ctx, "/a", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			granted = time.Now()
			time.Sleep(time.Second)
			return answer
		})
		return granted
	}
	stream := func(ctx context.Context, c *grpclimit.Client, _ error) (granted time.Time) {
		s, err := c.Stream(ctx, new(grpc.StreamDesc), nil, "/a",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				granted = time.Now()
				return slowStream{}, nil
			})
		if assert.NoError(t, err) {
			assert.NoError(t, s.RecvMsg(nil))
		}
		return granted
	}
	message := func(ctx context.Context, c *grpclimit.Client, _ error) time.Time {
		s, err := c.Stream(ctx, new(grpc.StreamDesc), nil, "/a",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return slowStream{}, nil
			})
		if !assert.NoError(t, err) {
			return time.Time{}
		}
		assert.NoError(t, s.SendMsg("a message"))
		granted := time.Now()
		assert.NoError(t, s.RecvMsg(nil))
		return granted
	}
	const s = time.Second
	for name, tt := range map[string]struct {
		ask    func(context.Context, *grpclimit.Client, error) time.Time
		answer error
		opts   []grpclimit.ClientOption
	}{
		"calls":                    {ask: unary},
		"calls that are not found": {ask: unary, answer: status.Error(codes.NotFound, "not found")},
		"streams":                  {ask: stream},
		"messages":                 {ask: message, opts: []grpclimit.ClientOption{grpclimit.WithPerMessage()}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, newLimiter(t, ratelimit.Unlimited{}), tt.opts...)
				assert.Error(t, try(t.Context(), c, "/a", refusing(codes.Unavailable, time.Minute)))
				begin, at := time.Now(), make(map[time.Duration]int)
				var mu sync.Mutex // protects at
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						granted := tt.ask(t.Context(), c, tt.answer)
						mu.Lock()
						at[granted.Sub(begin)-time.Minute]++
						mu.Unlock()
					})
				}
				wg.Wait()
				assert.Equal(t, map[time.Duration]int{0: 1, s: 2, 2 * s: 4, 3 * s: 8, 4 * s: 16, 5 * s: 32, 6 * s: 37}, at)
			})
		})
	}
}

// TestClientAfterFailures has a server that fails after a rest: calls go one after another.
func TestClientAfterFailures(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.DeadlineExceeded} {
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, newLimiter(t, ratelimit.Unlimited{}))
			assert.Error(t, try(t.Context(), c, "/a", refusing(codes.Unavailable, time.Minute)))
			begin := time.Now()
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					_ = c.Unary(t.Context(), "/a", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
						time.Sleep(time.Second)
						return status.Error(code, "a fault")
					})
				})
			}
			wg.Wait()
			assert.Equal(t, time.Minute+10*time.Second, time.Since(begin), code)
		})
	}
}
