package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// TestPerMessage checks that messages count and streams do not, and that a refusal ends a stream
// with the details and trailers of a refused call.
func TestPerMessage(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(6)})
	p := serve(t, new(service), perMessage(newServer(t, l)))
	for range 20 { // they send nothing
		stream := p.open(t, t.Context())
		require.NoError(t, stream.CloseSend())
		_, err := stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		assert.Empty(t, sent(stream.Trailer()))
	}
	one, two := p.open(t, t.Context()), p.open(t, t.Context())
	for range 2 {
		require.NoError(t, exchange(one))
		require.NoError(t, exchange(two))
	}
	require.NoError(t, two.CloseSend())
	_, err := two.Recv()
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, []string{`"default";r=2;t=40`}, two.Trailer()["ratelimit"])

	require.NoError(t, p.call(t.Context()), "a unary call is a message")
	three, err := p.StreamingOutputCall(t.Context(), new(grpc_testing.StreamingOutputCallRequest))
	require.NoError(t, err)
	for range 3 {
		_, err = three.Recv()
		require.NoError(t, err, "what the server sends does not count")
	}
	retry, quota := detailsOf(t, exchange(one))
	assert.Equal(t, 10*time.Second, retry.GetRetryDelay().AsDuration())
	assert.Equal(t, "default", quota.GetViolations()[0].GetSubject())
	assert.Equal(t, metadata.MD{"ratelimit": {`"default";r=0;t=10`}, "ratelimit-policy": {`"default";q=6;w=60`}, "retry-after": {"10"}}, sent(one.Trailer()))

	clk.Add(retry.GetRetryDelay().AsDuration())
	require.NoError(t, exchange(p.open(t, t.Context())))
	_, err = exchanged(p.open(t, t.Context()))
	detailsOf(t, err)
}

func exchanged(stream duplexClient) (duplexClient, error) { return stream, exchange(stream) }

// TestCostOfMessages checks that cost and key of each message are asked for.
func TestCostOfMessages(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(10)})
	size := func(r *http.Request) int {
		return len(grpclimit.CallOf(r).Message.(*grpc_testing.StreamingOutputCallRequest).GetResponseParameters())
	}
	p := serve(t, new(service), perMessage(newServer(t, l, httplimit.WithCost(size),
		httplimit.WithKey(key.Join(key.Pattern(), func(r *http.Request) (string, error) {
			return grpclimit.CallOf(r).Message.(*grpc_testing.StreamingOutputCallRequest).GetPayload().GetType().String(), nil
		})))))
	stream := p.open(t, t.Context())
	for _, n := range []int{4, 0, 6} {
		require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: make([]*grpc_testing.ResponseParameters, n)}))
		_, err := stream.Recv()
		require.NoError(t, err)
	}
	require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: make([]*grpc_testing.ResponseParameters, 1)}))
	_, err := stream.Recv()
	detailsOf(t, err)
}

// TestRefusalEndsStream checks that a handler cannot hide that a message was refused.
func TestRefusalEndsStream(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	errs := make(chan error, 3)
	svc := &service{duplex: func(stream duplexServer) error {
		for range 3 {
			_, err := stream.Recv()
			errs <- err
		}
		return nil
	}}
	p := serve(t, svc, perMessage(newServer(t, l)))
	stream := p.open(t, t.Context())
	for range 2 {
		require.NoError(t, stream.Send(new(grpc_testing.StreamingOutputCallRequest)))
	}
	_, err := stream.Recv()
	detailsOf(t, err)
	assert.NoError(t, <-errs)
	detailsOf(t, <-errs)
	detailsOf(t, <-errs)
	d, err := l.Peek(t.Context(), "127.0.0.1")
	require.NoError(t, err)
	assert.Equal(t, 0, d.Remaining)
}

// TestMessageInFlight checks that a message is in flight until the handler asks for the next one or
// ends.
func TestMessageInFlight(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 2, Timeout: time.Hour})
	free := func() int {
		d, err := l.Peek(t.Context(), "127.0.0.1")
		require.NoError(t, err)
		return d.Remaining
	}
	received, proceed, left := make(chan error), make(chan error), make(chan struct{}, 10)
	svc := &service{duplex: func(stream duplexServer) error {
		for {
			_, err := stream.Recv()
			received <- err
			if err := <-proceed; err != nil {
				if errors.Is(err, assert.AnError) {
					panic(err)
				}
				return err
			}
		}
	}}
	p := serve(t, svc, append(perMessage(newServer(t, l)),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			defer func() { left <- struct{}{} }()
			return handler(srv, stream)
		})))
	send := func(stream duplexClient) {
		require.NoError(t, stream.Send(new(grpc_testing.StreamingOutputCallRequest)))
		require.NoError(t, <-received)
	}
	for _, end := range []error{status.Error(codes.Aborted, "no more"), assert.AnError} {
		stream := p.open(t, t.Context())
		assert.Equal(t, 2, free())
		for range 3 {
			send(stream)
			assert.Equal(t, 1, free())
			proceed <- nil
		}
		other := p.open(t, t.Context())
		send(other)
		send(stream)
		assert.Equal(t, 0, free())
		third := p.open(t, t.Context())
		require.NoError(t, third.Send(new(grpc_testing.StreamingOutputCallRequest)))
		detailsOf(t, <-received)
		proceed <- status.Error(codes.Aborted, "whatever")
		<-left
		for range 2 {
			proceed <- end
			<-left
		}
		assert.Equal(t, 2, free(), end)
		for _, stream := range []duplexClient{stream, other} {
			_, err := stream.Recv()
			assert.Contains(t, []codes.Code{codes.Aborted, codes.Internal}, status.Code(err))
		}
	}

	// A client that leaves.
	ctx, cancel := context.WithCancel(t.Context())
	stream := p.open(t, ctx)
	send(stream)
	assert.Equal(t, 1, free())
	cancel()
	proceed <- nil // the handler asks for the next message
	require.Error(t, <-received)
	assert.Equal(t, 2, free())
	proceed <- io.EOF
	<-left
}

// TestLeftBehind checks that a message is released which a goroutine that outlives its handler has
// received.
func TestLeftBehind(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	deciding, decide, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	svc := &service{duplex: func(stream duplexServer) error {
		go func() {
			defer close(done)
			_, _ = stream.Recv()
		}()
		<-deciding
		return nil
	}}
	p := serve(t, svc, perMessage(newServer(t, late{l, deciding, decide}, httplimit.WithInFlight())))
	stream := p.open(t, t.Context())
	require.NoError(t, stream.Send(new(grpc_testing.StreamingOutputCallRequest)))
	_, err := stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	close(decide)
	<-done
	assert.True(t, l.Allow("127.0.0.1"))
}

// A late limiter answers when it is told to.
type late struct {
	ratelimit.Limiter
	deciding, decide chan struct{}
}

func (l late) Hold(ctx context.Context, key string, n int, opts ...ratelimit.HoldOption) (*ratelimit.Reservation, ratelimit.Decision, error) {
	r, d, err := l.Limiter.Hold(ctx, key, n, opts...)
	close(l.deciding)
	<-l.decide
	return r, d, err
}
