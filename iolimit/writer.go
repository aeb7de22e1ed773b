package iolimit

import (
	"context"
	"errors"
	"io"

	"github.com/ratelimit-go/ratelimit"
)

// Writer returns a writer that writes to w when b grants the bytes.
//
// A Write waits for the bytes of each chunk, and then calls w.Write once with the chunk. If ctx
// ends, Write stops waiting. It returns the error of ctx, and the number of bytes written until
// then. ctx does not interrupt w.Write.
//
// The returned writer is not safe for concurrent use.
func Writer(ctx context.Context, w io.Writer, b ratelimit.Bound) io.Writer {
	return &writer{ctx, w, limitedWriter{newPayer(b)}}
}

type writer struct {
	ctx context.Context
	w   io.Writer
	limitedWriter
}

// Write implements [io.Writer].
func (w *writer) Write(p []byte) (int, error) { return w.write(w.ctx, w.w, p) }

// A limitedWriter writes to any writer. Writer and Conn have one.
type limitedWriter struct{ payer }

// write writes p to w.
func (l *limitedWriter) write(ctx context.Context, w io.Writer, p []byte) (written int, _ error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return w.Write(p)
	}
	for len(p) > 0 {
		held, paid, err := l.pay(ctx, len(p), true)
		if err != nil {
			return written, err
		}
		n, err := w.Write(p[:paid])
		switch {
		case n < 0 || n > paid:
			return written, errWriteCount
		case n < paid && err == nil:
			err = io.ErrShortWrite
		}
		_, _ = held.Settle(context.WithoutCancel(ctx), n) // if the store fails, all stay spent
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

var errWriteCount = errors.New("iolimit: the writer's Write returned a negative count, " +
	"or more bytes than len(p)")
