package iolimit_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/iolimit"
)

// usedUp returns a key of bucket that has used its limit up.
func usedUp(t *testing.T) ratelimit.Bound {
	b := bucket()
	require.True(t, b.Limiter().AllowN(b.Key(), 1000))
	return b
}

// written returns a connection that is limited by b, and whose peer has written text.
func written(t *testing.T, b ratelimit.Bound, text string) net.Conn {
	peer, in := pipe(ratelimit.Bound{}, b)
	go func() { _, _ = io.WriteString(peer, text) }()
	t.Cleanup(func() { peer.Close(); in.Close() })
	return in
}

func assertTimeout(t *testing.T, op string, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())
	assert.ErrorContains(t, err, op)
}

// Both directions are limited, each by its own key, and one that has no Bound is not.
func TestConnDirections(t *testing.T) {
	const size = 3000
	for name, test := range map[string]struct {
		read, write time.Duration
	}{
		"none":  {0, 0},
		"read":  {2 * time.Second, 0},
		"write": {0, 2 * time.Second},
		"both":  {2 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var read, write ratelimit.Bound
				if test.read > 0 {
					read = bucket()
				}
				if test.write > 0 {
					write = bucket()
				}
				c, peer := net.Pipe()
				limited := iolimit.Conn(c, read, write)
				defer limited.Close()
				assert.Same(t, c, limited.(interface{ NetConn() net.Conn }).NetConn())

				begin := time.Now()
				go func() { _, _ = peer.Write(make([]byte, size)) }()
				_, err := io.ReadFull(limited, make([]byte, size))
				require.NoError(t, err)
				assert.Equal(t, test.read, time.Since(begin))

				begin = time.Now()
				go func() { _, _ = limited.Write(make([]byte, size)) }()
				_, err = io.ReadFull(peer, make([]byte, size))
				require.NoError(t, err)
				assert.Equal(t, test.write, time.Since(begin))
			})
		})
	}
}

// A read deadline ends the wait for tokens, and what was read is delivered later.
func TestConnReadDeadline(t *testing.T) {
	for name, set := range map[string]func(net.Conn, time.Time) error{
		"SetReadDeadline": net.Conn.SetReadDeadline,
		"SetDeadline":     net.Conn.SetDeadline,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := usedUp(t)
				in := written(t, b, "twenty bytes of text")
				begin := time.Now()
				buf := make([]byte, 100)
				for i := range 3 {
					require.NoError(t, set(in, time.Now().Add(time.Millisecond)))
					n, err := in.Read(buf)
					clear(buf) // it is the caller's
					assert.Zero(t, n)
					assertTimeout(t, "read", err)
					assert.Equal(t, time.Duration(i+1)*time.Millisecond, time.Since(begin))
				}
				n, err := in.Read(make([]byte, 100)) // it has passed
				assert.Zero(t, n)
				assertTimeout(t, "read", err)

				require.NoError(t, set(in, time.Time{}))
				text := make([]byte, 20)
				_, err = io.ReadFull(in, text[:8]) // less than what was kept
				require.NoError(t, err)
				_, err = io.ReadFull(in, text[8:])
				require.NoError(t, err)
				assert.Equal(t, "twenty bytes of text", string(text))
				assert.Equal(t, 20*time.Millisecond, time.Since(begin))
				assert.Equal(t, 0, left(t, b), "each byte was charged once")
			})
		})
	}
}

func TestConnWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket()
		c, peer := net.Pipe()
		out := iolimit.Conn(c, ratelimit.Bound{}, b)
		var got bytes.Buffer
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(&got, peer) })
		begin := time.Now()
		require.NoError(t, out.SetWriteDeadline(begin.Add(time.Second/2)))
		n, err := out.Write(make([]byte, 2000))
		assertTimeout(t, "write", err)
		assert.Equal(t, time.Second/2, time.Since(begin))
		assert.Equal(t, 1500-n, left(t, b), "the place in the line was given back")

		require.NoError(t, out.SetWriteDeadline(time.Time{}))
		_, err = out.Write(make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, out.Close())
		reading.Wait()
		assert.Equal(t, n+100, got.Len())
	})
}

// Deadlines move while calls wait: later, away, earlier, and into the past.
func TestDeadlineMovesDuringTheWait(t *testing.T) {
	never := time.Duration(-1)
	for name, test := range map[string]struct {
		first, then time.Duration // after the begin; never for none
		fails       time.Duration // 0 if the call succeeds, after a second
	}{
		"later":      {100 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond},
		"late":       {100 * time.Millisecond, 3 * time.Second, 0},
		"away":       {100 * time.Millisecond, never, 0},
		"earlier":    {500 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond},
		"at last":    {never, 200 * time.Millisecond, 200 * time.Millisecond},
		"at once":    {never, 0, 50 * time.Millisecond},
		"at once, 2": {500 * time.Millisecond, 0, 50 * time.Millisecond},
	} {
		for _, writes := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := usedUp(t)
					begin := time.Now()
					at := func(d time.Duration) time.Time {
						if d == never {
							return time.Time{}
						}
						return begin.Add(d)
					}
					var c net.Conn
					var call func() (int, error)
					if writes {
						inner, peer := net.Pipe()
						go func() { _, _ = io.Copy(io.Discard, peer) }()
						c = iolimit.Conn(inner, ratelimit.Bound{}, b)
						call = func() (int, error) { return c.Write(make([]byte, 20)) }
						defer c.Close()
					} else {
						c = written(t, b, strings.Repeat("x", 20))
						call = func() (int, error) { return c.Read(make([]byte, 20)) }
					}
					_, err := b.Limiter().Charge(t.Context(), b.Key(), 980) // so that 20 come in a second
					require.NoError(t, err)
					require.NoError(t, c.SetDeadline(at(test.first)))
					moved := make(chan error, 1)
					time.AfterFunc(50*time.Millisecond, func() { moved <- c.SetDeadline(at(test.then)) })
					n, err := call()
					require.NoError(t, <-moved)
					if test.fails > 0 {
						assertTimeout(t, "", err)
						assert.Zero(t, n)
						assert.Equal(t, test.fails, time.Since(begin))
						return
					}
					require.NoError(t, err)
					assert.Equal(t, 20, n)
					assert.Equal(t, time.Second, time.Since(begin))
				})
			})
		}
	}
}

// Close ends all calls, those that wait for tokens and those that wait for another call.
func TestCloseEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := usedUp(t)
		c, peer := net.Pipe()
		defer peer.Close()
		l := iolimit.Conn(c, b, b)
		go func() { _, _ = peer.Write(make([]byte, 10)) }()
		_, err := b.Limiter().Charge(t.Context(), b.Key(), 1000)
		require.NoError(t, err)
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				_, err := l.Read(make([]byte, 10))
				assert.ErrorIs(t, err, net.ErrClosed)
			})
			calls.Go(func() {
				_, err := l.Write(make([]byte, 10))
				assert.ErrorIs(t, err, net.ErrClosed)
			})
		}
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, l.Close())
		calls.Wait()
		assert.Zero(t, time.Since(begin))
	})
}

// A closed connection stays closed, whatever its deadline is.
func TestClosedConnStaysClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := net.Pipe()
		defer peer.Close()
		l := iolimit.Conn(anyDeadline{c}, bucket(), bucket())
		check := func() {
			_, err := l.Read(make([]byte, 10))
			assert.ErrorIs(t, err, net.ErrClosed)
			_, err = l.Write(make([]byte, 10))
			assert.ErrorIs(t, err, net.ErrClosed)
		}
		require.NoError(t, l.SetDeadline(time.Now().Add(-time.Second)))
		require.NoError(t, l.Close())
		check()
		require.NoError(t, l.SetDeadline(time.Now().Add(time.Hour)))
		check()
		time.Sleep(2 * time.Hour)
		check()
	})
}

// anyDeadline is a connection that takes deadlines even when it is closed.
type anyDeadline struct{ net.Conn }

func (anyDeadline) SetDeadline(time.Time) error { return nil }

// The other end is told at once when a connection ends, and what was sent before is read.
func TestConnEOF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, in := pipe(ratelimit.Bound{}, usedUp(t))
		go func() {
			_, _ = io.WriteString(peer, "the end")
			_ = peer.Close()
		}()
		begin := time.Now()
		text, err := io.ReadAll(in)
		require.NoError(t, err)
		assert.Equal(t, "the end", string(text))
		assert.Equal(t, 7*time.Millisecond, time.Since(begin))
		require.NoError(t, in.Close())
	})
}

// Concurrent Writes are not interleaved, and concurrent Reads lose nothing.
func TestConnIsConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, d := net.Pipe()
		out, in := iolimit.Conn(c, ratelimit.Bound{}, bucket()), iolimit.Conn(d, bucket(), ratelimit.Bound{})
		const size = 500 // several chunks
		var writes, reads sync.WaitGroup
		for i := range 10 {
			writes.Go(func() {
				_, err := out.Write(bytes.Repeat([]byte{byte(i)}, size))
				assert.NoError(t, err)
			})
		}
		got := make(chan int, 10*size)
		for range 3 {
			reads.Go(func() {
				n, err := io.Copy(io.Discard, in)
				assert.NoError(t, err)
				got <- int(n)
			})
		}
		writes.Wait()
		require.NoError(t, out.Close())
		reads.Wait()
		assert.Equal(t, 10*size, <-got+<-got+<-got)
	})
	synctest.Test(t, func(t *testing.T) {
		c, d := net.Pipe()
		out := iolimit.Conn(c, ratelimit.Bound{}, bucket())
		const size = 500
		var writes sync.WaitGroup
		for i := range 10 {
			writes.Go(func() {
				_, err := out.Write(bytes.Repeat([]byte{byte(i)}, size))
				assert.NoError(t, err)
			})
		}
		seen := map[byte]bool{}
		for range 10 {
			text := make([]byte, size)
			_, err := io.ReadFull(d, text)
			require.NoError(t, err)
			assert.Equal(t, bytes.Repeat(text[:1], size), text)
			seen[text[0]] = true
		}
		assert.Len(t, seen, 10)
		writes.Wait()
	})
}

// A connection can be closed for writing if what it limits can.
func TestConnHalfCloses(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go func() {
		c, err := server.Accept()
		if assert.NoError(t, err) {
			defer c.Close()
			_, err = io.Copy(c, c) // until the client has closed its half
			assert.NoError(t, err)
		}
	}()
	c, err := net.Dial("tcp", server.Addr().String())
	require.NoError(t, err)
	b := ratelimit.For(ratelimit.Must(ratelimit.New(ratelimit.TokenBucket{Rate: ratelimit.PerSecond(1 << 30)})), "key")
	l := iolimit.Conn(c, b, b)
	defer l.Close()
	_, err = io.WriteString(l, "text")
	require.NoError(t, err)
	require.NoError(t, l.(interface{ CloseWrite() error }).CloseWrite())
	text, err := io.ReadAll(l)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))

	one, _ := pipe(b, b)
	_, can := one.(interface{ CloseWrite() error })
	assert.False(t, can, "a net.Pipe cannot")
}

// Reads whose deadlines are shorter than the time that all kept bytes take deliver these little by
// little, and are charged once for each.
func TestConnReadDeadlinesUnderALowerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rate atomic.Int64
		rate.Store(1 << 20)
		l := ratelimit.Must(ratelimit.New(ratelimit.Blocked{},
			ratelimit.WithLimits(func(context.Context, string) (ratelimit.Algorithm, error) {
				return ratelimit.TokenBucket{Rate: ratelimit.PerSecond(int(rate.Load()))}, nil
			})))
		peer, in := pipe(ratelimit.Bound{}, ratelimit.For(l, "key"))
		defer in.Close()
		defer peer.Close()
		go func() {
			time.Sleep(time.Second)
			rate.Store(10)
			_, _ = peer.Write(make([]byte, 8<<10))
		}()
		got, buf := 0, make([]byte, 16<<10)
		for range 60 {
			require.NoError(t, in.SetReadDeadline(time.Now().Add(2*time.Second)))
			n, err := in.Read(buf)
			got += n
			if err != nil {
				assertTimeout(t, "read", err)
			}
			time.Sleep(time.Second / 20)
		}
		assert.Greater(t, got, 50)
	})
}

// The deadline of the wait moves even if the connection refuses its own, as net.Pipe does when the
// peer has closed it: bytes that were read before are still delivered.
func TestConnDeadlineMovesAfterThePeerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, in := net.Pipe()
		limited := iolimit.Conn(in, usedUp(t), ratelimit.Bound{})
		defer limited.Close()
		go func() {
			_, _ = io.WriteString(peer, "text")
			peer.Close()
		}()
		for name, set := range map[string]func(time.Time) error{
			"SetReadDeadline": limited.SetReadDeadline,
			"SetDeadline":     limited.SetDeadline,
		} {
			_ = limited.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := limited.Read(make([]byte, 10))
			assertTimeout(t, "read", err)
			require.Error(t, set(time.Time{}), name)
			buf := make([]byte, 2)
			_, err = io.ReadFull(limited, buf)
			require.NoError(t, err, name)
		}
	})
}
