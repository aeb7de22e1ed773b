package grpclimit_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/ratelimit-go/ratelimit/httplimit/key"
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
	for range 3 {
		retry, quota := detailsOf(t, call())
		assert.Equal(t, []string{`"default";r=0;t=4`}, trailer["ratelimit"])
		assert.Equal(t, []string{`"default";q=2;w=7`}, trailer["ratelimit-policy"])
		assert.Equal(t, []string{"4"}, trailer["retry-after"], "seconds, rounded up")
		assert.InDelta(t, 3_333_333_333.0, retry.GetRetryDelay().AsDuration().Nanoseconds(), 1)
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

func TestHeaders(t *testing.T) {
	for h, want := range map[httplimit.Headers]metadata.MD{
		httplimit.Standard: {"ratelimit": {`"default";r=0;t=3600`}, "ratelimit-policy": {`"default";q=1;w=3600`}, "retry-after": {"3600"}},
		httplimit.Draft7:   {"ratelimit": {"limit=1, remaining=0, reset=3600"}, "ratelimit-policy": {"1;w=3600"}, "retry-after": {"3600"}},
		httplimit.Legacy:   {"x-ratelimit-limit": {"1"}, "x-ratelimit-remaining": {"0"}, "x-ratelimit-reset": {"1772370000"}, "retry-after": {"3600"}},
		httplimit.None:     {"retry-after": {"3600"}},
	} {
		l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
		p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithHeaders(h))))
		require.NoError(t, p.call(t.Context()))
		var got metadata.MD
		require.Error(t, p.call(t.Context(), grpc.Trailer(&got)))
		assert.Equal(t, want, sent(got))
	}
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

func TestShadow(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	var mu sync.Mutex
	var refused []ratelimit.Decision
	s := newServer(t, l, httplimit.WithShadow(1, func(r *http.Request, d ratelimit.Decision) {
		mu.Lock()
		defer mu.Unlock()
		refused = append(refused, d)
	}))
	p := serve(t, new(service), perMessage(s))
	for range 3 {
		var trailer metadata.MD
		require.NoError(t, p.call(t.Context(), grpc.Trailer(&trailer)))
		assert.Empty(t, sent(trailer))
	}
	stream := p.open(t, t.Context())
	require.NoError(t, exchange(stream))
	require.NoError(t, stream.CloseSend())
	require.Error(t, exchange(stream))
	assert.Empty(t, sent(stream.Trailer()))
	require.Len(t, refused, 2)
	assert.Equal(t, 30*time.Minute, refused[0].RetryAfter)

	noKey := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithKey(key.Header("x-user")),
		httplimit.WithShadow(1, func(_ *http.Request, d ratelimit.Decision) { refused = append(refused, d) }))))
	require.NoError(t, noKey.call(t.Context()))
	require.Len(t, refused, 3)
	assert.Zero(t, refused[2], "it has no key")
}

// A down database fails every call.
type down struct{ ratelimit.Database }

func (down) Get(context.Context, string) ([]byte, error) {
	return nil, errors.New("no route to the store")
}

// TestStoreFails checks that the limiter's policy decides, and that one line is logged.
func TestStoreFails(t *testing.T) {
	log := quiet(t)
	bucket := ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}
	local, _ := limiter(t, bucket)
	lines := 0
	for i, tt := range []struct {
		policy  ratelimit.FailurePolicy
		code    codes.Code
		retry   time.Duration
		trailer metadata.MD
	}{
		{ratelimit.FailOpen(), codes.OK, 0, metadata.MD{}},
		{ratelimit.FailClosed(), codes.Unavailable, time.Second, metadata.MD{"retry-after": {"1"}}},
		{ratelimit.Fallback(local), codes.OK, 0, metadata.MD{"ratelimit": {`"default";r=0`}}},
		{ratelimit.Fallback(local), codes.ResourceExhausted, time.Hour, metadata.MD{"ratelimit": {`"default";r=0;t=3600`}, "retry-after": {"3600"}}},
	} {
		l, err := ratelimit.New(bucket, ratelimit.WithStore(ratelimit.NewStore(down{})), ratelimit.WithName("test"), ratelimit.WithFailurePolicy(tt.policy))
		require.NoError(t, err)
		var told atomic.Value
		for _, opts := range [][]httplimit.Option{
			nil,
			{httplimit.WithStoreError(func(_ *http.Request, err error) { told.Store(err) })},
		} {
			if opts != nil {
				require.NoError(t, local.Reset(t.Context(), "127.0.0.1"))
				if i == 3 {
					require.True(t, local.Allow("127.0.0.1"))
				}
			}
			p := serve(t, new(service), limitedBy(newServer(t, l, opts...)))
			var trailer metadata.MD
			err := p.call(t.Context(), grpc.Trailer(&trailer))
			require.Equal(t, tt.code, status.Code(err), i)
			assert.Equal(t, tt.trailer, sent(trailer))
			if err != nil {
				retry, quota := detailsOf(t, err)
				assert.Equal(t, tt.retry, retry.GetRetryDelay().AsDuration())
				assert.Equal(t, tt.code == codes.ResourceExhausted, quota != nil, "whether a limit is known to be exceeded")
			}
		}
		assert.ErrorContains(t, told.Load().(error), "no route to the store")
		lines++
		assert.Equal(t, lines, strings.Count(log.String(), "\n"), "the limiter logs it, and the server does not")
	}
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

// TestKeyErrorOfTheProgram checks that an error of a KeyFunc of the program is one of the call,
// also if a mistake in the program is its cause, and that a client does not see its text.
func TestKeyErrorOfTheProgram(t *testing.T) {
	log := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	_, mistake := ratelimit.New(ratelimit.TokenBucket{})
	require.ErrorIs(t, mistake, ratelimit.ErrInvalid)
	failing := httplimit.WithKey(func(*http.Request) (string, error) { return "", mistake })
	err := serve(t, new(service), limitedBy(newServer(t, l, failing))).call(t.Context())
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.NotContains(t, err.Error(), mistake.Error())
	assert.Contains(t, log.String(), mistake.Error())
}

// TestCallOf checks that other requests are about no call.
func TestCallOf(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	require.NoError(t, err)
	assert.Nil(t, grpclimit.CallOf(r))
}

// TestSettle checks that a call is settled with what its handler tells Cost or, by a function of
// the status, with whether it has failed, and in each limit of WithAlso.
func TestSettle(t *testing.T) {
	tokens, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	failures, _ := limiter(t, ratelimit.FixedWindow{Limit: 100, Window: time.Hour})
	all := func(*http.Request) (string, error) { return "all", nil }
	s := newServer(t, tokens, httplimit.WithKey(all), httplimit.WithSettleAtEnd(httplimit.ByCost),
		httplimit.WithAlso(failures, all, "failures", httplimit.WithSettleAtEnd(func(_ *http.Request, code int, _ int64) int {
			return map[int]int{200: 0, 500: 1}[code]
		})))
	used := func(l ratelimit.Limiter) int {
		d, err := l.Peek(t.Context(), "all")
		require.NoError(t, err)
		return d.Limit - d.Remaining
	}
	var fault func() error
	p := serve(t, &service{
		unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) error {
			httplimit.Cost(ctx, 5)
			return fault()
		},
		duplex: func(stream duplexServer) error {
			httplimit.Cost(stream.Context(), 5)
			return fault()
		},
	}, limitedBy(s))
	ended := 0
	for _, fault = range []func() error{
		func() error { return nil },
		func() error { return status.Error(codes.Aborted, "a fault") },
		func() error { panic("a bug") },
	} {
		_ = p.call(t.Context())
		_, _ = p.open(t, t.Context()).Recv()
		ended += 2
		assert.Equal(t, 5*ended, used(tokens))
		assert.Equal(t, ended-2, used(failures))
	}
}
