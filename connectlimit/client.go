package connectlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit/client"
	"github.com/ratelimit-go/ratelimit/httplimit/key"
)

// A Client is a [connect.Interceptor] that makes the calls of clients wait for their turn, so that they
// stay within a server's limit:
//
//	limits, err := connectlimit.NewClient(limiter, nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	options := connect.WithInterceptors(limits)
//
// If the call's deadline is before its turn, it fails at once with [connect.CodeDeadlineExceeded] and
// uses no quota. A stream waits when it is first used. With a [ratelimit.InFlight], a call is in flight
// until it ends.
//
// After a call has failed with [connect.CodeResourceExhausted] or [connect.CodeUnavailable] and a
// RetryInfo, calls with the same key are held back for that time, as [client.Turns] says. Client
// sends nothing twice: the caller may retry, and a retry waits as long as the server has asked.
//
// Any number of clients and goroutines may use a Client at once. On servers it does nothing.
type Client struct {
	turns *client.Turns
	key   func(connect.Spec, connect.Peer) string
}

// NewClient returns a Client whose calls l limits. key returns the key of a call. If it is nil, the key
// is the address of the server. If l is nil, the error matches [ratelimit.ErrInvalid].
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
		release, err := c.await(ctx, key)
		if err != nil {
			return nil, err
		}
		defer release()
		resp, err := next(ctx, r)
		c.heed(key, err)
		return resp, err
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (c *Client) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient implements [connect.Interceptor].
func (c *Client) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		return &stream{StreamingClientConn: conn, client: c, ctx: ctx, key: c.key(spec, conn.Peer())}
	}
}

// errEmptyKey refuses an empty key, which servers would share by mistake.
var errEmptyKey = fmt.Errorf("%w: the key is empty", key.ErrNone)

// await waits for the turn of a call.
func (c *Client) await(ctx context.Context, key string) (release func(), err error) {
	if key == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errEmptyKey)
	}
	release, err = c.turns.Wait(ctx, key, 1)
	code := connect.CodeUnavailable // the store has failed
	switch {
	case err == nil:
		return release, nil
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	case errors.Is(err, ratelimit.ErrNever), errors.Is(err, ratelimit.ErrQueueFull), errors.Is(err, ratelimit.ErrFull):
		code = connect.CodeResourceExhausted
	}
	return nil, connect.NewError(code, err)
}

// heed holds key back if err, the end of a call, has a RetryInfo.
func (c *Client) heed(key string, err error) {
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok || failed.Code() != connect.CodeResourceExhausted && failed.Code() != connect.CodeUnavailable {
		return
	}
	for _, detail := range failed.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*errdetails.RetryInfo); ok {
				c.turns.HoldBack(key, info.GetRetryDelay().AsDuration())
			}
		}
	}
}

// A stream waits for its turn when it is first used.
type stream struct {
	connect.StreamingClientConn
	client *Client
	ctx    context.Context // of the call
	key    string

	once    sync.Once // sets the fields below
	release func()    // nil if there is an error
	err     error
}

// await waits for the turn of the stream, once.
func (s *stream) await() error {
	s.once.Do(func() {
		release, err := s.client.await(s.ctx, s.key)
		if s.err = err; err != nil {
			return
		}
		unwatch := context.AfterFunc(s.ctx, release) // in case that nobody looks at the stream again
		s.release = func() {
			unwatch()
			release()
		}
	})
	return s.err
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
	if err != nil { // the stream has ended
		s.client.heed(s.key, err)
		s.release()
	}
	return err
}

func (s *stream) CloseResponse() error {
	s.once.Do(func() { s.err = errClosed }) // a stream that was not used needs no turn
	if s.err != nil {
		return nil // nothing was sent, so CloseResponse would wait for a response that never comes
	}
	defer s.release()
	return s.StreamingClientConn.CloseResponse()
}

var errClosed = connect.NewError(connect.CodeCanceled, errors.New("connectlimit: the stream was closed before it was used"))
