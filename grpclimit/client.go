package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimit-go/ratelimit"
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
	*config
	limiter ratelimit.Limiter
	rests   rests
}

// NewClient returns a Client whose calls l limits. It obeys [WithKey] (the default is Target()),
// [WithCost], [WithSkip], [WithPerMessage] and [WithInFlight]. With WithPerMessage, each message that
// the client sends on a stream waits for its turn, instead of the stream; with an InFlight, it is in
// flight until the next one is sent or the stream ends. If l is nil, or an option is invalid or only
// for servers, the error matches [ratelimit.ErrInvalid].
//
// A call whose key or cost cannot be determined fails with [codes.InvalidArgument] or, if the
// [KeyFunc] was made with an invalid argument, with [codes.Internal].
func NewClient(l ratelimit.Limiter, opts ...Option) (*Client, error) {
	if isNil(l) {
		return nil, invalid("the limiter", nil, "must be a Limiter, such as ratelimit.New returns")
	}
	c, err := newConfig("NewClient", opts)
	if err != nil {
		return nil, err
	}
	if c.forServers != "" {
		return nil, invalid("the option "+c.forServers, "for servers", "must not be given to NewClient")
	}
	if c.key == nil {
		c.key = Target()
	}
	c.inFlight = c.inFlight || flies(l)
	clk := ratelimit.ClockOf(l)
	if clk == nil {
		clk = clock.New()
	}
	return &Client{config: c, limiter: l, rests: rests{clk: clk}}, nil
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
	defer turn.release(ctx)
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
		turn.release(ctx)
	}
	stream, err := streamer(ctx, desc, cc, method, withOnFinish(opts, end)...)
	if err != nil {
		end(err) // another interceptor may have failed
	}
	return stream, err
}

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
	key  string // empty if nothing was asked for
	held *ratelimit.Reservation
}

// release releases what is in flight. Calling it again is harmless.
func (t turn) release(ctx context.Context) {
	if t.held != nil {
		_ = t.held.Release(context.WithoutCancel(ctx)) // if the store fails, the limiter logs it
	}
}

// await waits for the turn of call. The error is a status.
func (c *Client) await(call *Call) (turn, error) {
	key, n, err := c.question(call)
	switch {
	case isMisuse(err):
		return turn{}, status.Error(codes.Internal, err.Error())
	case err != nil:
		return turn{}, status.Errorf(codes.InvalidArgument, "%s: %v", noKeyText, err)
	case n == 0:
		return turn{}, nil
	}
	t, ctx := turn{key: key}, call.Context
	for {
		if err = c.rests.wait(ctx, key); err != nil {
			return turn{}, asStatus(err)
		}
		if c.inFlight {
			t.held, err = c.limiter.WaitHold(ctx, key, n)
		} else {
			err = c.limiter.WaitN(ctx, key, n)
		}
		if err != nil {
			return turn{}, asStatus(err)
		}
		if c.rests.left(key) <= 0 { // otherwise the server asked for a rest meanwhile
			return t, nil
		}
		if t.held != nil {
			_, _ = t.held.Settle(context.WithoutCancel(ctx), 0)
		}
	}
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
			c.rests.hold(key, info.GetRetryDelay().AsDuration())
		}
	}
}

// Bounds on RetryInfo.
const (
	longestRest = 24 * time.Hour
	mostRests   = 4096 // further keys are not held back
)

// rests has the keys that are held back.
type rests struct {
	clk   clock.Clock
	mu    sync.Mutex // protects until
	until map[string]time.Time
}

// left returns how much longer key is held back. It is at most 0 if it is not.
func (r *rests) left(key string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.until[key]
	if !ok {
		return 0
	}
	left := r.clk.Until(until)
	if left <= 0 {
		delete(r.until, key)
	}
	return left
}

// hold holds key back for d, and removes the keys whose time has passed.
func (r *rests) hold(key string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clk.Now()
	for k, until := range r.until {
		if !until.After(now) {
			delete(r.until, k)
		}
	}
	if r.until == nil {
		r.until = make(map[string]time.Time)
	}
	until := now.Add(min(d, longestRest))
	held, known := r.until[key]
	if until.After(now) && until.After(held) && (known || len(r.until) < mostRests) {
		r.until[key] = until
	}
}

// wait waits until key is not held back, or ctx ends. It fails at once if ctx's deadline is before
// that.
func (r *rests) wait(ctx context.Context, key string) error {
	for {
		left := r.left(key)
		if left <= 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && r.clk.Until(deadline) < left {
			return fmt.Errorf("grpclimit: the server asked to wait %v, which exceeds the deadline: %w", left, context.DeadlineExceeded)
		}
		timer := r.clk.Timer(left)
		if r.left(key) <= 0 { // a mock clock was moved just before the timer was set
			timer.Stop()
			return nil
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
