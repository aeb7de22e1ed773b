package grpclimit

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// A Client makes calls wait for their turn, so that a client stays within a server's limit. Its
// methods Unary and Stream are interceptors:
//
//	limits, err := grpclimit.NewClient(limiter)
//	if err != nil {
//		log.Fatal(err)
//	}
//	conn, err := grpc.NewClient("dns:///localhost:8080", credentials,
//		grpc.WithUnaryInterceptor(limits.Unary), grpc.WithStreamInterceptor(limits.Stream))
//
// If the call's deadline is before its turn, it fails at once with [codes.DeadlineExceeded] and uses
// no quota. It also fails when its context ends while it waits; then its turn is given back as far
// as [ratelimit.Reservation.Cancel] can.
//
// After a call has failed with [codes.ResourceExhausted] or [codes.Unavailable] and a RetryInfo,
// calls with the same key are held back for that time, at most for a day, by the limiter's clock.
// (If that happens while a call waits for its turn, it waits for another one afterwards.) At most
// 4,096 keys are held back at a time. Client sends nothing twice: the caller may retry, and a retry
// waits as long as the server has asked.
//
// With a [ratelimit.InFlight], a call is in flight until it ends.
//
// Any number of goroutines, and several connections, may use a Client at once.
type Client struct {
	*clientConfig
	turns *client.Turns
}

// NewClient returns a Client whose calls l limits. If l is nil or an option is invalid, the error
// matches [ratelimit.ErrInvalid].
//
// A call whose key or cost cannot be determined fails with [codes.InvalidArgument].
func NewClient(l ratelimit.Limiter, opts ...ClientOption) (*Client, error) {
	c, err := newClientConfig(opts)
	if err != nil {
		return nil, err
	}
	turns, err := client.NewTurns(l, c.inFlight)
	if err != nil {
		return nil, err
	}
	return &Client{clientConfig: c, turns: turns}, nil
}

// Unary is a [grpc.UnaryClientInterceptor].
func (c *Client) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call := &Call{Context: ctx, Method: method, Message: req, Target: targetOf(cc)}
	if c.skip != nil && c.skip(call) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	turn, err := c.await(call)
	if err != nil {
		return err
	}
	defer turn.release()
	err = invoker(ctx, method, req, reply, cc, opts...)
	c.heed(turn.key, err)
	return err
}

// Stream is a [grpc.StreamClientInterceptor].
func (c *Client) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := &Call{Context: ctx, Method: method, Target: targetOf(cc)}
	if c.skip != nil && c.skip(call) {
		return streamer(ctx, desc, cc, method, opts...)
	}
	if c.perMessage {
		return c.sendMessages(ctx, desc, cc, call, streamer, opts)
	}
	turn, err := c.await(call)
	if err != nil {
		return nil, err
	}
	end := func(err error) { // may be called again, if another interceptor retries
		c.heed(turn.key, err)
		turn.release()
	}
	begun := false
	defer func() {
		if !begun { // another interceptor has panicked
			turn.release()
		}
	}()
	stream, err := streamer(ctx, desc, cc, method, withOnFinish(opts, end)...)
	begun = true
	if err != nil {
		end(err) // another interceptor may have failed
	}
	return stream, err
}

// withOnFinish calls f when a stream is over. A caller may abandon a stream without a last call, so that a wrapper of it
// would not see the end; a context of the stream would, but to ask for that turns retries off.
func withOnFinish(opts []grpc.CallOption, f func(error)) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.OnFinish(f))
}

func targetOf(cc *grpc.ClientConn) string {
	if cc == nil { // a test calls the interceptor
		return ""
	}
	return cc.Target()
}

// A turn is that of a call or message which may be sent.
type turn struct {
	key     string // empty if nothing was asked for
	release func() // calling it again is harmless
}

// noTurn is that of what needs none.
var noTurn = turn{release: func() {}}

// await waits for the turn of call. The error is a status.
func (c *Client) await(call *Call) (turn, error) {
	key, n, err := c.question(call)
	switch {
	case err != nil:
		return noTurn, status.Errorf(codes.InvalidArgument, "cannot determine the key of this call: %v", err)
	case n == 0:
		return noTurn, nil
	}
	release, err := c.turns.Wait(call.Context, key, n)
	if err != nil {
		return noTurn, asStatus(err)
	}
	return turn{key, release}, nil
}

// A waitError is an error of a wait. It has a gRPC status, and what it wraps.
type waitError struct {
	error
	code codes.Code
}

func (e *waitError) Unwrap() error              { return e.error }
func (e *waitError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }

// asStatus returns err, an error of a wait, with a status.
func asStatus(err error) error {
	code := codes.Unavailable // the store has failed
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, ratelimit.ErrNever), errors.Is(err, ratelimit.ErrQueueFull), errors.Is(err, ratelimit.ErrFull):
		code = codes.ResourceExhausted
	}
	return &waitError{err, code}
}

// heed holds key back if err, the end of a call, has a RetryInfo.
func (c *Client) heed(key string, err error) {
	if err == nil || key == "" {
		return
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.ResourceExhausted && st.Code() != codes.Unavailable {
		return
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			c.turns.HoldBack(key, info.GetRetryDelay().AsDuration())
		}
	}
}
