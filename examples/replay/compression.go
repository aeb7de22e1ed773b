package main

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// compressions are the known kinds of compressed files, with the bytes that they begin with.
var compressions = []struct {
	name, magic string
	open        func(io.Reader) (io.Reader, error)
}{
	{"gzip", "\x1f\x8b", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"bzip2", "BZh", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"xz", "\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
	{"zstd", "\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) {
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1)) // without goroutines
	}},
}

// A damageError is an error in a compressed file, as opposed to one of reading it.
type damageError struct{ error }

// An unpacker reads what a file contains, compressed or not. Its errors are damageErrors, or those
// of the file.
type unpacker struct {
	file     recorder
	contents io.Reader
	packed   bool
}

// A recorder is a reader that remembers its error.
type recorder struct {
	io.Reader
	err error
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

func newUnpacker(file io.Reader) (*unpacker, error) {
	u := &unpacker{file: recorder{Reader: file}}
	buf := bufio.NewReader(&u.file)
	u.contents = buf
	for _, c := range compressions {
		if magic, _ := buf.Peek(len(c.magic)); !bytes.Equal(magic, []byte(c.magic)) {
			continue
		}
		var err error
		if u.contents, err = c.open(buf); err != nil {
			return nil, fmt.Errorf("begins like a %s file but is not one: %w", c.name, err)
		}
		u.packed = true
		break
	}
	return u, nil
}

func (u *unpacker) Read(p []byte) (int, error) {
	n, err := u.contents.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && u.packed && u.file.err == nil {
		err = damageError{err}
	}
	return n, err
}
