package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/grpclimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
	"github.com/ratelimit-go/ratelimit/httplimit/clientip"
)

// Times are those of a synctest bubble where the calls are not sent to a server.

func newClient(t testing.TB, l ratelimit.Limiter, opts ...grpclimit.ClientOption) *grpclimit.Client {
	t.Helper()
	c, err := grpclimit.NewClient(l, append([]grpclimit.ClientOption{grpclimit.WithKey(byMethod)}, opts...)...)
	require.NoError(t, err)
	return c
}

func byMethod(c *grpclimit.Call) (string, error) { return c.Method, nil }

func newLimiter(t testing.TB, alg ratelimit.Algorithm, opts ...ratelimit.Option) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(alg, opts...)
	require.NoError(t, err)
	return l
}

// try makes a call that is answered with answer at once.
func try(ctx context.Context, c *grpclimit.Client, method string, answer error) error {
	return c.Unary(ctx, method, nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		return answer
	})
}

// refusing returns a status with a RetryInfo of d.
func refusing(code codes.Code, d time.Duration) error {
	st, err := status.New(code, "refused").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func TestClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1})
		c := newClient(t, l)
		begin := time.Now()
		for i := range 4 {
			require.NoError(t, try(t.Context(), c, "/a", nil))
			assert.Equal(t, time.Duration(i)*time.Second, time.Since(begin))
		}

		// A call whose turn comes too late fails at once, and takes no turn.
		begin = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second-1)
		defer cancel()
		err := try(ctx, c, "/a", nil)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(begin))

		// One that is cancelled while it waits gives its turn back.
		ctx, cancel = context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- try(ctx, c, "/a", nil) }()
		synctest.Wait()
		d, err := l.Peek(t.Context(), "/a")
		require.NoError(t, err)
		assert.Equal(t, 2*time.Second, d.RetryAfter)
		cancel()
		err = <-ended
		assert.Equal(t, codes.Canceled, status.Code(err))
		assert.ErrorIs(t, err, context.Canceled)
		d, err = l.Peek(t.Context(), "/a")
		require.NoError(t, err)
		assert.Equal(t, time.Second, d.RetryAfter)

		require.NoError(t, try(t.Context(), c, "/b", nil))
		assert.Zero(t, time.Since(begin), "another key")
	})
}

// TestClientHeeds checks that a key rests for as long as a server asks, and no other key does.
func TestClientHeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newLimiter(t, ratelimit.Unlimited{}))
		takes := func(method string) time.Duration {
			begin := time.Now()
			require.NoError(t, try(t.Context(), c, method, nil))
			return time.Since(begin)
		}
		for _, code := range []codes.Code{codes.ResourceExhausted, codes.Unavailable} {
			refusal := refusing(code, 1234567*time.Microsecond)
			assert.Equal(t, refusal, try(t.Context(), c, "/a", refusal), "it is returned as it is")
			assert.Zero(t, takes("/b"))
			assert.Equal(t, 1234567*time.Microsecond, takes("/a"))
			assert.Zero(t, takes("/a"))
		}
		for _, answer := range []error{
			refusing(codes.Internal, time.Hour),
			refusing(codes.Unavailable, -time.Hour),
			status.Error(codes.Unavailable, "no details"),
			status.Error(codes.ResourceExhausted, "trying to send message larger than max (5000000 vs. 4194304)"),
			assert.AnError,
		} {
			require.Error(t, try(t.Context(), c, "/a", answer))
			assert.Zero(t, takes("/a"), answer)
		}
		require.Error(t, try(t.Context(), c, "/a", refusing(codes.ResourceExhausted, 1<<62)))
		require.Error(t, try(t.Context(), c, "/b", refusing(codes.ResourceExhausted, time.Hour)))
		assert.Equal(t, time.Hour, takes("/b"))
		assert.Equal(t, 23*time.Hour, takes("/a"), "at most a day")

		// The longer of two rests counts, and a deadline before its end fails at once.
		err := c.Unary(t.Context(), "/c", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			require.Error(t, try(t.Context(), c, "/c", refusing(codes.ResourceExhausted, time.Minute)))
			return refusing(codes.ResourceExhausted, time.Second)
		})
		require.Error(t, err)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute-1)
		defer cancel()
		err = try(ctx, c, "/c", nil)
		assert.ErrorContains(t, err, "the next request may go in 1m0s")
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(begin))

		ctx, cancel = context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- try(ctx, c, "/c", nil) }()
		synctest.Wait()
		cancel()
		assert.Equal(t, codes.Canceled, status.Code(<-ended))
		assert.Zero(t, time.Since(begin))
	})
}

// TestRestWhileWaiting checks calls whose turn comes while the server has asked for a rest.
func TestRestWhileWaiting(t *testing.T) {
	for name, alg := range map[string]ratelimit.Algorithm{
		"bucket":    ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1},
		"in flight": ratelimit.InFlight{Limit: 1, Timeout: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, alg)
				c := newClient(t, l)
				begin, sent := time.Now(), make(chan time.Duration)
				answer := make(chan error)
				go func() {
					_ = c.Unary(t.Context(), "/a", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
						return <-answer
					})
				}()
				synctest.Wait()
				go func() {
					_ = c.Unary(t.Context(), "/a", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
						sent <- time.Since(begin)
						return nil
					})
				}()
				synctest.Wait()
				answer <- refusing(codes.Unavailable, 10*time.Second)
				assert.Equal(t, 10*time.Second, <-sent)
			})
		})
	}
}

// TestManyRests checks that a server cannot make a client remember any number of keys.
func TestManyRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newLimiter(t, ratelimit.Unlimited{}))
		for i := range 5000 {
			require.Error(t, try(t.Context(), c, string(rune('a'+i)), refusing(codes.Unavailable, time.Second)))
		}
		begin := time.Now()
		require.NoError(t, try(t.Context(), c, string(rune('a'+4999)), nil))
		assert.Zero(t, time.Since(begin))
		require.NoError(t, try(t.Context(), c, "a", nil))
		assert.Equal(t, time.Second, time.Since(begin))
	})
}

// TestClientBacksOff checks that calls are held back, for longer each time, if a server refuses
// them and does not say for how long.
func TestClientBacksOff(t *testing.T) {
	kinds := map[string]func(*testing.T, *grpclimit.Client, error) error{
		"call": func(t *testing.T, c *grpclimit.Client, answer error) error { return try(t.Context(), c, "/a", answer) },
		"stream": func(t *testing.T, c *grpclimit.Client, answer error) error {
			stream, s := sinking(t, t.Context(), c)
			assert.NoError(t, stream.SendMsg("a message"))
			s.end(answer)
			return answer
		},
	}
	for name, answer := range map[string]error{
		"no details": status.Error(codes.ResourceExhausted, "quota exceeded"),
		"zero":       refusing(codes.ResourceExhausted, 0),
		"negative":   refusing(codes.ResourceExhausted, -time.Hour),
	} {
		for kind, ask := range kinds {
			for _, opts := range [][]grpclimit.ClientOption{nil, {grpclimit.WithPerMessage()}} {
				t.Run(fmt.Sprint(name, " ", kind, len(opts)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := newClient(t, newLimiter(t, ratelimit.Unlimited{}), opts...)
						for _, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
							begin := time.Now()
							require.Equal(t, answer, ask(t, c, answer))
							assert.GreaterOrEqual(t, time.Since(begin), want)
							assert.LessOrEqual(t, time.Since(begin), want+want/2)
						}
					})
				})
			}
		}
	}
}

// TestClientBacksOffAfterMessages has streams that end with a refusal when the server has sent a
// message.
func TestClientBacksOffAfterMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newLimiter(t, ratelimit.Unlimited{}))
		stream, s := sinking(t, t.Context(), c)
		require.NoError(t, stream.RecvMsg(nil))
		s.end(status.Error(codes.ResourceExhausted, "quota exceeded"))
		begin := time.Now()
		require.NoError(t, try(t.Context(), c, "/a", nil))
		assert.GreaterOrEqual(t, time.Since(begin), time.Second)
	})
}

// TestClientAsksNobody checks that a call which another Client does not send holds nobody back.
func TestClientAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := newClient(t, newLimiter(t, ratelimit.Unlimited{}))
		inner := newClient(t, newLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)}), grpclimit.WithCost(func(*grpclimit.Call) int { return 2 }))
		begin := time.Now()
		for range 3 {
			err := outer.Unary(t.Context(), "/a", nil, nil, nil,
				func(ctx context.Context, method string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
					return try(ctx, inner, method, nil)
				})
			assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		}
		assert.Zero(t, time.Since(begin))
	})
}

// TestClientFreeCalls checks that a call which costs nothing needs no key.
func TestClientFreeCalls(t *testing.T) {
	noKey := grpclimit.WithKey(func(*grpclimit.Call) (string, error) { return "", assert.AnError })
	free := grpclimit.WithCost(func(*grpclimit.Call) int { return 0 })
	l := newLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	assert.Equal(t, codes.InvalidArgument, status.Code(try(t.Context(), newClient(t, l, noKey), "/a", nil)))
	assert.NoError(t, try(t.Context(), newClient(t, l, noKey, free), "/a", nil))
}

// TestClientStatuses checks the statuses of calls that are not sent.
func TestClientStatuses(t *testing.T) {
	l := newLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)})
	costs := func(n int) grpclimit.ClientOption { return grpclimit.WithCost(func(*grpclimit.Call) int { return n }) }
	store, err := ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerHour(2)},
		ratelimit.WithStore(ratelimit.NewStore(down{})), ratelimit.WithName("test"),
		ratelimit.WithFailurePolicy(ratelimit.FailClosed()))
	require.NoError(t, err)
	quiet(t)
	for want, c := range map[codes.Code]*grpclimit.Client{
		codes.ResourceExhausted: newClient(t, l, costs(3)),
		codes.InvalidArgument:   newClient(t, l, costs(-1)),
		codes.Unavailable:       newClient(t, store),
		codes.OK:                newClient(t, store, costs(0)),
	} {
		assert.Equal(t, want, status.Code(try(t.Context(), c, "/a", nil)))
	}
	skipping := newClient(t, l, costs(3), grpclimit.WithSkip(func(c *grpclimit.Call) bool { return c.Method == "/a" }))
	assert.NoError(t, try(t.Context(), skipping, "/a", nil))
	assert.Error(t, try(t.Context(), skipping, "/b", nil))
}

// dialing returns the options of a connection with the interceptors of c.
func dialing(c *grpclimit.Client) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithUnaryInterceptor(c.Unary), grpc.WithStreamInterceptor(c.Stream)}
}

// TestClientHeedsServer has a Client and a Server with one clock, and checks that a call after
// exactly RetryInfo is sent and granted, and an earlier one is not sent.
func TestClientHeedsServer(t *testing.T) {
	l, clk := limiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerHour(1)})
	clk.Set(time.Now()) // deadlines are compared with it
	free, err := ratelimit.New(ratelimit.Unlimited{}, ratelimit.WithClock(clk))
	require.NoError(t, err)
	s := newServer(t, l, httplimit.WithKey(clientip.Of()))
	c, err := grpclimit.NewClient(free)
	require.NoError(t, err)
	p := serve(t, new(service), limitedBy(s), dialing(c)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := func() error {
		stream, err := p.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		return exchange(stream)
	}
	unary := func() error { return p.call(ctx) }
	require.NoError(t, unary())
	for _, ask := range []func() error{unary, stream, unary} {
		retry, _ := detailsOf(t, ask())
		clk.Add(retry.GetRetryDelay().AsDuration() - 2*time.Minute)
		assert.ErrorContains(t, unary(), "the next request may go in 2m0s")
		assert.ErrorContains(t, stream(), "the next request may go in 2m0s")
		clk.Add(2 * time.Minute)
		require.NoError(t, ask())
	}
}

// TestClientInFlight checks that calls and streams of a client are in flight until they end, also if
// only the limits of keys say that something is in flight.
func TestClientInFlight(t *testing.T) {
	fly := ratelimit.InFlight{Limit: 1, Timeout: time.Hour}
	own := func(context.Context, string) (ratelimit.Algorithm, error) { return fly, nil }
	for name, tt := range map[string]struct {
		alg     ratelimit.Algorithm
		limiter []ratelimit.Option
		client  []grpclimit.ClientOption
	}{
		"alone": {fly, nil, nil},
		"own":   {ratelimit.Unlimited{}, []ratelimit.Option{ratelimit.WithLimits(own)}, []grpclimit.ClientOption{grpclimit.WithInFlight()}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, tt.alg, tt.limiter...)
			testClientInFlight(t, l, newClient(t, l, append(tt.client, grpclimit.WithKey(grpclimit.Target()))...))
		})
	}
}

func testClientInFlight(t *testing.T, l ratelimit.Limiter, c *grpclimit.Client) {
	end, endCall := make(chan error), make(chan error)
	svc := &service{
		duplex: func(stream duplexServer) error {
			select {
			case err := <-end:
				return err
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		},
		unary: func(context.Context, *grpc_testing.SimpleRequest) error { return <-endCall },
	}
	p := serve(t, svc, nil, dialing(c)...)
	busy := func() bool {
		d, err := l.Peek(t.Context(), p.conn.Target())
		require.NoError(t, err)
		return !d.Allowed
	}
	for _, err := range []error{nil, status.Error(codes.Aborted, "a fault")} {
		stream := p.open(t, t.Context())
		assert.True(t, busy())
		end <- err
		_, got := stream.Recv()
		assert.Error(t, got)
		require.False(t, busy())

		done := make(chan error)
		go func() { done <- p.call(t.Context()) }()
		endCall <- err
		assert.Equal(t, status.Code(err), status.Code(<-done))
		require.False(t, busy())
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.open(t, ctx)
	assert.True(t, busy())
	cancel() // and never look at the stream again
	done := make(chan error)
	go func() { done <- p.call(t.Context()) }()
	endCall <- nil
	assert.NoError(t, <-done, "it waited for the stream to end")

	_, err := c.Stream(t.Context(), new(grpc.StreamDesc), p.conn, "/a",
		func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			assert.True(t, busy())
			return nil, assert.AnError
		})
	assert.ErrorIs(t, err, assert.AnError)
	assert.False(t, busy(), "an interceptor behind has failed")

	assert.Panics(t, func() {
		_, _ = c.Stream(t.Context(), new(grpc.StreamDesc), p.conn, "/a",
			func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				panic("a fault")
			})
	})
	assert.False(t, busy(), "an interceptor behind has panicked")
}

// A sink is a ClientStream that takes messages.
type sink struct {
	grpc.ClientStream
	ctx  context.Context
	sent int
	end  func(error)
}

func (s *sink) SendMsg(any) error {
	s.sent++
	return nil
}

func (s *sink) RecvMsg(any) error { return nil }

// sinking opens a stream to a sink.
func sinking(t *testing.T, ctx context.Context, c *grpclimit.Client) (grpc.ClientStream, *sink) {
	s := new(sink)
	stream, err := c.Stream(ctx, new(grpc.StreamDesc), nil, "/a",
		func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s.ctx = ctx
			s.end = opts[len(opts)-1].(grpc.OnFinishCallOption).OnFinish
			return s, nil
		})
	require.NoError(t, err)
	return stream, s
}

func TestClientPerMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1), Burst: 1})
		c := newClient(t, l, grpclimit.WithPerMessage())
		begin := time.Now()
		stream, s := sinking(t, t.Context(), c)
		for i := range 3 {
			require.NoError(t, stream.SendMsg("a message"))
			assert.Equal(t, time.Duration(i)*time.Second, time.Since(begin))
			assert.Equal(t, i+1, s.sent)
		}
		require.NoError(t, s.ctx.Err())

		// The stream ends while a message waits: the message gives its turn back.
		ended := make(chan error)
		go func() { ended <- stream.SendMsg("a message") }()
		synctest.Wait()
		s.end(refusing(codes.ResourceExhausted, 5*time.Second))
		assert.ErrorIs(t, <-ended, io.EOF)
		assert.ErrorIs(t, stream.SendMsg("a message"), io.EOF)
		assert.Equal(t, 3, s.sent)
		assert.Error(t, s.ctx.Err(), "it leaves no context behind")
		assert.Equal(t, 2*time.Second, time.Since(begin))

		// The next stream heeds the server.
		stream, s = sinking(t, t.Context(), c)
		require.NoError(t, stream.SendMsg("a message"))
		assert.Equal(t, 7*time.Second, time.Since(begin))
		s.end(nil)

		// A message that comes too late for the deadline aborts the stream.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second-1)
		defer cancel()
		stream, s = sinking(t, ctx, c)
		assert.Equal(t, codes.DeadlineExceeded, status.Code(stream.SendMsg("a message")))
		assert.ErrorIs(t, s.ctx.Err(), context.Canceled)
		assert.Zero(t, s.sent)
	})
}

// TestClientMessageInFlight checks that a message is in flight until the next one, or the end.
func TestClientMessageInFlight(t *testing.T) {
	l := newLimiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	c := newClient(t, l, grpclimit.WithPerMessage())
	stream, s := sinking(t, t.Context(), c)
	assert.Equal(t, 1, peek(t, l))
	for range 3 {
		require.NoError(t, stream.SendMsg("a message"))
		assert.Equal(t, 0, peek(t, l))
	}
	s.end(nil)
	assert.Equal(t, 1, peek(t, l))

	var opened context.Context
	_, err := c.Stream(t.Context(), new(grpc.StreamDesc), nil, "/a",
		func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			opened = ctx
			return nil, errors.New("no connection")
		})
	assert.ErrorContains(t, err, "no connection")
	assert.Error(t, opened.Err(), "it leaves no context behind")
}

// TestClientMessageOfAnEndedStream checks that a message whose turn comes when its stream has ended is
// not in flight.
func TestClientMessageOfAnEndedStream(t *testing.T) {
	l := newLimiter(t, ratelimit.InFlight{Limit: 1, Timeout: time.Hour})
	deciding, decide := make(chan struct{}), make(chan struct{})
	c := newClient(t, late{l, deciding, decide}, grpclimit.WithPerMessage(), grpclimit.WithInFlight())
	stream, s := sinking(t, t.Context(), c)
	sent := make(chan error)
	go func() { sent <- stream.SendMsg("a message") }()
	<-deciding
	s.end(nil)
	close(decide)
	assert.ErrorIs(t, <-sent, io.EOF)
	assert.Zero(t, s.sent)
	assert.Equal(t, 1, peek(t, l))
}

func peek(t *testing.T, l ratelimit.Limiter) int {
	t.Helper()
	d, err := l.Peek(t.Context(), "/a")
	require.NoError(t, err)
	return d.Remaining
}
