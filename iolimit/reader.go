package iolimit

import (
	"context"
	"errors"
	"io"

	"github.com/ratelimit-go/ratelimit"
)

// Reader returns a reader that reads from r and delivers bytes when b grants them.
//
// A Read calls r.Read once, for at most a chunk, and then waits until b grants the bytes that were
// read. An error of r that comes without bytes, such as [io.EOF], is returned at once.
//
// If ctx ends, Read stops waiting and returns the error of ctx. Other errors may be temporary, such
// as the error of a store that has failed. In both cases Read returns no bytes. Bytes that were
// already read from r, at most a chunk, are kept for the next calls of Read. If the limit has
// become lower meanwhile, the next calls deliver the kept bytes in smaller chunks. ctx does not
// interrupt r.Read.
//
// The returned reader is not safe for concurrent use. Any number of readers may share b.
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

// A limitedReader reads from any reader. Reader and Conn have one.
type limitedReader struct {
	payer
	kept    []byte // bytes that were read, and are not paid for yet
	keptErr error  // the error that came with the last of these bytes
}

// read reads from r into p.
func (l *limitedReader) read(ctx context.Context, r io.Reader, p []byte) (int, error) {
	if err := l.check(ctx); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(l.kept) > 0 {
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
	_, paid, failed := l.pay(ctx, n, false)
	if paid == n {
		return n, err
	}
	l.kept, l.keptErr = append([]byte(nil), p[paid:n]...), err
	return paid, failed
}

// deliver copies kept bytes to p, when they are granted.
func (l *limitedReader) deliver(ctx context.Context, p []byte) (n int, err error) {
	_, n, err = l.pay(ctx, min(len(p), len(l.kept)), false)
	if err != nil {
		return 0, err
	}
	copy(p, l.kept[:n])
	l.kept = l.kept[n:]
	if len(l.kept) == 0 {
		err, l.kept, l.keptErr = l.keptErr, nil, nil
	}
	return n, err
}

var errReadCount = errors.New("iolimit: the reader's Read returned a negative count, " +
	"or more bytes than len(p)")
