package connectlimit

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"connectrpc.com/connect"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// PerMessage returns an interceptor for handlers. It limits each message that a client sends on a
// stream, as [Middleware] limits calls; both can be used together. Unary calls pass.
//
// The options are those of [httplimit.Middleware]. Their functions get a request that has the path,
// header and peer of the stream, and no body; [MessageOf] returns the message. A message over the limit
// ends the stream: Receive and the call fail with the refusal, whatever the handler returns. An
// [ratelimit.InFlight] does not hold messages, and [httplimit.WithSettle] settles them at once.
// [httplimit.WithDenied] and [httplimit.WithKeyError] have no effect. PerMessage panics where
// httplimit.Middleware does.
func PerMessage(l ratelimit.Limiter, opts ...httplimit.Option) connect.Interceptor {
	answers := []httplimit.Option{
		httplimit.WithDenied(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := refusal(r)
			for name, values := range w.Header() {
				if name != "Cache-Control" {
					err.Meta()[name] = values
				}
			}
			messageOf(r).err = err
		})),
		httplimit.WithKeyError(keyError(func(_ http.ResponseWriter, r *http.Request, err *connect.Error) {
			messageOf(r).err = err
		})),
	}
	limit := httplimit.Middleware(l, slices.Concat(opts, answers)...)
	return perMessage{limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { messageOf(r).passed = true }))}
}

// MessageOf returns the message that r, a request of [PerMessage], is about. For other requests, it
// returns nil.
func MessageOf(r *http.Request) any {
	if m := messageOf(r); m != nil {
		return m.message
	}
	return nil
}

// A message is what a request of PerMessage is about, and what becomes of it.
type message struct {
	message any
	passed  bool
	err     error // if it has not passed
}

type messageKey struct{}

func messageOf(r *http.Request) *message {
	m, _ := r.Context().Value(messageKey{}).(*message)
	return m
}

// perMessage is an interceptor whose handler decides about messages.
type perMessage struct{ http.Handler }

func (perMessage) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (perMessage) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (p perMessage) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		s := &limitedStream{StreamingHandlerConn: conn, limit: p.Handler, ctx: ctx}
		err := next(ctx, s)
		if refused := s.refused(); refused != nil {
			return refused
		}
		return err
	}
}

// A limitedStream limits the messages that its client sends.
type limitedStream struct {
	connect.StreamingHandlerConn
	limit http.Handler
	ctx   context.Context

	mu  sync.Mutex // a handler may leave a goroutine behind that still receives
	err error      // why a message was refused
}

func (s *limitedStream) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Receive implements [connect.StreamingHandlerConn].
func (s *limitedStream) Receive(into any) error {
	if err := s.refused(); err != nil {
		return err
	}
	if err := s.StreamingHandlerConn.Receive(into); err != nil {
		return err
	}
	m := &message{message: into}
	r := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: s.Spec().Procedure},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
		Header:     s.RequestHeader(),
		Body:       http.NoBody,
		RemoteAddr: s.Peer().Addr,
	}
	s.limit.ServeHTTP(make(discard), r.WithContext(context.WithValue(s.ctx, messageKey{}, m)))
	if m.passed {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = m.err
	if s.err == nil { // the client has left before a decision
		s.err = s.ctx.Err()
	}
	return s.err
}
