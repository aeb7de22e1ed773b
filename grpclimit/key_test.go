package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// asked returns the key, or the error, that each call of the returned function has on a server.
func asked(t *testing.T, key key.Func) func(md ...string) (string, error) {
	t.Helper()
	l, _ := limiter(t, ratelimit.Unlimited{})
	var found string
	s := newServer(t, l, httplimit.WithKey(func(r *http.Request) (k string, err error) {
		found, err = key(r)
		return found, err
	}))
	p := serve(t, new(service), limitedBy(s))
	return func(md ...string) (string, error) {
		found = ""
		err := p.call(metadata.NewOutgoingContext(t.Context(), metadata.Pairs(md...)))
		return found, err
	}
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// TestPeerIP checks that the address is that of httplimit, and that metadata written by a client
// changes it only as far as a trusted proxy vouches for it.
func TestPeerIP(t *testing.T) {
	for i, tt := range []struct {
		opts []clientip.Option
		md   []string
		want string
	}{
		{nil, nil, "127.0.0.1"},
		{nil, []string{"x-forwarded-for", "192.0.2.1"}, "127.0.0.1"},
		{nil, []string{"forwarded", "for=192.0.2.1"}, "127.0.0.1"},
		{nil, []string{"x-real-ip", "192.0.2.1", "remote-addr", "192.0.2.1"}, "127.0.0.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "192.0.2.1"}, "192.0.2.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"X-Forwarded-For", "192.0.2.1"}, "192.0.2.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "198.51.100.7", "x-forwarded-for", "192.0.2.1"}, "192.0.2.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "192.0.2.1, 127.0.0.9"}, "192.0.2.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "192.0.2.1, nonsense"}, "127.0.0.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", strings.Repeat("1", 4000)}, "127.0.0.1"},
		{[]clientip.Option{clientip.TrustedProxies(loopback)}, []string{"x-forwarded-for", "2001:db8:1:2:3::4"}, "2001:db8:1:2::/64"},
		{
			[]clientip.Option{clientip.TrustedHops(1), clientip.FromForwarded()},
			[]string{"forwarded", `for="[2001:db8::1]:4711"`, "x-forwarded-for", "192.0.2.1"},
			"2001:db8::/64",
		},
	} {
		got, err := asked(t, clientip.Of(tt.opts...))(tt.md...)
		assert.NoError(t, err)
		assert.Equal(t, tt.want, got, i)
	}
}

// serveBuffered serves on a connection in memory.
func serveBuffered(t *testing.T, s *grpclimit.Server) place {
	listener := bufconn.Listen(1 << 20)
	return serveOn(t, listener, new(service), limitedBy(s), "passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
}

// TestNoPeer checks calls whose peer has no IP address.
func TestNoPeer(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	p := serveBuffered(t, newServer(t, l))
	err := p.call(t.Context())
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.ErrorContains(t, err, `the connection's address "bufconn" is not an IP address`)

	s := newServer(t, l)
	for _, ctx := range []context.Context{
		t.Context(),
		peer.NewContext(t.Context(), new(peer.Peer)),
		peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@", Net: "unix"}}),
	} {
		_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
			t.Error("a call without a key must not pass")
			return nil, nil
		})
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
	}

	p = serveBuffered(t, newServer(t, l, httplimit.WithKey(clientip.Of(clientip.TrustedHops(1)))))
	assert.NoError(t, p.call(metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "192.0.2.1")))
}

func TestMetadata(t *testing.T) {
	ask := asked(t, key.Header("X-API-Key"))
	got, err := ask("x-api-key", "secret")
	assert.NoError(t, err)
	assert.Equal(t, "secret", got)

	long := strings.Repeat("k", 300)
	got, err = ask("x-api-key", long)
	assert.NoError(t, err)
	assert.Less(t, len(got), 300, "huge keys are hashed")
	other, err := ask("x-api-key", long+"!")
	assert.NoError(t, err)
	assert.NotEqual(t, got, other)

	for want, md := range map[string][]string{
		"is missing or empty":       {"x-api-key", ""},
		"X-API-Key is missing":      {"x-apikey", "a"},
		"is present 2 times":        {"x-api-key", "a", "x-api-key", "b"},
		"is longer than 8192 bytes": {"x-api-key", strings.Repeat("k", 8193)},
	} {
		_, err := ask(md...)
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, want)
	}
}

func TestMethodAndJoin(t *testing.T) {
	got, err := asked(t, key.Pattern())()
	assert.NoError(t, err)
	assert.Equal(t, "/grpc.testing.testservice/unarycall", got)

	joined := asked(t, key.Join(key.Header("a"), key.Header("b"), key.Pattern()))
	one, err := joined("a", "x", "b", "yz")
	assert.NoError(t, err)
	two, err := joined("a", "xy", "b", "z")
	assert.NoError(t, err)
	assert.NotEqual(t, one, two)
	assert.Contains(t, one, "unarycall")

	_, err = joined("a", "x")
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = asked(t, func(*http.Request) (string, error) { return "", nil })()
	assert.ErrorContains(t, err, "the key is empty")
}

// TestKeyOfMessage checks that an own function sees the message, also in a Join.
func TestKeyOfMessage(t *testing.T) {
	tenant := func(r *http.Request) (string, error) {
		return grpclimit.CallOf(r).Message.(*grpc_testing.SimpleRequest).GetResponseType().String(), nil
	}
	got, err := asked(t, key.Join(clientip.Of(), tenant))()
	assert.NoError(t, err)
	assert.Equal(t, "9:127.0.0.112:COMPRESSABLE", got)
}

// TestRequestOfCall checks what the functions of httplimit see of a call.
func TestRequestOfCall(t *testing.T) {
	got, err := asked(t, key.Pattern())()
	assert.NoError(t, err)
	assert.Equal(t, "/grpc.testing.testservice/unarycall", got)
	got, err = asked(t, func(r *http.Request) (string, error) {
		deadline, ok := r.Context().Deadline()
		assert.False(t, ok, deadline)
		return r.Method + " " + r.Proto + " " + r.Host, nil
	})()
	assert.NoError(t, err)
	assert.Regexp(t, `^POST HTTP/2.0 127\.0\.0\.1:\d+$`, got)
}

// TestHostOfCall checks that the host of a call is its authority, and that a call without one has no
// host.
func TestHostOfCall(t *testing.T) {
	for want, authorities := range map[string][]string{
		"":              nil,
		"a.example:443": {"a.example:443"},
	} {
		l, _ := limiter(t, ratelimit.Unlimited{})
		s := newServer(t, l, httplimit.WithKey(func(r *http.Request) (string, error) {
			assert.Equal(t, want, r.Host)
			return "key", nil
		}))
		ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{":authority": authorities})
		_, err := s.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
			return nil, nil
		})
		assert.NoError(t, err)
	}
}

// TestKeyError checks that clients do not see errors other than key.ErrNone, and that a call whose
// key is unknown never passes.
func TestKeyError(t *testing.T) {
	log := quiet(t)
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(3)})
	failing := func(*http.Request) (string, error) { return "", assert.AnError }
	p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithKey(failing))))
	for range 3 {
		err := p.call(t.Context())
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.NotContains(t, err.Error(), assert.AnError.Error())
	}
	assert.Equal(t, 1, strings.Count(log.String(), assert.AnError.Error()))

	for _, tt := range []struct {
		err  error
		want codes.Code
		text string
	}{
		{status.Error(codes.Unauthenticated, "no token"), codes.Unauthenticated, "no token"},
		{fmt.Errorf("asking: %w", status.Error(codes.NotFound, "no user")), codes.NotFound, "no user"},
		{context.DeadlineExceeded, codes.InvalidArgument, "cannot determine the client of this request"},
		{okStatus{}, codes.InvalidArgument, "cannot determine the client of this request"},
	} {
		failing := func(*http.Request) (string, error) { return "", tt.err }
		s := newServer(t, l, httplimit.WithKey(failing))
		p := serve(t, new(service), limitedBy(s))
		err := p.call(t.Context())
		assert.Equal(t, tt.want, status.Code(err))
		assert.Equal(t, tt.text, status.Convert(err).Message())
		_, err = p.open(t, t.Context()).Recv()
		assert.Equal(t, tt.want, status.Code(err))
	}
}

// An okStatus is an error whose status is that of success.
type okStatus struct{}

func (okStatus) Error() string              { return "not a failure" }
func (okStatus) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// TestKeysAreApart checks that a client with a key of its own has a limit of its own.
func TestKeysAreApart(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	p := serve(t, new(service), limitedBy(newServer(t, l, httplimit.WithKey(key.Header("user")))))
	as := func(user string) error { return p.call(metadata.AppendToOutgoingContext(t.Context(), "user", user)) }
	require.NoError(t, as("ann"))
	require.Error(t, as("ann"))
	require.NoError(t, as("ben"))
	clk.Add(time.Minute)
	require.NoError(t, as("ann"))
}
