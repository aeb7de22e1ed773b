package grpclimit

import (
	"context"
	"errors"
	"slices"
	"time"

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
// If the call's deadline is before its turn, it fails at once with [codes.DeadlineExceeded] and
// uses no quota. It also fails when its context ends while it waits; then its turn is given back as
// far as [ratelimit.Reservation.Cancel] can.
//
// After a call has failed with [codes.ResourceExhausted] or [codes.Unavailable] and a RetryInfo,
// calls with the same key are held back for that time, at most for a day, by the limiter's clock.
// (If that happens while a call waits for its turn, it waits for another one afterwards.) Then one
// goes first, and when it is granted, the others follow by twos and fours. A stream is granted when
// the server sends a message, or when it ends well. At most 4,096 keys are held back at a time.
//
// After a ResourceExhausted without RetryInfo, calls are held back for a second or, after several
// such failures in a row, for twice as long each time, up to a minute, as [client.Transport] does.
// Not so if a message was too large, which has the same code: see [client.IsTooLarge].
//
// Client sends nothing twice: the caller may retry, and a retry waits as long as the server has
// asked. But retries that grpc-go makes by itself, as a retryPolicy in a service config says, are
// made below all interceptors: they neither wait nor count. [grpc.WithDisableRetry] turns them off.
// Without a retryPolicy, grpc-go repeats only calls that the server has not handled.
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
func (c *Client) Unary(
	ctx context.Context,
	method string,
	req, reply any,
	cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	call := &Call{Context: ctx, Method: method, Message: req, Target: targetOf(cc)}
	if c.skip != nil && c.skip(call) {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	turn, err := c.await(call)
	if err != nil {
		return err
	}
	defer turn.End()
	err = invoker(ctx, method, req, reply, cc, opts...)
	heed(turn, err)
	return err
}

// Stream is a [grpc.StreamClientInterceptor].
func (c *Client) Stream(
	ctx context.Context,
	desc *grpc.StreamDesc,
	cc *grpc.ClientConn,
	method string,
	streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
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
		heed(turn, err)
		turn.End()
	}
	begun := false
	defer func() {
		if !begun { // another interceptor has panicked
			turn.End()
		}
	}()
	stream, err := streamer(ctx, desc, cc, method, withOnFinish(opts, end)...)
	begun = true
	if err != nil {
		end(err) // another interceptor may have failed
		return nil, err
	}
	return &clientStream{stream, turn}, nil
}

// A clientStream notes when the server has granted it: others wait for that after a rest, and the
// stream may be open for hours.
type clientStream struct {
	grpc.ClientStream
	turn *client.Turn
}

// RecvMsg implements [grpc.ClientStream].
func (s *clientStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil {
		s.turn.Granted()
	}
	return err
}

// withOnFinish calls f when a stream is over. A caller may abandon a stream without a last call, so
// that a wrapper of it would not see the end; a context of the stream would, but to ask for that
// turns retries off.
func withOnFinish(opts []grpc.CallOption, f func(error)) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.OnFinish(f))
}

func targetOf(cc *grpc.ClientConn) string {
	if cc == nil { // a test calls the interceptor
		return ""
	}
	return cc.Target()
}

// await waits for the turn of call, which is nil if call costs nothing. The error is a status.
func (c *Client) await(call *Call) (*client.Turn, error) {
	key, n, err := c.question(call)
	switch {
	case err != nil:
		return nil, status.Errorf(
			codes.InvalidArgument,
			"cannot determine the key of this call: %v",
			err,
		)
	case n == 0:
		return nil, nil
	}
	turn, err := c.turns.Wait(call.Context, key, n)
	if err != nil {
		return nil, asStatus(err)
	}
	return turn, nil
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
	case errors.Is(err, ratelimit.ErrNever),
		errors.Is(err, ratelimit.ErrQueueFull),
		errors.Is(err, ratelimit.ErrFull):
		code = codes.ResourceExhausted
	}
	return &waitError{err, code}
}

// heed notes whether a call that has ended with err was granted or refused, and holds its key back
// for as long as the server asks.
func heed(turn *client.Turn, err error) {
	st, ok := status.FromError(err)
	if _, isWait := errors.AsType[*waitError](err); isWait || !ok {
		return // nobody has asked the server
	}
	rest := retryDelay(st)
	switch st.Code() {
	case codes.ResourceExhausted:
		if rest > 0 || !client.IsTooLarge(st.Message()) {
			turn.Refused(rest)
		}
	case codes.Unavailable:
		turn.HoldBack(rest)
	case codes.Canceled,
		codes.DeadlineExceeded,
		codes.Unknown,
		codes.Internal,
		codes.DataLoss,
		codes.Unimplemented:
		// The server may be out of order, or may not have answered.
	default:
		turn.Granted()
	}
}

// retryDelay returns the longest time that st asks to wait, and 0 if there is none.
func retryDelay(st *status.Status) (longest time.Duration) {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			longest = max(longest, info.GetRetryDelay().AsDuration())
		}
	}
	return longest
}
