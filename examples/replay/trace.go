package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/text/encoding/unicode"
)

// A request is a request of the log, which counts as n events.
type request struct {
	at  int64 // nanoseconds since the Unix epoch
	key int32 // index into trace.keys
	n   int32 // at least 1
}

// A trace is a log that has been read. It takes 16 bytes for each request, and has each key
// once.
type trace struct {
	source   string    // what was read, for people
	requests []request // by time; those of the same time in the order of the log
	keys     []string  // in the order of the log
	by       keyKind
	format   string // of the log, for people

	lines     int    // of the log, the skipped ones included
	skips     []skip // by count, descending
	late      int    // requests that came after a later one in the log
	lateLine  int    // the line of the first of them
	latest    int64  // the greatest time so far
	total     int64  // events: the sum of all n
	free      bool   // whether a key may be any text, and need not be an address
	names     int    // requests whose client is not an address, if not free
	name      string // the first such client
	nameLine  int    // its line
	weighted  bool   // whether any n is greater than 1
	subsecond bool   // whether any time is not a whole second
	damage    error  // the error that ended a compressed file early, or nil
}

// A skip counts the lines that were left out for one reason.
type skip struct {
	reason skipReason
	count  int
	line   int    // the number of the first of them
	text   string // the text of that line
}

// first and last are the times of the first and the last request.
func (t *trace) first() time.Time { return time.Unix(0, t.requests[0].at).UTC() }
func (t *trace) last() time.Time  { return time.Unix(0, t.requests[len(t.requests)-1].at).UTC() }

// span is the time from the first request to the last.
func (t *trace) span() time.Duration { return t.last().Sub(t.first()) }

// noun returns the word for n events.
func (t *trace) noun(n int) string {
	if t.weighted {
		return plural("event", n)
	}
	return plural("request", n)
}

// keyNoun returns the word for n keys.
func (t *trace) keyNoun(n int) string {
	switch {
	case t.free:
		return plural("key", n)
	case t.by == byPath:
		return plural("path", n)
	case t.by == byIPPath && t.names > 0:
		return plural("pair", n) + " of client and path"
	case t.names > 0:
		return plural("client", n)
	case t.by == byIPPath:
		return plural("pair", n) + " of address and path"
	}
	if n == 1 {
		return "address"
	}
	return "addresses"
}

// readTrace reads a log, compressed or not.
func readTrace(r io.Reader, source string, o readOptions) (*trace, error) {
	contents, err := newUnpacker(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	buf := bufio.NewReaderSize(contents, maxLine)
	bom, _ := buf.Peek(3)
	switch {
	case bytes.HasPrefix(bom, []byte("\ufeff")):
		buf.Discard(3)
	case bytes.HasPrefix(bom, []byte{0xff, 0xfe}) || bytes.HasPrefix(bom, []byte{0xfe, 0xff}):
		utf16 := unicode.UTF16(unicode.LittleEndian, unicode.ExpectBOM)
		buf = bufio.NewReaderSize(utf16.NewDecoder().Reader(buf), maxLine)
	}

	l := newLoader(source, o)
	for {
		line, err := readLine(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.As(err, new(damageError)) {
			l.trace.damage = err // the incomplete last line is left out
			break
		}
		l.trace.lines++
		switch {
		case err == nil:
			l.line(heldLine{l.trace.lines, line})
		case errors.Is(err, skipTooLong):
			l.skip(skipTooLong, heldLine{l.trace.lines, nil})
		default:
			return nil, fmt.Errorf("%s: line %d: %w", source, l.trace.lines, err)
		}
	}
	if err := l.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return l.trace, nil
}

// maxLine is the length from which on a line is too long.
const maxLine = 1 << 20

// readLine returns the next line without its line break, valid until the next call. The
// error is io.EOF after the last line, skipTooLong, or the reader's.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = skipTooLong
		}
		return nil, err
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return bytes.TrimSuffix(line, []byte{'\n'}), err
}
