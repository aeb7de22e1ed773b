package grpclimit_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// TestRefusal checks what a client reads, and that a client which sleeps exactly RetryInfo is
// granted, and one that sleeps a nanosecond less is not.
func TestRefusal(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.Rate{Events: 3, Per: 10 * time.Second}, Burst: 2})
	p := serve(t, new(service), limitedBy(newServer(t, l)))
	var trailer metadata.MD
	call := func() error {
		trailer = nil
		return p.call(t.Context(), grpc.Trailer(&trailer))
	}
	require.NoError(t, call())
	assert.Equal(t, metadata.MD{"ratelimit": {`"default";r=1;t=4`}, "ratelimit-policy": {`"default";q=2;w=7`}}, trailer)
	require.NoError(t, call())
	for _, after := range []time.Duration{3_333_333_334, 3_333_333_333, 3_333_333_333} { // ten seconds together
		retry, quota := detailsOf(t, call())
		assert.Equal(t, []string{`"default";r=0;t=4`}, trailer["ratelimit"])
		assert.Equal(t, []string{`"default";q=2;w=7`}, trailer["ratelimit-policy"])
		assert.Equal(t, []string{"4"}, trailer["retry-after"], "seconds, rounded up")
		assert.Equal(t, after*time.Nanosecond, retry.GetRetryDelay().AsDuration())
		require.Len(t, quota.GetViolations(), 1)
		assert.Equal(t, "default", quota.GetViolations()[0].GetSubject())
		assert.Equal(t, "default", quota.GetViolations()[0].GetQuotaId())
		assert.Equal(t, int64(2), quota.GetViolations()[0].GetQuotaValue())
		assert.Equal(t, "Not enough of the limit is left for now.", quota.GetViolations()[0].GetDescription())

		clk.Add(retry.GetRetryDelay().AsDuration() - 1)
		retry, _ = detailsOf(t, call())
		assert.Equal(t, time.Duration(1), retry.GetRetryDelay().AsDuration())
		clk.Add(retry.GetRetryDelay().AsDuration())
		require.NoError(t, call())
	}

	// A stream is refused in the same way.
	stream := p.open(t, t.Context())
	_, err := stream.Recv()
	retry, _ := detailsOf(t, err)
	assert.Equal(t, []string{`"default";r=0;t=4`}, stream.Trailer()["ratelimit"])
	assert.Equal(t, []string{"4"}, stream.Trailer()["retry-after"])
	clk.Add(retry.GetRetryDelay().AsDuration())
	stream = p.open(t, t.Context())
	for range 5 {
		require.NoError(t, exchange(stream), "messages do not count")
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorContains(t, err, "EOF")
	assert.Equal(t, []string{`"default";r=0;t=7`}, stream.Trailer()["ratelimit"])
}

// TestUnknownMethod checks which calls never reach an interceptor.
func TestUnknownMethod(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	s := newServer(t, l)
	p := serve(t, new(service), limitedBy(s))
	for _, method := range []string{"/grpc.testing.TestService/Unknown", "/Unknown/EmptyCall"} {
		for range 3 {
			err := p.conn.Invoke(t.Context(), method, new(grpc_testing.Empty), new(grpc_testing.Empty))
			assert.Equal(t, codes.Unimplemented, status.Code(err))
		}
	}
	require.NoError(t, p.call(t.Context()))

	handler := grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return nil })
	p = serve(t, new(service), append(limitedBy(s), handler))
	err := p.conn.Invoke(t.Context(), "/Unknown/EmptyCall", new(grpc_testing.Empty), new(grpc_testing.Empty))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

// TestPartThatRefuses checks that an All names the part, and that what never fits has no RetryInfo.
func TestPartThatRefuses(t *testing.T) {
	quiet(t) // of the negative cost
	l, _ := limiter(t, ratelimit.All{
		ratelimit.TokenBucket{Rate: ratelimit.PerSecond(10)},
		ratelimit.FixedWindow{Limit: 3, Window: time.Hour},
	})
	size := func(r *http.Request) int {
		return int(grpclimit.CallOf(r).Message.(*grpc_testing.SimpleRequest).GetResponseSize())
	}
	p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithPolicyName("calls"), httplimit.WithCost(size))))
	cost := func(n int32) error {
		_, err := p.UnaryCall(t.Context(), &grpc_testing.SimpleRequest{ResponseSize: n})
		return err
	}
	require.NoError(t, cost(2))
	retry, quota := detailsOf(t, cost(2))
	assert.Equal(t, time.Hour, retry.GetRetryDelay().AsDuration())
	assert.Equal(t, "calls-2", quota.GetViolations()[0].GetSubject())
	retry, quota = detailsOf(t, cost(4))
	assert.Nil(t, retry)
	assert.Equal(t, "The request exceeds what the limit ever allows at once.", quota.GetViolations()[0].GetDescription())
	require.NoError(t, cost(0), "it passes without asking")
	assert.Equal(t, codes.InvalidArgument, status.Code(cost(-1)))
	require.NoError(t, cost(1))
}

// sent returns the trailers without those of grpc-go itself.
func sent(md metadata.MD) metadata.MD {
	md = md.Copy()
	delete(md, "grpc-status-details-bin")
	delete(md, "content-type")
	return md
}

// TestSkip checks that health checks and reflection pass on request, and count otherwise.
func TestSkip(t *testing.T) {
	for _, skipped := range []bool{true, false} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		var opts []httplimit.Option
		if skipped {
			opts = append(opts, httplimit.WithSkip(grpclimit.HealthAndReflection))
		}
		s := newServer(t, l, opts...)
		p := serveAll(t, s)
		require.NoError(t, p.call(t.Context()))
		want := codes.ResourceExhausted
		if skipped {
			want = codes.OK
		}
		_, err := grpc_health_v1.NewHealthClient(p.conn).Check(t.Context(), new(grpc_health_v1.HealthCheckRequest))
		assert.Equal(t, want, status.Code(err))
		stream, err := grpc_reflection_v1.NewServerReflectionClient(p.conn).ServerReflectionInfo(t.Context())
		require.NoError(t, err)
		_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
			MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
		})
		_, err = stream.Recv()
		assert.Equal(t, want, status.Code(err))
		assert.Equal(t, codes.ResourceExhausted, status.Code(p.call(t.Context())), "other calls count")
	}
}

// serveAll serves the services of grpc-go for health and reflection, too.
func serveAll(t *testing.T, s *grpclimit.Server) place {
	return serveRegistered(t, s, func(server *grpc.Server) {
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		reflection.Register(server)
	})
}

// A down database fails every call.
type down struct{ ratelimit.Database }

func (down) Get(context.Context, string) ([]byte, error) {
	return nil, errors.New("no route to the store")
}

// TestLookupFails checks that a call which the limit of New refuses, because that of its key is not
// known, is over a limit.
func TestLookupFails(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}, ratelimit.WithFailureLog(nil),
		ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
			return nil, errors.New("no route to the plans")
		}))
	for _, cost := range []int{1, 2} {
		require.NoError(t, l.Reset(t.Context(), "127.0.0.1"))
		require.True(t, l.Allow("127.0.0.1"))
		p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithCost(func(*http.Request) int { return cost }))))
		err := p.call(t.Context())
		retry, quota := detailsOf(t, err)
		if cost == 1 {
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
			assert.Equal(t, time.Hour, retry.GetRetryDelay().AsDuration())
			assert.NotNil(t, quota)
		} else {
			require.Equal(t, codes.Unavailable, status.Code(err), "the limit of the key may grant it")
			assert.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
			assert.Nil(t, quota)
		}
	}
}

// An unmarked limiter fails without marking its decisions.
type unmarked struct{ ratelimit.Limiter }

func (unmarked) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, errors.New("no route to the limits")
}

// TestForeignLimiterFails checks that an error which no limiter logs is logged, and that the call
// is refused without a RetryInfo of zero.
func TestForeignLimiterFails(t *testing.T) {
	log := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	p := serve(t, new(service), limitedBy(newServer(t, unmarked{l})))
	for range 3 {
		retry, _ := detailsOf(t, p.call(t.Context()))
		assert.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
	}
	assert.Contains(t, log.String(), "no route to the limits")
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "at most one line a second")
}

// TestMisuse checks that mistakes in options are errors of NewServer and NewClient.
func TestMisuse(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	server := func(opts ...httplimit.Option) func() error {
		return func() error { _, err := grpclimit.NewServer(l, opts...); return err }
	}
	client := func(opts ...grpclimit.ClientOption) func() error {
		return func() error { _, err := grpclimit.NewClient(l, opts...); return err }
	}
	type nilLimiter struct{ ratelimit.Limiter }
	for want, try := range map[string]func() error{
		"the limiter is nil":               func() error { _, err := grpclimit.NewServer(nil); return err },
		"the limiter is nil: it must be a": func() error { _, err := grpclimit.NewServer((*nilLimiter)(nil)); return err },
		"the limiter is nil: it must":      func() error { _, err := grpclimit.NewClient(nil); return err },
		"WithKey's function is nil: it must be a function, such as clientip": server(httplimit.WithKey(nil)),
		`WithPolicyName's name is "ü"`:                                       server(httplimit.WithPolicyName("ü")),
		"option 1 of NewClient is nil":                                       client(grpclimit.WithInFlight(), nil),
		"WithKey's function is nil: it must be a KeyFunc, such as Target":    client(grpclimit.WithKey(nil)),
		"WithCost's function is nil":                                         client(grpclimit.WithCost(nil)),
		"WithSkip's function is nil":                                         client(grpclimit.WithSkip(nil)),
	} {
		err := try()
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, ratelimit.ErrInvalid)
	}
}

// TestCallOf checks that other requests are about no call.
func TestCallOf(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	require.NoError(t, err)
	assert.Nil(t, grpclimit.CallOf(r))
}
