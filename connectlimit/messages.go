package connectlimit

import (
	"context"
	"net/http"
	"net/url"
	"sync"

	"connectrpc.com/connect"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// PerMessage returns an interceptor for handlers. It limits each message that a client sends on a
// stream, as [Middleware] limits calls; both can be used together. Unary calls pass.
//
// The options are those of [httplimit.Middleware]. Their functions get a request that has the path,
// header and peer of the stream, and no body; [MessageOf] returns the message. A message over the
// limit ends the stream: Receive and the call fail with the refusal, whatever the handler returns.
// So does a message before whose decision the deadline of the stream passes, with
// [connect.CodeDeadlineExceeded].
//
// Until the handler asks for the next message or returns, a message of an [ratelimit.InFlight] is
// in flight, and with [httplimit.WithSettle] it is not settled; the function gets status 200 and 0
// bytes. A client that does not read what the handler sends keeps a message held: do not add
// [ratelimit.GiveBack]. In the context of the handler, neither [httplimit.Cost] nor
// [httplimit.VerdictOf] finds the message. [httplimit.WithRefusal] and
// [httplimit.WithStatus] have no effect.
//
// PerMessage panics where Middleware does.
func PerMessage(l ratelimit.Limiter, opts ...httplimit.Option) connect.Interceptor {
	gate, err := httplimit.NewGate(l, opts...)
	if err != nil {
		panic(err)
	}
	return perMessage{gate}
}

// MessageOf returns the message that r, a request of [PerMessage], is about. For other requests, it
// returns nil.
func MessageOf(r *http.Request) any { return r.Context().Value(messageKey{}) }

type messageKey struct{}

// perMessage is an interceptor that lets a Gate decide about messages.
type perMessage struct{ gate *httplimit.Gate }

func (perMessage) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (perMessage) WrapStreamingClient(
	next connect.StreamingClientFunc,
) connect.StreamingClientFunc {
	return next
}

func (p perMessage) WrapStreamingHandler(
	next connect.StreamingHandlerFunc,
) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		s := &limitedStream{StreamingHandlerConn: conn, gate: p.gate, ctx: ctx}
		defer s.end()
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
	gate *httplimit.Gate
	ctx  context.Context

	// A handler may leave a goroutine behind that still receives.
	mu     sync.Mutex           // protects what follows; not held during calls
	latest *httplimit.Admission // of the latest message; nil if that is done
	err    error                // why a message was refused
	isOver bool                 // whether the handler has returned or panicked
}

func (s *limitedStream) refused() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// end ends the latest message, and all that a goroutine of the handler still receives.
func (s *limitedStream) end() {
	s.mu.Lock()
	s.isOver = true
	s.mu.Unlock()
	s.endLatest()
}

// endLatest ends the latest message.
func (s *limitedStream) endLatest() {
	s.mu.Lock()
	latest := s.latest
	s.latest = nil
	s.mu.Unlock()
	if latest != nil {
		latest.Done(http.StatusOK, 0)
	}
}

// Receive implements [connect.StreamingHandlerConn].
func (s *limitedStream) Receive(into any) error {
	s.endLatest()
	if err := s.refused(); err != nil {
		return err
	}
	if err := s.StreamingHandlerConn.Receive(into); err != nil {
		return err
	}
	a := s.gate.Admit(s.requestOf(into))
	var err error
	if !a.Passed {
		err = s.refusal(&a)
	}
	s.mu.Lock()
	s.latest, s.err = &a, err
	isOver := s.isOver
	s.mu.Unlock()
	if isOver {
		s.endLatest()
	}
	return err
}

// requestOf returns the request about a message.
func (s *limitedStream) requestOf(message any) *http.Request {
	r := &http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Path: s.Spec().Procedure},
		Proto:  "HTTP/2.0", ProtoMajor: 2,
		Header:     s.RequestHeader(),
		Body:       http.NoBody,
		RemoteAddr: s.Peer().Addr,
	}
	return r.WithContext(context.WithValue(s.ctx, messageKey{}, message))
}

// refusal returns the error of the stream if one of its messages has not passed.
func (s *limitedStream) refusal(a *httplimit.Admission) error {
	err := refusal(s.ctx, &a.Verdict)
	if a.Err == nil { // otherwise it may be an error that calls share, and must not change
		a.SetHeader(err.Meta())
	}
	return err
}
