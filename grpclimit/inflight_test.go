package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
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

// A call whose deadline passes while the store is silent is over: its handler is not called,
// although the failure policy allows it. So is a message.
func TestDeadlineWhileTheStoreIsSilent(t *testing.T) {
	for name, call := range map[string]func(s *grpclimit.Server, ctx context.Context) (passed bool, err error){
		"unary": func(s *grpclimit.Server, ctx context.Context) (passed bool, err error) {
			_, err = s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
				passed = true
				return nil, nil
			})
			return passed, err
		},
		"stream": func(s *grpclimit.Server, ctx context.Context) (passed bool, err error) {
			err = s.Stream(nil, silentStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"}, func(any, grpc.ServerStream) error {
				passed = true
				return nil
			})
			return passed, err
		},
		"messages": func(s *grpclimit.Server, ctx context.Context) (passed bool, err error) {
			err = s.Messages(nil, silentStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"}, func(_ any, stream grpc.ServerStream) error {
				passed = stream.RecvMsg(nil) == nil
				return nil
			})
			return passed, err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			passed, err := call(newServer(t, silent{l}, httplimit.WithKey(key.Pattern())), ctx)
			assert.Equal(t, codes.DeadlineExceeded, status.Code(err), name)
			assert.False(t, passed, name)
		})
	}
}

// A silent limiter has a store that does not answer, and allows what that does not decide.
type silent struct{ ratelimit.Limiter }

func (silent) Take(ctx context.Context, _ string, _ int) (ratelimit.Decision, error) {
	<-ctx.Done()
	return ratelimit.Decision{Allowed: true, Degraded: true}, errors.New("no answer")
}

// A silent stream has one message after another, all of them empty.
type silentStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s silentStream) Context() context.Context { return s.ctx }
func (silentStream) SetTrailer(metadata.MD)     {}
func (silentStream) RecvMsg(any) error          { return nil }

// In memory, a call that was cancelled is decided on like any other, because a half-closed
// connection looks the same.
func TestCancelledCallInMemory(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newServer(t, l, httplimit.WithKey(key.Pattern()))
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) { return nil, nil })
		assert.Equal(t, want, status.Code(err))
	}
}

// TestClientHasLeft checks that a call whose context has ended takes nothing from a limiter that
// may have to wait for a store.
func TestClientHasLeft(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		inMemory, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
		l := opaque{inMemory}
		opts := []httplimit.Option{
			httplimit.WithKey(key.Pattern()),
			httplimit.WithStoreError(func(*http.Request, error) { t.Error("no store has failed") }),
		}
		if shadow {
			opts = append(opts, httplimit.WithShadow(1, func(*http.Request, ratelimit.Decision) { t.Error("it was not refused") }))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		passed := false
		_, err := newServer(t, l, opts...).Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
			passed = true
			return nil, nil
		})
		assert.Equal(t, shadow, passed)
		if !shadow {
			assert.Equal(t, codes.Canceled, status.Code(err))
		}
		d, err := l.Peek(t.Context(), "/a.B/C")
		require.NoError(t, err)
		assert.Equal(t, 3, d.Remaining)
	}
}

// An opaque limiter does not tell where its states are.
type opaque struct{ ratelimit.Limiter }

func (opaque) Describe() ratelimit.Info { return ratelimit.Info{} }

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
