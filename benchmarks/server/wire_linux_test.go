package server

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// startEcho starts an echo server, and a wire to it with a delay.
func startEcho(t *testing.T, delay time.Duration) (w *Wire, dial func() net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w, err = NewWire(l.Addr().String(), delay)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	all.Go(func() {
		if err := w.Run(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		w.Stop()
		_ = l.Close()
		all.Wait()
	})
	return w, func() net.Conn {
		c, err := net.Dial("tcp", w.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// TestWirePassesEverything sends more than a parcel through several connections at once: each gets back
// its own bytes, in order.
func TestWirePassesEverything(t *testing.T) {
	t.Parallel()
	_, dial := startEcho(t, time.Millisecond)
	var all sync.WaitGroup
	for i := range 8 {
		c := dial()
		sent := bytes.Repeat([]byte{byte(i), byte(i + 1), byte(i + 2)}, parcelSize)
		all.Go(func() {
			if _, err := c.Write(sent); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
				t.Error("other bytes came back:", err)
			}
		})
	}
	all.Wait()
}

// TestWireDelays sees that an answer takes at least the delay of both ways.
func TestWireDelays(t *testing.T) {
	t.Parallel()
	const delay = 5 * time.Millisecond
	_, dial := startEcho(t, delay)
	c := dial()
	for range 3 {
		begin := time.Now()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < 2*delay {
			t.Error("the answer took only", took)
		}
	}
}

// TestWireEnds sees that the end of a connection is passed on, and that others go on.
func TestWireEnds(t *testing.T) {
	t.Parallel()
	_, dial := startEcho(t, 0)
	ended, other := dial(), dial()
	if err := ended.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := ended.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error("not the end of the connection, but", err)
	}
	if _, err := other.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}
