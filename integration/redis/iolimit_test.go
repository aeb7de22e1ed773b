package redis_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
	"github.com/ratelimit-go/ratelimit/redisstore"
)

// A tally counts the bytes that are read or written.
type tally struct {
	io.ReadWriter
	n atomic.Int64
}

func (t *tally) Write(p []byte) (int, error) {
	n, err := t.ReadWriter.Write(p)
	t.n.Add(int64(n))
	return n, err
}

// endless reads as many bytes as are asked for, and drops those that are written.
type endless struct{}

func (endless) Read(p []byte) (int, error)  { return len(p), nil }
func (endless) Write(p []byte) (int, error) { return len(p), nil }

// Streams of two processes share a limit. Together they use all of each window except less than
// a chunk each, and never more than the window.
func TestStreamsOfProcesses(t *testing.T) {
	const limit = 6400
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		clk := clock.NewMock()
		clk.Set(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
		out := &tally{ReadWriter: endless{}}
		ctx, stop := context.WithCancel(t.Context())
		var streams sync.WaitGroup
		var keys []ratelimit.Bound
		for i := range 4 {
			if i < 2 {
				store := create(t, s.addr(), redisstore.WithTimeout(patient), redisstore.WithLimiterClock())
				l := limiter(t, store, ratelimit.FixedWindow{Limit: limit, Window: time.Hour}, ratelimit.WithClock(clk))
				keys = append(keys, ratelimit.For(l, "k"))
			}
			b := keys[i%2]
			streams.Go(func() {
				var err error
				if i < 2 {
					_, err = io.Copy(out, iolimit.Reader(ctx, endless{}, b))
				} else {
					_, err = io.Copy(iolimit.Writer(ctx, out, b), endless{})
				}
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		const chunk = limit / 16
		for window := int64(1); window <= 4; window++ {
			if window > 1 {
				clk.Add(time.Hour)
			}
			eventually(t, "the window is used", func() bool { return out.n.Load() > window*limit-4*chunk*window })
			assert.LessOrEqual(t, out.n.Load(), window*limit)
		}
		stop()
		streams.Wait()
		assert.LessOrEqual(t, out.n.Load(), int64(4*limit))
	})
}

// A limitedListener limits what is written to the connections that it accepts, and counts it.
type limitedListener struct {
	net.Listener
	write   ratelimit.Bound
	written atomic.Int64
}

func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return iolimit.Conn(&countedConn{c, l}, ratelimit.Bound{}, l.write), nil
}

type countedConn struct {
	net.Conn
	of *limitedListener
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.written.Add(int64(n))
	return n, err
}

// Servers of two processes speak TLS on limited connections, and clients limit connections of
// TLS. Exactly the bytes that are sent are charged, also to clients that leave early.
func TestTLSOnLimitedConns(t *testing.T) {
	const limit = 64 << 20
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		var clients sync.WaitGroup
		var received atomic.Int64
		var listeners []*limitedListener
		var out, in ratelimit.Bound
		for range 2 {
			store := create(t, s.addr(), redisstore.WithTimeout(patient))
			opts := []ratelimit.Option{ratelimit.WithFailurePolicy(ratelimit.FailClosed())}
			write := ratelimit.For(limiter(t, store, hourly(limit), append(opts, ratelimit.WithName("out"))...), "k")
			read := ratelimit.For(limiter(t, store, hourly(limit), append(opts, ratelimit.WithName("in"))...), "k")
			out, in = write, read // clients of the first server still use theirs
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(bytes.Repeat([]byte("x"), 200_000))
			}))
			l := &limitedListener{Listener: server.Listener, write: write}
			listeners = append(listeners, l)
			server.Listener = l
			server.StartTLS()
			t.Cleanup(server.Close)
			config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			config.ServerName = "example.com"
			for i := range 4 {
				clients.Go(func() {
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					client := &http.Client{Transport: &http.Transport{
						DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
							c, err := new(net.Dialer).DialContext(ctx, network, addr)
							if err != nil {
								return nil, err
							}
							secure := tls.Client(c, config)
							return iolimit.Conn(&receiving{secure, &received}, read, ratelimit.Bound{}), secure.HandshakeContext(ctx)
						},
					}}
					defer client.CloseIdleConnections()
					r, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
					if !assert.NoError(t, err) {
						return
					}
					resp, err := client.Do(r)
					if !assert.NoError(t, err) {
						return
					}
					defer resp.Body.Close()
					if i == 0 {
						_, err = resp.Body.Read(make([]byte, 1))
						assert.NoError(t, err)
						return
					}
					text, err := io.ReadAll(resp.Body)
					assert.NoError(t, err)
					assert.Len(t, text, 200_000)
				})
			}
		}
		clients.Wait()
		for _, tt := range []struct {
			b      ratelimit.Bound
			passed func() int64
		}{
			{out, func() int64 { return listeners[0].written.Load() + listeners[1].written.Load() }},
			{in, received.Load},
		} {
			eventually(t, "what has passed is charged", func() bool {
				d, err := tt.b.Limiter().Peek(t.Context(), tt.b.Key())
				return assert.NoError(t, err) && int64(limit-d.Remaining) == tt.passed()
			})
			assert.Greater(t, tt.passed(), int64(6*200_000))
		}
	})
}

// receiving counts what is read.
type receiving struct {
	net.Conn
	n *atomic.Int64
}

func (r *receiving) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// A deadline ends the wait for a limit in Redis, and the place in the line is given back. Plans
// need no Redis.
func TestStreamsThatWait(t *testing.T) {
	withEach(t, func(t *testing.T, create maker) {
		s := startServer(t)
		store := create(t, s.addr(), redisstore.WithTimeout(patient))
		alg := hourly(1000)
		l := limiter(t, store, alg, ratelimit.WithFailurePolicy(ratelimit.FailClosed()),
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) { return alg, nil }))
		b := ratelimit.For(l, "k")
		near, far := net.Pipe()
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		c := iolimit.Conn(near, ratelimit.Bound{}, b)
		defer c.Close()
		n, err := c.Write(make([]byte, 900))
		require.NoError(t, err)
		assert.Equal(t, 900, n)

		require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		n, err = c.Write(make([]byte, 5000)) // more than the limit
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, 100, n, "the rest of the window")
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		d, err := b.Limiter().Peek(t.Context(), b.Key())
		require.NoError(t, err)
		assert.Zero(t, d.Remaining)
		assert.LessOrEqual(t, d.ResetAfter, time.Hour, "only the present window is used")

		alg = ratelimit.Blocked{}
		n, err = c.Write(make([]byte, 5))
		require.ErrorIs(t, err, ratelimit.ErrNever)
		assert.Zero(t, n)
		alg = ratelimit.Unlimited{}
		s.stop()
		defer s.cont()
		n, err = c.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		assert.Equal(t, 1<<20, n)
	})
}
