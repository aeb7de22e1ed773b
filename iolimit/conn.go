package iolimit

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// Conn returns a connection that reads from c as [Reader] does, limited by read, and writes
// to c as [Writer] does, limited by write. A direction whose Bound is the zero Bound is not
// limited.
//
// Deadlines also apply to the wait for tokens, and can be moved while a call waits. A call whose
// deadline passes returns an error that matches [os.ErrDeadlineExceeded]. Bytes that the call has
// already read are delivered by a later Read. Close ends all waits, with errors that match
// [net.ErrClosed].
//
// As with other connections, any number of goroutines may call the methods at once. The bytes of
// concurrent Writes are not interleaved.
//
// The connection has a method NetConn() net.Conn that returns c, like [crypto/tls.Conn], and
// a method CloseWrite() error if c has one.
func Conn(c net.Conn, read, write ratelimit.Bound) net.Conn {
	l := &conn{Conn: c, in: make(chan *limitedReader, 1), out: make(chan *limitedWriter, 1)}
	l.readDeadline.init()
	l.writeDeadline.init()
	if read != (ratelimit.Bound{}) {
		l.in <- &limitedReader{payer: newPayer(read)}
	} else {
		l.in = nil
	}
	if write != (ratelimit.Bound{}) {
		l.out <- &limitedWriter{newPayer(write)}
	} else {
		l.out = nil
	}
	if half, ok := c.(closeWriter); ok {
		return &halfCloser{l, half}
	}
	return l
}

type conn struct {
	net.Conn

	in  chan *limitedReader // holds the reader while no goroutine uses it; nil if not limited
	out chan *limitedWriter // holds the writer likewise

	readDeadline, writeDeadline deadline
}

type closeWriter interface{ CloseWrite() error }

// A halfCloser is a conn with the method CloseWrite, because the connection inside has one. It is a
// type of its own because programs test whether a connection has this method.
type halfCloser struct {
	*conn
	half closeWriter
}

// CloseWrite closes the connection for writing.
func (c *halfCloser) CloseWrite() error { return c.half.CloseWrite() }

// NetConn returns the connection that is limited. Using it bypasses the limits.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (n int, err error) {
	if c.in == nil {
		return c.Conn.Read(p)
	}
	ctx := c.readDeadline.context()
	select {
	case in := <-c.in:
		defer func() { c.in <- in }()
		n, err = in.read(ctx, c.Conn, p)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return n, c.opError("read", ctx, err)
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (n int, err error) {
	if c.out == nil {
		return c.Conn.Write(p)
	}
	ctx := c.writeDeadline.context()
	select {
	case out := <-c.out:
		defer func() { c.out <- out }()
		n, err = out.write(ctx, c.Conn, p)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return n, c.opError("write", ctx, err)
}

// opError returns err as package net would return it, if err is the error of ctx, the context of
// the call. Other errors come from c.Conn or from the limiter, and are returned as they are.
func (c *conn) opError(op string, ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return &net.OpError{
		Op:     op,
		Net:    c.LocalAddr().Network(),
		Source: c.LocalAddr(),
		Addr:   c.RemoteAddr(),
		Err:    context.Cause(ctx),
	}
}

// SetDeadline implements [net.Conn]. Waits for tokens obey the deadline even if SetDeadline fails:
// a net.Pipe that its peer has closed refuses deadlines, while bytes that were read before are
// still to be delivered.
func (c *conn) SetDeadline(t time.Time) error {
	c.readDeadline.set(t)
	c.writeDeadline.set(t)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements [net.Conn].
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.set(t)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.set(t)
	return c.Conn.SetWriteDeadline(t)
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.readDeadline.end(net.ErrClosed)
	c.writeDeadline.end(net.ErrClosed)
	return c.Conn.Close()
}
