package grpclimit

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
)

// A messageClientStream makes each message that it sends wait for its turn.
type messageClientStream struct {
	grpc.ClientStream
	client *Client
	call   *Call // its context is that of the stream, and ends with it
	cancel context.CancelFunc

	mu   sync.Mutex // protects what follows; not held during calls
	turn turn       // of the latest message, while it is in flight
	key  string     // of the latest message
	over bool       // whether the stream has ended
}

// sendMessages opens a stream whose messages wait for their turns.
func (c *Client) sendMessages(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, call *Call, streamer grpc.Streamer, opts []grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	call.Context = ctx
	m := &messageClientStream{client: c, call: call, cancel: cancel, turn: noTurn}
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
	if m.swap(noTurn) {
		return io.EOF // RecvMsg returns the status
	}
	t, err := m.client.await(&Call{Context: m.call.Context, Method: m.call.Method, Target: m.call.Target, Message: message})
	if over := m.swap(t); over {
		return io.EOF
	}
	if err != nil {
		m.cancel() // an error of SendMsg aborts the stream
		return err
	}
	return m.ClientStream.SendMsg(message)
}

// swap replaces the turn, and releases the previous one. If the stream is over, it releases next as
// well.
func (m *messageClientStream) swap(next turn) (over bool) {
	m.mu.Lock()
	previous := m.turn
	m.turn = next
	if next.key != "" {
		m.key = next.key
	}
	if m.over {
		over, m.turn = true, noTurn
	}
	m.mu.Unlock()
	previous.release()
	if over {
		next.release()
	}
	return over
}

// end is called when the stream has ended with err.
func (m *messageClientStream) end(err error) {
	m.mu.Lock()
	m.over = true
	key := m.key
	m.mu.Unlock()
	m.client.heed(key, err)
	m.swap(noTurn)
	m.cancel()
}
