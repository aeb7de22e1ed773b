package connectlimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/connectlimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

type number = wrapperspb.Int32Value

// count serves a stream that returns the number of messages that the handler could receive. The
// handler ignores errors.
func count(t *testing.T, limit connect.Interceptor, opts ...connect.ClientOption) *connect.Client[number, number] {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(streamPath, connect.NewClientStreamHandler(streamPath,
		func(_ context.Context, stream *connect.ClientStream[number]) (*connect.Response[number], error) {
			n := int32(0)
			for stream.Receive() {
				n++
			}
			return connect.NewResponse(wrapperspb.Int32(n)), nil
		}, connect.WithInterceptors(limit)))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return connect.NewClient[number, number](server.Client(), server.URL+streamPath, opts...)
}

// send sends messages on one stream.
func send(t *testing.T, c *connect.Client[number, number], header http.Header, messages ...int32) (int32, error) {
	t.Helper()
	stream := c.CallClientStream(t.Context())
	for name, values := range header {
		stream.RequestHeader()[name] = values
	}
	for _, n := range messages {
		if err := stream.Send(wrapperspb.Int32(n)); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
	}
	resp, err := stream.CloseAndReceive()
	if err != nil {
		return 0, err
	}
	return resp.Msg.GetValue(), nil
}

// TestPerMessage checks that messages count, by a cost of their own, and that a refusal ends a
// stream even if its handler ignores it.
func TestPerMessage(t *testing.T) {
	for name, opts := range protocols {
		t.Run(name, func(t *testing.T) {
			l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(6)})
			c := count(t, connectlimit.PerMessage(l, httplimit.WithCost(func(r *http.Request) int {
				return int(connectlimit.MessageOf(r).(*number).GetValue())
			}), httplimit.WithKey(key.Join(clientip.Of(), key.Pattern()))), opts...)
			n, err := send(t, c, nil)
			require.NoError(t, err)
			assert.Zero(t, n)
			n, err = send(t, c, nil, 1, 3, 0, 1)
			require.NoError(t, err)
			assert.Equal(t, int32(4), n)
			_, err = send(t, c, nil, 1, 2, 0)
			retry, quota := details(t, err)
			assert.Equal(t, 20*time.Second, retry.GetRetryDelay().AsDuration())
			assert.Equal(t, "default", quota.GetViolations()[0].GetSubject())
			refusal, _ := errors.AsType[*connect.Error](err)
			assert.Equal(t, "20", refusal.Meta().Get("Retry-After"))
			assert.Equal(t, `"default";r=0;t=20`, refusal.Meta().Get("RateLimit"))
			clk.Add(retry.GetRetryDelay().AsDuration())
			n, err = send(t, c, nil, 2)
			require.NoError(t, err)
			assert.Equal(t, int32(1), n)
		})
	}
}

// TestPerMessageOptions checks the key by a header field, shadow mode, and mistakes.
func TestPerMessageOptions(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var logged strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(2)})
	user := httplimit.WithKey(key.Header("X-User"))
	c := count(t, connectlimit.PerMessage(l, user))
	for _, name := range []string{"ann", "ben"} {
		_, err := send(t, c, http.Header{"X-User": {name}}, 1, 1)
		assert.NoError(t, err)
	}
	_, err := send(t, c, http.Header{"X-User": {"ann"}}, 1)
	details(t, err)
	_, err = send(t, c, nil, 1)
	assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))

	refused := 0
	shadow := httplimit.WithShadow(1, func(r *http.Request, d ratelimit.Decision) { refused++ })
	n, err := send(t, count(t, connectlimit.PerMessage(l, shadow)), nil, 1, 1, 1, 1, 1)
	require.NoError(t, err)
	assert.Equal(t, int32(5), n)
	assert.Equal(t, 3, refused)

	_, mistake := httplimit.NewGate(nil)
	assert.PanicsWithError(t, mistake.Error(), func() { connectlimit.PerMessage(nil) })
	assert.PanicsWithError(t, mistake.Error(), func() { connectlimit.Middleware(nil) })
	assert.Nil(t, connectlimit.MessageOf(httptest.NewRequest("GET", "/", nil)))
}

// A message is refused if the deadline of its stream passes while the store is silent, although the
// failure policy allows it.
func TestPerMessageDeadline(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(2)})
	limited := connectlimit.PerMessage(silent{l}, httplimit.WithKey(key.Everybody()))
	stream := limited.WrapStreamingHandler(func(_ context.Context, conn connect.StreamingHandlerConn) error {
		assert.ErrorIs(t, conn.Receive(nil), context.DeadlineExceeded)
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	assert.ErrorIs(t, stream(ctx, silentConn{}), context.DeadlineExceeded)
}

// A silent limiter has a store that does not answer, and allows what that does not decide.
type silent struct{ ratelimit.Limiter }

func (silent) Take(ctx context.Context, _ string, _ int) (ratelimit.Decision, error) {
	<-ctx.Done()
	return ratelimit.Decision{Allowed: true, Degraded: true}, errors.New("no answer")
}

// A silent conn has one message after another, all of them empty.
type silentConn struct{ connect.StreamingHandlerConn }

func (silentConn) Spec() connect.Spec         { return connect.Spec{} }
func (silentConn) Peer() connect.Peer         { return connect.Peer{} }
func (silentConn) RequestHeader() http.Header { return nil }
func (silentConn) Receive(any) error          { return nil }

// TestPerMessageAnswers checks that options which answer HTTP requests do not hide a refusal.
func TestPerMessageAnswers(t *testing.T) {
	l, _ := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerMinute(1)})
	c := count(t, connectlimit.PerMessage(l,
		httplimit.WithKey(key.Header("X-User")),
		httplimit.WithRefusal(http.NotFoundHandler())))
	_, err := send(t, c, http.Header{"X-User": {"ann"}}, 1, 1)
	details(t, err)
	_, err = send(t, c, nil, 1)
	assert.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%v", err)
}

// TestPerMessageRequest checks what the functions of options get of a message: a request of HTTP/2 and,
// when it is done, its status and how many bytes are written.
func TestPerMessageRequest(t *testing.T) {
	l, _ := limiter(t, ratelimit.FixedWindow{Limit: 10, Window: time.Hour})
	settled := 0
	c := count(t, connectlimit.PerMessage(l,
		httplimit.WithCost(func(r *http.Request) int {
			assert.Equal(t, "POST "+streamPath+" HTTP/2.0", r.Method+" "+r.URL.Path+" "+r.Proto)
			assert.Equal(t, []int{2, 0}, []int{r.ProtoMajor, r.ProtoMinor})
			return 1
		}),
		httplimit.WithSettleAtEnd(func(_ *http.Request, status int, written int64) int {
			assert.Equal(t, 200, status)
			assert.Zero(t, written)
			settled++
			return 1
		})))
	n, err := send(t, c, nil, 1, 1)
	require.NoError(t, err)
	assert.Equal(t, int32(2), n)
	assert.Equal(t, 2, settled)
}

// TestPerMessageInFlight checks that a message is in flight until the handler asks for the next one
// or ends, also by a panic.
func TestPerMessageInFlight(t *testing.T) {
	l, _ := limiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	left := func() int32 {
		d, err := l.Peek(context.Background(), "127.0.0.1")
		assert.NoError(t, err)
		return int32(d.Remaining)
	}
	inside := make(chan int32, 10)
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic(http.ErrAbortHandler) }} {
		mux := http.NewServeMux()
		mux.Handle(streamPath, connect.NewClientStreamHandler(streamPath,
			func(_ context.Context, stream *connect.ClientStream[number]) (*connect.Response[number], error) {
				for range 2 {
					assert.True(t, stream.Receive(), name)
					inside <- left()
				}
				end()
				return connect.NewResponse(wrapperspb.Int32(0)), nil
			}, connect.WithInterceptors(connectlimit.PerMessage(l))))
		server := httptest.NewUnstartedServer(mux)
		server.EnableHTTP2 = true
		server.StartTLS()
		_, _ = send(t, connect.NewClient[number, number](server.Client(), server.URL+streamPath), nil, 1, 1)
		server.Close()
		assert.Zero(t, <-inside, name)
		assert.Zero(t, <-inside, name)
		assert.EqualValues(t, 1, left(), name)
	}
}

// TestErrorOfKey checks that the error of a KeyFunc is that of the call, if it is one of
// connect-go.
func TestErrorOfKey(t *testing.T) {
	l, _ := limiter(t, ratelimit.Unlimited{})
	noToken := func() *connect.Error {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("no token"))
	}
	shared := noToken()
	_, err := send(t, count(t, connectlimit.PerMessage(l, httplimit.WithKey(func(*http.Request) (string, error) {
		return "", shared
	}))), nil, 1)
	assert.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	assert.ErrorContains(t, err, "no token")
	assert.Equal(t, noToken(), shared, "other calls may fail with it at the same time")
}
