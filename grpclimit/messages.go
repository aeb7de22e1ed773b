package grpclimit

import (
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit/httplimit"
)

// Messages is a [grpc.StreamServerInterceptor]. It limits each message that a client sends on a
// stream, instead of the stream. A message over the limit ends the stream: the handler's RecvMsg
// and the call fail with the refusal, whatever the handler returns. Messages that the server sends
// do not count. To limit streams as well, chain Messages and the Stream of another Server.
//
// A message is done when the handler asks for the next one, or ends: until then it is in flight,
// with a [ratelimit.InFlight], and is not settled, with [httplimit.WithSettle], whose function gets
// status 200. The context of the stream is not that of a message: what a handler tells
// [httplimit.Cost] with it is not the cost of the message, and [httplimit.VerdictOf] does not
// find the Verdict on the message.
func (s *Server) Messages(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	m := &messageStream{ServerStream: stream, gate: s.gate, method: info.FullMethod}
	defer func() { _ = m.endLatest(true) }()
	err := handler(srv, m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trailer != nil {
		stream.SetTrailer(m.trailer)
	}
	if m.refusal != nil {
		return m.refusal
	}
	return err
}

// A messageStream limits each message that its client sends.
type messageStream struct {
	grpc.ServerStream
	gate   *httplimit.Gate
	method string

	// A handler may leave a goroutine behind that still receives.
	mu      sync.Mutex           // protects what follows; not held during calls
	latest  *httplimit.Admission // of the latest message; nil if that is done
	refusal error                // of a message
	trailer metadata.MD          // of the latest decision
	isOver  bool                 // whether the handler has returned or panicked
}

// RecvMsg implements [grpc.ServerStream].
func (m *messageStream) RecvMsg(message any) error {
	if err := m.endLatest(false); err != nil {
		return err
	}
	if err := m.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	c := &Call{Context: m.Context(), Method: m.method, Message: message}
	a := m.gate.Admit(c.request())
	var err error
	if !a.Passed {
		err = refusal(m.Context(), &a.Verdict)
	}
	m.mu.Lock()
	m.latest, m.refusal, m.trailer = &a, err, trailerOf(&a)
	isOver := m.isOver
	m.mu.Unlock()
	if isOver {
		_ = m.endLatest(true)
	}
	return err
}

// endLatest ends the latest message, and returns the refusal that has ended the stream. isOver says
// that the handler has ended.
func (m *messageStream) endLatest(isOver bool) error {
	m.mu.Lock()
	latest := m.latest
	m.latest = nil
	m.isOver = m.isOver || isOver
	err := m.refusal
	m.mu.Unlock()
	if latest != nil {
		latest.Done(http.StatusOK, 0)
	}
	return err
}
