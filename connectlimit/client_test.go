package connectlimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/connectlimit"
)

// A countingContext counts the functions that wait for its end.
type countingContext struct {
	context.Context
	done    chan struct{}
	waiting int
}

func (c *countingContext) Done() <-chan struct{} { return c.done }

// AfterFunc is called by [context.AfterFunc].
func (c *countingContext) AfterFunc(func()) (stop func() bool) {
	c.waiting++
	return func() bool { c.waiting--; return true }
}

// An endedConn is a stream that has ended.
type endedConn struct{ connect.StreamingClientConn }

func (endedConn) Peer() connect.Peer   { return connect.Peer{Addr: "a"} }
func (endedConn) Send(any) error       { return nil }
func (endedConn) Receive(any) error    { return io.EOF }
func (endedConn) CloseResponse() error { return nil }

// TestClientForgetsStreams checks that nothing of a stream that has ended waits for its context,
// which may be that of the whole program.
func TestClientForgetsStreams(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":    ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)},
		"in flight": ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
	} {
		l, _ := limiter(t, alg)
		c, err := connectlimit.NewClient(l, nil)
		require.NoError(t, err)
		open := c.WrapStreamingClient(func(context.Context, connect.Spec) connect.StreamingClientConn { return endedConn{} })
		ctx := &countingContext{Context: t.Context(), done: make(chan struct{})}
		for range 3 {
			stream := open(ctx, connect.Spec{IsClient: true})
			require.NoError(t, stream.Send(nil))
			assert.Equal(t, io.EOF, stream.Receive(nil))
			assert.Zero(t, ctx.waiting, name)
			require.NoError(t, stream.CloseResponse())

			stream = open(ctx, connect.Spec{IsClient: true})
			require.NoError(t, stream.Send(nil))
			require.NoError(t, stream.CloseResponse())
			assert.Zero(t, ctx.waiting, name)
		}
	}
}

// TestClient has a client and a server with one clock, in each protocol. It checks that a call
// after exactly RetryInfo is sent and granted, and that an earlier one is not sent.
func TestClient(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
			free, err := ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithClock(clk))
			require.NoError(t, err)
			c, err := connectlimit.NewClient(free, nil)
			require.NoError(t, err)
			p := serve(t, connectlimit.Middleware(l), returns, append(opts, connect.WithInterceptors(c))...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			unary := func() error { _, err := p.call(ctx); return err }
			stream := func() error { return p.open(ctx) }
			require.NoError(t, unary())
			for _, ask := range []func() error{unary, stream, unary} {
				retry, _ := details(t, ask())
				clk.Add(retry.GetRetryDelay().AsDuration() - 2*time.Minute)
				for _, err := range []error{unary(), stream()} {
					assert.ErrorContains(t, err, "the next request may go in 2m0s")
					assert.Equal(t, connect.CodeDeadlineExceeded, connect.CodeOf(err))
				}
				clk.Add(2 * time.Minute)
				assert.NotEqual(t, connect.CodeResourceExhausted, connect.CodeOf(ask()))
			}
		})
	}
}

// TestClientInFlight checks when a client's slot is free again.
func TestClientInFlight(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	c, err := connectlimit.NewClient(l, func(s connect.Spec, _ connect.Peer) string { return s.Procedure[:len("/test.Service")] })
	require.NoError(t, err)
	p := serve(t, func(h http.Handler) http.Handler { return h }, func(ctx context.Context) error {
		return nil
	}, connect.WithInterceptors(c))
	busy := func() bool {
		d, err := l.Peek(t.Context(), "/test.Service")
		require.NoError(t, err)
		return !d.Allowed
	}
	_, err = p.call(t.Context())
	require.NoError(t, err)
	assert.False(t, busy())

	p.stream.CallBidiStream(t.Context()) // it is not used
	assert.False(t, busy())
	stream := p.stream.CallBidiStream(t.Context())
	require.NoError(t, stream.CloseResponse())
	assert.False(t, busy())

	for _, end := range []func(*duplex){
		func(s *duplex) { _, _ = s.Receive() },
		func(s *duplex) { _ = s.CloseResponse() },
	} {
		stream := p.stream.CallBidiStream(t.Context())
		_ = stream.Send(new(emptypb.Empty)) // it may have ended already
		assert.True(t, busy())
		end(stream)
		assert.False(t, busy())
	}
	ctx, cancel := context.WithCancel(t.Context())
	_ = p.stream.CallBidiStream(ctx).Send(new(emptypb.Empty))
	assert.True(t, busy())
	cancel()
	_, err = p.call(t.Context()) // it waits for the stream to end
	require.NoError(t, err)
}

// A slowConn is a stream of a server that sends its first message after a second.
type slowConn struct{ endedConn }

func (slowConn) Receive(any) error {
	time.Sleep(time.Second)
	return nil
}

// TestClientReturnsByTwosAndFours checks how many calls and streams begin after a rest. The streams
// stay open.
func TestClientReturnsByTwosAndFours(t *testing.T) {
	isClient := connect.Spec{IsClient: true}
	for name, ask := range map[string]func(ctx context.Context, c *connectlimit.Client) (begun time.Time){
		"calls": func(ctx context.Context, c *connectlimit.Client) (begun time.Time) {
			r := asked{connect.NewRequest(new(emptypb.Empty))}
			_, err := c.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
				begun = time.Now()
				time.Sleep(time.Second)
				return nil, nil
			})(ctx, r)
			assert.NoError(t, err)
			return begun
		},
		"streams": func(ctx context.Context, c *connectlimit.Client) (begun time.Time) {
			stream := c.WrapStreamingClient(func(context.Context, connect.Spec) connect.StreamingClientConn { return slowConn{} })(ctx, isClient)
			assert.NoError(t, stream.Send(nil))
			begun = time.Now()
			assert.NoError(t, stream.Receive(nil))
			return begun
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := ratelimit.New(ratelimit.Unlimited{})
				require.NoError(t, err)
				c, err := connectlimit.NewClient(l, func(connect.Spec, connect.Peer) string { return "a" })
				require.NoError(t, err)
				refusal := connect.NewError(connect.CodeUnavailable, errors.New("refused"))
				info, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)})
				require.NoError(t, err)
				refusal.AddDetail(info)
				_, err = c.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
					return nil, refusal
				})(t.Context(), asked{connect.NewRequest(new(emptypb.Empty))})
				require.Equal(t, refusal, err)
				begin, at := time.Now(), make(map[time.Duration]int)
				var mu sync.Mutex // protects at
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						begun := ask(t.Context(), c)
						mu.Lock()
						at[begun.Sub(begin)-time.Minute]++
						mu.Unlock()
					})
				}
				wg.Wait()
				const s = time.Second
				assert.Equal(t, map[time.Duration]int{0: 1, s: 2, 2 * s: 4, 3 * s: 8, 4 * s: 16, 5 * s: 32, 6 * s: 37}, at)
			})
		})
	}
}

// TestClientBacksOff has a server that refuses calls and does not say for how long: that holds
// others back. A message that is too large holds nobody back.
func TestClientBacksOff(t *testing.T) {
	for name, opts := range protocols {
		for text, want := range map[string]connect.Code{
			"quota exceeded": connect.CodeDeadlineExceeded,
			"message size 5000000 is larger than configured max 4194304": connect.CodeResourceExhausted,
		} {
			t.Run(name+" "+text, func(t *testing.T) {
				free, clk := limiter(t, ratelimit.Unlimited{})
				c, err := connectlimit.NewClient(free, nil)
				require.NoError(t, err)
				refusal := connect.NewError(connect.CodeResourceExhausted, errors.New(text))
				p := serve(t, func(h http.Handler) http.Handler { return h },
					func(context.Context) error { return refusal }, append(opts, connect.WithInterceptors(c))...)
				_, err = p.call(t.Context())
				require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))

				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				clk.Set(time.Now().Add(time.Minute - time.Second)) // less than a second is left
				_, err = p.call(ctx)
				assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "the rest is over")
				_, err = p.call(ctx)
				assert.Equal(t, want, connect.CodeOf(err))
			})
		}
	}
}

// An asked request is one of a client.
type asked struct{ connect.AnyRequest }

func (asked) Spec() connect.Spec { return connect.Spec{IsClient: true} }

func TestClientMisuse(t *testing.T) {
	_, err := connectlimit.NewClient(nil, nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	c, err := connectlimit.NewClient(l, func(connect.Spec, connect.Peer) string { return "" })
	require.NoError(t, err)
	_, err = serve(t, func(h http.Handler) http.Handler { return h }, returns, connect.WithInterceptors(c)).call(t.Context())
	assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}
