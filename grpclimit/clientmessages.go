package grpclimit

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/ratelimit-go/ratelimit/httplimit/client"
)

// A messageClientStream makes each message that it sends wait for its turn.
type messageClientStream struct {
	grpc.ClientStream
	client *Client
	call   *Call // its context is that of the stream, and ends with it
	cancel context.CancelFunc

	mu   sync.Mutex   // protects what follows; not held during calls
	turn *client.Turn // of the latest message that needed one
	over bool         // whether the stream has ended
}

// sendMessages opens a stream whose messages wait for their turns.
func (c *Client) sendMessages(
	ctx context.Context,
	desc *grpc.StreamDesc,
	cc *grpc.ClientConn,
	call *Call,
	streamer grpc.Streamer,
	opts []grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	call.Context = ctx
	m := &messageClientStream{client: c, call: call, cancel: cancel}
	stream, err := streamer(ctx, desc, cc, call.Method, withOnFinish(opts, m.end)...)
	if err != nil {
		cancel()
		return nil, err
	}
	m.ClientStream = stream
	return m, nil
}

// SendMsg implements [grpc.ClientStream].
func (m *messageClientStream) SendMsg(message any) error {
	previous, over := m.latest()
	if over {
		return io.EOF // RecvMsg returns the status
	}
	previous.End()
	turn, err := m.client.await(
		&Call{
			Context: m.call.Context,
			Method:  m.call.Method,
			Target:  m.call.Target,
			Message: message,
		},
	)
	if over := m.begin(turn); over {
		turn.End()
		return io.EOF
	}
	if err != nil {
		m.cancel() // an error of SendMsg aborts the stream
		return err
	}
	return m.ClientStream.SendMsg(message)
}

// RecvMsg implements [grpc.ClientStream]. A server that sends a message has granted the latest one.
func (m *messageClientStream) RecvMsg(message any) error {
	err := m.ClientStream.RecvMsg(message)
	if err == nil {
		turn, _ := m.latest()
		turn.Granted()
	}
	return err
}

// latest returns the turn of the latest message, and whether the stream has ended.
func (m *messageClientStream) latest() (turn *client.Turn, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turn, m.over
}

// begin makes turn that of the latest message, unless it is nil, and reports whether the stream has
// ended.
func (m *messageClientStream) begin(turn *client.Turn) (over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if turn != nil && !m.over {
		m.turn = turn
	}
	return m.over
}

// end is called when the stream has ended with err.
func (m *messageClientStream) end(err error) {
	m.mu.Lock()
	m.over = true
	turn := m.turn
	m.mu.Unlock()
	heed(turn, err)
	turn.End()
	m.cancel()
}
