package grpclimit

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimit-go/ratelimit"
)

// A messageStream limits each message that its client sends.
type messageStream struct {
	grpc.ServerStream
	server *Server
	call   *Call

	// A handler may leave a goroutine behind that still receives.
	mu      sync.Mutex             // protects what follows; not held during calls
	turn    *ratelimit.Reservation // of the latest message
	refusal error                  // of a message
	trailer metadata.MD            // of the latest decision
	over    bool                   // whether the handler has returned or panicked
}

// serveMessages calls handler with a stream that limits the client's messages.
func (s *Server) serveMessages(srv any, stream grpc.ServerStream, c *Call, handler grpc.StreamHandler) error {
	m := &messageStream{ServerStream: stream, server: s, call: c}
	defer func() { _ = m.next(true) }()
	err := handler(srv, m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.trailer) > 0 {
		stream.SetTrailer(m.trailer)
	}
	if m.refusal != nil {
		return m.refusal
	}
	return err
}

// RecvMsg implements [grpc.ServerStream].
func (m *messageStream) RecvMsg(message any) error {
	if err := m.next(false); err != nil {
		return err
	}
	if err := m.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	a := m.server.admit(&Call{Context: m.call.Context, Method: m.call.Method, Message: message})
	m.mu.Lock()
	m.turn, m.refusal, m.trailer = a.turn, a.refusal, a.trailer
	over := m.over
	m.mu.Unlock()
	if over {
		_ = m.next(true)
	}
	return a.refusal
}

// next releases the latest message, and returns the refusal that has ended the stream. over says
// that the handler has ended.
func (m *messageStream) next(over bool) error {
	m.mu.Lock()
	turn := m.turn
	m.turn = nil
	m.over = m.over || over
	err := m.refusal
	m.mu.Unlock()
	if turn != nil {
		m.server.release(m.call, turn)
	}
	return err
}
