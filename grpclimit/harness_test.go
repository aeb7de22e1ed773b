package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// A service is a TestService whose methods are the functions that are not nil.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
	unary  func(context.Context, *grpc_testing.SimpleRequest) error
	duplex func(duplexServer) error // the default echoes
}

type (
	duplexServer = grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]
	duplexClient = grpc.BidiStreamingClient[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]
)

func (s *service) UnaryCall(ctx context.Context, r *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if s.unary != nil {
		if err := s.unary(ctx, r); err != nil {
			return nil, err
		}
	}
	return new(grpc_testing.SimpleResponse), nil
}

func (s *service) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return new(grpc_testing.Empty), nil
}

func (s *service) StreamingOutputCall(_ *grpc_testing.StreamingOutputCallRequest,
	stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	for range 3 {
		if err := stream.Send(new(grpc_testing.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	if s.duplex != nil {
		return s.duplex(stream)
	}
	return echo(stream)
}

func echo(stream duplexServer) error {
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(new(grpc_testing.StreamingOutputCallResponse)); err != nil {
			return err
		}
	}
}

// A place is a server on a loopback address, and a connection to it.
type place struct {
	server *grpc.Server
	conn   *grpc.ClientConn
	grpc_testing.TestServiceClient
}

// limitedBy returns the options of a server with the interceptors of s, behind one that makes a
// status of a panic, as servers do.
func limitedBy(s *grpclimit.Server) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
			defer recovered(&err)
			return handler(ctx, req)
		}, s.Unary),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			defer recovered(&err)
			return handler(srv, stream)
		}, s.Stream),
	}
}

// perMessage is limitedBy for a server that limits the messages of streams.
func perMessage(s *grpclimit.Server) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.UnaryInterceptor(s.Unary), grpc.ChainStreamInterceptor(
		func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
			defer recovered(&err)
			return handler(srv, stream)
		}, s.Messages)}
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = status.Errorf(codes.Internal, "panic: %v", p)
	}
}

// serve serves svc on a loopback address.
func serve(t testing.TB, svc *service, server []grpc.ServerOption, client ...grpc.DialOption) place {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, listener, svc, server, listener.Addr().String(), client...)
}

func serveOn(t testing.TB, listener net.Listener, svc *service, server []grpc.ServerOption, target string, client ...grpc.DialOption) place {
	t.Helper()
	return serveWith(t, listener, svc, func(*grpc.Server) {}, server, target, client...)
}

func serveWith(t testing.TB, listener net.Listener, svc *service, register func(*grpc.Server),
	server []grpc.ServerOption, target string, client ...grpc.DialOption) place {
	t.Helper()
	s := grpc.NewServer(server...)
	register(s)
	grpc_testing.RegisterTestServiceServer(s, svc)
	var served sync.WaitGroup
	served.Go(func() { assert.NoError(t, s.Serve(listener)) })
	conn, err := grpc.NewClient(target, append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, conn.Close())
		s.Stop()
		served.Wait()
	})
	return place{s, conn, grpc_testing.NewTestServiceClient(conn)}
}

// call makes a unary call.
func (p place) call(ctx context.Context, opts ...grpc.CallOption) error {
	_, err := p.UnaryCall(ctx, new(grpc_testing.SimpleRequest), opts...)
	return err
}

// open opens a stream.
func (p place) open(t testing.TB, ctx context.Context) duplexClient {
	t.Helper()
	stream, err := p.FullDuplexCall(ctx)
	require.NoError(t, err)
	return stream
}

// exchange sends a message, and receives the answer.
func exchange(stream duplexClient) error {
	if err := stream.Send(new(grpc_testing.StreamingOutputCallRequest)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err := stream.Recv()
	return err
}

// limiter returns a limiter whose clock only the test moves.
func limiter(t testing.TB, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, *clock.Mock) {
	t.Helper()
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	l, err := ratelimit.New(alg, append(opts, ratelimit.WithClock(clk))...)
	require.NoError(t, err)
	return l, clk
}

func newServer(t testing.TB, l ratelimit.Limiter, opts ...httplimit.Option) *grpclimit.Server {
	t.Helper()
	s, err := grpclimit.NewServer(l, opts...)
	require.NoError(t, err)
	return s
}

// detailsOf returns the details of a refusal. Those that it lacks are nil.
func detailsOf(t testing.TB, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	require.Contains(t, []codes.Code{codes.ResourceExhausted, codes.Unavailable}, status.Code(err), "%v", err)
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		default:
			t.Errorf("an unknown detail: %v", d)
		}
	}
	return retry, quota
}

// quiet keeps the log out of the test's output.
func quiet(t *testing.T) *logged {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	l := new(logged)
	slog.SetDefault(slog.New(slog.NewTextHandler(l, nil)))
	return l
}

// logged is what has been logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serveRegistered is serve with further services.
func serveRegistered(t testing.TB, s *grpclimit.Server, register func(*grpc.Server)) place {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveWith(t, listener, new(service), register, limitedBy(s), listener.Addr().String())
}
