package iolimit_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// A server of net/http works on limited connections. It sets deadlines in the past to take a
// connection back from the goroutine that reads ahead, and in the future for requests.
func TestHTTPServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{}), read: bucket(), write: bucket()}
		server := &http.Server{
			ReadTimeout: 30 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if assert.NoError(t, err) {
					_, err = w.Write(body)
					assert.NoError(t, err)
				}
			}),
		}
		served := make(chan error)
		go func() { served <- server.Serve(l) }()
		transport := &http.Transport{DialContext: l.dial}
		client := &http.Client{Transport: transport}

		begin := time.Now()
		const requests, size = 5, 2000
		for i := range requests {
			body := bytes.Repeat([]byte{byte('a' + i)}, size)
			resp, err := client.Post("http://server/", "text/plain", bytes.NewReader(body))
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, string(body), string(got))
		}
		assert.Equal(t, 1, l.dialed, "the connection is kept alive")
		// Each direction has at most its burst ahead, and headers come on top.
		assert.Greater(t, time.Since(begin), (requests*size-1000)*time.Millisecond)
		assert.Less(t, time.Since(begin), 2*(requests*size+requests*300)*time.Millisecond)

		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

// A pipeListener accepts limited connections in memory.
type pipeListener struct {
	conns       chan net.Conn
	closed      chan struct{}
	read, write ratelimit.Bound
	dialed      int
}

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	l.dialed++
	l.conns <- iolimit.Conn(server, l.read, l.write)
	return client, nil
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
