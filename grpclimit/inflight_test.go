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
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestInFlight has three calls in flight, unary and streams. A fourth is refused until one of them
// has ended, in whatever way.
func TestInFlight(t *testing.T) {
	fly := ratelimit.InFlight{Limit: 3, Timeout: time.Hour}
	own := func(context.Context, string) (ratelimit.Algorithm, error) { return fly, nil }
	for name, tt := range map[string]struct {
		alg     ratelimit.Algorithm
		limiter []ratelimit.Option
		server  []httplimit.Option
	}{
		"alone":  {fly, nil, nil},
		"all":    {ratelimit.All{ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1000)}, fly}, nil, nil},
		"own":    {ratelimit.Unlimited{}, []ratelimit.Option{ratelimit.WithLimits(own)}, []httplimit.Option{httplimit.WithInFlight()}},
		"shadow": {fly, nil, []httplimit.Option{httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) {})}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := limiter(t, tt.alg, tt.limiter...)
			testInFlight(t, l, newServer(t, l, tt.server...), name == "shadow")
		})
	}
}

func testInFlight(t *testing.T, l ratelimit.Limiter, s *grpclimit.Server, shadow bool) {
	entered, end, left := make(chan struct{}), make(chan func() error), make(chan struct{}, 10)
	stay := func() error {
		entered <- struct{}{}
		return (<-end)()
	}
	svc := &service{
		unary:  func(context.Context, *grpc_testing.SimpleRequest) error { return stay() },
		duplex: func(duplexServer) error { return stay() },
	}
	p := serve(t, svc, append(limitedBy(s),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			defer func() { left <- struct{}{} }()
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			defer func() { left <- struct{}{} }()
			return handler(srv, stream)
		})))
	free := func() int {
		d, err := l.Peek(t.Context(), "127.0.0.1")
		require.NoError(t, err)
		return d.Remaining
	}
	answers := make(chan error, 10)
	unary := func(ctx context.Context) {
		go func() { answers <- p.call(ctx) }()
		<-entered
	}
	open := func(ctx context.Context) {
		stream := p.open(t, ctx)
		go func() { _, err := stream.Recv(); answers <- err }()
		<-entered
	}
	for name, ended := range map[string]func() error{
		"returns": func() error { return nil },
		"fails":   func() error { return status.Error(codes.Aborted, "a fault") },
		"panics":  func() error { panic("a bug") },
	} {
		for _, begin := range []func(context.Context){unary, open} {
			unary(t.Context())
			open(t.Context())
			begin(t.Context())
			require.Equal(t, 0, free())
			if !shadow {
				detailsOf(t, p.call(t.Context()))
				_, err := p.open(t, t.Context()).Recv()
				detailsOf(t, err)
				<-left
				<-left
			}
			for range 3 {
				end <- ended
				<-left
				assert.Equal(t, name == "returns", isEnd(<-answers))
			}
			require.Equal(t, 3, free(), name)
		}
	}
	// A call stays in flight after its client has left, until its handler ends.
	for _, begin := range []func(context.Context){unary, open} {
		ctx, cancel := context.WithCancel(t.Context())
		begin(ctx)
		cancel()
		assert.Equal(t, codes.Canceled, status.Code(<-answers))
		assert.Equal(t, 2, free())
		end <- func() error { return nil }
		<-left
		assert.Equal(t, 3, free())
	}
}

// isEnd reports whether err is that of a call, or a stream, that has ended well.
func isEnd(err error) bool { return err == nil || errors.Is(err, io.EOF) }

// TestInFlightOfACallThatPanics checks that a call is released if a function of the program panics
// before its handler.
func TestInFlightOfACallThatPanics(t *testing.T) {
	lookups := 0
	l, _ := limiter(t, ratelimit.Blocked{}, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
		if lookups++; lookups == 2 { // to report the decision
			panic("a bug in a lookup")
		}
		return ratelimit.InFlight{Limit: 1, Timeout: time.Hour}, nil
	}))
	s := newServer(t, l, httplimit.WithInFlight(), httplimit.WithKey(func(*http.Request) (string, error) { return "key", nil }))
	require.PanicsWithValue(t, "a bug in a lookup", func() {
		_, _ = s.Unary(t.Context(), nil, &grpc.UnaryServerInfo{}, nil)
	})
	assert.True(t, l.Allow("key"))
}
