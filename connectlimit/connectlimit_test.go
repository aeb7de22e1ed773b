package connectlimit_test

import (
	"context"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/connectlimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

const (
	unaryPath  = "/test.Service/Unary"
	streamPath = "/test.Service/Stream"
)

type (
	client = connect.Client[emptypb.Empty, emptypb.Empty]
	duplex = connect.BidiStreamForClient[emptypb.Empty, emptypb.Empty]
)

// A place is a server on a loopback address, with a client of each method.
type place struct {
	unary, stream *client
	url           string
	base          *http.Client
}

// protocols are those of connect-go.
var protocols = map[string][]connect.ClientOption{
	"connect":  nil,
	"grpc":     {connect.WithGRPC()},
	"grpc-web": {connect.WithGRPCWeb()},
}

// serve serves a service whose calls are over when end returns.
func serve(t *testing.T, wrap func(http.Handler) http.Handler, end func(context.Context) error, opts ...connect.ClientOption) place {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(unaryPath, connect.NewUnaryHandler(unaryPath,
		func(ctx context.Context, _ *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
			return connect.NewResponse(new(emptypb.Empty)), end(ctx)
		}))
	mux.Handle(streamPath, connect.NewBidiStreamHandler(streamPath, func(ctx context.Context, _ *connect.BidiStream[emptypb.Empty, emptypb.Empty]) error {
		return end(ctx)
	}))
	server := httptest.NewUnstartedServer(wrap(mux))
	server.Config.ErrorLog = log.New(new(strings.Builder), "", 0)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return place{
		connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+unaryPath, opts...),
		connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+streamPath, opts...),
		server.URL, server.Client(),
	}
}

func (p place) call(ctx context.Context) (http.Header, error) {
	resp, err := p.unary.CallUnary(ctx, connect.NewRequest(new(emptypb.Empty)))
	if err != nil {
		return nil, err
	}
	return resp.Header(), nil
}

// open opens a stream, and ends it when the server does.
func (p place) open(ctx context.Context) error {
	stream := p.stream.CallBidiStream(ctx)
	defer func() { _ = stream.CloseResponse() }()
	_ = stream.Send(new(emptypb.Empty)) // Receive says what is wrong
	_ = stream.CloseRequest()
	_, err := stream.Receive()
	return err
}

func returns(context.Context) error { return nil }

func limiter(t *testing.T, alg ratelimit.Algorithm, opts ...ratelimit.Option) (ratelimit.Limiter, *clock.Mock) {
	t.Helper()
	clk := clock.NewMock()
	clk.Set(time.Now()) // deadlines are compared with it
	l, err := ratelimit.New(alg, append(opts, ratelimit.WithClock(clk))...)
	require.NoError(t, err)
	return l, clk
}

// details returns the details of a refusal.
func details(t *testing.T, err error) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	require.Contains(t, []connect.Code{connect.CodeResourceExhausted, connect.CodeUnavailable}, connect.CodeOf(err), "%v", err)
	refusal, _ := errors.AsType[*connect.Error](err)
	for _, d := range refusal.Details() {
		value, err := d.Value()
		require.NoError(t, err)
		switch d := value.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		}
	}
	return retry, quota
}

// TestRefusal checks in each protocol what a client reads, and that one which sleeps exactly
// RetryInfo is granted, and one that sleeps a nanosecond less is not.
func TestRefusal(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1), Burst: 2})
			p := serve(t, connectlimit.Middleware(l, httplimit.WithPolicyName("calls")), returns, opts...)
			header, err := p.call(t.Context())
			require.NoError(t, err)
			assert.Equal(t, `"calls";r=1;t=60`, header.Get("RateLimit"))
			_, err = p.call(t.Context())
			require.NoError(t, err)
			for _, ask := range []func() error{
				func() error { _, err := p.call(t.Context()); return err },
				func() error { return p.open(t.Context()) },
			} {
				err := ask()
				retry, quota := details(t, err)
				assert.Equal(t, time.Minute, retry.GetRetryDelay().AsDuration())
				assert.Equal(t, "calls", quota.GetViolations()[0].GetSubject())
				assert.Equal(t, int64(2), quota.GetViolations()[0].GetQuotaValue())
				assert.ErrorContains(t, err, "Not enough of the limit is left for now.")
				refusal, _ := errors.AsType[*connect.Error](err)
				assert.Equal(t, "60", refusal.Meta().Get("Retry-After"))
				assert.Equal(t, `"calls";r=0;t=60`, refusal.Meta().Get("RateLimit"))
				assert.Equal(t, `"calls";q=2;w=120`, refusal.Meta().Get("RateLimit-Policy"))

				clk.Add(time.Minute - 1)
				retry, _ = details(t, ask())
				assert.Equal(t, time.Duration(1), retry.GetRetryDelay().AsDuration())
				clk.Add(1)
				assert.NotEqual(t, connect.CodeResourceExhausted, connect.CodeOf(ask()))
			}
		})
	}
}

// TestWithStatusHasNoEffect checks in each protocol the status of a refusal, and its code.
func TestWithStatusHasNoEffect(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			want := map[string]int{"connect": http.StatusTooManyRequests, "grpc": http.StatusOK, "grpc-web": http.StatusOK}[name]
			l, _ := limiter(t, ratelimit.Blocked{})
			statuses := make(chan int, 1)
			p := serve(t, func(h http.Handler) http.Handler {
				limited := connectlimit.Middleware(l, httplimit.WithStatus(http.StatusServiceUnavailable))(h)
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
					limited.ServeHTTP(sw, r)
					statuses <- sw.status
				})
			}, returns, opts...)
			_, err := p.call(t.Context())
			_, quota := details(t, err)
			assert.NotNil(t, quota)
			assert.Equal(t, want, <-statuses)
		})
	}
}

// A statusWriter notes the status that a handler sends.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// TestStandInRefuses checks that a limit in place of the key's, and of a store that has failed, is
// one.
func TestStandInRefuses(t *testing.T) {
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	quiet := ratelimit.WithFailureLog(nil)
	unknown, _ := limiter(t, bucket, quiet, ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return nil, assert.AnError }))
	spare, _ := limiter(t, bucket)
	down, _ := limiter(t, bucket, quiet, ratelimit.WithStore(ratelimit.NewStore(away{})), ratelimit.WithName("test"),
		ratelimit.WithFailurePolicy(ratelimit.Fallback(spare)))
	for name, l := range map[string]ratelimit.Limiter{"the limit of New": unknown, "a fallback": down} {
		p := serve(t, connectlimit.Middleware(l, httplimit.WithStoreError(func(*http.Request, error) {})), returns)
		_, err := p.call(t.Context())
		require.NoError(t, err, name)
		_, err = p.call(t.Context())
		retry, quota := details(t, err)
		assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), name)
		assert.Equal(t, time.Hour, retry.GetRetryDelay().AsDuration(), name)
		assert.NotNil(t, quota, name)
	}
}

// away is a database that fails.
type away struct{ ratelimit.Database }

func (away) Get(context.Context, string) ([]byte, error) {
	return nil, errors.New("no route to the store")
}

func TestHealthAndReflection(t *testing.T) {
	for path, want := range map[string]bool{
		"/grpc.health.v1.Health/Check":                              true,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": true,
		"/grpc.reflection.v1alpha.ServerReflection/X":               true,
		unaryPath:                             false,
		"/grpc.health.v1.Healthy/Check":       false,
		"/test.Service/grpc.health.v1.Health": false,
	} {
		assert.Equal(t, want, connectlimit.HealthAndReflection(httptest.NewRequest("POST", path, nil)), path)
	}
}
