package connectlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A Client is a [connect.Interceptor] that makes the calls of clients wait for their turn, so that
// they stay within a server's limit:
//
//	limits, err := connectlimit.NewClient(limiter, nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	options := connect.WithInterceptors(limits)
//
// If the call's deadline is before its turn, it fails at once with [connect.CodeDeadlineExceeded]
// and uses no quota. A stream waits when it is first used. With a [ratelimit.InFlight], a call is
// in flight until it ends.
//
// After a call has failed with [connect.CodeResourceExhausted] or [connect.CodeUnavailable] and a
// RetryInfo, calls with the same key are held back for that time, and come back step by step, as
// [client.Turns] says. A stream is granted when the server sends a message, or when it ends well.
//
// After a CodeResourceExhausted without RetryInfo, calls are held back for a second or, after
// several such failures in a row, for twice as long each time, up to a minute, as
// [client.Transport] does. Not so if a message was too large, which has the same code: see
// [client.IsTooLarge].
//
// Client sends nothing twice: the caller may retry, and a retry waits as long as the server has
// asked. See [client.Transport] for what [net/http.Transport] repeats by itself.
//
// Any number of clients and goroutines may use a Client at once. On servers it does nothing.
type Client struct {
	turns *client.Turns
	key   func(connect.Spec, connect.Peer) string
}

// NewClient returns a Client whose calls l limits. key returns the key of a call. If it is nil, the
// key is the address of the server. If l is nil, the error matches [ratelimit.ErrInvalid].
func NewClient(l ratelimit.Limiter, key func(connect.Spec, connect.Peer) string) (*Client, error) {
	turns, err := client.NewTurns(l, false)
	if err != nil {
		return nil, err
	}
	if key == nil {
		key = func(_ connect.Spec, p connect.Peer) string { return p.Addr }
	}
	return &Client{turns, key}, nil
}

// WrapUnary implements [connect.Interceptor].
func (c *Client) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		if !r.Spec().IsClient {
			return next(ctx, r)
		}
		key := c.key(r.Spec(), r.Peer())
		turn, err := c.await(ctx, key)
		if err != nil {
			return nil, err
		}
		defer turn.End()
		resp, err := next(ctx, r)
		heed(turn, err)
		return resp, err
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (c *Client) WrapStreamingHandler(
	next connect.StreamingHandlerFunc,
) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient implements [connect.Interceptor].
func (c *Client) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		return &stream{
			StreamingClientConn: conn,
			client:              c,
			ctx:                 ctx,
			key:                 c.key(spec, conn.Peer()),
		}
	}
}

// errEmptyKey refuses an empty key, which servers would share by mistake.
var errEmptyKey = fmt.Errorf("%w: the key is empty", key.ErrNone)

// await waits for the turn of a call.
func (c *Client) await(ctx context.Context, key string) (*client.Turn, error) {
	if key == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errEmptyKey)
	}
	turn, err := c.turns.Wait(ctx, key, 1)
	code := connect.CodeUnavailable // the store has failed
	switch {
	case err == nil:
		return turn, nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = codeOfEnd(err)
	case errors.Is(err, ratelimit.ErrNever),
		errors.Is(err, ratelimit.ErrQueueFull),
		errors.Is(err, ratelimit.ErrFull):
		code = connect.CodeResourceExhausted
	}
	return nil, connect.NewError(code, err)
}

// heed notes whether a call that has ended with err was granted or refused, and holds its key back
// for as long as the server asks.
func heed(turn *client.Turn, err error) {
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok {
		if err == nil || errors.Is(err, io.EOF) {
			turn.Granted()
		}
		return
	}
	rest := retryDelay(failed)
	switch failed.Code() {
	case connect.CodeResourceExhausted:
		if rest > 0 || connect.IsWireError(err) && !client.IsTooLarge(failed.Message()) {
			turn.Refused(rest)
		}
	case connect.CodeUnavailable:
		turn.HoldBack(rest)
	case connect.CodeCanceled,
		connect.CodeDeadlineExceeded,
		connect.CodeUnknown,
		connect.CodeInternal,
		connect.CodeDataLoss,
		connect.CodeUnimplemented:
		// The server may be out of order, or may not have answered.
	default:
		turn.Granted()
	}
}

// retryDelay returns the longest time that err asks to wait, and 0 if there is none.
func retryDelay(err *connect.Error) (longest time.Duration) {
	for _, detail := range err.Details() {
		value, err := detail.Value()
		if err != nil {
			continue // of a type that this program does not know
		}
		if info, ok := value.(*errdetails.RetryInfo); ok {
			longest = max(longest, info.GetRetryDelay().AsDuration())
		}
	}
	return longest
}

// A stream waits for its turn when it is first used.
type stream struct {
	connect.StreamingClientConn
	client *Client
	ctx    context.Context // of the call
	key    string

	once    sync.Once    // sets the fields below
	turn    *client.Turn // nil if there is an error
	unwatch func() bool  // stops watching the context
	err     error
}

// await waits for the turn of the stream, once.
func (s *stream) await() error {
	s.once.Do(func() {
		s.turn, s.err = s.client.await(s.ctx, s.key)
		if s.err == nil {
			// In case that nobody looks at the stream again.
			s.unwatch = context.AfterFunc(s.ctx, s.turn.End)
		}
	})
	return s.err
}

// end notes that the stream has ended.
func (s *stream) end() {
	s.unwatch()
	s.turn.End()
}

func (s *stream) Send(message any) error {
	if err := s.await(); err != nil {
		return err
	}
	return s.StreamingClientConn.Send(message)
}

func (s *stream) CloseRequest() error {
	if err := s.await(); err != nil {
		return err
	}
	return s.StreamingClientConn.CloseRequest()
}

func (s *stream) Receive(message any) error {
	if err := s.await(); err != nil {
		return err
	}
	err := s.StreamingClientConn.Receive(message)
	if err == nil {
		s.turn.Granted() // others wait for that after a rest, and the stream may be open for hours
		return nil
	}
	heed(s.turn, err)
	s.end()
	return err
}

func (s *stream) CloseResponse() error {
	s.once.Do(func() { s.err = errClosed }) // a stream that was not used needs no turn
	if s.err != nil {
		return nil // nothing was sent, so CloseResponse would wait for a response that never comes
	}
	defer s.end()
	return s.StreamingClientConn.CloseResponse()
}

var errClosed = connect.NewError(
	connect.CodeCanceled,
	errors.New("connectlimit: the stream was closed before it was used"),
)
