package iolimit

import (
	"context"
	"errors"
	"io"

	"github.com/ratelimit-go/ratelimit"
)

// Reader returns a reader that reads from r and delivers bytes when b grants them.
//
// A Read calls r.Read once, for at most a chunk, and then waits for the bytes that came. Errors
// of r, such as [io.EOF], are returned at once if no bytes came with them.
//
// If ctx ends, Read stops waiting and returns the error of ctx. Another error, such as that
// of a store that has failed, may go away. In both cases Read returns no bytes, and keeps
// those that it has read from r, at most a chunk, for its next calls. If the limit became lower
// meanwhile, these deliver them in smaller chunks. ctx does not interrupt r.Read.
//
// The returned reader is not safe for concurrent use. b is.
func Reader(ctx context.Context, r io.Reader, b ratelimit.Bound) io.Reader {
	return &reader{ctx, r, limitedReader{payer: newPayer(b)}}
}

type reader struct {
	ctx context.Context
	r   io.Reader
	limitedReader
}

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) { return r.read(r.ctx, r.r, p) }

// A limitedReader is what the readers of this package share.
type limitedReader struct {
	payer
	kept    []byte // was read, and is not paid for yet
	keptErr error  // came after kept
}

// read reads from r into p.
func (l *limitedReader) read(ctx context.Context, r io.Reader, p []byte) (int, error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(l.kept) > 0 || l.keptErr != nil {
		return l.deliver(ctx, p)
	}
	most, err := l.chunk(ctx)
	if err != nil {
		return 0, err
	}
	p = p[:min(len(p), most)]
	n, err := r.Read(p)
	if n < 0 || n > len(p) {
		return 0, errReadCount
	}
	if n == 0 {
		return 0, err
	}
	_, paid, failed := l.pay(ctx, n)
	if paid == n {
		return n, err
	}
	l.kept, l.keptErr = append([]byte(nil), p[paid:n]...), err
	return paid, failed
}

// deliver reads what was kept.
func (l *limitedReader) deliver(ctx context.Context, p []byte) (n int, err error) {
	if len(l.kept) > 0 {
		_, n, err = l.pay(ctx, min(len(p), len(l.kept)))
		if err != nil {
			return 0, err
		}
		copy(p, l.kept[:n])
		l.kept = l.kept[n:]
	}
	if len(l.kept) == 0 {
		err, l.kept, l.keptErr = l.keptErr, nil, nil
	}
	return n, err
}

var errReadCount = errors.New(
	"iolimit: the reader's Read returned a negative count, or more bytes than were asked for",
)
